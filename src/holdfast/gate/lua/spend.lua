-- Takes tokens out of buckets that all processes share. A bucket may go into debt by up to its capacity, because the
-- processes have already served the requests.
--
-- KEYS: the buckets
-- ARGV: tokens per second, the capacity of a bucket, the TTL of a bucket in milliseconds, and the tokens to take out of
--       each
-- Answers with what is left in each bucket.

local rate, burst, keep_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local seconds, microseconds = unpack(redis.call('TIME'))
local now = seconds + microseconds / 1e6
local left = {}
for number, key in ipairs(KEYS) do
    local tokens, at = unpack(redis.call('HMGET', key, 'tokens', 'at'))
    tokens = math.min(burst, (tonumber(tokens) or burst) + math.max(now - (tonumber(at) or now), 0) * rate)
    tokens = math.max(tokens - tonumber(ARGV[3 + number]), -burst)
    redis.call('HSET', key, 'tokens', tokens, 'at', string.format('%.6f', now))
    redis.call('PEXPIRE', key, keep_ms)
    left[number] = string.format('%.6f', tokens)
end
return left
