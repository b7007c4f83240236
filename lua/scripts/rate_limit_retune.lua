-- rate_limit_retune: converts the level to another rate; permits beyond the new capacity are lost.
-- KEYS: [1] the bucket
-- ARGV: [1] old gain: units per microsecond
--       [2] old price: units per permit
--       [3] old capacity: units the bucket holds
--       [4] new gain
--       [5] new price
--       [6] new capacity
-- returns: now, level by the new rate, flags (1 repaired, 2 stored by a third rate)
-- keeps: '2 level at gain price capacity' and the tail, for twice the time to full plus a second; writes nothing if the
--        new rate is stored already, or if a missing (full) bucket is full by it too
local gain, price, capacity = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local old = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]
local rate = ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. ARGV[6]
local now = server_now()
local level, at, flags, dirty, tail, stored = load_bucket(now, rate, gain, price, capacity)
if not stored then
  level = convert(tonumber(ARGV[3]), tonumber(ARGV[2]), price, capacity)
  dirty = level < capacity
elseif flags == OTHER_RATE then
  dirty = true
  if stored == old then flags = 0 end
end
if dirty then save_bucket(now, level, at, rate, gain, capacity, tail) end
return {now, level, flags}
