-- breaker_sync: records the outcomes of calls, in runs of equal outcomes, and returns the state.
-- KEYS: [1] the breaker
--       [2] the log of its partition
--       [3] the evidence of its replicas
-- ARGV: [1] spec: failure_ratio consecutive_failures slow_call_ratio latency_duration sampling_window min_throughput
--           break_duration break_multiplier max_break_duration break_jitter half_open_max_calls success_threshold
--           lease ramp_over ramp_steps fingerprint (times in microseconds; -1, 0, -1, -1 disable the
--           first four; ramp_over 0 disables the ramp)
--       [2] claim, as last known to the calling replica: epoch (0 if unknown) phase left escalation, the least age of
--           the phase, and the entry of the override: sequence (0 if there is none) value author left name reason
--           (value: 0 none, 1 open, 2 closed, 3 disabled, 4 metrics only; left: -1 if it does not end)
--       [3] channel of the pushes
--       [4] signature of a push: id of the breaker, `@`, id of the calling replica
--       [5] random number, 0 to 1: how much of the jitter is added to a break
--       [6] live replicas, as far as the calling one knows; 0 or 1: it is alone, and decides at once
--       [7] how long the others have to answer if they are asked what they know, in microseconds
--       [8] the call for evidence that this answers; 0 if none. Of few replicas every request answers an open call
--       [9] the window of the calling replica: calls failures slow streak
--       [10] number of runs; with 0 it only polls the state and stores the spec
--       [11..] of each run: number, epoch, kind, calls, age of the last outcome in microseconds, and how long before it
--           the first was. The number grows, and a run is counted once. Kind: 0 success, 1 slow success, 2 failure,
--           3 slow failure; 4 latency quantile within its threshold, 5 above it
-- returns: now, phase, epoch, left, override, ramping, escalation, flags (1 repaired, 2 stored by another spec,
--          4 restored and 8 override adopted from the claim, 16 change not published), t, t times (from, to, epoch,
--          break_for or -1, calls, failures, slow), then the probes in flight, the time left to answer an open call for
--          evidence (-1 if there is none), 1 if it was opened now, 1 if the calling replica is over the threshold and
--          the fleet is not, then, if there is one, the entry of the override as text
-- keeps: the breaker as text (include/breaker_state.lua), for twice the longest duration in its spec plus five minutes,
--        30 days while an override is set, 7 days after its release; writes only if something changed. The evidence
--        (include/breaker_lines.lua) for ten minutes, the log (include/breaker_answer.lua) for a day

-- Trips a closed breaker if the latency quantile stays above its threshold for latency_duration.
local function observe_quantile(s, spec, over)
  if spec.latency_duration < 0 then return end
  -- For one window after the breaker closed, the digest still contains latencies from before the trip.
  local stale = s.epoch > 1 and s.now - s.since < spec.window
  if stale or s.override == FORCED_CLOSED or s.override == DISABLED or s.phase ~= CLOSED or not over then
    if s.slow_since > 0 then
      s.slow_since, s.slow_seen = 0, 0
      touch(s)
    end
    return
  end
  -- Observations that are further apart than a window do not belong to one period.
  if s.slow_since == 0 or s.now - s.slow_seen > spec.window then
    s.slow_since, s.slow_seen = s.now, s.now
    touch(s)
  elseif s.now - s.slow_seen >= spec.slice_len then
    s.slow_seen = s.now
    touch(s)
  end
  if s.now - s.slow_since >= spec.latency_duration then open(s, spec) end
end

local function record(s, spec, epoch, kind, calls, age, span)
  if calls == 0 or epoch ~= s.epoch or s.phase ~= CLOSED or s.override == DISABLED then return end
  count(s, spec, kind, calls, math.min(math.max(0, s.now - age), s.now), math.max(0, span))
end

-- Counts the runs that were not counted before, and returns the highest number.
local function record_runs(s, spec, counted)
  local highest = counted
  for run = 1, tonumber(ARGV[10]) do
    local first = 5 + 6 * run
    if not ARGV[first + 5] then break end
    local w = {}
    for i = 1, 6 do w[i] = tonumber(ARGV[first + i - 1]) end
    if w[1] > counted then
      highest = math.max(highest, math.min(w[1], MAX_SERIAL))
      if w[3] >= 4 then
        observe_quantile(s, spec, w[3] == 5)
      else
        record(s, spec, w[2], w[3], w[4], w[5], w[6])
      end
    end
  end
  return highest
end

local function sync(s, spec)
  s.live = tonumber(ARGV[6])
  if ARGV[10] == '0' and s.asked == 0 and not has_quorum(spec) then return end
  local owner = string.match(ARGV[4], '@(%d+)') or '0'
  local rest, own = take_line(read_lines(KEYS[3]), owner, s.now)
  local w, answers = split(ARGV[9]), s.asked > 0 and (not is_sampled(s) or tonumber(ARGV[8]) == s.call)
  for i, field in ipairs({'calls', 'failures', 'slow', 'streak'}) do own[field] = tonumber(w[i] or 0) or 0 end
  own.at, own.call = s.now, answers and s.call or own.call
  own.number = record_runs(s, spec, own.number)
  if s.live > 1 or s.asked > 0 then
    weigh(s, spec, rest, own, within(tonumber(ARGV[7]), 1, 10000000) and tonumber(ARGV[7]) or RECENT)
  end
  -- Of many replicas only the sample is kept: their bad news would push it out.
  if answers or not is_sampled(s) then save_lines(KEYS[3], rest, own) end
end

local spec = read_spec()
local s = load(spec)
s.dirty = s.dirty or s.flags % RESTORED >= OTHER_SPEC
sync(s, spec)
commit(s, spec)
local left = s.asked > 0 and math.max(0, s.answer_until - s.now) or -1
return build_reply(s, probes_in_flight(s), left, s.asks and 1 or 0, s.odd and 1 or 0)
