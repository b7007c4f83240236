-- idempotency_renew: extends a claim.
-- KEYS: [1] the idempotency key
-- ARGV: [1] owner
--       [2] lease in microseconds, at most 30 days
-- returns: now, 1 if it is held, else 0
-- keeps: '1 c at ttl owner fingerprint', for ttl; writes nothing if it is not held
local now = server_now()
local request = read_live_request(now)
if not request or request.owner ~= ARGV[1] then return {now, 0} end
save_claim(now, math.min(tonumber(ARGV[2]), MAX_TTL), request.owner, request.fingerprint)
return {now, 1}
