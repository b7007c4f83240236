-- rate_limit_refund: returns permits that were not used, and places in the queue; pays off debt
-- (core/src/rate_limit/refund.rs).
-- KEYS: [1] the bucket
-- ARGV: [1] gain: units per microsecond
--       [2] price: units per permit
--       [3] capacity: units the bucket holds
--       [4] number of refunds
--       [5..] of each refund: permits, the microsecond of the server's clock at which they were due
-- returns: now, level afterwards, flags (1 repaired, 2 stored by another rate)
-- keeps: '2 level at gain price capacity' and the tail, for twice the time to full plus a second; writes nothing if
--        nothing is returned
local gain, price, capacity = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local rate = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]
local now = server_now()
local level, at, flags, dirty, tail, stored = load_bucket(now, rate, gain, price, capacity)
-- A missing bucket is full, so there is nothing to return.
if not stored then return {now, level, flags} end
local numbers, rest = parse_tail(tail)
local from, units, debt = numbers[FROM], numbers[UNITS], numbers[DEBT]
local most = math.max(capacity - leased_permits(numbers) * price, level)
-- Waits are rounded up to microseconds; half the time of a permit covers that.
local slack = math.floor(price / (2 * gain))
for refund = 1, tonumber(ARGV[4]) do
  local first = 3 + 2 * refund
  if not ARGV[first + 1] then break end
  local permits, due = math.min(ARGV[first] * price, MAX_UNITS), tonumber(ARGV[first + 1])
  -- The queue of waiters, and the debt behind it.
  local queue, place, paid = math.max(0, -level) - debt, 0, 0
  local unfilled = math.max(0, permits - math.min(math.max(0, at - due) * gain, 2 * MAX_UNITS))
  if queue == 0 then
    -- A time that the bucket has not reached is of a clock that was set back: it may have been refilled since.
    if due <= at then paid = unfilled end
  else
    if due + slack >= at + math.ceil(queue / gain) then
      place = unfilled
    elseif due > at then
      -- Waits are rounded up to a microsecond: the place begins at most that much earlier.
      local start = math.max(0, math.min((due - at - 1) * gain, 2 * MAX_UNITS) - permits)
      from = units == 0 and start or math.min(from, start)
      units = math.min(units + math.min(permits, (due - at) * gain), queue)
    else
      paid = math.min(unfilled, debt)
    end
    local behind = math.max(0, queue - place - from)
    if units > 0 and units + math.floor(price / 2) >= behind then
      place, units = place + math.min(units, behind), 0
    end
  end
  local before = level
  debt = math.min(math.max(0, debt - paid), math.max(0, -level - place - paid))
  level = math.min(level + place + paid, most)
  if level >= 0 then units, debt = 0, 0 end
  if units == 0 then from = 0 end
  dirty = dirty or level ~= before
end
if from ~= numbers[FROM] or units ~= numbers[UNITS] or debt ~= numbers[DEBT] then
  numbers[FROM], numbers[UNITS], numbers[DEBT] = from, units, debt
  tail, dirty = format_tail(numbers, rest), true
end
if dirty then save_bucket(now, level, at, rate, gain, capacity, tail) end
return {now, level, flags}
