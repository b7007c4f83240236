-- idempotency_claim: claims a request, or finds what became of it.
-- KEYS: [1] the request
-- ARGV: [1] owner, in hexadecimal digits
--       [2] fingerprint of the request, in hexadecimal digits
--       [3] microseconds until the claim is lost unless renewed, at most 30 days
-- returns: now, what there is, microseconds a claim is held for, the answer; there is 1 a claim of this owner, 0 of
--          another, 2 an answer, 3 another request under the same key
-- keeps: '1 c at ttl owner fingerprint', for ttl; writes nothing where there is something, except that a claim from
--        the future is counted from now on
local owner, fingerprint, ttl = ARGV[1], ARGV[2], math.min(tonumber(ARGV[3]), MAX_TTL)
local now = server_now()
local request = read_live_request(now)
if not request then
  save_claim(now, ttl, owner, fingerprint)
  return {now, 1, ttl, ''}
end
if request.fingerprint ~= fingerprint then return {now, 3, 0, ''} end
if request.answer then return {now, 2, 0, request.answer} end
if request.at - now > MAX_BACKSTEP then
  -- The clock stepped back: nobody waits longer than one ttl for somebody dead.
  request.at = now
  save_claim(now, request.ttl, request.owner, fingerprint)
end
return {now, request.owner == owner and 1 or 0, request.at + request.ttl - now, ''}
