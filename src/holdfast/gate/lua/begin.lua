-- Begins a new generation of an event: what Redis held of it so far counts for nothing. The new state has no `at`, so the
-- event is asleep until the journal has been followed.
--
-- KEYS: the event's state, and the commits that are ahead
-- ARGV: for how many milliseconds Redis keeps it; its fields and their values

redis.call('DEL', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return redis.call('PEXPIRE', KEYS[1], ARGV[1])
