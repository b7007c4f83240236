-- breaker_admit: asks for the admission of n concurrent calls.
-- KEYS: [1] the breaker
-- ARGV: [1] spec: failure_ratio consecutive_failures slow_call_ratio latency_duration sampling_window min_throughput
--           break_duration break_multiplier max_break_duration break_jitter half_open_max_calls success_threshold
--           lease ramp_over ramp_steps fingerprint (times in microseconds; -1, 0, -1, -1 disable the
--           first four; ramp_over 0 disables the ramp)
--       [2] claim: epoch phase left escalation override, as last known to the calling replica; epoch 0 if unknown
--       [3] channel of the pushes
--       [4] signature of a push: id of the breaker, `@`, id of the calling replica
--       [5] random number, 0 to 1: how much of the jitter is added to a break
--       [6] n, at least 1
--       [7] owner of the leases, an integer below 2^53
-- returns: now, phase, epoch, left, override, ramping, escalation, flags (1 repaired, 2 stored by another spec,
--          4 restored from the claim), t, t times (from, to, epoch, break_for or -1, calls, failures, slow),
--          then mode, a, b: 0 admits all; 1 rejects all (a: 1 circuit_open, 2 probe_quota, 3 forced_open);
--          2 admits b calls as probes, with the leases a to a + b - 1 (at most 100 are held at a time); 3 a ramp
--          decides (a: its step, b: calls that asked before in this step)
-- keeps: the breaker as text (include/breaker_state.lua), for twice the longest duration in its spec plus five minutes,
--        30 days while an override is set; a rejection writes nothing, unless the state was repaired or restored,
--        or the clock stepped back by more than a second
local ALL, NONE, LEASES, RAMP = 0, 1, 2, 3

local function lease(s, spec, n, owner)
  local live = {}
  for _, held in ipairs(s.leases) do
    if held.expires > s.now then live[#live + 1] = held end
  end
  local most = math.min(spec.half_open_max_calls, MAX_LEASES)
  local first, granted = s.next_lease, math.max(0, math.min(n, most - #live))
  -- Expired leases are only dropped when new ones are granted; until then a late outcome still counts.
  if granted == 0 then return LEASES, first, 0 end
  for id = first, first + granted - 1 do
    live[#live + 1] = {id = id, expires = s.now + spec.lease, owner = owner}
  end
  s.leases, s.next_lease = live, first + granted
  touch(s)
  return LEASES, first, granted
end

local function ramp(s, spec, n)
  if s.ramp_step < 0 then return ALL, 0, 0 end
  touch(s)
  local step = math.floor((s.now - s.since) * spec.ramp_steps / math.max(spec.ramp_over, 1))
  if spec.ramp_over == 0 or step >= spec.ramp_steps then
    s.ramp_step, s.ramp_asked = -1, 0
    return ALL, 0, 0
  end
  if step ~= s.ramp_step then s.ramp_step, s.ramp_asked = step, 0 end
  local before = s.ramp_asked
  s.ramp_asked = before + n
  return RAMP, step, before
end

local function admit(s, spec, n, owner)
  if s.override == FORCED_OPEN then return NONE, 3, 0 end
  if s.override == FORCED_CLOSED or s.override == DISABLED then return ALL, 0, 0 end
  if s.phase == OPEN and s.now >= s.ends then begin(s, HALF_OPEN, -1, 0, 0, 0) end
  if s.phase == CLOSED then return ramp(s, spec, n) end
  if s.phase == HALF_OPEN then return lease(s, spec, n, owner) end
  return NONE, 1, 0
end

local spec = read_spec()
local s = load(spec)
local mode, a, b = admit(s, spec, tonumber(ARGV[6]), tonumber(ARGV[7]))
commit(s, spec)
return build_reply(s, mode, a, b)
