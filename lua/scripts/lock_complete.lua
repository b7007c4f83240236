-- lock_complete: marks the work under a held lock as completed, releases the lock, and publishes that.
-- KEYS: [1] the lock
--       [2] the completion mark
-- ARGV: [1] owner
--       [2] fence
--       [3] TTL of the mark in microseconds, at most 30 days
--       [4] channel of the pushes
--       [5] id of the lock in a push
-- returns: now, 1 if it was held, else 0
-- keeps: 'fence until', for its TTL; nothing if the lease has expired
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
redis.pcall('PUBLISH', ARGV[4], 'lock ' .. ARGV[5])
return {now, held and 1 or 0}
