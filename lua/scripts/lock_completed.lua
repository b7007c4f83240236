-- lock_completed: the fence under which work was last done.
-- KEYS: [1] the mark
-- ARGV: none
-- returns: now, the fence or 0
-- keeps: nothing; reads only
local now = server_now()
local text = redis.pcall('GET', KEYS[1])
if type(text) ~= 'string' then return {now, 0} end
local fence, till = string.match(text, '^(%d+) (%d+)$')
fence, till = tonumber(fence), tonumber(till)
if not fence or fence >= MAX_EXACT or now >= till then return {now, 0} end
return {now, fence}
