-- breaker_sync: tells the circuit what became of calls, in runs alike, and how it stands.
-- KEYS: [1] the circuit
-- ARGV: [1] spec: failure_ratio consecutive_failures slow_call_ratio latency_duration sampling_window min_throughput
--           break_duration break_multiplier max_break_duration break_jitter half_open_max_calls success_threshold
--           lease ramp_over ramp_steps fingerprint (times in microseconds; none is -1, 0, -1, -1; no ramp is 0)
--       [2] claim: epoch phase left escalation forced, as the asking replica last knew them; epoch 0 knows nothing
--       [3] channel on which others are told
--       [4] id of the circuit, for them
--       [5] luck, 0 to 1, which places a jittered break
--       [6] number of runs; with none it is a look, and the spec is taken over
--       [7..] of each run: epoch, kind, calls, microseconds since. Kind: 0 success, 1 slow success, 2 failure, 3 slow
--           failure; 4 the latency's quantile is within its threshold or unknown, 5 it is over it
-- returns: now, phase, epoch, left, forced, ramping, escalation, flags (1 repaired, 2 stored by another spec, 4 adopted
--          from the claim), t, t times (from, to, epoch, break_for or -1, calls, failures, slow)
-- keeps: the circuit as text (include/breaker_state.lua), for twice its longest time and five minutes, 30 days while
--        an operator's word stands; writes only if something changed

-- The latency's quantile: over its threshold for long enough, it trips a closed circuit.
local function observe_quantile(s, spec, over)
  if spec.latency_duration < 0 then return end
  -- For one window after it closed, the digest still holds what it saw before the trip.
  local stale = s.epoch > 1 and s.now - s.since < spec.window
  if stale or s.forced == FORCED_CLOSED or s.forced == DISABLED or s.phase ~= CLOSED or not over then
    if s.slow_since > 0 then
      s.slow_since = 0
      touch(s)
    end
    return
  end
  if s.slow_since == 0 then
    s.slow_since = s.now
    touch(s)
  end
  if s.now - s.slow_since >= spec.latency_duration then open(s, spec) end
end

local function record(s, spec, epoch, kind, calls, age)
  if calls == 0 or epoch ~= s.epoch or s.phase ~= CLOSED or s.forced == DISABLED then return end
  local slice = math.floor(math.min(math.max(0, s.now - age), s.now) / s.slice_len)
  count(s, spec, kind, calls, slice)
end

local spec = read_spec()
local s = load(spec)
s.dirty = s.dirty or s.flags == OTHER_SPEC
for run = 1, tonumber(ARGV[6]) do
  local first = 3 + 4 * run
  local kind = tonumber(ARGV[first + 1])
  if kind >= 4 then
    observe_quantile(s, spec, kind == 5)
  else
    record(s, spec, tonumber(ARGV[first]), kind, tonumber(ARGV[first + 2]), tonumber(ARGV[first + 3]))
  end
end
commit(s, spec)
return answer(s)
