-- The stored text of a breaker, in lines of a letter and fields; times are the server's, in microseconds:
--   2 at phase epoch since ends escalation streak slow_since slow_seen proven next_lease ramp_step ramp_asked
--     fingerprint, in one line
--   w slice_len newest, ten times 'calls failures slow': a window; at most two, the one used last first
--   l id expires owner: a lease
--   e streak_since streak_last streak_over call asked until: when the first and the last failure in a row ended, 1 if a
--     success has followed them; when the other replicas were last asked for their outcomes, how many were (0: none is
--     waited for), and until when they can answer; without the line all are 0
--   o sequence value author ends name reason: the override; ends 0: it does not end
-- The format is open: fields behind these, and lines of other letters, are of a later release; they are kept and
-- written back. Lines 2, w and l hold numbers only. Stored values are checked for plausibility; every write has a TTL.
local CLOSED, OPEN, HALF_OPEN = 1, 2, 3
local FORCED_OPEN, FORCED_CLOSED, DISABLED, METRICS_ONLY = 1, 2, 3, 4
local REPAIRED, OTHER_SPEC, RESTORED, ADOPTED = 1, 2, 4, 8
local MAX_BACKSTEP, MAX_ESCALATION, SLICES, MAX_WINDOWS = 1000000, 1000, 10, 2
local MAX_U32, MAX_COUNT, MAX_EXACT = 4294967295, 281474976710656, 9007199254740991 -- 2^48 and 2^53 - 1
local MAX_SERIAL = 4503599627370496 -- 2^52: epochs, leases and sequences that grow from here are still exact
local MAX_TEXT, MAX_MORE, MAX_WORD, MAX_LEASES, MAX_ASKED = 65536, 4096, 1024, 100, 64
local MAX_AHEAD = 86400000000 -- a day
local OVERRIDE_KEPT, RELEASE_KEPT = 2592000000000, 604800000000 -- 30 and 7 days

local function split(text)
  local words = {}
  for word in string.gmatch(text, '%S+') do words[#words + 1] = word end
  return words
end

-- Reads the spec from ARGV[1], and the random number.
local function read_spec()
  local w = split(ARGV[1])
  for i = 1, 18 do w[i] = tonumber(w[i]) end
  return {
    failure_ratio = w[1], consecutive_failures = w[2], slow_call_ratio = w[3], latency_duration = w[4],
    window = w[5], min_throughput = w[6], break_duration = w[7], break_multiplier = w[8], max_break = w[9],
    jitter = w[10], half_open_max_calls = w[11], success_threshold = w[12], lease = w[13], ramp_over = w[14],
    ramp_steps = w[15], fingerprint = w[16], random = tonumber(ARGV[5]),
    quorum_share = w[17] or -1, quorum_replicas = w[18] or 0,
    slice_len = math.max(1, math.floor(w[5] / SLICES)),
    longest_break = math.floor(math.max(w[7], w[9]) * (1 + w[10])),
  }
end

-- Reads an entry from these words, from the i-th on: sequence value author left name reason; left -1: it does not end.
local function read_entry(words, i)
  local entry = {name = words[i + 4] or '-', reason = words[i + 5] or '-', more = ''}
  for at, field in ipairs({'sequence', 'value', 'author', 'left'}) do
    entry[field] = tonumber(words[i + at - 1] or 0) or 0
  end
  return entry
end

-- A window without counts.
local function new_window(slice_len)
  local window = {slice_len = slice_len, newest = 0, seen = {}, more = ''}
  for i = 1, 3 * SLICES do window.seen[i] = 0 end
  return window
end

-- Clears all windows.
local function clear_windows(s, spec)
  s.windows = {new_window(spec.slice_len)}
end

-- A closed breaker with an empty window.
local function fresh(now, spec)
  local s = {
    at = now, phase = CLOSED, epoch = 1, since = now, ends = now, escalation = 0, streak = 0, slow_since = 0,
    slow_seen = 0, proven = 0, next_lease = 1, ramp_step = -1, ramp_asked = 0, fingerprint = spec.fingerprint,
    leases = {}, more = '', lines = {}, streak_since = 0, streak_last = 0, streak_over = 0, call = 0, asked = 0,
    answer_until = 0,
  }
  clear_windows(s, spec)
  return s
end

-- Restores a breaker that the server has lost from the claim of a replica. A closed one has been closed for at least as
-- long as the claim says. Half-open becomes open with a break that ends now, because the leases are lost.
local function restored(now, spec, claim)
  local s = fresh(now, spec)
  s.epoch, s.escalation = claim.epoch, math.min(claim.escalation, MAX_ESCALATION)
  if claim.phase == CLOSED then
    s.since = math.max(0, now - claim.age)
  elseif claim.phase == OPEN then
    s.phase, s.ends = OPEN, now + math.min(claim.left, spec.longest_break)
  elseif claim.phase == HALF_OPEN then
    s.phase = OPEN
  end
  return s
end

local function within(value, least, most)
  return value >= least and value <= most
end

-- Keeps what a later release has added, as long as there is not too much of it.
local function keep(s, text)
  s.kept = s.kept + #text
  return s.kept <= MAX_MORE and text or ''
end

-- Splits a line of numbers into its letter and n fields, and the fields behind them as text; nil if it is not one.
local function read_line(s, line, n)
  local w = split(line)
  if string.find(line, '[^%d %-]', 3) then return end
  local more = #w > n + 1 and keep(s, ' ' .. table.concat(w, ' ', n + 2)) or ''
  for i = 2, n + 1 do
    w[i] = tonumber(w[i])
    if not w[i] then return end
  end
  return w, more
end

-- Whether the numbers can be a stored breaker. (Only digits pass, so there is no nan and no fraction.)
local function plausible(s)
  local at = s.at
  return within(at, 0, MAX_EXACT) and within(s.phase, CLOSED, HALF_OPEN) and within(s.epoch, 1, MAX_SERIAL)
    and within(s.since, 0, at) and within(s.ends, 0, MAX_EXACT) and within(s.escalation, 0, MAX_ESCALATION)
    and within(s.streak, 0, MAX_U32) and within(s.slow_since, 0, at) and within(s.slow_seen, 0, at)
    and within(s.proven, 0, MAX_U32) and within(s.next_lease, 1, MAX_SERIAL) and within(s.ramp_step, -1, MAX_U32)
    and within(s.ramp_asked, 0, MAX_EXACT) and within(s.fingerprint, 0, MAX_U32)
end

local function read_head(line)
  local s = {
    windows = {}, leases = {}, lines = {}, kept = 0, streak_since = 0, streak_last = 0, streak_over = 0, call = 0,
    asked = 0, answer_until = 0,
  }
  local w, more = read_line(s, line, 14)
  if not w then return end
  s.at, s.phase, s.epoch, s.since, s.ends, s.escalation, s.streak = w[2], w[3], w[4], w[5], w[6], w[7], w[8]
  s.slow_since, s.slow_seen, s.proven, s.next_lease = w[9], w[10], w[11], w[12]
  s.ramp_step, s.ramp_asked, s.fingerprint, s.more = w[13], w[14], w[15], more
  return plausible(s) and s
end

local function read_window(s, line)
  local w, more = read_line(s, line, 2 + 3 * SLICES)
  if not w or not within(w[2], 1, MAX_EXACT) or not within(w[3], 0, s.at / w[2]) then return false end
  local window = {slice_len = w[2], newest = w[3], seen = {}, more = more}
  for i = 1, 3 * SLICES do window.seen[i] = w[3 + i] end
  for i = 1, 3 * SLICES, 3 do
    local calls, failures, slow = window.seen[i], window.seen[i + 1], window.seen[i + 2]
    if not (within(calls, 0, MAX_COUNT) and within(failures, 0, calls) and within(slow, 0, calls)) then return false end
  end
  if #s.windows < MAX_WINDOWS then s.windows[#s.windows + 1] = window end
  return true
end

local function read_lease(s, line, spec)
  local w, more = read_line(s, line, 3)
  if not w then return false end
  local id, expires, owner = w[2], w[3], w[4]
  if not (within(id, 1, s.next_lease - 1) and within(expires, 0, MAX_EXACT) and within(owner, 0, MAX_EXACT)) then
    return false
  end
  -- Leases and breaks are limited to what this spec allows, so that stored values cannot block a breaker for ever.
  local lease = {id = id, expires = math.min(expires, s.at + spec.lease), owner = owner, more = more}
  if #s.leases < MAX_LEASES then s.leases[#s.leases + 1] = lease end
  return true
end

local function read_evidence(s, line)
  local w, more = read_line(s, line, 6)
  if not w then return false end
  s.streak_since, s.streak_last, s.streak_over, s.call, s.asked, s.answer_until = w[2], w[3], w[4], w[5], w[6], w[7]
  s.evidence_more = more
  return within(s.streak_since, 0, s.streak_last) and within(s.streak_last, 0, s.at) and within(s.streak_over, 0, 1)
    and within(s.call, 0, s.at) and within(s.asked, 0, MAX_ASKED) and within(s.answer_until, 0, MAX_EXACT)
end

local function read_override(s, line)
  local numbers, name, reason, more = string.match(line, '^o (%d+ %d+ %d+ %d+) (%S+) (%S+)(.*)$')
  if not numbers then return false end
  local w = split(numbers)
  for i = 1, 4 do w[i] = tonumber(w[i]) end
  -- A sequence that no entry could follow would block the override for ever. Sequences follow the clock.
  if w[1] < s.at + 2 * MAX_AHEAD and w[1] < MAX_SERIAL then
    s.entry = {sequence = w[1], value = w[2], author = w[3], ends = w[4], name = name, reason = reason}
    s.entry.more = keep(s, more)
  end
  return within(w[1], 1, MAX_EXACT) and within(w[2], 0, MAX_U32) and within(w[3], 0, MAX_EXACT)
    and within(w[4], 0, MAX_EXACT)
end

-- Parses the stored text; nil if no script has written it.
local function parse(text, spec)
  if type(text) ~= 'string' or #text > MAX_TEXT then return end
  local s
  for line in string.gmatch(text, '[^\n]+') do
    local letter, good = string.sub(line, 1, 2), true
    if not s then
      s = letter == '2 ' and read_head(line)
      good = s
    elseif letter == 'w ' then
      good = read_window(s, line)
    elseif letter == 'l ' then
      good = read_lease(s, line, spec)
    elseif letter == 'e ' then
      good = read_evidence(s, line)
    elseif letter == 'o ' then
      good = read_override(s, line)
    else
      s.lines[#s.lines + 1] = keep(s, '\n' .. line)
    end
    if not good then return end
  end
  if not s then return end
  s.ends = math.min(s.ends, s.since + spec.longest_break)
  return s
end

-- The time to use. If the clock stepped back by up to MAX_BACKSTEP, time stands still; if by more, all stored times
-- are moved back too.
local function anchor(s, now, spec)
  if now >= s.at then return now end
  local back = s.at - now
  if back <= MAX_BACKSTEP then return s.at end
  s.at, s.since, s.ends = now, math.max(0, s.since - back), math.max(0, s.ends - back)
  if s.slow_since > 0 then
    s.slow_since, s.slow_seen = math.max(1, s.slow_since - back), math.max(1, s.slow_seen - back)
  end
  for _, lease in ipairs(s.leases) do lease.expires = math.max(0, lease.expires - back) end
  if s.entry and s.entry.ends > 0 then s.entry.ends = math.max(1, s.entry.ends - back) end
  s.streak_since, s.streak_last = math.max(0, s.streak_since - back), math.max(0, s.streak_last - back)
  s.call, s.asked = 0, 0
  clear_windows(s, spec)
  s.dirty = true
  return now
end
