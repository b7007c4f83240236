-- lock_acquire: acquires a free lock, or extends one that this owner holds.
-- KEYS: [1] the lock
--       [2] the last fence
-- ARGV: [1] owner
--       [2] lease in microseconds, at most 30 days
-- returns: now, 1 if this owner holds it, else 0, the fence of the holder, remaining microseconds
-- keeps: '1 fence at ttl owner', for ttl; the last fence, for 30 days, so that fences grow even if the lock key is lost
local owner, ttl = ARGV[1], math.min(tonumber(ARGV[2]), MAX_TTL)
local now = server_now()
local fence, at, held_for, holder = read_lock()
if fence and now < at + held_for then
  if holder == owner then
    save_lock(fence, now, ttl, owner)
    return {now, 1, fence, ttl}
  end
  if at - now > MAX_BACKSTEP then
    -- The clock stepped back: the lease restarts now, so that no caller waits longer than one ttl.
    at = now
    save_lock(fence, at, held_for, holder)
  end
  return {now, 0, fence, at + held_for - now}
end
local last = redis.pcall('GET', KEYS[2])
last = type(last) == 'string' and string.find(last, '^%d+$') and tonumber(last) or 0
-- The clock keeps fences growing if the last fence is lost.
if last >= MAX_EXACT then last = 0 end
fence = math.max(last + 1, (fence or 0) + 1, now)
-- No script would read this fence: the stored one was corrupt.
if fence >= MAX_EXACT then fence = now end
redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', 2592000000)
save_lock(fence, now, ttl, owner)
return {now, 1, fence, ttl}
