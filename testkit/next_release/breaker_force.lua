-- breaker_force: sets the override, or releases it.
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
--       [6] the entry: sequence value author left name reason, as in the claim
--       [7] 1 if it is new: it gets a sequence above the stored one; 0 puts back what the server may have lost
-- returns: now, phase, epoch, left, override, ramping, escalation, flags (1 repaired, 2 stored by another spec,
--          4 restored and 8 override adopted from the claim, 16 change not published), t, t times (from, to, epoch,
--          break_for or -1, calls, failures, slow), then, if there is one, the entry of the override as text
-- keeps: the breaker as text (include/breaker_state.lua), for twice the longest duration in its spec plus five minutes,
--        30 days while an override is set, 7 days after its release
local spec = read_spec()
local s = load(spec)
local entry = read_entry(split(ARGV[6]), 1)
if ARGV[7] == '1' then
  local stored = s.entry and s.entry.sequence or 0
  -- What the author knows may be foreign; what is stored is not (include/breaker_state.lua).
  entry.sequence = math.min(math.max(stored + 1, math.min(entry.sequence, s.now + MAX_AHEAD), s.clock), MAX_SERIAL - 1)
end
adopt(s, entry, ARGV[7] == '1')
commit(s, spec)
return build_reply(s)
