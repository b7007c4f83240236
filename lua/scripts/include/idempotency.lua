-- The stored state of an idempotency key: '1 c at ttl owner fingerprint' while it is claimed, from at for ttl
-- microseconds; '1 d fingerprint answer' once it is answered.
local MAX_BACKSTEP, MAX_EXACT = 1000000, 9007199254740991
local MAX_TTL = 2592000000000 -- 30 days

-- Reads the state under KEYS[1]; nil if there is none, or if no script has written it.
local function read_request()
  local text = redis.pcall('GET', KEYS[1])
  if type(text) ~= 'string' then return end
  local at, ttl, owner, fingerprint = string.match(text, '^1 c (%d+) (%d+) (%x+) (%x+)$')
  if at then
    at, ttl = tonumber(at), tonumber(ttl)
    if at > MAX_EXACT or ttl > MAX_TTL then return end
    return {at = at, ttl = ttl, owner = owner, fingerprint = fingerprint}
  end
  local _, last, answered = string.find(text, '^1 d (%x+) ')
  if answered then return {fingerprint = answered, answer = string.sub(text, last + 1)} end
end

-- The same; nil if the claim has expired.
local function read_live_request(now)
  local request = read_request()
  if request and not request.answer and now >= request.at + request.ttl then return end
  return request
end

local function save(text, ttl)
  redis.call('SET', KEYS[1], text, 'PX', math.max(1, math.ceil(ttl / 1000)))
end

local function save_claim(at, ttl, owner, fingerprint)
  save(string.format('1 c %.0f %.0f ', at, ttl) .. owner .. ' ' .. fingerprint, ttl)
end
