-- The tally of core/src/tally.rs, in the same order: calls and marks in ten slices of a window. All numbers stay below
-- 2^53, so doubles are exact. Every length of a slice has a key of its own.
--
-- Stored: '1 newest' and ten times 'calls marks', each slice in the place of its number modulo ten, and behind that
-- whatever a later release appends, which is kept as it is.
local SLICES, MAX_COUNT, MAX_BACKSTEP = 10, 281474976710656, 1000000 -- 2^48
local MAX_TEXT, MAX_MORE = 8192, 4096
local REPAIRED = 1

-- An empty window.
local function empty_tally()
  local tally = {newest = 0, seen = {}, more = ''}
  for i = 1, 2 * SLICES do tally.seen[i] = 0 end
  return tally
end

-- Parses the stored text; nil if no script has written it.
local function parse_tally(text)
  if type(text) ~= 'string' or #text > MAX_TEXT then return end
  local first, last = string.match(text, '^1 (%d+)()')
  if not first then return end
  local tally = {newest = tonumber(first), seen = {}}
  for i = 1, 2 * SLICES do
    local count, behind = string.match(text, '^ (%d+)()', last)
    count = tonumber(count)
    if not count or count > MAX_COUNT then return end
    tally.seen[i], last = count, behind
  end
  tally.more = string.sub(text, last)
  if tally.more ~= '' and not string.find(tally.more, '^[ \n]') then return end
  if #tally.more > MAX_MORE then tally.more = '' end
  return tally
end

-- Moves the window forward to a slice and clears the slices that enter it.
local function roll_to(tally, slice)
  for i = slice - math.min(slice - tally.newest, SLICES) + 1, slice do
    local first = 2 * (i % SLICES)
    tally.seen[first + 1], tally.seen[first + 2] = 0, 0
  end
  tally.newest = math.max(slice, tally.newest)
end

-- Loads the window that ends now, and flags.
local function load_tally(now, slice_len)
  local text, flags = read_value(KEYS[1], MAX_TEXT), 0
  local tally = text and parse_tally(text)
  if not tally then
    tally, flags = empty_tally(), text and REPAIRED or 0
  elseif tally.newest * slice_len > now + MAX_BACKSTEP then
    tally = empty_tally() -- the clock stepped back: these counts are from the future
  end
  roll_to(tally, math.floor(now / slice_len))
  return tally, flags
end

-- Adds to a slice that is not later than the newest, unless it has left the window; no counter goes below zero. Returns
-- whether anything changed.
local function add_to(tally, slice, calls, marks)
  if tally.newest - slice >= SLICES then return false end
  local first, changed = 2 * (slice % SLICES), false
  for i, count in ipairs({calls, marks}) do
    local sum = math.max(0, math.min(tally.seen[first + i] + count, MAX_COUNT))
    changed = changed or sum ~= tally.seen[first + i]
    tally.seen[first + i] = sum
  end
  return changed
end

local function sum(tally)
  local calls, marks = 0, 0
  for i = 1, 2 * SLICES, 2 do calls, marks = calls + tally.seen[i], marks + tally.seen[i + 1] end
  return calls, marks
end

local function save_tally(tally, slice_len)
  local text = string.format('1 %.0f' .. string.rep(' %.0f', 2 * SLICES), tally.newest, unpack(tally.seen))
  redis.call('SET', KEYS[1], text .. tally.more, 'PX', math.ceil((SLICES + 1) * slice_len / 1000) + 1000)
end
