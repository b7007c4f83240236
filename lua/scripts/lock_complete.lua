-- lock_complete: marks the work under a held lock as completed, releases the lock, and publishes that.
-- KEYS: [1] the lock
--       [2] the completion mark
-- ARGV: [1] owner
--       [2] fence
--       [3] TTL of the mark in microseconds, at most 30 days
--       [4] channel of the pushes
--       [5] id of the lock in a push
-- returns: now, 1 if it was held, else 0
-- keeps: '1 fence until ttl', for its TTL; nothing if the lease has expired
local now = server_now()
local lock = read_lock()
if not lock or lock.fence ~= tonumber(ARGV[2]) or lock.owner ~= ARGV[1] then return {now, 0} end
local held = now < lock.at + lock.ttl
if held then save_mark(KEYS[2], lock.fence, now, math.min(tonumber(ARGV[3]), MAX_TTL), '') end
redis.call('DEL', KEYS[1])
-- A push that is denied costs waiters a poll interval; the work is marked all the same.
redis.pcall('PUBLISH', ARGV[4], 'lock ' .. ARGV[5])
return {now, held and 1 or 0}
