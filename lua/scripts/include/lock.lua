-- The stored lock: '1 fence at ttl size owner'; it is held from at for ttl microseconds, and size is that of the owner
-- in bytes. The mark of completed work: '1 fence until ttl'. The last fence is a number. A later release may append
-- fields, each after a blank; they are kept and written back.
local MAX_BACKSTEP, MAX_EXACT = 1000000, 9007199254740991
local MAX_TTL = 2592000000000 -- 30 days

-- Whether the rest of a record is empty or begins with the blank before a further field.
local function is_more(rest)
  return rest == '' or string.byte(rest) == 32
end

-- Reads the lock under KEYS[1]; nil if there is none, or if no script has written it.
local function read_lock()
  local text = read_value(KEYS[1], 4096)
  if type(text) ~= 'string' then return end
  local fence, at, ttl, size, first = string.match(text, '^1 (%d+) (%d+) (%d+) (%d+) ()')
  fence, at, ttl, size = tonumber(fence), tonumber(at), tonumber(ttl), tonumber(size)
  if not fence or fence >= MAX_EXACT or at > MAX_EXACT or ttl > MAX_TTL or first + size > #text + 1 then return end
  local more = string.sub(text, first + size)
  if not is_more(more) then return end
  return {fence = fence, at = at, ttl = ttl, owner = string.sub(text, first, first + size - 1), more = more}
end

local function save_lock(lock)
  local text = string.format('1 %.0f %.0f %.0f %d ', lock.fence, lock.at, lock.ttl, #lock.owner) .. lock.owner
  redis.call('SET', KEYS[1], text .. lock.more, 'PX', math.max(1, math.ceil(lock.ttl / 1000)))
end

-- Saves a mark that expires a ttl from now.
local function save_mark(key, fence, now, ttl, more)
  local text = string.format('1 %.0f %.0f %.0f', fence, now + ttl, ttl) .. more
  redis.call('SET', key, text, 'PX', math.max(1, math.ceil(ttl / 1000)))
end
