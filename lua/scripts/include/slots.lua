-- The holders of slots of core/src/slots.rs. All numbers stay below 2^53, so doubles are exact.
--
-- Stored: '1 holders', then of each holder 'id held want number until', and behind that whatever a later release
-- appends, which is kept as it is.
local MAX_HOLDERS, MAX_LEASE, MAX_SLOTS, MAX_EXACT = 256, 10000000, 1000000000, 9007199254740991
local MAX_TEXT, MAX_MORE, REPAIRED = 32768, 4096, 1

-- Parses the stored text: holders, and what follows; nil if no script has written it.
local function parse_holders(text)
  if type(text) ~= 'string' or #text > MAX_TEXT then return end
  local count, last = string.match(text, '^1 (%d+)()')
  count = tonumber(count)
  if not count or count > MAX_HOLDERS then return end
  local holders = {}
  for i = 1, count do
    local id, held, want, number, ends, behind = string.match(text, '^ (%d+) (%d+) (%d+) (%d+) (%d+)()', last)
    if not id then return end
    local holder = {
      id = tonumber(id), held = tonumber(held), want = tonumber(want), number = tonumber(number), ends = tonumber(ends),
    }
    if holder.held > MAX_SLOTS or holder.want > MAX_SLOTS then return end
    if holder.id > MAX_EXACT or holder.number > MAX_EXACT or holder.ends > MAX_EXACT then return end
    holders[i], last = holder, behind
  end
  local more = string.sub(text, last)
  if more ~= '' and not string.find(more, '^[ \n]') then return end
  return holders, #more <= MAX_MORE and more or ''
end

-- Loads the holders whose leases are not over, flags, and what follows.
local function load_holders(now)
  local text = read_value(KEYS[1], MAX_TEXT)
  local holders, more = parse_holders(text)
  if not holders then return {}, text and REPAIRED or 0, '' end
  local live = {}
  for _, holder in ipairs(holders) do
    if holder.ends > now then
      -- No lease ends later, unless the clock stepped back.
      holder.ends = math.min(holder.ends, now + MAX_LEASE)
      live[#live + 1] = holder
    end
  end
  return live, 0, more
end

-- The most that one holder may have where more is wanted than there is: see `fair_part` in core.
local function fair_part(wants, cap, asks)
  table.sort(wants)
  local left = cap
  for served, want in ipairs(wants) do
    local sharers = #wants - served + 1
    if want * sharers > left then return asks and math.ceil(left / sharers) or math.floor(left / sharers) end
    left = left - want
  end
  return cap
end

-- The share of a holder beside what the others hold.
local function grant(holders, cap, others, want, asks)
  local wants, wanted = {want}, want
  for i, holder in ipairs(holders) do
    wants[i + 1], wanted = holder.want, wanted + holder.want
  end
  local share = math.min(want, math.max(0, cap - others), fair_part(wants, cap, asks))
  if asks and share == want and wanted <= cap then
    local room = math.max(0, math.floor(cap / 2) - others - share)
    share = share + math.min(math.ceil(want / 4), room)
  end
  return share
end

local function save_holders(holders, now, more)
  local parts, last = {string.format('1 %d', #holders)}, now
  for i, holder in ipairs(holders) do
    local held, want = holder.held, holder.want
    parts[i + 1] = string.format('%.0f %.0f %.0f %.0f %.0f', holder.id, held, want, holder.number, holder.ends)
    last = math.max(last, holder.ends)
  end
  if #holders == 0 and more == '' then return redis.call('DEL', KEYS[1]) end
  redis.call('SET', KEYS[1], table.concat(parts, ' ') .. more, 'PX', math.ceil((last - now) / 1000) + 1000)
end
