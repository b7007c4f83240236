-- The stored text of a breaker: '1 at phase epoch since until escalation streak slow_since proven next_lease override
-- ramp_step ramp_asked slice_len newest fingerprint', ten times 'calls failures slow', the number of leases, and
-- 'id expires owner' of each. Stored values are checked for plausibility; every write has a TTL.
local CLOSED, OPEN, HALF_OPEN = 1, 2, 3
local FORCED_OPEN, FORCED_CLOSED, DISABLED = 1, 2, 3
local REPAIRED, OTHER_SPEC, RESTORED = 1, 2, 4
local MAX_BACKSTEP, MAX_ESCALATION, SLICES = 1000000, 1000, 10
local MAX_U32, MAX_COUNT, MAX_EXACT = 4294967295, 281474976710656, 9007199254740991 -- 2^48 and 2^53 - 1
local MAX_SERIAL = 4503599627370496 -- 2^52: epochs and leases that grow from here are still exact
local MAX_TEXT, MAX_LEASES = 1048576, 100 -- a lease takes at most 51 bytes

-- Parses numbers separated by blanks; an empty table if anything else is among them.
local function parse_numbers(text)
  local found = {}
  for word in string.gmatch(text, '%S+') do
    local number = tonumber(word)
    if not number then return {} end
    found[#found + 1] = number
  end
  return found
end

-- Reads the spec from ARGV[1], and the random number.
local function read_spec()
  local w = parse_numbers(ARGV[1])
  return {
    failure_ratio = w[1], consecutive_failures = w[2], slow_call_ratio = w[3], latency_duration = w[4],
    window = w[5], min_throughput = w[6], break_duration = w[7], break_multiplier = w[8], max_break = w[9],
    jitter = w[10], half_open_max_calls = w[11], success_threshold = w[12], lease = w[13], ramp_over = w[14],
    ramp_steps = w[15], fingerprint = w[16], random = tonumber(ARGV[5]),
    slice_len = math.max(1, math.floor(w[5] / SLICES)),
    longest_break = math.floor(math.max(w[7], w[9]) * (1 + w[10])),
  }
end

-- Clears the window.
local function clear_window(s, spec)
  s.slice_len, s.newest, s.seen = spec.slice_len, 0, {}
  for i = 1, 3 * SLICES do s.seen[i] = 0 end
end

-- A closed breaker with an empty window.
local function fresh(now, spec)
  local s = {
    at = now, phase = CLOSED, epoch = 1, since = now, ends = now, escalation = 0, streak = 0, slow_since = 0,
    proven = 0, next_lease = 1, override = 0, ramp_step = -1, ramp_asked = 0, fingerprint = spec.fingerprint,
    leases = {},
  }
  clear_window(s, spec)
  return s
end

-- Restores a breaker that the server has lost from the claim of a replica. Half-open becomes open with a break that
-- ends now, because the leases are lost.
local function restored(now, spec, claim)
  local s = fresh(now, spec)
  s.epoch, s.escalation, s.override = claim[1], math.min(claim[4], MAX_ESCALATION), claim[5]
  if claim[2] == OPEN then
    s.phase, s.ends = OPEN, now + math.min(claim[3], spec.longest_break)
  elseif claim[2] == HALF_OPEN then
    s.phase = OPEN
  end
  return s
end

local function within(value, least, most)
  return value >= least and value <= most
end

-- Whether the numbers can be a stored breaker. (Only digits pass the parser, so there is no nan and no fraction.)
local function plausible(s)
  local at = s.at
  for i = 1, 3 * SLICES, 3 do
    local calls = s.seen[i]
    local counted = within(calls, 0, MAX_COUNT) and within(s.seen[i + 1], 0, calls) and within(s.seen[i + 2], 0, calls)
    if not counted then return false end
  end
  return within(at, 0, MAX_EXACT) and within(s.phase, CLOSED, HALF_OPEN) and within(s.epoch, 1, MAX_SERIAL)
    and within(s.since, 0, at) and within(s.ends, 0, MAX_EXACT) and within(s.escalation, 0, MAX_ESCALATION)
    and within(s.streak, 0, MAX_U32) and within(s.slow_since, 0, at) and within(s.proven, 0, MAX_U32)
    and within(s.next_lease, 1, MAX_SERIAL) and within(s.override, 0, 4) and within(s.ramp_step, -1, MAX_U32)
    and within(s.ramp_asked, 0, MAX_EXACT) and within(s.slice_len, 1, MAX_EXACT)
    and within(s.newest, 0, at / s.slice_len) and within(s.fingerprint, 0, MAX_U32)
end

-- Parses the stored text; nil if no script has written it.
local function parse(text, spec)
  if type(text) ~= 'string' or #text > MAX_TEXT or string.find(text, '[^%d %-]') then return end
  local w = parse_numbers(text)
  if w[1] ~= 1 or not w[48] or #w ~= 48 + 3 * w[48] then return end
  local s = {
    at = w[2], phase = w[3], epoch = w[4], since = w[5], ends = w[6], escalation = w[7], streak = w[8],
    slow_since = w[9], proven = w[10], next_lease = w[11], override = w[12], ramp_step = w[13], ramp_asked = w[14],
    slice_len = w[15], newest = w[16], fingerprint = w[17], seen = {}, leases = {},
  }
  for i = 1, 3 * SLICES do s.seen[i] = w[17 + i] end
  if not plausible(s) then return end
  for i = 49, #w, 3 do
    local id, expires, owner = w[i], w[i + 1], w[i + 2]
    if not (within(id, 1, s.next_lease - 1) and within(expires, 0, MAX_EXACT) and within(owner, 0, MAX_EXACT)) then
      return
    end
    -- Leases and breaks are limited to what this spec allows, so that stored values cannot block a breaker for ever.
    s.leases[#s.leases + 1] = {id = id, expires = math.min(expires, s.at + spec.lease), owner = owner}
  end
  s.ends = math.min(s.ends, s.since + spec.longest_break)
  return s
end

-- The time to use. If the clock stepped back by up to MAX_BACKSTEP, time stands still; if by more, all stored times
-- are moved back too.
local function anchor(s, now, spec)
  if now >= s.at then return now end
  local back = s.at - now
  if back <= MAX_BACKSTEP then return s.at end
  s.at, s.since, s.ends = now, math.max(0, s.since - back), math.max(0, s.ends - back)
  if s.slow_since > 0 then s.slow_since = math.max(1, s.slow_since - back) end
  for _, lease in ipairs(s.leases) do lease.expires = math.max(0, lease.expires - back) end
  clear_window(s, spec)
  s.dirty = true
  return now
end

-- Loads the breaker under KEYS[1]: as stored, or restored from the claim if that is newer, or new.
local function load(spec)
  local now = server_now()
  local text, claim = redis.pcall('GET', KEYS[1]), parse_numbers(ARGV[2])
  local s, flags = parse(text, spec), 0
  if text and not s then flags = REPAIRED end
  local known = s and s.epoch or 0
  if claim[1] > known and claim[1] <= MAX_SERIAL then
    s, flags = restored(now, spec, claim), flags + RESTORED
  elseif not s then
    s = fresh(now, spec)
  elseif s.fingerprint ~= spec.fingerprint then
    s.fingerprint, flags = spec.fingerprint, OTHER_SPEC
  end
  if s.slice_len ~= spec.slice_len then clear_window(s, spec) end
  s.dirty = flags % 2 == REPAIRED or flags >= RESTORED
  s.flags, s.clock, s.now, s.transitions = flags, now, anchor(s, now, spec), {}
  s.loaded = flags < RESTORED and {s.phase, s.epoch, s.override} or {}
  return s
end

local function save(s, spec)
  local text = {}
  for i, lease in ipairs(s.leases) do
    text[i] = string.format(' %.0f %.0f %.0f', lease.id, lease.expires, lease.owner)
  end
  local ttl = 2 * math.max(spec.window, spec.longest_break, spec.lease, spec.ramp_over) / 1000 + 300000
  -- An override is meant to last.
  if s.override > 0 then ttl = math.max(ttl, 2592000000) end
  local head = string.format('1' .. string.rep(' %.0f', 16), s.at, s.phase, s.epoch, s.since, s.ends, s.escalation,
    s.streak, s.slow_since, s.proven, s.next_lease, s.override, s.ramp_step, s.ramp_asked, s.slice_len, s.newest,
    s.fingerprint)
  local seen = string.format(string.rep(' %.0f', 3 * SLICES), unpack(s.seen))
  redis.call('SET', KEYS[1], head .. seen .. ' ' .. #s.leases .. table.concat(text), 'PX', math.ceil(ttl))
end
