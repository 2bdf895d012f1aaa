-- Begins a new generation of an event, which invalidates the old entries. The new state has no `at`, so the event is
-- asleep until a follower has caught up with the journal.
--
-- KEYS: the event's state, and the commits that are ahead
-- ARGV: the TTL of the state in milliseconds; its fields and their values

redis.call('DEL', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return redis.call('PEXPIRE', KEYS[1], ARGV[1])
