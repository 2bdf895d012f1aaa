-- Applies changes to seats: promotes pending entries to held or sold, extends them, and releases them. A release only
-- touches the entry of its own booking or an older one, and no change overwrites a newer entry: a released seat leaves
-- a tombstone for a while, which keeps the version.
--
-- Several processes sell an event, so commits arrive in any order. One that arrives before its predecessor waits in
-- `ahead`; the version advances once there is no gap. A message about a version that Redis has already passed is late,
-- perhaps because its process was paused, and must not bring an old entry back.
--
-- During a build, the version does not advance, so that replaying the journal from there corrects whatever the builder
-- read too early.
--
-- Unit counts of pools apply only up to the first gap: the missing commit may be the very booking whose buyer is
-- retrying.
--
-- KEYS: the event's state, its known buyers, the commits that are ahead, and the seats that changed
-- ARGV: the change as JSON, as `gate.entries.Change` describes it; the TTL of the first three keys in milliseconds; and
--       how many commits may be ahead
-- Answers 1, or 0 if the change does not fit the state in Redis.

local change = cjson.decode(ARGV[1])
local generation, version, at, next_expiry, secret =
    unpack(redis.call('HMGET', KEYS[1], 'generation', 'version', 'at', 'next_expiry', 'secret'))
generation, version = generation or '', tonumber(version)
if change.generation ~= cjson.null and change.generation ~= generation then return 0 end
if change.is_followed and version ~= change.after then return 0 end
if secret and tonumber(secret) ~= change.secret then return 0 end

local is_built = redis.call('SISMEMBER', KEYS[2], 'complete:' .. generation) == 1

-- A claim without a version releases pending entries, which come from no journal.
local function is_late(claim)
    return is_built and version and claim.version > 0 and claim.version <= version
end

local function write_seat(claim, key)
    local value = redis.call('GET', key)
    local is_valid, entry = pcall(cjson.decode, value or '')
    if not (value and is_valid and entry.generation == generation) then entry = {version = 0} end
    local is_newer = entry.version <= claim.version
    if claim.state == 'free' then
        is_newer = entry.booking == claim.booking or (is_newer and entry.state ~= 'pending')
    end
    if is_newer then
        redis.call('SET', key, cjson.encode({
            user_id = claim.user_id, booking = claim.booking, state = claim.state, held_at = claim.held_at,
            expires_at = claim.expires_at, version = math.max(claim.version, entry.version), generation = generation
        }), 'PX', claim.keep_ms)
    end
end

local function write_pools(pools, pools_version)
    for pool, left in pairs(pools) do
        local field = 'pool:' .. pool
        local known = tonumber(string.match(redis.call('HGET', KEYS[1], field) or '', '@(%d+)$')) or -1
        if known < pools_version then
            redis.call('HSET', KEYS[1], field, string.format('%d@%d', left, pools_version))
        end
    end
end

-- Advances the version past a commit, and past those that were waiting for it. Without `at`, the event is asleep, and
-- only a follower wakes it up.
local function move_past(commit)
    while commit do
        version = commit.version
        write_pools(commit.pools, commit.pools_version)
        if at and at < commit.now then at = commit.now end
        local waiting = redis.call('HGET', KEYS[3], version)
        redis.call('HDEL', KEYS[3], version)
        commit = waiting and cjson.decode(waiting)
    end
    redis.call('HSET', KEYS[1], 'version', version)
    if at then redis.call('HSET', KEYS[1], 'at', at) end
end

local is_commit = change.version >= 0 and not change.is_followed

-- This commit is newer than the copy, but reuses a version that the copy already has: the database lost commits in a
-- failover, and continued from an earlier version. Force a rebuild.
if is_built and is_commit and at and change.version <= version and change.now > at then
    redis.call('HDEL', KEYS[1], 'generation')
    return 0
end

for _, claim in ipairs(change.claims) do
    if not is_late(claim) then
        for _, number in ipairs(claim.keys) do write_seat(claim, KEYS[number]) end
    end
end
if #change.ids > 0 then redis.call('SADD', KEYS[2], unpack(change.ids)) end

if version then
    local commit = {version = change.version, now = change.now, pools = change.pools, pools_version = change.pools_version}
    if change.is_followed then
        redis.call('HSET', KEYS[1], 'revision', change.revision)
        redis.call('HDEL', KEYS[1], 'next_expiry')
        next_expiry = nil
        -- A step that is not the last one leaves the event as old as it was.
        if change.is_complete then at = change.now else commit.now = '' end
        move_past(commit)
        redis.call('DEL', KEYS[3])
    elseif is_built and is_commit and change.after == version then
        move_past(commit)
    elseif is_built and is_commit and change.after > version and redis.call('HLEN', KEYS[3]) < tonumber(ARGV[3]) then
        redis.call('HSET', KEYS[3], change.after, cjson.encode(commit))
    end
    if change.next_expiry ~= cjson.null and (not next_expiry or change.next_expiry < next_expiry) then
        redis.call('HSET', KEYS[1], 'next_expiry', change.next_expiry)
    end
end
for number = 1, 3 do redis.call('PEXPIRE', KEYS[number], ARGV[2]) end
return 1
