-- idempotency_release: releases a claim, so that the request can be retried. Publishes that if awaited.
-- KEYS: [1] the idempotency key
-- ARGV: [1] owner
--       [2] channel of the pushes
--       [3] id of the idempotency key in a push
-- returns: now, 1 if it was held, else 0
-- keeps: nothing; leaves an answer and another owner's claim alone
local now = server_now()
local request = read_live_request(now)
if not request or request.owner ~= ARGV[1] then return {now, 0} end
redis.call('DEL', KEYS[1])
publish_end(request, ARGV[2], ARGV[3])
return {now, 1}
