-- Loads and saves a breaker.

-- Reads the claim in ARGV[2]: what the calling replica knows.
local function read_claim()
  local w = split(ARGV[2])
  for i = 1, 5 do w[i] = tonumber(w[i] or 0) or 0 end
  return {epoch = w[1], phase = w[2], left = w[3], escalation = w[4], age = w[5], entry = read_entry(w, 6)}
end

-- The counts of a window in slices of another length: each counts at the beginning of its slice.
local function converted(window, slice_len)
  local new = new_window(slice_len)
  for slice = math.max(0, window.newest - SLICES + 1), window.newest do
    local first = 3 * (slice % SLICES)
    local calls, failures, slow = window.seen[first + 1], window.seen[first + 2], window.seen[first + 3]
    if calls > 0 then count_in(new, math.floor(slice * window.slice_len / slice_len), calls, failures, slow) end
  end
  return new
end

-- Moves the window of this spec to the front. If there is none, it is made from the one that was used last, so that
-- another length of the window erases no evidence.
local function use_window(s, spec)
  for i, window in ipairs(s.windows) do
    if window.slice_len == spec.slice_len then
      table.insert(s.windows, 1, table.remove(s.windows, i))
      return
    end
  end
  local newest = s.windows[1]
  table.insert(s.windows, 1, newest and converted(newest, spec.slice_len) or new_window(spec.slice_len))
  s.windows[MAX_WINDOWS + 1] = nil
end

-- Loads the breaker under KEYS[1]: as stored, or restored from the claim if that is newer, or new.
local function load(spec)
  local now = server_now()
  local text, claim = read_value(KEYS[1], MAX_TEXT), read_claim()
  local stored, flags = parse(text, spec), 0
  local s = stored
  if text and not s then flags = REPAIRED end
  local known = s and s.epoch or 0
  if claim.epoch > known and claim.epoch <= MAX_SERIAL then
    s, flags = restored(now, spec, claim), flags + RESTORED
    if stored then s.entry, s.lines = stored.entry, stored.lines end
  elseif not s then
    s = fresh(now, spec)
  elseif s.fingerprint ~= spec.fingerprint then
    s.fingerprint, flags = spec.fingerprint, OTHER_SPEC
  end
  use_window(s, spec)
  s.dirty = flags % 2 == REPAIRED or flags >= RESTORED
  s.clock, s.now, s.transitions = now, anchor(s, now, spec), {}
  settle_override(s)
  s.loaded = flags < RESTORED and {s.phase, s.epoch, s.override, s.entry and s.entry.sequence} or {}
  if adopt(s, claim.entry) then flags = flags + ADOPTED end
  s.flags = flags
  return s
end

local function save(s, spec)
  -- Failures in a row that are over count as long as the replicas are asked about them.
  if s.streak_over == 1 and s.asked == 0 then forget_streak(s) end
  local text = {
    string.format('2' .. string.rep(' %.0f', 14), s.at, s.phase, s.epoch, s.since, s.ends, s.escalation, s.streak,
      s.slow_since, s.slow_seen, s.proven, s.next_lease, s.ramp_step, s.ramp_asked, s.fingerprint) .. ' 7',
  }
  for _, window in ipairs(s.windows) do
    local counts = string.format(string.rep(' %.0f', 3 * SLICES), unpack(window.seen))
    text[#text + 1] = string.format('\nw %.0f %.0f', window.slice_len, window.newest) .. counts .. ' 7'
  end
  for _, lease in ipairs(s.leases) do
    text[#text + 1] = string.format('\nl %.0f %.0f %.0f', lease.id, lease.expires, lease.owner) .. (lease.more or '')
  end
  if s.streak_since > 0 or s.call > 0 or (s.evidence_more or '') ~= '' then
    text[#text + 1] = string.format('\ne %.0f %.0f %.0f %.0f %.0f %.0f', s.streak_since, s.streak_last, s.streak_over,
      s.call, s.asked, s.answer_until) .. (s.evidence_more or '')
  end
  local ttl = 2 * math.max(spec.window, spec.longest_break, spec.lease, spec.ramp_over) + 300000000
  local entry = s.entry
  if entry then
    text[#text + 1] = string.format('\no %.0f %.0f %.0f %.0f ', entry.sequence, entry.value, entry.author, entry.ends)
      .. entry.name .. ' ' .. entry.reason .. entry.more
    -- An override is meant to last, and a release to be known for longer than any replica claims what it released.
    local kept = entry.ends == 0 and OVERRIDE_KEPT or entry.ends - s.now + (entry.value > 0 and RELEASE_KEPT or 0)
    ttl = math.max(ttl, kept)
  end
  redis.call('SET', KEYS[1], table.concat(text) .. '\nn 7 words', 'PX', math.ceil(ttl / 1000))
end
