-- breaker_inspect: what can be seen of a circuit from outside.
-- KEYS: [1] the circuit
-- ARGV: [1] spec: failure_ratio consecutive_failures slow_call_ratio latency_duration sampling_window min_throughput
--           break_duration break_multiplier max_break_duration break_jitter half_open_max_calls success_threshold
--           lease ramp_over ramp_steps fingerprint (times in microseconds; none is -1, 0, -1, -1; no ramp is 0)
--       [2] claim: epoch phase left escalation forced, as the asking replica last knew them; epoch 0 knows nothing
--       [3] channel on which others are told
--       [4] id of the circuit, for them
--       [5] luck, 0 to 1, which places a jittered break
-- returns: now, phase, epoch, left, forced, ramping, escalation, flags (1 repaired, 2 stored by another spec, 4 adopted
--          from the claim), t, t times (from, to, epoch, break_for or -1, calls, failures, slow),
--          then calls, failures and slow ones in the window, failures in a row, probes under way
-- keeps: nothing; writes nothing and tells nobody
local s = load(read_spec())
local calls, failures, slow = sum(s)
local probes = 0
for _, lease in ipairs(s.leases) do
  if lease.expires > s.now then probes = probes + 1 end
end
return answer(s, calls, failures, slow, s.streak, probes)
