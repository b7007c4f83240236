-- breaker_sync: records the outcomes of calls, in runs of equal outcomes, and returns the state.
-- KEYS: [1] the breaker
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
--       [6] number of runs; with 0 it only polls the state and stores the spec
--       [7..] of each run: epoch, kind, calls, age in microseconds. Kind: 0 success, 1 slow success, 2 failure, 3 slow
--           failure; 4 latency quantile within its threshold, 5 above it
-- returns: now, phase, epoch, left, override, ramping, escalation, flags (1 repaired, 2 stored by another spec,
--          4 restored and 8 override adopted from the claim, 16 change not published), t, t times (from, to, epoch, break_for or -1, calls,
--          failures, slow), then the probes in flight, then, if there is one, the entry of the override as text
-- keeps: the breaker as text (include/breaker_state.lua), for twice the longest duration in its spec plus five minutes,
--        30 days while an override is set, 7 days after its release; writes only if something
--        changed

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

local function record(s, spec, epoch, kind, calls, age)
  if calls == 0 or epoch ~= s.epoch or s.phase ~= CLOSED or s.override == DISABLED then return end
  count(s, spec, kind, calls, math.min(math.max(0, s.now - age), s.now))
end

local spec = read_spec()
local s = load(spec)
s.dirty = s.dirty or s.flags % RESTORED >= OTHER_SPEC
for run = 1, tonumber(ARGV[6]) do
  local first = 3 + 4 * run
  if not ARGV[first + 3] then break end
  local kind = tonumber(ARGV[first + 1])
  if kind >= 4 then
    observe_quantile(s, spec, kind == 5)
  else
    record(s, spec, tonumber(ARGV[first]), kind, tonumber(ARGV[first + 2]), tonumber(ARGV[first + 3]))
  end
end
commit(s, spec)
return build_reply(s, probes_in_flight(s))
