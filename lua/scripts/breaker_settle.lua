-- breaker_settle: records the outcomes of probes and frees their leases.
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
--       [6] number of probes
--       [7..] of each: epoch, lease, kind. Kind: 0 success, 1 slow success, 2 failure, 3 slow failure, 6 no outcome
-- returns: now, phase, epoch, left, override, ramping, escalation, flags (1 repaired, 2 stored by another spec,
--          4 restored and 8 override adopted from the claim, 16 change not published), t, t times (from, to, epoch,
--          break_for or -1, calls, failures, slow), then, if there is one, the entry of the override as text
-- keeps: the breaker as text (include/breaker_state.lua), for twice the longest duration in its spec plus five minutes,
--        30 days while an override is set, 7 days after its release; a lease that is not held changes
--        nothing

local function take_lease(s, id)
  for i, held in ipairs(s.leases) do
    if held.id == id then
      table.remove(s.leases, i)
      touch(s)
      return true
    end
  end
  -- It expired and was dropped when new leases were granted.
  return false
end

local function settle(s, spec, lease, kind)
  if not take_lease(s, lease) or kind == 6 then return end
  if kind >= 2 or (kind == 1 and spec.slow_call_ratio >= 0) then
    open(s, spec)
    return
  end
  s.proven = s.proven + 1
  if s.proven >= spec.success_threshold then enter(s, spec, CLOSED, -1) end
end

local spec = read_spec()
local s = load(spec)
for call = 1, tonumber(ARGV[6]) do
  local first = 4 + 3 * call
  if not ARGV[first + 2] then break end
  local epoch, lease, kind = tonumber(ARGV[first]), tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])
  if epoch == s.epoch and s.override ~= DISABLED then
    if s.phase == HALF_OPEN then
      settle(s, spec, lease, kind)
    elseif s.phase == CLOSED and kind < 4 then
      count(s, spec, kind, 1, s.now, 0)
    end
  end
end
commit(s, spec)
return build_reply(s)
