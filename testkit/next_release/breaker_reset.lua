-- breaker_reset: closes the breaker and clears its counts; an override stays.
-- KEYS: [1] the breaker
-- ARGV: [1] spec: failure_ratio consecutive_failures slow_call_ratio latency_duration sampling_window min_throughput
--           break_duration break_multiplier max_break_duration break_jitter half_open_max_calls success_threshold
--           lease ramp_over ramp_steps fingerprint (times in microseconds; -1, 0, -1, -1 disable the
--           first four; ramp_over 0 disables the ramp)
--       [2] claim: epoch phase left escalation override, as last known to the calling replica; epoch 0 if unknown
--       [3] channel of the pushes
--       [4] signature of a push: id of the breaker, `@`, id of the calling replica
--       [5] random number, 0 to 1: how much of the jitter is added to a break
-- returns: now, phase, epoch, left, override, ramping, escalation, flags (1 repaired, 2 stored by another spec,
--          4 restored from the claim, 8 change not published), t, t times (from, to, epoch, break_for or -1, calls,
--          failures, slow)
-- keeps: the breaker as text (include/breaker_state.lua), for twice the longest duration in its spec plus five minutes,
--        30 days while an override is set
local spec = read_spec()
local s = load(spec)
local was = s.phase
enter(s, spec, CLOSED, -1)
s.escalation, s.ramp_step, s.ramp_asked = 0, -1, 0
-- Resetting a closed breaker begins a new epoch, but is no transition.
if was == CLOSED then s.transitions = {} end
commit(s, spec)
return build_reply(s)
