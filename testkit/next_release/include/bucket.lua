-- The token bucket of core/src/rate_limit.rs, in the same order. All numbers stay below 2^53, so doubles are exact.
--
-- Stored: '2 level at gain price capacity', and behind that the tail: eight sums of leased permits, 'from units' of the
-- abandoned places (core/src/rate_limit/refund.rs), the length of a slot of leases, the end of a pause of draws, the
-- debt (units at the end of the queue for which no caller waits), and whatever a later release appends, which is kept
-- as it is. Slot and pause may be missing, and so may the debt.
--
-- A leased permit has left the level and is not yet spent, so the refill leaves room for it: level + leased is at most
-- the capacity. It ends with a slot. Slots are a seventh of a lease long and numbered from the clock's zero, so that at
-- most eight are alive at a time; each is in the sum of its number modulo eight (core/src/rate_limit/leases.rs).
local MAX_UNITS = 4503599627370496 -- 2^52: capacity minus debt is still exact
local MAX_BACKSTEP, MAX_LEASE, MAX_TEXT, LEASE_SLOTS = 1000000, 200000, 4096, 8
local MOST = '4096' -- MAX_TEXT
local FROM, UNITS, SLOT, PAUSE, DEBT = 9, 10, 11, 12, 13 -- in the tail, behind the sums
local REPAIRED, OTHER_RATE = 1, 2
local EMPTY = ' 0 0 0 0 0 0 0 0 0 0 0 0'
local FRESH = EMPTY .. ' 0 7' -- of a new bucket

-- Converts a level to another rate. Whole permits are exact; fractions are rounded down, so that nothing is minted.
local function convert(level, old_price, price, capacity)
  local whole = math.floor(level / old_price)
  local part = level - whole * old_price
  level = whole * price + math.max(0, math.floor(part / old_price * price) - 1)
  return math.max(-MAX_UNITS, math.min(level, capacity))
end

-- The length of a slot of leases in microseconds: a lease lasts seven of them.
local function lease_slot(gain, capacity)
  return math.max(1, math.floor(math.min(MAX_LEASE, capacity / (8 * gain)) / 7))
end

-- Reads a tail: its numbers, and the text behind them; nil if it is none.
local function parse_tail(tail)
  local numbers, last = {}, 0
  for i = 1, UNITS do
    local _, stop, number = string.find(tail, '^ (%d+)', last + 1)
    if not number then return end
    numbers[i], last = math.min(tonumber(number), MAX_UNITS), stop
  end
  local debt, more
  local slot, pause, rest = string.match(tail, '^ (%d+) (%d+)(.*)$', last + 1)
  if not slot then slot, pause, rest = 0, 0, string.sub(tail, last + 1)
  else debt, more = string.match(rest, '^ (%d+)(.*)$') end
  if debt then rest = more end
  numbers[SLOT], numbers[PAUSE] = math.min(tonumber(slot), MAX_LEASE), tonumber(pause)
  numbers[DEBT] = math.min(tonumber(debt or 0), MAX_UNITS)
  if rest == '' or string.find(rest, '^ ') then return numbers, rest end
end

local function format_tail(numbers, rest)
  -- Without a debt and anything behind it, it is missing, so that an idle tail is EMPTY.
  local last = (numbers[DEBT] > 0 or rest ~= '') and DEBT or PAUSE
  return string.format(string.rep(' %.0f', last), unpack(numbers, 1, last)) .. rest
end

-- Adds permits that were charged to a tail: what is below zero of them is a debt.
local function add_debt(tail, units, level)
  local numbers, rest = parse_tail(tail)
  numbers[DEBT] = math.min(numbers[DEBT] + units, math.max(0, -level))
  return format_tail(numbers, rest)
end

local function leased_permits(numbers)
  local leased = 0
  for i = 1, LEASE_SLOTS do leased = math.min(leased + numbers[i], MAX_UNITS) end
  return leased
end

-- Forgets what has no meaning any more at this time.
local function tidy_leases(numbers, at)
  if leased_permits(numbers) == 0 then numbers[SLOT] = 0 end
  -- For two leases after a pause, draws are not paused again.
  if at >= numbers[PAUSE] + 2 * MAX_LEASE then numbers[PAUSE] = 0 end
end

-- Refills a bucket with a tail of its own: the level at the time `to`. Each lease that ends makes room from its end on,
-- and not before.
local function refill_with_tail(level, at, to, numbers, gain, price, capacity)
  local before, slot = level, numbers[SLOT]
  local first = math.floor(at / slot)
  for number = first, first + LEASE_SLOTS do
    -- The last pass has no slot of its own: it is the time after all of them.
    local is_slot = number < first + LEASE_SLOTS
    local stop = is_slot and math.min((number + 1) * slot, to) or to
    local room = capacity - leased_permits(numbers) * price - level
    level = level + math.max(0, math.min((stop - at) * gain, room))
    at = stop
    if is_slot and (number + 1) * slot <= to then numbers[number % LEASE_SLOTS + 1] = 0 end
    if at >= to then break end
  end
  tidy_leases(numbers, to)
  -- The queue has moved: of the abandoned places, as many as can be were reached.
  local from, units, gained = numbers[FROM], numbers[UNITS], level - before
  units = level < 0 and math.max(0, units - math.max(0, gained - from)) or 0
  from = units > 0 and math.max(0, from - gained) or 0
  numbers[FROM], numbers[UNITS] = from, units
  numbers[DEBT] = math.min(numbers[DEBT], math.max(0, -level))
  return level
end

-- Loads the bucket at this rate: level, at, flags, whether it must be written in any case, the tail, the stored rate.
-- (One function: these are the hottest scripts, and Lua creates every local function anew at each call.)
local function load_bucket(now, rate, gain, price, capacity)
  local text = read_value(KEYS[1], MOST)
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
    -- A rate that holds no permit would be kept for ever: it converts to less than one, and a rejection writes nothing.
    local sane = old_gain >= 1 and old_gain <= 2 * MAX_UNITS and old_price >= 1 and old_price <= old_capacity
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
  local anew = at - now > MAX_BACKSTEP
  if numbers then
    -- No script pauses draws for longer.
    if numbers[PAUSE] > at + 2 * MAX_LEASE then numbers[PAUSE] = 0 end
    if numbers[SLOT] == 0 then numbers[SLOT] = lease_slot(old_gain, old_capacity) end
    if anew then
      -- The slots have other times now: all leases end with the last that a new one could be in.
      local leased = 0
      for i = 1, LEASE_SLOTS do leased, numbers[i] = math.min(leased + numbers[i], MAX_UNITS), 0 end
      numbers[(math.floor(now / numbers[SLOT]) + 7) % LEASE_SLOTS + 1] = leased
      numbers[PAUSE], at = 0, now
    end
    level = refill_with_tail(level, at, math.max(now, at), numbers, old_gain, old_price, old_capacity)
  elseif now >= at then
    level = level + math.min((now - at) * old_gain, old_capacity - level)
  end
  if now >= at or anew then at = now end
  if stored ~= rate then
    local only_debt = numbers and numbers[DEBT] > 0 and numbers[DEBT] == -level
    level = convert(level, old_price, price, capacity)
    if numbers then
      level = math.max(math.min(level, capacity - leased_permits(numbers) * price), -MAX_UNITS)
      numbers[FROM], numbers[UNITS] = 0, 0
      numbers[DEBT] = only_debt and math.max(0, -level) or 0
    end
  end
  if numbers then tail = format_tail(numbers, rest) end
  return level, at, stored == rate and 0 or OTHER_RATE, anew, tail, stored
end

-- The TTL is twice the time to full: a missing key counts as a full bucket, so it must be full when it expires.
local function save_bucket(now, level, at, rate, gain, capacity, tail)
  local ttl = math.ceil(((capacity - level) / gain + at - now) / 500) + 1000
  redis.call('SET', KEYS[1], string.format('2 %.0f %.0f %s', level, at, rate) .. tail, 'PX', ttl)
end
