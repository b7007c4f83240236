-- membership_leave: removes this replica from the live ones.
-- KEYS: [1] the members
-- ARGV: [1] id of the replica
-- returns: now, live replicas
-- keeps: a sorted set of ids, scored by the microsecond they expire; its TTL stays
local now = server_now()
local gone = redis.pcall('ZREM', KEYS[1], ARGV[1])
if type(gone) == 'table' then return {now, 0} end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return {now, redis.call('ZCARD', KEYS[1])}
