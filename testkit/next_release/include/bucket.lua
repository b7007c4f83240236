-- The token bucket of core/src/rate_limit.rs, in the same order. All numbers stay below 2^53, so doubles are exact.
local MAX_UNITS = 4503599627370496 -- 2^52: capacity minus debt is still exact
local MAX_BACKSTEP = 1000000
local REPAIRED, OTHER_RATE = 1, 2

-- Converts a level to another rate. Whole permits are exact; fractions are rounded down, so that nothing is minted.
local function convert(level, old_price, price, capacity)
  local whole = math.floor(level / old_price)
  local part = level - whole * old_price
  level = whole * price + math.max(0, math.floor(part / old_price * price) - 1)
  return math.max(-MAX_UNITS, math.min(level, capacity))
end

-- Loads the bucket at this rate: level, at, flags, whether it must be written in any case, and the stored rate.
-- (One function: these are the hottest scripts, and Lua creates every local function anew at each call.)
local function load_bucket(now, rate, gain, price, capacity)
  local text = read_value(KEYS[1], 4096)
  if not text then return capacity, now, 0, false end
  local level, at, stored
  if type(text) == 'string' then level, at, stored = string.match(text, '^1 (%-?%d+) (%d+) (%d+ %d+ %d+)') end
  level, at = tonumber(level), tonumber(at)
  local old_gain, old_price, old_capacity = gain, price, capacity
  if level and stored ~= rate then
    old_gain, old_price, old_capacity = string.match(stored, '^(%d+) (%d+) (%d+)$')
    old_gain, old_price, old_capacity = tonumber(old_gain), tonumber(old_price), tonumber(old_capacity)
    local sane = old_gain >= 1 and old_gain <= 2 * MAX_UNITS and old_price >= 1 and old_price <= 2 * MAX_UNITS
    if not sane or old_capacity > MAX_UNITS then level = nil end
  end
  -- Corrupt: empty, not full, so that corrupting a key does not win a burst.
  if not level or level > old_capacity or level < -MAX_UNITS or at > 2 * MAX_UNITS then
    return 0, now, REPAIRED, true, rate
  end
  -- If the clock stepped back by up to MAX_BACKSTEP, time stands still; if by more, the bucket continues from now.
  -- Neither mints permits.
  local anew = at - now > MAX_BACKSTEP
  if now >= at then level = level + math.min((now - at) * old_gain, old_capacity - level) end
  if now >= at or anew then at = now end
  if stored == rate then return level, at, 0, anew, stored end
  return convert(level, old_price, price, capacity), at, OTHER_RATE, anew, stored
end

-- The TTL is twice the time to full: a missing key counts as a full bucket, so it must be full when it expires.
local function save_bucket(now, level, at, rate, gain, capacity)
  local ttl = math.ceil(((capacity - level) / gain + at - now) / 500) + 1000
  redis.call('SET', KEYS[1], string.format('1 %.0f %.0f %s 7', level, at, rate), 'PX', ttl)
end
