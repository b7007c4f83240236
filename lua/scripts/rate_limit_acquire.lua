-- rate_limit_acquire: takes permits for groups of callers; the first k callers of each group are granted.
-- KEYS: [1] the bucket
-- ARGV: [1] gain: units per microsecond
--       [2] price: units per permit
--       [3] capacity: units the bucket holds
--       [4] permits that the replica has granted without this bucket: they are charged first, down to a debt of one
--           capacity
--       [5] number of groups
--       [6..] of each group: callers, permits per caller, microseconds a caller may wait
-- returns: now, level before the first grant, flags (1 repaired, 2 stored by another rate), then k for each group
-- keeps: '2 level at gain price capacity' and the tail, for twice the time to full plus a second; a rejection writes
--        nothing, unless permits were charged, the state was repaired, the clock stepped back by more than a second, or
--        leases leave no room for the cost: then draws are paused for two leases
local gain, price, capacity = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local rate = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]
local now = server_now()
local level, at, flags, dirty, tail = load_bucket(now, rate, gain, price, capacity)
if ARGV[4] ~= '0' then
  local charged = math.max(level - math.min(ARGV[4] * price, capacity), math.min(level, -capacity))
  if charged < 0 then tail = add_debt(tail, level - charged, charged) end
  level, dirty = charged, dirty or charged ~= level
end
local reply = {now, level, flags}
for group = 1, tonumber(ARGV[5]) do
  local first = 3 + 3 * group
  if not ARGV[first + 2] then break end
  local count, need = tonumber(ARGV[first]), ARGV[first + 1] * price
  local granted = 0
  if need == 0 then
    granted = count
  elseif need <= capacity then
    -- The debt allowed by the maximum wait; each granted caller adds `need` to it.
    local debt = math.min(ARGV[first + 2] * gain, MAX_UNITS)
    granted = math.max(0, math.min(math.floor((level + debt) / need), count))
    level = level - granted * need
    dirty = dirty or granted > 0
    if tail ~= EMPTY then
      local numbers, rest = parse_tail(tail)
      -- A caller that is granted waits behind the debt.
      if granted > 0 and numbers[DEBT] > 0 then
        numbers[DEBT] = 0
        tail = format_tail(numbers, rest)
      end
      if need > capacity - leased_permits(numbers) * price then
        local pause = granted > 0 and 0 or numbers[PAUSE]
        if granted < count and pause == 0 then pause = at + 14 * numbers[SLOT] end
        if pause ~= numbers[PAUSE] then
          numbers[PAUSE], dirty = pause, true
          tail = format_tail(numbers, rest)
        end
      end
    end
  end
  reply[3 + group] = granted
end
if dirty then save_bucket(now, level, at, rate, gain, capacity, tail) end
return reply
