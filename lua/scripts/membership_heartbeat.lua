-- membership_heartbeat: registers this replica as live and counts the live replicas.
-- KEYS: [1] the members
--       [2] the generation: a token that disappears when the server loses its data
-- ARGV: [1] id of the replica
--       [2] TTL of the replica in microseconds, at most ten minutes
--       [3] a new token, stored if there is none
-- returns: now, live replicas, the generation (text)
-- keeps: a sorted set of ids, scored by the microsecond they expire, for 20 minutes; the generation, for a day
local MAX_TTL, MAX_TOKEN = 600000000, 128
local now = server_now()
local expires = now + math.max(1, math.min(tonumber(ARGV[2]), MAX_TTL))
local gone = redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
-- A key of another type is replaced.
if type(gone) == 'table' then redis.call('DEL', KEYS[1]) end
-- No replica may expire that late: the clock stepped back, or the entry is foreign. Live replicas register again.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now + MAX_TTL), '+inf')
redis.call('ZADD', KEYS[1], expires, ARGV[1])
redis.call('PEXPIRE', KEYS[1], 2 * MAX_TTL / 1000)
local generation = read_value(KEYS[2], MAX_TOKEN)
if type(generation) == 'string' and generation ~= '' and #generation <= MAX_TOKEN then
  redis.call('PEXPIRE', KEYS[2], 86400000)
else
  generation = ARGV[3]
  redis.call('SET', KEYS[2], generation, 'PX', 86400000)
end
return {now, redis.call('ZCARD', KEYS[1]), generation}
