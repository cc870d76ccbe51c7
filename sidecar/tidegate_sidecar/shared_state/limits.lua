-- One operation on the rate limits of one tenant; atomic, and harmless when sent again.
--
-- KEYS[1]  the hold: what one request has reserved, as "tokens slice slice ...", one slice for each
--          of its limits; "x" once nothing may be reserved under this name any more.
-- KEYS[n]  the counters of its limits: hashes of "r<slice>" (requests) and "t<slice>" (tokens).
-- ARGV[1]  the operation, then its arguments:
--   reserve  tokens, and for each limit: window, most requests, most tokens (-1: not limited)
--            -> {1 or 0 (refused), and for each limit: requests and tokens taken, ms to wait}
--   top_up   tokens: so many by now, where that is more than is held
--   settle   tokens: it ended and took so many
--   release  it ended and took nothing
--   forget   as if it had never been, and it never will be
--   add      for each limit: window, slice, requests, tokens; what a pod counted by itself
--
-- Windows are those of tidegate/scheduling: Minute and Hour roll in slices of a 60th, each counting
-- until a whole window has passed since its end; Day and Month are of the calendar in UTC.
local SLICES = 60
local SLICE_SECONDS = {Minute = 1, Hour = 60}
local DAY = 86400
local HOLD_SECONDS = DAY

local hold = KEYS[1]

local function text(number) return string.format('%.0f', number) end

-- Months since year 0 of a day since the epoch (Hinnant, "chrono-compatible low-level date algorithms").
local function month(day)
  local shifted = day + 719468
  local era = math.floor(shifted / 146097)
  local of_era = shifted - era * 146097
  local year = math.floor((of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524)
    - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local from_march = math.floor((5 * of_year + 2) / 153)
  return (year + era * 400) * 12 + from_march + 2
end

-- The slice that counts now, and when it ends.
local function calendar(per, now)
  local day = math.floor(now / DAY)
  if per == 'Day' then return day, (day + 1) * DAY end
  local current, last = month(day), day
  while month(last + 1) == current do last = last + 1 end
  return current, (last + 1) * DAY
end

local function window(key, per, now)
  local seconds = SLICE_SECONDS[per]
  local w = {key = key, seconds = seconds, r = 0, t = 0, slices = {}, order = {}, stale = {}}
  if seconds then
    w.current = math.floor(now / seconds)
    w.oldest = w.current - SLICES
    w.expire = 2 * SLICES * seconds
  else
    w.current, w.ends = calendar(per, now)
    w.oldest = w.current - 1
    w.expire = math.ceil(w.ends - now) + DAY
  end
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local kind, slice = string.sub(fields[i], 1, 1), tonumber(string.sub(fields[i], 2))
    if slice < w.oldest then
      table.insert(w.stale, fields[i])
    elseif seconds or slice == w.current then
      local part = w.slices[slice]
      if not part then
        part = {r = 0, t = 0}
        w.slices[slice] = part
        table.insert(w.order, slice)
      end
      part[kind] = tonumber(fields[i + 1])
      w[kind] = w[kind] + part[kind]
    end
  end
  table.sort(w.order)
  return w
end

-- Seconds until no more than these count, if nothing is taken meanwhile.
local function wait(w, requests, tokens, now)
  if w.r <= requests and w.t <= tokens then return 0 end
  if w.ends then return w.ends - now end
  local r, t, leaves = w.r, w.t, now
  for _, slice in ipairs(w.order) do
    if r <= requests and t <= tokens then break end
    r, t = r - w.slices[slice].r, t - w.slices[slice].t
    leaves = (slice + 1 + SLICES) * w.seconds
  end
  return leaves - now
end

local function count(key, slice, requests, tokens, expire)
  redis.call('HINCRBY', key, 'r' .. slice, text(requests))
  redis.call('HINCRBY', key, 't' .. slice, text(tokens))
  if expire then redis.call('EXPIRE', key, text(expire)) end
end

local function most(argument)
  local number = tonumber(argument)
  return number < 0 and math.huge or number
end

local function reserve(now)
  if redis.call('EXISTS', hold) == 1 then return {0} end
  local tokens, windows, answer, refused = tonumber(ARGV[2]), {}, {1}, false
  for i = 2, #KEYS do
    local at = 3 * (i - 1)
    local w = window(KEYS[i], ARGV[at], now)
    w.wait = wait(w, most(ARGV[at + 1]) - 1, most(ARGV[at + 2]) - tokens, now)
    refused = refused or w.wait > 0
    table.insert(windows, w)
  end
  local held = {text(tokens)}
  for _, w in ipairs(windows) do
    if not refused then
      -- The first write is one that a full server refuses: never half of it is done.
      count(w.key, text(w.current), 1, tokens, w.expire)
      table.insert(held, text(w.current))
      w.r, w.t = w.r + 1, w.t + tokens
      if #w.stale > 0 then redis.call('HDEL', w.key, unpack(w.stale)) end
    end
    table.insert(answer, w.r)
    table.insert(answer, w.t)
    table.insert(answer, math.ceil(w.wait * 1000))
  end
  if refused then
    answer[1] = 0
  else
    redis.call('SET', hold, table.concat(held, ' '), 'EX', HOLD_SECONDS)
  end
  return answer
end

-- Change what is held, in the slices in which it was reserved; 0: nothing is.
local function change(requests, tokens, only_more)
  local value = redis.call('GET', hold)
  if not value or value == 'x' then return 0 end
  local held = {}
  for part in string.gmatch(value, '%S+') do table.insert(held, part) end
  local more = tokens - tonumber(held[1])
  if only_more and more <= 0 then return 0 end
  for i = 2, #KEYS do
    if redis.call('HEXISTS', KEYS[i], 'r' .. held[i]) == 1 then
      count(KEYS[i], held[i], requests, more)
    end
  end
  held[1] = text(tokens)
  redis.call('SET', hold, table.concat(held, ' '), 'EX', HOLD_SECONDS)
  return 1
end

local function add(now)
  if not redis.call('SET', hold, 'x', 'NX', 'EX', HOLD_SECONDS) then return 0 end
  for i = 2, #KEYS do
    local at = 4 * i - 6
    local w = window(KEYS[i], ARGV[at], now)
    if tonumber(ARGV[at + 1]) >= w.oldest then
      count(KEYS[i], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), w.expire)
    end
  end
  return 1
end

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local operation = ARGV[1]

if operation == 'reserve' then return reserve(now) end
if operation == 'top_up' then return change(0, tonumber(ARGV[2]), true) end
if operation == 'add' then return add(now) end
local done
if operation == 'settle' then
  done = change(0, tonumber(ARGV[2]))
elseif operation == 'release' or operation == 'forget' then
  done = change(-1, 0)
else
  return redis.error_reply('ERR unknown operation')
end
if operation == 'forget' then
  redis.call('SET', hold, 'x', 'EX', HOLD_SECONDS)
else
  redis.call('DEL', hold)
end
return done
