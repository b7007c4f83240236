-- lock_acquire: acquires a free lock, or one that this owner holds.
-- KEYS: [1] the lock
--       [2] the last fence
-- ARGV: [1] owner
--       [2] lease in microseconds, at most 30 days
--       [3] the highest fence that the caller has seen; 0 if none
-- returns: now, 1 if this owner holds it, else 0, the fence of the holder, remaining microseconds
-- keeps: '1 fence at ttl size owner', for ttl; the last fence, for 30 days, so that fences grow even if the lock key is
--        lost

-- The fence after this one. A fence that cannot grow is corrupt: its lock could not be read back, and each caller would
-- hold it.
local function next_fence(last)
  return last < MAX_EXACT - 1 and last + 1 or 0
end

-- Reads the last fence, and the fields after it.
local function read_last_fence()
  local text = redis.pcall('GET', KEYS[2])
  if type(text) ~= 'string' then return 0, '' end
  local last, more = string.match(text, '^(%d+)(.*)$')
  if not last or not is_more(more) then return 0, '' end
  return tonumber(last), more
end

local owner, ttl, seen = ARGV[1], math.min(tonumber(ARGV[2]), MAX_TTL), tonumber(ARGV[3])
local now = server_now()
local lock, more = read_lock(), ''
if lock and now < lock.at + lock.ttl then
  if lock.owner ~= owner then
    if lock.at - now > MAX_BACKSTEP then
      -- The clock stepped back: the lease restarts now, so that no caller waits longer than one ttl.
      lock.at = now
      save_lock(lock)
    end
    return {now, 0, lock.fence, lock.at + lock.ttl - now}
  end
  if lock.fence > seen then
    -- The reply to an earlier request of this owner was lost, or this is that request, executed late.
    lock.at, lock.ttl = now, ttl
    save_lock(lock)
    return {now, 1, lock.fence, ttl}
  end
  -- The owner has seen this fence and may have given it back. A new fence makes that release harmless if it is executed
  -- after this.
  more = lock.more
end
local last, kept = read_last_fence()
-- The clock and what the caller has seen keep fences growing if the last fence is lost.
local fence = math.max(next_fence(last), next_fence(lock and lock.fence or 0), next_fence(seen), now)
redis.call('SET', KEYS[2], string.format('%.0f', fence) .. kept, 'PX', 2592000000)
save_lock({fence = fence, at = now, ttl = ttl, owner = owner, more = more})
return {now, 1, fence, ttl}
