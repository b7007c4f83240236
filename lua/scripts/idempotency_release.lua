-- idempotency_release: gives a claim up, so that the request may be tried again.
-- KEYS: [1] the request
-- ARGV: [1] owner
-- returns: now, 1 if it was held or 0
-- keeps: nothing; an answer and another owner's claim stay
local now = server_now()
local request = read_live_request(now)
if not request or request.owner ~= ARGV[1] then return {now, 0} end
redis.call('DEL', KEYS[1])
return {now, 1}
