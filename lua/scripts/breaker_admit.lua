-- breaker_admit: asks for n calls to pass, all at this moment.
-- KEYS: [1] the circuit
-- ARGV: [1] spec: failure_ratio consecutive_failures slow_call_ratio latency_duration sampling_window min_throughput
--           break_duration break_multiplier max_break_duration break_jitter half_open_max_calls success_threshold
--           lease ramp_over ramp_steps fingerprint (times in microseconds; none is -1, 0, -1, -1; no ramp is 0)
--       [2] claim: epoch phase left escalation forced, as the asking replica last knew them; epoch 0 knows nothing
--       [3] channel on which others are told
--       [4] id of the circuit, for them
--       [5] luck, 0 to 1, which places a jittered break
--       [6] n, at least 1
--       [7] owner of the leases, an integer below 2^53
-- returns: now, phase, epoch, left, forced, ramping, escalation, flags (1 repaired, 2 stored by another spec, 4 adopted
--          from the claim), t, t times (from, to, epoch, break_for or -1, calls, failures, slow),
--          then mode, a, b: 0 all pass; 1 none passes (a: 1 circuit_open, 2 probe_quota, 3 forced_open);
--          2 those with the leases a to a + b - 1 pass; 3 a ramp decides (a: its step, b: how many asked before)
-- keeps: the circuit as text (include/breaker_state.lua), for twice its longest time and five minutes, 30 days while
--        an operator's word stands; a rejection writes nothing, unless the state was repaired,
--        adopted, or the clock stepped back by more than a second
local ALL, NONE, LEASES, RAMP = 0, 1, 2, 3

local function lease(s, spec, n, owner)
  local live = {}
  for _, held in ipairs(s.leases) do
    if held.expires > s.now then live[#live + 1] = held end
  end
  local first, granted = s.next_lease, math.max(0, math.min(n, spec.half_open_max_calls - #live))
  -- Leases that ran out are only forgotten when somebody takes their place: till then a late answer still counts.
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
  if s.forced == FORCED_OPEN then return NONE, 3, 0 end
  if s.forced == FORCED_CLOSED or s.forced == DISABLED then return ALL, 0, 0 end
  if s.phase == OPEN and s.now >= s.ends then begin(s, HALF_OPEN, -1, 0, 0, 0) end
  if s.phase == CLOSED then return ramp(s, spec, n) end
  if s.phase == HALF_OPEN then return lease(s, spec, n, owner) end
  return NONE, 1, 0
end

local spec = read_spec()
local s = load(spec)
local mode, a, b = admit(s, spec, tonumber(ARGV[6]), tonumber(ARGV[7]))
commit(s, spec)
return answer(s, mode, a, b)
