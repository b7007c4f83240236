-- breaker_reset: closes the breaker and clears its counts; an override stays.
-- KEYS: [1] the breaker
--       [2] the log of its partition
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
-- returns: now, phase, epoch, left, override, ramping, escalation, flags (1 repaired, 2 stored by another spec,
--          4 restored and 8 override adopted from the claim, 16 change not published), t, t times (from, to, epoch,
--          break_for or -1, calls, failures, slow), then, if there is one, the entry of the override as text
-- keeps: the breaker as text (include/breaker_state.lua), for twice the longest duration in its spec plus five minutes,
--        30 days while an override is set, 7 days after its release
local spec = read_spec()
local s = load(spec)
local was = s.phase
enter(s, spec, CLOSED, -1)
s.escalation, s.ramp_step, s.ramp_asked = 0, -1, 0
-- Resetting a closed breaker begins a new epoch, but is no transition.
if was == CLOSED then s.transitions = {} end
commit(s, spec)
return build_reply(s)
