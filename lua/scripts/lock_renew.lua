-- lock_renew: extends a held lock.
-- KEYS: [1] the lock
-- ARGV: [1] owner
--       [2] fence
--       [3] lease in microseconds, at most 30 days
-- returns: now, 1 if it is held, else 0
-- keeps: '1 fence at ttl owner', for ttl; writes nothing if it is not held
local now = server_now()
local fence, at, ttl, holder = read_lock()
if not fence or fence ~= tonumber(ARGV[2]) or holder ~= ARGV[1] or now >= at + ttl then return {now, 0} end
save_lock(fence, now, math.min(tonumber(ARGV[3]), MAX_TTL), holder)
return {now, 1}
