-- The state machine of core/src/breaker.rs, in the same order; what only one script needs is in that script.

-- Moves a window forward to a slice and clears the slices that enter it.
local function roll_to(window, slice)
  local gone = math.min(slice - window.newest, SLICES)
  for i = slice - gone + 1, slice do
    local first = 3 * (i % SLICES)
    window.seen[first + 1], window.seen[first + 2], window.seen[first + 3] = 0, 0, 0
  end
  window.newest = slice
end

-- Counts into a slice, unless it has left the window.
local function count_in(window, slice, calls, failures, slow)
  if slice > window.newest then roll_to(window, slice) end
  if window.newest - slice >= SLICES then return end
  local first = 3 * (slice % SLICES)
  for i, count in ipairs({calls, failures, slow}) do
    window.seen[first + i] = math.min(window.seen[first + i] + count, MAX_COUNT)
  end
end

-- Sums calls, failures and slow calls in the window of this spec that ends now.
local function sum(s)
  local window = s.windows[1]
  roll_to(window, math.max(window.newest, math.floor(s.now / window.slice_len)))
  local calls, failures, slow = 0, 0, 0
  for i = 1, 3 * SLICES, 3 do
    calls, failures, slow = calls + window.seen[i], failures + window.seen[i + 1], slow + window.seen[i + 2]
  end
  return calls, failures, slow
end

-- Counts the leases that have not expired.
local function probes_in_flight(s)
  local probes = 0
  for _, lease in ipairs(s.leases) do
    if lease.expires > s.now then probes = probes + 1 end
  end
  return probes
end

-- Marks the state as changed at this time.
local function touch(s)
  s.at, s.dirty = s.now, true
end

-- No failures in a row are known any more.
local function forget_streak(s)
  s.streak, s.streak_since, s.streak_last, s.streak_over = 0, 0, 0, 0
end

local function begin(s, phase, break_for, calls, failures, slow)
  local from = s.phase
  s.phase, s.epoch, s.since, s.slow_since, s.proven, s.leases = phase, s.epoch + 1, s.now, 0, 0, {}
  s.slow_seen, s.asked = 0, 0
  forget_streak(s)
  s.transitions[#s.transitions + 1] = {from, phase, s.epoch, break_for, calls, failures, slow}
  touch(s)
end

local function enter(s, spec, phase, break_for)
  local calls, failures, slow = sum(s)
  clear_windows(s, spec)
  if phase == CLOSED then s.ramp_step, s.ramp_asked = spec.ramp_over > 0 and 0 or -1, 0 end
  begin(s, phase, break_for, calls, failures, slow)
end

-- The break after `escalation` trips in close succession. Multiplied step by step, so that Lua and Rust round alike.
local function break_duration(spec, escalation)
  local longest, length = math.max(spec.break_duration, spec.max_break), spec.break_duration
  if spec.break_multiplier > 1 then
    for _ = 1, escalation do
      length = math.min(length * spec.break_multiplier, longest)
      if length >= longest then break end
    end
  end
  return math.floor(length * (1 + spec.jitter * spec.random))
end

local function open(s, spec)
  -- Escalation starts over after a whole window without a trip.
  local held = s.phase == CLOSED and s.now - s.since >= spec.window
  local escalation = held and 0 or s.escalation
  local break_for = break_duration(spec, escalation)
  enter(s, spec, OPEN, break_for)
  s.escalation, s.ends = math.min(escalation + 1, MAX_ESCALATION), s.now + break_for
end

-- Whether so many failures in a row, or of so many calls but at least `least`, trip a breaker of this spec.
local function reaches(spec, least, streak, calls, failures, slow)
  if spec.consecutive_failures > 0 and streak >= spec.consecutive_failures then return true end
  if calls < least then return false end
  return spec.failure_ratio >= 0 and failures > 0 and failures >= spec.failure_ratio * calls
    or spec.slow_call_ratio >= 0 and slow > 0 and slow >= spec.slow_call_ratio * calls
end

-- Counts failures in a row. Outcomes of other replicas arrive late: a success that may lie between two of the failures
-- means that they were not in a row; one after them ends them.
local function count_in_a_row(s, failed, calls, moment, span)
  if failed then
    if s.streak_over == 1 then forget_streak(s) end
    if s.streak == 0 then s.streak_since = math.max(0, moment - span) end
    s.streak, s.streak_last = math.min(s.streak + calls, MAX_U32), math.max(s.streak_last, moment)
  elseif moment >= s.streak_since then
    if s.streak > 1 and moment - span < s.streak_last then
      forget_streak(s)
    else
      s.streak_over = 1
    end
  end
end

-- Counts equal outcomes of a closed breaker in their slice of the window of this spec, and in every other window at the
-- beginning of that slice. Kind: 0 success, 1 slow, 2 failure, 3 slow failure; span: how long before `moment` the first
-- was.
local function count(s, spec, kind, calls, moment, span)
  local failed, slow = kind >= 2, kind % 2 == 1
  count_in_a_row(s, failed, calls, moment, span)
  for i, window in ipairs(s.windows) do
    local slice = math.floor(moment / window.slice_len)
    count_in(window, slice, calls, failed and calls or 0, slow and calls or 0)
    if i == 1 then moment = slice * window.slice_len end
  end
  touch(s)
  if kind == 0 or s.override == FORCED_CLOSED then return end
  -- A replica that is not alone asks the others first (include/breaker_evidence.lua).
  if s.live and s.live > 1 then
    s.bad_news = true
  elseif reaches(spec, spec.min_throughput, s.streak_over == 1 and 0 or s.streak, sum(s)) then
    open(s, spec)
  end
end
