-- Completes a generation of an event if Redis still has every part of the build. A failover or an eviction may have
-- lost one, and then nobody would know which buyers are missing.
--
-- KEYS: the event's known buyers, and the lease for building it
-- ARGV: the generation, and the number of calls that wrote it; each has left a mark among the known buyers
-- Answers 1, or 0 if something is missing.

local generation = ARGV[1]
for number = 1, tonumber(ARGV[2]) do
    if redis.call('SREM', KEYS[1], 'part:' .. generation .. ':' .. number) == 0 then return 0 end
end
redis.call('SADD', KEYS[1], 'complete:' .. generation)
if redis.call('GET', KEYS[2]) == generation then redis.call('DEL', KEYS[2]) end
return 1
