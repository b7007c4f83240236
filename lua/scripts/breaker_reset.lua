-- breaker_reset: back to a closed circuit that has seen nothing; an operator's word stays.
-- KEYS: [1] the circuit
-- ARGV: [1] spec: failure_ratio consecutive_failures slow_call_ratio latency_duration sampling_window min_throughput
--           break_duration break_multiplier max_break_duration break_jitter half_open_max_calls success_threshold
--           lease ramp_over ramp_steps fingerprint (times in microseconds; none is -1, 0, -1, -1; no ramp is 0)
--       [2] claim: epoch phase left escalation forced, as the asking replica last knew them; epoch 0 knows nothing
--       [3] channel on which others are told
--       [4] id of the circuit, for them
--       [5] luck, 0 to 1, which places a jittered break
-- returns: now, phase, epoch, left, forced, ramping, escalation, flags (1 repaired, 2 stored by another spec, 4 adopted
--          from the claim), t, t times (from, to, epoch, break_for or -1, calls, failures, slow)
-- keeps: the circuit as text (include/breaker_state.lua), for twice its longest time and five minutes, 30 days while
--        an operator's word stands
local spec = read_spec()
local s = load(spec)
local was = s.phase
enter(s, spec, CLOSED, -1)
s.escalation, s.ramp_step, s.ramp_asked = 0, -1, 0
-- A closed circuit that starts over is in a new epoch, but made no change of phase.
if was == CLOSED then s.transitions = {} end
commit(s, spec)
return answer(s)
