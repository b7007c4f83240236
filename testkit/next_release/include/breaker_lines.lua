-- The evidence of a breaker: a line for each replica that has sent or answered lately, the latest last:
--   owner number call at calls failures slow streak
-- number: of its last outcomes that were counted; call: the last call for evidence that it answered; at: when; then its
-- own window. Later releases may append fields. The text lives for ten minutes. It is taken apart only for a decision:
-- most scripts need only the line of their replica.
local MAX_LINES, MAX_LINE, EVIDENCE_KEPT = 64, 256, 600000

-- Reads the text under a key; empty if no script has written it.
local function read_lines(key)
  local text = read_value(key, MAX_LINES * MAX_LINE)
  if type(text) ~= 'string' or #text > MAX_LINES * MAX_LINE then return '' end
  return text
end

-- Reads one line; nil if no script has written it.
local function parse_line(line, now)
  local owner, number, call, at, calls, failures, slow, streak, more =
    string.match(line, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)([ %d]*)$')
  if not owner or #line >= MAX_LINE or tonumber(at) > now then return end
  return {
    owner = owner, number = tonumber(number), call = tonumber(call), at = tonumber(at), calls = tonumber(calls),
    failures = tonumber(failures), slow = tonumber(slow), streak = tonumber(streak), more = more,
  }
end

local function format_line(known)
  return string.format('%s %.0f %.0f %.0f %.0f %.0f %.0f %.0f', known.owner, known.number, known.call, known.at,
    known.calls, known.failures, known.slow, known.streak) .. known.more
end

-- Takes the line of this replica out of the text. Returns the rest, and the line.
local function take_line(text, owner, now)
  local first = ('\n' .. text):find('\n' .. owner .. ' ', 1, true)
  local last = first and text:find('\n', first, true)
  local own = first and parse_line(text:sub(first, (last or 0) - 1), now)
  if first then text = text:sub(1, first - 1) .. (last and text:sub(last + 1) or '') end
  if text ~= '' and text:sub(-1) ~= '\n' then text = text .. '\n' end
  own = own or {owner = owner, number = 0, call = 0, calls = 0, failures = 0, slow = 0, streak = 0, more = ''}
  return text, own
end

-- Saves the text with the line of this replica at its end; of too many lines, the oldest goes.
local function save_lines(key, rest, own)
  local _, lines = rest:gsub('\n', '')
  for _ = MAX_LINES, lines do rest = rest:sub(rest:find('\n', 1, true) + 1) end
  redis.call('SET', key, rest .. format_line(own), 'PX', EVIDENCE_KEPT)
end

-- Takes all lines apart.
local function parse_lines(text, now)
  local lines = {}
  for line in text:gmatch('[^\n]+') do lines[#lines + 1] = parse_line(line, now) end
  return lines
end
