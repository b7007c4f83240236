-- breaker_admit: asks for the admission of n concurrent calls.
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
--       [6] n, at least 1
--       [7] owner of the leases, an integer below 2^53
--       [8] the highest lease that the owner has received; later ones of this owner are free again
--       [9] calls that the owner decided on its own in a step of the ramp, [10] the step
-- returns: now, phase, epoch, left, override, ramping, escalation, flags (1 repaired, 2 stored by another spec,
--          4 restored and 8 override adopted from the claim, 16 change not published), t, t times (from, to, epoch,
--          break_for or -1, calls, failures, slow), then mode, a, b, c: 0 admits all; 1 rejects all (a: 1 circuit_open,
--          2 probe_quota, 3 forced_open); 2 admits b calls as probes, with the leases a to a + b - 1 (at most 100 are
--          held at a time; c: the time until the first lease ends, -1 if there is none); 3 a ramp decides (a: its step,
--          b: calls that asked before in this step; the replica may decide on its own for a moment); then, if there is
--          one, the entry of the override as text
-- keeps: the breaker as text (include/breaker_state.lua), for twice the longest duration in its spec plus five minutes,
--        30 days while an override is set, 7 days after its release; a rejection writes nothing, unless the state
--        was repaired or restored, an override adopted, or the clock stepped back by more than a second
local ALL, NONE, LEASES, RAMP = 0, 1, 2, 3

-- The time until the first of these leases ends; -1 if there is none.
local function first_end(s, live)
  local first
  for _, held in ipairs(live) do first = math.min(first or held.expires, held.expires) end
  return first and first - s.clock or -1
end

local function lease(s, spec, n, owner, heard)
  local live = {}
  for _, held in ipairs(s.leases) do
    local unheard = held.owner == owner and held.id > heard
    if held.expires > s.now and not unheard then live[#live + 1] = held end
  end
  local most = math.min(spec.half_open_max_calls, MAX_LEASES)
  local first, granted = s.next_lease, math.max(0, math.min(n, most - #live))
  -- Expired leases are only dropped when new ones are granted; until then a late outcome still counts.
  if granted == 0 then return LEASES, first, 0, first_end(s, live) end
  for id = first, first + granted - 1 do
    live[#live + 1] = {id = id, expires = s.now + spec.lease, owner = owner}
  end
  s.leases, s.next_lease = live, first + granted
  touch(s)
  return LEASES, first, granted, first_end(s, live)
end

local function ramp(s, spec, n, decided, decided_in)
  if s.ramp_step < 0 then return ALL, 0, 0, -1 end
  touch(s)
  local step = math.floor((s.now - s.since) * spec.ramp_steps / math.max(spec.ramp_over, 1))
  if spec.ramp_over == 0 or step >= spec.ramp_steps then
    s.ramp_step, s.ramp_asked = -1, 0
    return ALL, 0, 0, -1
  end
  if step ~= s.ramp_step then s.ramp_step, s.ramp_asked = step, 0 end
  local before = s.ramp_asked + (decided_in == step and decided or 0)
  s.ramp_asked = before + n
  return RAMP, step, before, -1
end

local function admit(s, spec, n)
  if s.override == FORCED_OPEN then return NONE, 3, 0, -1 end
  if s.override == FORCED_CLOSED or s.override == DISABLED then return ALL, 0, 0, -1 end
  if s.phase == OPEN and s.now >= s.ends then begin(s, HALF_OPEN, -1, 0, 0, 0) end
  if s.phase == CLOSED then return ramp(s, spec, n, tonumber(ARGV[9]), tonumber(ARGV[10])) end
  if s.phase == HALF_OPEN then return lease(s, spec, n, tonumber(ARGV[7]), tonumber(ARGV[8])) end
  return NONE, 1, 0, -1
end

local spec = read_spec()
local s = load(spec)
local mode, a, b, c = admit(s, spec, tonumber(ARGV[6]))
commit(s, spec)
return build_reply(s, mode, a, b, c)
