-- probe: writes and reads back, which is what all other scripts need and PING does not prove.
-- KEYS: [1] any key of its own
-- ARGV: [1] microseconds to keep it
-- returns: now
-- keeps: the moment of the probe, for that long
local now = server_now()
local text = string.format('%.0f', now)
redis.call('SET', KEYS[1], text, 'PX', math.max(1, math.ceil(ARGV[1] / 1000)))
if redis.call('GET', KEYS[1]) ~= text then return redis.error_reply('ERR probe read back something else') end
return {now}
