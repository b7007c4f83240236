-- rate_limit_acquire_all: takes permits of several buckets for groups of callers. Each caller takes those of all its
-- limits, or none; the first k callers of each group are granted.
-- KEYS: [1] the first bucket
--       [2..] the others, each once, at most 64 together
-- ARGV: [1..] of each bucket: gain, price, capacity, and permits to charge first (rate_limit_acquire)
--       then: number of groups
--       then of each group: callers, number of limits, and of each limit: the number of its bucket from 1, permits per
--       caller, microseconds a caller may wait
-- returns: now; of each bucket its level before the first grant and flags (1 repaired, 2 stored by another rate); of
--          each group k, and which of its limits rejects the next caller for longest, from 1 (0 if all were granted)
-- keeps: of each bucket '2 level at gain price capacity' and the tail, for twice the time to full plus a second; a
--        rejection writes nothing, except as in rate_limit_acquire
local now, keys = server_now(), {}
for i = 1, #KEYS do keys[i] = KEYS[i] end
local buckets, reply = {}, {now}
for i = 1, #keys do
  local first = 4 * i - 3
  local gain, price, capacity = tonumber(ARGV[first]), tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])
  local rate = ARGV[first] .. ' ' .. ARGV[first + 1] .. ' ' .. ARGV[first + 2]
  KEYS = {keys[i]}
  local level, at, flags, dirty, tail = load_bucket(now, rate, gain, price, capacity)
  if ARGV[first + 3] ~= '0' then
    local charged = math.max(level - math.min(ARGV[first + 3] * price, capacity), math.min(level, -capacity))
    if charged < 0 then tail = add_debt(tail, level - charged, charged) end
    level, dirty = charged, dirty or charged ~= level
  end
  reply[2 * i], reply[2 * i + 1] = level, flags
  buckets[i] = {
    gain = gain, price = price, capacity = capacity, rate = rate, level = level, at = at, dirty = dirty, tail = tail
  }
end
local next_arg = 4 * #keys + 2
for _ = 1, tonumber(ARGV[next_arg - 1]) do
  local limits = tonumber(ARGV[next_arg + 1])
  if not limits or limits < 0 or not ARGV[next_arg + 1 + 3 * limits] then break end
  local count, asked = tonumber(ARGV[next_arg]), {}
  local granted = count
  for limit = 1, limits do
    local part = next_arg + 3 * limit - 1
    local bucket = buckets[tonumber(ARGV[part])]
    local need, debt = ARGV[part + 1] * bucket.price, math.min(ARGV[part + 2] * bucket.gain, MAX_UNITS)
    asked[limit] = {bucket = bucket, need = need, debt = debt}
    if need > bucket.capacity then
      granted = 0
    elseif need > 0 then
      granted = math.max(0, math.min(math.floor((bucket.level + debt) / need), granted))
    end
  end
  local named, longest = 0, -1
  for limit = 1, limits do
    local part = asked[limit]
    local bucket, need = part.bucket, part.need
    if granted > 0 and need > 0 then
      bucket.level, bucket.dirty = bucket.level - granted * need, true
    end
    if need > bucket.capacity then
      if granted < count and longest < math.huge then named, longest = limit, math.huge end
    elseif need > 0 then
      local lacks = granted < count and bucket.level + part.debt < need
      local wait = math.ceil((need - bucket.level) / bucket.gain)
      if lacks and wait > longest then named, longest = limit, wait end
      if bucket.tail ~= EMPTY then
        local numbers, rest = parse_tail(bucket.tail)
        -- A caller that is granted waits behind the debt.
        if granted > 0 and numbers[DEBT] > 0 then
          numbers[DEBT] = 0
          bucket.tail = format_tail(numbers, rest)
        end
        if need > bucket.capacity - leased_permits(numbers) * bucket.price then
          -- As in rate_limit_acquire: draws are paused for a cost that the leases leave no room for.
          local pause = granted > 0 and 0 or numbers[PAUSE]
          if lacks and pause == 0 then pause = bucket.at + 14 * numbers[SLOT] end
          if pause ~= numbers[PAUSE] then
            numbers[PAUSE], bucket.dirty = pause, true
            bucket.tail = format_tail(numbers, rest)
          end
        end
      end
    end
  end
  reply[#reply + 1], reply[#reply + 2] = granted, named
  next_arg = next_arg + 2 + 3 * limits
end
for i = 1, #keys do
  local bucket = buckets[i]
  KEYS = {keys[i]}
  if bucket.dirty then
    save_bucket(now, bucket.level, bucket.at, bucket.rate, bucket.gain, bucket.capacity, bucket.tail)
  end
end
return reply
