-- idempotency_renew: extends a claim.
-- KEYS: [1] the idempotency key
-- ARGV: [1] owner
--       [2] lease in microseconds, at most 30 days
-- returns: now, 1 if it is held, else 0
-- keeps: '1 c at ttl awaited owner fingerprint', for ttl; writes nothing if it is not held
local now = server_now()
local request = read_live_request(now)
if not request or request.owner ~= ARGV[1] then return {now, 0} end
request.at, request.ttl = now, math.min(tonumber(ARGV[2]), MAX_TTL)
save_claim(now, request)
return {now, 1}
