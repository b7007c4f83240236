-- tally_sync: adds what a replica has counted, takes marks as far as the calls allow, and returns the window.
-- KEYS: [1] the tally
-- ARGV: [1] slice_len in microseconds, at least 1
--       [2] marks wanted
--       [3] marks allowed for each call
--       [4] marks that are always allowed
--       [5] number of additions
--       [6] number of marks that are put back
--       [7..] of each addition: age in microseconds, calls, marks (negative to take back); then of each mark that is
--             put back: its slice
-- returns: now, flags (1 repaired), the present slice, marks granted, then of each slice with counts: its number,
--          calls, marks
-- keeps: '1 newest' and ten times 'calls marks', for eleven slices and a second; writes nothing if nothing is added,
--        put back or granted, except to repair
local slice_len = math.max(1, tonumber(ARGV[1]))
local now = server_now()
local tally, flags = load_tally(now, slice_len)
local dirty, at = flags > 0, 7
for _ = 1, tonumber(ARGV[5]) do
  if not ARGV[at + 2] then break end
  local slice = math.floor(math.max(0, now - math.max(0, ARGV[at])) / slice_len)
  dirty = add_to(tally, slice, tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])) or dirty
  at = at + 3
end
for _ = 1, tonumber(ARGV[6]) do
  if not ARGV[at] then break end
  local slice = tonumber(ARGV[at])
  dirty = slice <= tally.newest and add_to(tally, slice, 0, -1) or dirty
  at = at + 1
end
local calls, marks = sum(tally)
local room = math.floor(ARGV[3] * calls + ARGV[4]) - marks
local granted = math.max(0, math.min(tonumber(ARGV[2]), room))
dirty = add_to(tally, tally.newest, 0, granted) or dirty
if dirty then save_tally(tally, slice_len) end
local reply = {now, flags, tally.newest, granted}
for slice = math.max(0, tally.newest - SLICES + 1), tally.newest do
  local first, n = 2 * (slice % SLICES), #reply
  if tally.seen[first + 1] + tally.seen[first + 2] > 0 then
    reply[n + 1], reply[n + 2], reply[n + 3] = slice, tally.seen[first + 1], tally.seen[first + 2]
  end
end
return reply
