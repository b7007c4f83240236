-- log_read: reads the changes of a partition since one that is known.
-- KEYS: [1] the log of the partition
-- ARGV: [1] the number of the last change that the replica knows
-- returns: now, the number of the last change (0 if there is none), then, if it is another one, the log as text (lines
--          of 'seq id call', the latest first, at most 4,096 bytes)
-- keeps: nothing; writes nothing
local now, text = server_now(), redis.pcall('GETRANGE', KEYS[1], 0, 4095)
local last = type(text) == 'string' and tonumber(string.match(text, '^%d+')) or 0
if last == tonumber(ARGV[1]) or last == 0 then return {now, last} end
return {now, last, text}
