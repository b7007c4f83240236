-- digest_read: returns the packed counters of the slices inside the window; the caller computes the quantile.
-- KEYS: [1] the digest
-- ARGV: [1] slice_len in microseconds
-- returns: now, the current slice, flags (1 corrupt, 2 stored with another slice_len), then for each slot inside the
--          window: its slice, and its 1,104 counters as 4,416 bytes, big endian
-- keeps: nothing; writes nothing
local slice_len = tonumber(ARGV[1])
local now = server_now()
local slices, flags, newest = read_header(now, slice_len)
local present = math.max(newest or 0, math.floor(now / slice_len))
local reply = {now, present, flags}
if not slices then return reply end
for slot = 0, SLOTS - 1 do
  local slice = slices[slot]
  if slice > present - SLOTS and slice % SLOTS == slot then
    local first = HEADER + slot * 4 * BINS
    local bytes = redis.call('GETRANGE', KEYS[1], first, first + 4 * BINS - 1)
    local n = #reply
    -- Redis stores the string only up to the last counter written; the rest are zeros.
    reply[n + 1], reply[n + 2] = slice, bytes .. string.rep('\0', 4 * BINS - #bytes)
  end
end
return reply
