-- The requests of wrk. Arguments: kind, key, a file with one path per line, the number of rows with 100 seats each, and
-- the milliseconds that a buyer thinks on average.
local kind, key, paths, rows, think_ms, number, held_bookings = "", "", {}, 0, 0, 0, {}

function init(args)
  kind, key, rows, think_ms = args[1], args[2], tonumber(args[4]), tonumber(args[5])
  for line in io.lines(args[3]) do paths[#paths + 1] = line end
  math.randomseed(os.time())
  run = tostring(os.time()) .. tostring(math.random(1e9))
end

local function post(path, body)
  return "POST " .. path .. " HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer " .. key
    .. "\r\nIdempotency-Key: " .. run .. number .. "\r\nContent-Type: application/json\r\nContent-Length: "
    .. #body .. "\r\n\r\n" .. body
end

function request()
  number = number + 1
  if kind == "bare" then
    return "POST " .. paths[1] .. " HTTP/1.1\r\nHost: bench\r\nContent-Length: 0\r\n\r\n"
  end
  if #held_bookings > 0 then
    return post("/v1/bookings/" .. table.remove(held_bookings) .. "/confirm", "")
  end
  local path = paths[math.random(#paths)]
  local user = '{"user":"u' .. run .. number .. '",'
  if kind == "best" then
    return post(path, user .. '"best_available":{"pool":"places","quantity":2}}')
  end
  user = user .. '"items":['
  if kind == "seat" then
    return post(path, user .. '{"seat":"R' .. math.random(rows) .. "-" .. math.random(100) .. '"}]}')
  end
  if kind == "pairs" then
    local row, place = math.random(rows), math.random(50) * 2 - 1
    return post(path, user .. '{"seat":"R' .. row .. "-" .. place .. '"},{"seat":"R' .. row .. "-" .. (place + 1) .. '"}]}')
  end
  return post(path, user .. '{"pool":"places","quantity":1}]}')
end

if os.getenv("BENCH_CONFIRM") then
  function response(status, headers, body)
    local id = body:match('"id":"(bk_[^"]+)".-"status":"held"')
    if id then held_bookings[#held_bookings + 1] = id end
  end
end

function delay()
  return think_ms > 0 and math.random(2 * think_ms) or 0
end

function done(summary, latency, requests)
  io.write(string.format(
    '\nRESULT {"requests": %d, "refused": %d, "broken": %d, "seconds": %f, "p50": %f, "p95": %f, "p99": %f}\n',
    summary.requests, summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(95) / 1e3, latency:percentile(99) / 1e3))
end
