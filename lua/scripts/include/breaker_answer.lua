-- What an operation on a circuit leaves behind: the key, a word to the other replicas, the answer.

local function left(s)
  return s.phase == OPEN and math.max(0, s.ends - s.clock) or 0
end

local function ramping(s)
  return s.ramp_step >= 0 and 1 or 0
end

-- 'id now phase epoch left forced ramping escalation from break_for calls failures slow', if there is news.
local function tell(s)
  local told = s.told
  if told[1] == s.phase and told[2] == s.epoch and told[3] == s.forced then return end
  local last = s.transitions[#s.transitions] or {0, 0, 0, -1, 0, 0, 0}
  local text = string.format(string.rep(' %.0f', 12), s.clock, s.phase, s.epoch, left(s), s.forced, ramping(s),
    s.escalation, last[1], last[4], last[5], last[6], last[7])
  redis.call('PUBLISH', ARGV[3], ARGV[4] .. text)
end

local function commit(s, spec)
  if not s.dirty then return end
  save(s, spec)
  tell(s)
end

-- The common answer, and what the operation adds to it.
local function answer(s, ...)
  local reply = {
    s.clock, s.phase, s.epoch, left(s), s.forced, ramping(s), s.escalation, s.flags, #s.transitions,
  }
  for _, transition in ipairs(s.transitions) do
    for i = 1, 7 do reply[#reply + 1] = transition[i] end
  end
  for _, value in ipairs({...}) do reply[#reply + 1] = value end
  return reply
end
