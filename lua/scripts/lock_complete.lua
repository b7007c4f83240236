-- lock_complete: marks the work under a lock that is held as done, frees the lock, and tells who waits.
-- KEYS: [1] the lock
--       [2] the mark
-- ARGV: [1] owner
--       [2] fence
--       [3] microseconds to keep the mark, at most 30 days
--       [4] channel on which it is told
--       [5] what the lock is called there
-- returns: now, 1 if it was held or 0
-- keeps: 'fence until', for that long; marks nothing if it is not held any more
local now = server_now()
local fence, at, ttl, holder = read_lock()
if not fence or fence ~= tonumber(ARGV[2]) or holder ~= ARGV[1] then return {now, 0} end
local held = now < at + ttl
if held then
  local keep = math.min(tonumber(ARGV[3]), MAX_TTL)
  local mark = string.format('%.0f %.0f', fence, now + keep)
  redis.call('SET', KEYS[2], mark, 'PX', math.max(1, math.ceil(keep / 1000)))
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[4], 'lock ' .. ARGV[5])
return {now, held and 1 or 0}
