-- The token bucket of core/src/rate_limit.rs, in the same order. All numbers stay below 2^53, so doubles are exact.
--
-- Stored: '2 level at gain price capacity', and behind that the tail: eight sums of leased permits, 'from units' of the
-- abandoned places (core/src/rate_limit/refund.rs), and whatever a later release appends, which is kept as it is.
--
-- A leased permit has left the level and is not yet spent, so the refill leaves room for it: level + leased is at most
-- the capacity. It ends with a slot. Slots are a seventh of a lease long and numbered from the clock's zero, so that at
-- most eight are alive at a time; each is in the sum of its number modulo eight.
local MAX_UNITS = 4503599627370496 -- 2^52: capacity minus debt is still exact
local MAX_BACKSTEP, MAX_LEASE, MAX_TEXT, LEASE_SLOTS = 1000000, 200000, 4096, 8
local REPAIRED, OTHER_RATE = 1, 2
local EMPTY = ' 0 0 0 0 0 0 0 0 0 0'
local FRESH = EMPTY -- of a new bucket

-- Converts a level to another rate. Whole permits are exact; fractions are rounded down, so that nothing is minted.
local function convert(level, old_price, price, capacity)
  local whole = math.floor(level / old_price)
  local part = level - whole * old_price
  level = whole * price + math.max(0, math.floor(part / old_price * price) - 1)
  return math.max(-MAX_UNITS, math.min(level, capacity))
end

-- Reads a tail: its ten numbers, and the text behind them; nil if it is none.
local function parse_tail(tail)
  local numbers, last = {}, 0
  for i = 1, LEASE_SLOTS + 2 do
    local _, stop, number = string.find(tail, '^ (%d+)', last + 1)
    if not number then return end
    numbers[i], last = math.min(tonumber(number), MAX_UNITS), stop
  end
  local rest = string.sub(tail, last + 1)
  if rest == '' or string.find(rest, '^ ') then return numbers, rest end
end

local function format_tail(numbers, rest)
  return string.format(string.rep(' %.0f', LEASE_SLOTS + 2), unpack(numbers)) .. rest
end

-- The length of a lease slot in microseconds: a lease lasts seven of them.
local function lease_slot(gain, capacity)
  return math.max(1, math.floor(math.min(MAX_LEASE, capacity / (8 * gain)) / 7))
end

-- Refills a bucket with a tail of its own: the level and the tail at the time `to`, and the leased permits then. Each
-- lease that ends makes room from its end on, and not before.
local function refill_with_tail(level, at, to, numbers, gain, price, capacity)
  local before, slot, leased = level, lease_slot(gain, capacity), 0
  for i = 1, LEASE_SLOTS do leased = math.min(leased + numbers[i], MAX_UNITS) end
  local first = math.floor(at / slot)
  for number = first, first + LEASE_SLOTS do
    -- The last pass has no slot of its own: it is the time after all of them.
    local stop = number < first + LEASE_SLOTS and math.min((number + 1) * slot, to) or to
    local room = capacity - math.min(leased * price, 2 * MAX_UNITS) - level
    level = level + math.max(0, math.min((stop - at) * gain, room))
    at = stop
    if number < first + LEASE_SLOTS and (number + 1) * slot <= to then
      local i = number % LEASE_SLOTS + 1
      leased, numbers[i] = math.max(0, leased - numbers[i]), 0
    end
    if at >= to then break end
  end
  -- The queue has moved: of the abandoned places, as many as can be were reached.
  local from, units, gained = numbers[LEASE_SLOTS + 1], numbers[LEASE_SLOTS + 2], level - before
  units = level < 0 and math.max(0, units - math.max(0, gained - from)) or 0
  from = units > 0 and math.max(0, from - gained) or 0
  numbers[LEASE_SLOTS + 1], numbers[LEASE_SLOTS + 2] = from, units
  return level, leased
end

-- Loads the bucket at this rate: level, at, flags, whether it must be written in any case, the tail, the stored rate.
-- (One function: these are the hottest scripts, and Lua creates every local function anew at each call.)
local function load_bucket(now, rate, gain, price, capacity)
  local text = read_value(KEYS[1], MAX_TEXT)
  if not text then return capacity, now, 0, false, FRESH end
  local level, at, stored, tail
  if type(text) == 'string' and #text <= MAX_TEXT then
    level, at, stored, tail = string.match(text, '^2 (%-?%d+) (%d+) (%d+ %d+ %d+)(.*)$')
  end
  level, at = tonumber(level), tonumber(at)
  local old_gain, old_price, old_capacity = gain, price, capacity
  if level and stored ~= rate then
    old_gain, old_price, old_capacity = string.match(stored, '^(%d+) (%d+) (%d+)$')
    old_gain, old_price, old_capacity = tonumber(old_gain), tonumber(old_price), tonumber(old_capacity)
    local sane = old_gain >= 1 and old_gain <= 2 * MAX_UNITS and old_price >= 1 and old_price <= 2 * MAX_UNITS
    if not sane or old_capacity > MAX_UNITS then level = nil end
  end
  local numbers, rest
  if level and tail ~= EMPTY then
    numbers, rest = parse_tail(tail)
    if not numbers then level = nil end
  end
  -- Corrupt: empty, not full, so that corrupting a key does not win a burst.
  if not level or level > old_capacity or level < -MAX_UNITS or at > 2 * MAX_UNITS then
    return 0, now, REPAIRED, true, FRESH, rate
  end
  -- If the clock stepped back by up to MAX_BACKSTEP, time stands still; if by more, the bucket continues from now.
  -- Neither mints permits.
  local anew, leased = at - now > MAX_BACKSTEP, 0
  if numbers then
    level, leased = refill_with_tail(level, at, math.max(now, at), numbers, old_gain, old_price, old_capacity)
  elseif now >= at then
    level = level + math.min((now - at) * old_gain, old_capacity - level)
  end
  if now >= at or anew then at = now end
  if stored ~= rate then
    level = math.min(convert(level, old_price, price, capacity), capacity - math.min(leased * price, 2 * MAX_UNITS))
    level = math.max(level, -MAX_UNITS)
    if numbers then numbers[LEASE_SLOTS + 1], numbers[LEASE_SLOTS + 2] = 0, 0 end
  end
  if leased > 0 and (anew or stored ~= rate) then
    -- The slots have other times now: all leases end with the last that a new one could be in.
    for i = 1, LEASE_SLOTS do numbers[i] = 0 end
    numbers[(math.floor(at / lease_slot(gain, capacity)) + 7) % LEASE_SLOTS + 1] = leased
  end
  if numbers then tail = format_tail(numbers, rest) end
  return level, at, stored == rate and 0 or OTHER_RATE, anew, tail, stored
end

-- The TTL is twice the time to full: a missing key counts as a full bucket, so it must be full when it expires.
local function save_bucket(now, level, at, rate, gain, capacity, tail)
  local ttl = math.ceil(((capacity - level) / gain + at - now) / 500) + 1000
  redis.call('SET', KEYS[1], string.format('2 %.0f %.0f %s', level, at, rate) .. tail, 'PX', ttl)
end
