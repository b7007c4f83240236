-- rate_limit_refund: returns permits that were not used. A reservation that later ones queue behind lapses.
-- KEYS: [1] the bucket
-- ARGV: [1] gain: units per microsecond
--       [2] price: units per permit
--       [3] capacity: units the bucket holds
--       [4] number of refunds
--       [5..] of each refund: permits, microseconds until they are due (negative: they were due in the past)
-- returns: now, level afterwards, flags (1 repaired, 2 stored by another rate)
-- keeps: '1 level at gain price capacity', for twice the time to full plus a second; writes nothing if all lapse
local gain, price, capacity = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local rate = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]
local now = server_now()
local level, at, flags, dirty, stored = load_bucket(now, rate, gain, price, capacity)
-- A missing bucket is full, so there is nothing to return.
if not stored then return {now, level, flags} end
-- Times converted between clocks are off by some microseconds; half the time of a permit covers that.
local slack = math.floor(price / (2 * gain))
for refund = 1, tonumber(ARGV[4]) do
  local first = 3 + 2 * refund
  if not ARGV[first + 1] then break end
  local units, due = math.min(ARGV[first] * price, MAX_UNITS), now + ARGV[first + 1]
  local queue = math.max(0, -level)
  if queue == 0 or due + slack >= at + math.ceil(queue / gain) then
    local before = level
    level = math.min(level + units, capacity)
    dirty = dirty or level ~= before
  end
end
if dirty then save_bucket(now, level, at, rate, gain, capacity) end
return {now, level, flags}
