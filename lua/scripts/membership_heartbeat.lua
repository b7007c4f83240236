-- membership_heartbeat: registers this replica as live and counts the live replicas.
-- KEYS: [1] the members
--       [2] the generation: a token that disappears when the server loses its data
-- ARGV: [1] id of the replica
--       [2] TTL of the replica in microseconds, at most ten minutes
--       [3] a new token, stored if there is none
--       [4] how many replicas this one expects at most; 0 if it does not know
-- returns: now, live replicas, the generation (text), the highest number that a live replica expects
-- keeps: a sorted set of ids, scored by the microsecond they expire, for 20 minutes; 'generation expected until' and
--        whatever a later release appends, for a day
local MAX_TTL, MAX_TOKEN, MAX_EXPECTED = 600000000, 128, 100000
local now = server_now()
local expires = now + math.max(1, math.min(tonumber(ARGV[2]), MAX_TTL))
local gone = redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
-- A key of another type is replaced.
if type(gone) == 'table' then redis.call('DEL', KEYS[1]) end
-- No replica may expire that late: the clock stepped back, or the entry is foreign. Live replicas register again.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now + MAX_TTL), '+inf')
redis.call('ZADD', KEYS[1], expires, ARGV[1])
redis.call('PEXPIRE', KEYS[1], 2 * MAX_TTL / 1000)
local text = read_value(KEYS[2], 2 * MAX_TOKEN)
local generation, expected, until_, rest
if type(text) == 'string' and #text <= 2 * MAX_TOKEN then
  generation, expected, until_, rest = string.match(text, '^(%S+) (%d+) (%d+)(.*)$')
  if not generation then generation, expected, until_, rest = string.match(text, '^%S+$'), 0, 0, '' end
end
if not generation or #generation > MAX_TOKEN then generation, expected, until_, rest = ARGV[3], 0, 0, '' end
-- The highest number holds until the replicas that sent it have expired.
expected, until_ = tonumber(expected), tonumber(until_)
if expected > MAX_EXPECTED or until_ <= now or until_ > now + MAX_TTL then expected = 0 end
local own = math.min(tonumber(ARGV[4] or 0), MAX_EXPECTED)
if own >= expected then expected, until_ = own, expires end
text = generation .. string.format(' %.0f %.0f', expected, until_) .. rest
redis.call('SET', KEYS[2], text, 'PX', 86400000)
return {now, redis.call('ZCARD', KEYS[1]), generation, expected}
