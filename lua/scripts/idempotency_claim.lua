-- idempotency_claim: claims an idempotency key, or returns its state.
-- KEYS: [1] the idempotency key
-- ARGV: [1] owner, in hexadecimal digits
--       [2] fingerprint of the request, in hexadecimal digits
--       [3] lease in microseconds, at most 30 days
-- returns: now, state, remaining microseconds of the claim, answer. State: 1 claimed by this owner, 0 by another,
--          2 answered, 3 the key belongs to a different request
-- keeps: '1 c at ttl owner fingerprint', for ttl; leaves existing state alone, except that a claim from the future
--        restarts now
local owner, fingerprint, ttl = ARGV[1], ARGV[2], math.min(tonumber(ARGV[3]), MAX_TTL)
local now = server_now()
local request = read_live_request(now)
if not request then
  save_claim(now, ttl, owner, fingerprint)
  return {now, 1, ttl, ''}
end
if not request.answer and request.at - now > MAX_BACKSTEP then
  -- The clock stepped back: no caller waits longer than one ttl for an owner that died.
  request.at = now
  save_claim(now, request.ttl, request.owner, request.fingerprint)
end
if request.fingerprint ~= fingerprint then return {now, 3, 0, ''} end
if request.answer then return {now, 2, 0, request.answer} end
return {now, request.owner == owner and 1 or 0, request.at + request.ttl - now, ''}
