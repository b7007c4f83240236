-- lock_release: releases a held lock and publishes that.
-- KEYS: [1] the lock
-- ARGV: [1] owner
--       [2] fence; 0 for an owner whose grant was not received: any fence
--       [3] channel of the pushes
--       [4] id of the lock in a push
-- returns: now, 1 if it was held, else 0
-- keeps: nothing; the last fence stays where lock_acquire put it
local now = server_now()
local lock, fence = read_lock(), tonumber(ARGV[2])
if not lock or lock.owner ~= ARGV[1] or fence ~= 0 and fence ~= lock.fence then return {now, 0} end
redis.call('DEL', KEYS[1])
-- A push that is denied costs waiters a poll interval; the lock is free all the same.
redis.pcall('PUBLISH', ARGV[3], 'lock ' .. ARGV[4])
return {now, now < lock.at + lock.ttl and 1 or 0}
