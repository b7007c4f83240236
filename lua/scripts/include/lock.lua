-- The stored lock: '1 fence at ttl owner'; it is held from at for ttl microseconds.
local MAX_BACKSTEP, MAX_EXACT = 1000000, 9007199254740991
local MAX_TTL = 2592000000000 -- 30 days

-- Reads fence, at, ttl and owner of the lock under KEYS[1]; nil if there is none, or if no script has written it.
local function read_lock()
  local text = read_value(KEYS[1], 4096)
  if type(text) ~= 'string' then return end
  local fence, at, ttl, owner = string.match(text, '^1 (%d+) (%d+) (%d+) (.*)$')
  fence, at, ttl = tonumber(fence), tonumber(at), tonumber(ttl)
  if not fence or fence >= MAX_EXACT or at > MAX_EXACT or ttl > MAX_TTL then return end
  return fence, at, ttl, owner
end

local function save_lock(fence, at, ttl, owner)
  local text = string.format('1 %.0f %.0f %.0f ', fence, at, ttl) .. owner
  redis.call('SET', KEYS[1], text, 'PX', math.max(1, math.ceil(ttl / 1000)))
end
