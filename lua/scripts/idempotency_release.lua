-- idempotency_release: releases a claim, so that the request can be retried.
-- KEYS: [1] the idempotency key
-- ARGV: [1] owner
-- returns: now, 1 if it was held, else 0
-- keeps: nothing; leaves an answer and another owner's claim alone
local now = server_now()
local request = read_live_request(now)
if not request or request.owner ~= ARGV[1] then return {now, 0} end
redis.call('DEL', KEYS[1])
return {now, 1}
