-- lock_completed: returns the fence under which the work was completed, and keeps the mark for another TTL.
-- KEYS: [1] the completion mark
-- ARGV: none
-- returns: now, the fence, or 0
-- keeps: '1 fence until ttl', for its TTL from now, so that a mark outlives every replica that asks for it; writes
--        nothing if there is none
local now = server_now()
local text = redis.pcall('GET', KEYS[1])
if type(text) ~= 'string' then return {now, 0} end
local fence, expires, ttl, more = string.match(text, '^1 (%d+) (%d+) (%d+)(.*)$')
fence, expires, ttl = tonumber(fence), tonumber(expires), tonumber(ttl)
if not fence or fence >= MAX_EXACT or ttl > MAX_TTL or now >= expires or not is_more(more) then return {now, 0} end
save_mark(KEYS[1], fence, now, ttl, more)
return {now, fence}
