-- The stored state of an idempotency key: '1 c at ttl awaited owner fingerprint' while it is claimed, from at for ttl
-- microseconds; awaited is 1 if its end is to be published. '1 d fingerprint size answer' once it is answered, with the
-- size of the answer in bytes. A later release may append fields, each after a blank; they are kept and written back.
local MAX_BACKSTEP, MAX_EXACT = 1000000, 9007199254740991
local MAX_TTL = 2592000000000 -- 30 days

-- Whether the rest of a record is empty or begins with the blank before a further field.
local function is_more(rest)
  return rest == '' or string.byte(rest) == 32
end

-- Reads the state under KEYS[1]; nil if there is none, or if no script has written it.
local function read_request()
  local text = redis.pcall('GET', KEYS[1])
  if type(text) ~= 'string' then return end
  local at, ttl, awaited, owner, fingerprint, more = string.match(text, '^1 c (%d+) (%d+) ([01]) (%x+) (%x+)(.*)$')
  if at then
    at, ttl = tonumber(at), tonumber(ttl)
    if at > MAX_EXACT or ttl > MAX_TTL or not is_more(more) then return end
    return {at = at, ttl = ttl, awaited = awaited, owner = owner, fingerprint = fingerprint, more = more}
  end
  local answered, size, first = string.match(text, '^1 d (%x+) (%d+) ()')
  if not answered or first + size > #text + 1 or not is_more(string.sub(text, first + size)) then return end
  return {fingerprint = answered, answer = string.sub(text, first, first + size - 1)}
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

-- Saves a claim, for what is left of it.
local function save_claim(now, claim)
  local text = string.format('1 c %.0f %.0f %s ', claim.at, claim.ttl, claim.awaited)
  save(text .. claim.owner .. ' ' .. claim.fingerprint .. claim.more, claim.at + claim.ttl - now)
end

-- Publishes that a claim has ended, if another request waits for it. A push that is denied costs it a poll interval.
local function publish_end(claim, channel, id)
  if claim and claim.awaited == '1' then redis.pcall('PUBLISH', channel, 'request ' .. id) end
end
