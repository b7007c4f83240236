-- rate_limit_charge: charges permits for work that is done, those of each request once, in whatever order they run.
-- KEYS: [1] the bucket
--       [2] the permits that the replica has charged so far
-- ARGV: [1] gain: units per microsecond
--       [2] price: units per permit
--       [3] capacity: units the bucket holds
--       [4] permits that the replica knows to be charged
--       [5] permits that it has charged with this request: of these, what is stored is charged already
-- returns: now, level afterwards, flags (1 repaired, 2 stored by another rate)
-- keeps: [1] '2 level at gain price capacity' and the tail, for twice the time to full plus a second; [2] the permits,
--        for ten minutes; writes nothing if all were charged before
local gain, price, capacity = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local rate = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]
local now = server_now()
local level, at, flags, dirty, tail = load_bucket(now, rate, gain, price, capacity)
local stored = read_value(KEYS[2], 16)
stored = type(stored) == 'string' and #stored <= 16 and tonumber(string.match(stored, '^%d+$')) or 0
local permits = math.max(0, tonumber(ARGV[5]) - math.max(stored, tonumber(ARGV[4])))
if permits > 0 then
  local units = math.min(permits * price, 2 * MAX_UNITS)
  level, dirty = math.max(level - units, -MAX_UNITS), true
  if level < 0 then tail = add_debt(tail, units, level) end
  redis.call('SET', KEYS[2], ARGV[5], 'PX', 600000)
end
if dirty then save_bucket(now, level, at, rate, gain, capacity, tail) end
return {now, level, flags}
