-- idempotency_complete: keeps the answer to a request that this owner claimed; also if the claim ran out and nobody
--                       else has it, because the work is done, and whoever comes next must find that.
-- KEYS: [1] the request
-- ARGV: [1] owner
--       [2] fingerprint of the request
--       [3] the answer, in any bytes
--       [4] microseconds for which it is kept, at most 30 days
-- returns: now, 1 if it is kept or 0
-- keeps: '1 d fingerprint answer', for so long; writes nothing over another owner's claim or an answer
local now = server_now()
local request = read_live_request(now)
if request and request.owner ~= ARGV[1] then return {now, 0} end
keep('1 d ' .. ARGV[2] .. ' ' .. ARGV[3], math.min(tonumber(ARGV[4]), MAX_TTL))
return {now, 1}
