-- Checks hold requests for one event: refuses those whose seats somebody else has, and marks the seats of the others as
-- pending, all or none.
--
-- It refuses only while the copy of the event is current. It lets everyone through who has a booking, or whom it
-- has just let through, because they may be retrying or have reached a limit, and only the engine can tell.
--
-- KEYS: the event's state, its known buyers, the buyers let through in the current time window and in the previous one,
--       and the seats that the requests name
-- ARGV: the database's time; the deadline of pending entries, and their TTL in milliseconds; the earliest and latest
--       `at` of a current copy; the labels of the seats and the requests, both as JSON; the TTL of the buyers that were
--       let through, in milliseconds
-- Answers with JSON: the revision of the event's layout, and for each request `false` (let it through), the labels of
-- the seats that are taken, or the number of units left in a pool that has too few.

local now, pending_until, pending_ms, current_since, current_until = unpack(ARGV)
local labels, requests = cjson.decode(ARGV[6]), cjson.decode(ARGV[7])
local keys = {}
for number, label in ipairs(labels) do keys[label] = KEYS[number + 4] end

-- Fail here if the server cannot write. Otherwise its copy would soon be stale, and nobody would notice.
if redis.call('SADD', KEYS[3], 'first') == 1 then redis.call('PEXPIRE', KEYS[3], ARGV[8]) end

local generation, at, known_secret, revision, next_expiry =
    unpack(redis.call('HMGET', KEYS[1], 'generation', 'at', 'secret', 'revision', 'next_expiry'))
generation = generation or ''
local is_event_current = at and at >= current_since and at <= current_until
    and redis.call('SISMEMBER', KEYS[2], 'complete:' .. generation) == 1

local entries = {}

local function find_entry(key)
    if not entries[key] then
        local value = redis.call('GET', key)
        local is_valid, entry = pcall(cjson.decode, value or '')
        local is_known = value and is_valid and entry.generation == generation
        entries[key] = is_known and entry or {state = 'free', version = 0}
    end
    return entries[key]
end

local function is_live(entry)
    return entry.state ~= 'free' and (entry.expires_at == cjson.null or entry.expires_at > now)
end

local function is_known(ids)
    for number = 2, 4 do
        for _, found in ipairs(redis.call('SMISMEMBER', KEYS[number], unpack(ids))) do
            if found == 1 then return true end
        end
    end
    return false
end

local function mark_pending(request)
    for _, label in ipairs(request.labels) do
        local entry = {
            user_id = request.user, booking = request.booking, state = 'pending', held_at = now,
            expires_at = pending_until, version = find_entry(keys[label]).version, generation = generation
        }
        redis.call('SET', keys[label], cjson.encode(entry), 'PX', pending_ms)
        entries[keys[label]] = entry
    end
end

local function decide(request)
    local taken = {}
    local is_current = is_event_current and request.secret == tonumber(known_secret)
    for _, label in ipairs(request.labels) do
        local entry = find_entry(keys[label])
        if is_live(entry) then
            if entry.user_id == request.user then return false end
            taken[#taken + 1] = label
        end
    end
    if is_known(request.ids) then return false end
    if is_current and #taken > 0 then return taken end
    if is_current and request.pool ~= cjson.null and (not next_expiry or next_expiry > now) then
        local left = tonumber(string.match(redis.call('HGET', KEYS[1], 'pool:' .. request.pool) or '', '^(%d+)@'))
        if left and left < request.quantity then return left end
    end
    if #taken == 0 then mark_pending(request) end
    redis.call('SADD', KEYS[3], unpack(request.ids))
    return false
end

local answers = {}
for number, request in ipairs(requests) do answers[number] = decide(request) end
return cjson.encode({revision = tonumber(revision) or -1, answers = answers})
