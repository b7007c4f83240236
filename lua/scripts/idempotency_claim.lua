-- idempotency_claim: claims an idempotency key, or returns its state.
-- KEYS: [1] the idempotency key
-- ARGV: [1] owner, in hexadecimal digits
--       [2] fingerprint of the request, in hexadecimal digits
--       [3] lease in microseconds, at most 30 days
--       [4] 1 if the caller waits for the end of another owner's claim, else 0
-- returns: now, state, remaining microseconds of the claim, answer. State: 1 claimed by this owner, 0 by another,
--          2 answered, 3 the key belongs to a different request
-- keeps: '1 c at ttl awaited owner fingerprint', for ttl; leaves existing state alone, except that a claim from the
--        future restarts now, and that a claim is awaited from the first caller that waits for its end
local owner, fingerprint, ttl = ARGV[1], ARGV[2], math.min(tonumber(ARGV[3]), MAX_TTL)
local now = server_now()
local request = read_live_request(now)
if not request then
  save_claim(now, {at = now, ttl = ttl, awaited = '0', owner = owner, fingerprint = fingerprint, more = ''})
  return {now, 1, ttl, ''}
end
if not request.answer and request.at - now > MAX_BACKSTEP then
  -- The clock stepped back: no caller waits longer than one ttl for an owner that died.
  request.at = now
  save_claim(now, request)
end
if request.fingerprint ~= fingerprint then return {now, 3, 0, ''} end
if request.answer then return {now, 2, 0, request.answer} end
if ARGV[4] == '1' and request.awaited == '0' and request.owner ~= owner then
  request.awaited = '1'
  save_claim(now, request)
end
return {now, request.owner == owner and 1 or 0, request.at + request.ttl - now, ''}
