-- lock_completed: returns the fence under which the work was completed.
-- KEYS: [1] the completion mark
-- ARGV: none
-- returns: now, the fence, or 0
-- keeps: nothing; reads only
local now = server_now()
local text = redis.pcall('GET', KEYS[1])
if type(text) ~= 'string' then return {now, 0} end
local fence, expires = string.match(text, '^(%d+) (%d+)$')
fence, expires = tonumber(fence), tonumber(expires)
if not fence or fence >= MAX_EXACT or now >= expires then return {now, 0} end
return {now, fence}
