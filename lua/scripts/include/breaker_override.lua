-- The override of a breaker is an entry with a sequence of its own, ordered whatever the epoch: the highest sequence
-- counts, and of two with one sequence that of the higher author. A release is an entry too (value 0), and ends after
-- RELEASE_KEPT; so no replica that has missed it brings the override back. Replicas claim the entry that they know,
-- which restores one that the server has lost.

local function is_newer(entry, than)
  return not than or entry.sequence > than.sequence
    or entry.sequence == than.sequence and entry.author > than.author
end

-- Forgets an entry that no replica claims any more, and sets the override that is in force.
local function settle_override(s)
  local entry = s.entry
  if entry and entry.ends > 0 and s.now >= entry.ends + (entry.value > 0 and RELEASE_KEPT or 0) then
    s.entry, entry = nil, nil
  end
  local in_force = entry and within(entry.value, 1, METRICS_ONLY) and (entry.ends == 0 or s.now < entry.ends)
  s.override = in_force and entry.value or 0
end

-- Takes over an entry, if it is newer than the stored one. Of one entry the shorter time counts.
local function adopt(s, entry, is_new)
  -- A claim may be foreign. A new entry follows the stored one.
  local highest = math.min(MAX_SERIAL - 1, s.now + (is_new and 2 or 1) * MAX_AHEAD)
  local known = within(entry.sequence, 1, highest) and within(entry.value, 0, MAX_U32)
    and within(entry.author, 0, MAX_EXACT) and #entry.name <= MAX_WORD and #entry.reason <= MAX_WORD
  if not known then return false end
  local longest = entry.value == 0 and RELEASE_KEPT or MAX_SERIAL
  local unending = entry.left < 0 and entry.value > 0
  entry.ends = unending and 0 or s.now + math.min(entry.left < 0 and longest or entry.left, longest)
  local stored = s.entry
  if is_newer(entry, stored) then
    s.entry = entry
  elseif is_newer(stored, entry) or unending or stored.ends > 0 and entry.ends >= stored.ends - MAX_BACKSTEP then
    return false
  else
    stored.ends = entry.ends
  end
  s.dirty = true
  settle_override(s)
  return true
end

-- The entry as a reply or a message contains it: sequence value author left name reason.
local function entry_text(s)
  local entry = s.entry
  if not entry then return '0 0 0 -1 - -' end
  local left = entry.ends > 0 and math.max(0, entry.ends - s.clock) or -1
  return string.format('%.0f %.0f %.0f %.0f ', entry.sequence, entry.value, entry.author, left)
    .. entry.name .. ' ' .. entry.reason
end
