-- rate_limit_lease: closes blocks of leased permits, and leases another block (core/src/rate_limit/leases.rs).
-- KEYS: [1] the bucket
-- ARGV: [1] gain: units per microsecond
--       [2] price: units per permit
--       [3] capacity: units the bucket holds
--       [4] permits to lease at most
--       [5] number of blocks to close
--       [6..] of each: the end of its lease, the permits it had, the permits of these that were not spent
-- returns: now, level afterwards, flags (1 repaired, 2 stored by another rate), permits leased, the end of the lease,
--          the microseconds that it lasts at least
-- keeps: '2 level at gain price capacity' and the tail, for twice the time to full plus a second; writes nothing if
--        nothing is leased and nothing is closed
local gain, price, capacity = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local rate = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]
local now = server_now()
local level, at, flags, dirty, tail = load_bucket(now, rate, gain, price, capacity)
local numbers, rest = parse_tail(tail)
for block = 1, tonumber(ARGV[5]) do
  local first, slot = 3 + 3 * block, numbers[SLOT]
  local ends, had, unspent = ARGV[first], ARGV[first + 1], ARGV[first + 2]
  if not unspent then break end
  -- While nothing is leased, the length of a slot is 0: then the quotients are no whole numbers, and nothing is closed.
  local number, present = ends / slot - 1, math.floor(at / slot)
  -- A lease that has ended has nothing to give back: its room is refilled.
  if number % 1 == 0 and number >= present and number < present + LEASE_SLOTS then
    local i = number % LEASE_SLOTS + 1
    local size = math.min(had, numbers[i])
    local credit = math.min(math.min(unspent, size) * price, MAX_UNITS)
    numbers[i] = numbers[i] - size
    level = math.max(level, math.min(level + credit, capacity - leased_permits(numbers) * price))
    numbers[DEBT] = math.min(numbers[DEBT], math.max(0, -level))
    dirty = dirty or size > 0
    tidy_leases(numbers, at)
  end
end
local slot, leased = numbers[SLOT], 0
if slot == 0 then slot = lease_slot(gain, capacity) end
local number = math.floor(at / slot) + 7
if at >= numbers[PAUSE] then leased = math.max(0, math.min(tonumber(ARGV[4]), math.floor(level / price))) end
if leased > 0 then
  local i = number % LEASE_SLOTS + 1
  level, numbers[i], numbers[SLOT], dirty = level - leased * price, numbers[i] + leased, slot, true
end
if dirty then save_bucket(now, level, at, rate, gain, capacity, format_tail(numbers, rest)) end
return {now, level, flags, leased, (number + 1) * slot, 7 * slot}
