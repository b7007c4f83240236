-- idempotency_complete: stores the answer of a request that this owner claimed; also if the claim expired and is free,
--                       because the work is done and the next caller must find the answer. Publishes that if awaited.
-- KEYS: [1] the idempotency key
-- ARGV: [1] owner
--       [2] fingerprint of the request
--       [3] the answer, arbitrary bytes
--       [4] TTL of the answer in microseconds, at most 30 days
--       [5] channel of the pushes
--       [6] id of the idempotency key in a push
-- returns: now, 1 if it was stored, else 0
-- keeps: '1 d fingerprint size answer', for its TTL; does not overwrite another owner's claim or an answer
local now, answer = server_now(), ARGV[3]
local request = read_live_request(now)
if request and request.owner ~= ARGV[1] then return {now, 0} end
save('1 d ' .. ARGV[2] .. ' ' .. #answer .. ' ' .. answer, math.min(tonumber(ARGV[4]), MAX_TTL))
publish_end(request, ARGV[5], ARGV[6])
return {now, 1}
