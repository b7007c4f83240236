-- lock_release: releases a held lock and publishes that.
-- KEYS: [1] the lock
-- ARGV: [1] owner
--       [2] fence
--       [3] channel of the pushes
--       [4] id of the lock in a push
-- returns: now, 1 if it was held, else 0
-- keeps: nothing; the last fence stays where lock_acquire put it
local now = server_now()
local fence, at, ttl, holder = read_lock()
if not fence or fence ~= tonumber(ARGV[2]) or holder ~= ARGV[1] then return {now, 0} end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[3], 'lock ' .. ARGV[4])
return {now, now < at + ttl and 1 or 0}
