-- probe: the health check of Redis: writes and reads back, which all other scripts need and PING does not prove.
-- KEYS: [1] a key used for nothing else
-- ARGV: [1] its TTL in microseconds
-- returns: now
-- keeps: the time of the check, for that TTL
local now = server_now()
local text = string.format('%.0f', now)
redis.call('SET', KEYS[1], text, 'PX', math.max(1, math.ceil(ARGV[1] / 1000)))
if redis.call('GET', KEYS[1]) ~= text then return redis.error_reply('ERR health check read back a different value') end
return {now}
