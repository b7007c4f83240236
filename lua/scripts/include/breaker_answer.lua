-- How a breaker script ends: it saves the state, publishes a change, and builds the reply.
local NOT_PUBLISHED = 16

local function left(s)
  return s.phase == OPEN and math.max(0, s.ends - s.clock) or 0
end

local function ramping(s)
  return s.ramp_step >= 0 and 1 or 0
end

-- The log of a partition: lines of 'seq id call', the latest first, for replicas that missed a message. The numbers
-- grow with every change of a breaker of the partition, and over a loss of data, because they follow the clock.
local MAX_LOG = 4096

-- Writes a line, and returns the number before it and its own.
local function append_to_log(s, call)
  local text = read_value(KEYS[2], MAX_LOG)
  if type(text) ~= 'string' or #text > MAX_LOG then text = '' end
  local before = tonumber(string.match(text, '^(%d+) ')) or 0
  if before >= MAX_SERIAL then text, before = '', 0 end
  local seq = math.max(before + 1, s.clock)
  text = string.format('%016.0f %s %.0f\n', seq, string.match(ARGV[4], '^[^@]*'), call) .. text
  if #text > MAX_LOG then text = string.match(string.sub(text, 1, MAX_LOG), '^(.*\n)') end
  redis.call('SET', KEYS[2], text, 'PX', 86400000)
  return before, seq
end

-- Publishes a message with the numbers of the log. The user may lack the permission for the channel: the state is saved
-- by then, so the script must not fail.
local function send(s, prefix, call, text)
  local before, seq = append_to_log(s, call)
  text = prefix .. ARGV[4] .. string.format(' %.0f %.0f', before, seq) .. text
  local receivers = redis.pcall('PUBLISH', ARGV[3], text)
  if type(receivers) == 'table' then s.flags = s.flags % NOT_PUBLISHED + NOT_PUBLISHED end
end

-- Publishes 'id@owner before seq now phase epoch left override ramping escalation from break_for calls failures slow'
-- and the entry of the override, if the phase, the epoch, the override or its entry has changed; and 'ask id@owner
-- before seq call asked' if the replicas have to send what they know. Later releases may append to both.
local function publish(s)
  if s.asks then send(s, 'ask ', s.call, string.format(' %.0f %.0f', s.call, s.asked)) end
  local loaded = s.loaded
  local same = loaded[1] == s.phase and loaded[2] == s.epoch and loaded[3] == s.override
  if same and loaded[4] == (s.entry and s.entry.sequence) then return end
  local last = s.transitions[#s.transitions] or {0, 0, 0, -1, 0, 0, 0}
  local text = string.format(string.rep(' %.0f', 12), s.clock, s.phase, s.epoch, left(s), s.override, ramping(s),
    s.escalation, last[1], last[4], last[5], last[6], last[7])
  send(s, '', 0, text .. ' ' .. entry_text(s))
end

local function commit(s, spec)
  if not s.dirty then return end
  save(s, spec)
  publish(s)
end

-- Returns the part of the reply that all breaker scripts share, and what this one appends.
local function build_reply(s, ...)
  local reply = {
    s.clock, s.phase, s.epoch, left(s), s.override, ramping(s), s.escalation, s.flags, #s.transitions,
  }
  for _, transition in ipairs(s.transitions) do
    for i = 1, 7 do reply[#reply + 1] = transition[i] end
  end
  for _, value in ipairs({...}) do reply[#reply + 1] = value end
  if s.entry then reply[#reply + 1] = entry_text(s) end
  return reply
end
