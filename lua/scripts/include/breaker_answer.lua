-- How a breaker script ends: it saves the state, publishes a change, and builds the reply.
local NOT_PUBLISHED = 16

local function left(s)
  return s.phase == OPEN and math.max(0, s.ends - s.clock) or 0
end

local function ramping(s)
  return s.ramp_step >= 0 and 1 or 0
end

-- Publishes 'id@owner now phase epoch left override ramping escalation from break_for calls failures slow' and the
-- entry of the override, if the phase, the epoch, the override or its entry has changed. Later releases may append to
-- it. The user may lack the permission for the channel: the state is saved by then, so the script must not fail.
local function publish(s)
  local loaded = s.loaded
  local same = loaded[1] == s.phase and loaded[2] == s.epoch and loaded[3] == s.override
  if same and loaded[4] == (s.entry and s.entry.sequence) then return end
  local last = s.transitions[#s.transitions] or {0, 0, 0, -1, 0, 0, 0}
  local text = string.format(string.rep(' %.0f', 12), s.clock, s.phase, s.epoch, left(s), s.override, ramping(s),
    s.escalation, last[1], last[4], last[5], last[6], last[7])
  local receivers = redis.pcall('PUBLISH', ARGV[3], ARGV[4] .. text .. ' ' .. entry_text(s))
  if type(receivers) == 'table' then s.flags = s.flags + NOT_PUBLISHED end
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
