-- slots_share: renews, grants or takes back the share of one holder of slots (core/src/slots.rs, in the same order).
-- KEYS: [1] the holders
-- ARGV: [1] cap: slots of the fleet
--       [2] id of the holder
--       [3] number of the request, higher than that of the one before
--       [4] keep: what the holder may be using, recorded in any case
--       [5] want: what it wants to hold
--       [6] 1 if callers wait for it
--       [7] lease in microseconds, at most ten seconds
-- returns: now, flags (1 repaired, 2 late: a later request was executed before), held, share, held before, held by all
-- keeps: '1 holders' and of each holder 'id held want number until', 256 at most, until the last one ends and a second;
--        the work is O(holders log holders). A holder that gets nothing is written too, with what it wants, for a third
--        of the lease: the others give way
local LATE = 2
local cap, id, number = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local keep, want = math.max(0, math.min(ARGV[4], MAX_SLOTS)), math.max(0, math.min(ARGV[5], MAX_SLOTS))
local now = server_now()
local holders, flags, more = load_holders(now)
local total, own = 0, nil
for i, holder in ipairs(holders) do
  total = total + holder.held
  if holder.id == id then own = i end
end
local before = 0
if own then
  local holder = holders[own]
  if number <= holder.number then
    return {now, flags + (number < holder.number and LATE or 0), holder.held, holder.held, holder.held, total}
  end
  before, total = holder.held, total - holder.held
  table.remove(holders, own)
end
if #holders >= MAX_HOLDERS then return {now, flags, 0, 0, before, total} end
local share = grant(holders, cap, total, want, ARGV[6] == '1')
local held = math.max(share, keep)
if held > 0 or want > 0 then
  local lease = math.max(1, math.min(ARGV[7], MAX_LEASE))
  local ends = now + (held > 0 and lease or math.floor(lease / 3))
  holders[#holders + 1] = {id = id, held = held, want = want, number = number, ends = ends}
end
if own or held > 0 or want > 0 or flags > 0 then save_holders(holders, now, more) end
return {now, flags, held, share, before, total + held}
