-- Tries every command that the other scripts use, and the one with which a process leases the rebuild of an event.
--
-- KEYS: a string, a hash and a set that nobody else uses. The script deletes them.
-- Answers with the commands that failed and their errors, in turns.

local text, hash, set = KEYS[1], KEYS[2], KEYS[3]
local failed = {}

local function try(command, ...)
    local reply = redis.pcall(command, ...)
    if type(reply) == 'table' and reply.err then
        failed[#failed + 1] = command
        failed[#failed + 1] = reply.err
    end
end

try('TIME')
try('SET', text, '1', 'NX', 'EX', 5)
try('GET', text)
try('EXPIRE', text, 5)
try('HSET', hash, 'a', '1')
try('PEXPIRE', hash, 5000)
try('HGET', hash, 'a')
try('HMGET', hash, 'a', 'b')
try('HLEN', hash)
try('HDEL', hash, 'a')
try('SADD', set, '1')
try('PEXPIRE', set, 5000)
try('SISMEMBER', set, '1')
try('SMISMEMBER', set, '1', '2')
try('SREM', set, '1')
try('DEL', text, hash, set)
return failed
