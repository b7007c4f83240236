-- lock_renew: extends a held lock.
-- KEYS: [1] the lock
-- ARGV: [1] owner
--       [2] fence
--       [3] lease in microseconds, at most 30 days
-- returns: now, 1 if it is held, else 0
-- keeps: '1 fence at ttl size owner', for ttl; writes nothing if it is not held
local now = server_now()
local lock = read_lock()
if not lock or lock.fence ~= tonumber(ARGV[2]) or lock.owner ~= ARGV[1] or now >= lock.at + lock.ttl then
  return {now, 0}
end
lock.at, lock.ttl = now, math.min(tonumber(ARGV[3]), MAX_TTL)
save_lock(lock)
return {now, 1}
