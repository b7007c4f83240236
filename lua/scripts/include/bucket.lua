-- The machine of core/src/rate_limit.rs, line beside line. Every number stays within 2^53, so doubles are exact.
local MAX_UNITS = 4503599627370496 -- 2^52: capacity minus debt still is exact
local MAX_BACKSTEP = 1000000
local REPAIRED, OTHER_RATE = 1, 2

-- A level by another rate: whole permits stay exactly, of a fraction something is lost, never minted.
local function convert(level, old_price, price, capacity)
  local whole = math.floor(level / old_price)
  local part = level - whole * old_price
  level = whole * price + math.max(0, math.floor(part / old_price * price) - 1)
  return math.max(-MAX_UNITS, math.min(level, capacity))
end

-- The bucket now, by this rate: level, at, flags, whether it must be written in any case, and the rate it is stored by.
-- (In one piece: this is the hottest script, and each function would be made anew at each call.)
local function load_bucket(now, rate, gain, price, capacity)
  local text = redis.pcall('GET', KEYS[1])
  if not text then return capacity, now, 0, false end
  local level, at, stored
  if type(text) == 'string' then level, at, stored = string.match(text, '^1 (%-?%d+) (%d+) (%d+ %d+ %d+)$') end
  level, at = tonumber(level), tonumber(at)
  local old_gain, old_price, old_capacity = gain, price, capacity
  if level and stored ~= rate then
    old_gain, old_price, old_capacity = string.match(stored, '^(%d+) (%d+) (%d+)$')
    old_gain, old_price, old_capacity = tonumber(old_gain), tonumber(old_price), tonumber(old_capacity)
    local sane = old_gain >= 1 and old_gain <= 2 * MAX_UNITS and old_price >= 1 and old_price <= 2 * MAX_UNITS
    if not sane or old_capacity > MAX_UNITS then level = nil end
  end
  -- Spoilt: empty, not full, because whoever can spoil a key must not win a burst by it.
  if not level or level > old_capacity or level < -MAX_UNITS or at > 2 * MAX_UNITS then
    return 0, now, REPAIRED, true, rate
  end
  -- A clock that steps back by little stands still; by more, and the bucket is anchored anew. Neither mints.
  local anew = at - now > MAX_BACKSTEP
  if now >= at then level = level + math.min((now - at) * old_gain, old_capacity - level) end
  if now >= at or anew then at = now end
  if stored == rate then return level, at, 0, anew, stored end
  return convert(level, old_price, price, capacity), at, OTHER_RATE, anew, stored
end

-- Kept for twice the time in which it fills up: a key that is gone is a full bucket, so it must be one by then.
local function save_bucket(now, level, at, rate, gain, capacity)
  local ttl = math.ceil(((capacity - level) / gain + at - now) / 500) + 1000
  redis.call('SET', KEYS[1], string.format('1 %.0f %.0f %s', level, at, rate), 'PX', ttl)
end
