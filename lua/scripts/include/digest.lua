-- The stored digest: a line '2', then an entry for each slice. An entry is a line, 's size slice_len slice flush', and
-- `size` bytes behind it: six for each bin that has latencies, its number (16 bits) and its count (32 bits), big
-- endian. `flush` names the flush that changed the slice last. What a later release adds is kept and written back:
-- fields at the end of a line, and entries of other kinds, which have their size at the same place.
--
-- Slices of other lengths, of replicas with another window, are kept until they leave their window.
local SLOTS, BINS, MAX_BACKSTEP, MAX_EXACT = 5, 1104, 1000000, 9007199254740991
local MAX_BYTES, MAX_SIZE, MAX_ENTRIES = 6 * BINS, 131072, 32 -- of a slice, and of all that is stored
local REPAIRED = 1

-- Reads the digest, and flags. Of the digest: the slices of this length by their numbers; the newest slice of the
-- window, which is that of now or, after a small step back of the clock, a later one; everything else as text.
local function read_digest(now, slice_len)
  local newest = math.floor(now / slice_len)
  local digest = {slices = {}, newest = newest, longest = slice_len, more = '', others = ''}
  local text = read_value(KEYS[1], MAX_SIZE)
  if not text then return digest, 0 end
  local more, at = string.match(type(text) == 'string' and #text <= MAX_SIZE and text or '', '^2([^\n]*)\n()')
  if not more or string.find(more, '^[^ ]') then return digest, REPAIRED end
  local slices, longest, others, other_slices, entries = {}, slice_len, {}, 0, 0
  while at <= #text do
    local kind, size, fields, body = string.match(text, '^(%a) (%d+)([^\n]*)\n()', at)
    size, entries = tonumber(size), entries + 1
    if not kind or size > #text + 1 - body or entries > MAX_ENTRIES then return digest, REPAIRED end
    local keep = true
    if kind == 's' then
      local length, slice, flush, rest = string.match(fields, '^ (%d+) (%d+) (%w+)(.*)$')
      length, slice = tonumber(length), tonumber(slice)
      if not length or size > MAX_BYTES or size % 6 > 0 then return digest, REPAIRED end
      -- A slice from the future is from before a step back of the clock.
      local lives = size > 0 and length <= MAX_EXACT and slice * length <= now + MAX_BACKSTEP
      if length == slice_len then
        keep = false
        if lives then
          slices[slice] = {flush = flush, more = rest, bins = string.sub(text, body, body + size - 1)}
          newest = math.max(newest, slice)
        end
      else
        keep = lives and slice > math.floor(now / length) - SLOTS and other_slices < SLOTS
        if keep then other_slices, longest = other_slices + 1, math.max(longest, length) end
      end
    end
    if keep then others[#others + 1] = string.sub(text, at, body + size - 1) end
    at = body + size
  end
  digest.slices, digest.newest, digest.longest = slices, newest, longest
  digest.more, digest.others = more, table.concat(others)
  return digest, 0
end

-- The reply: of each slice inside the window its number, the flush that changed it last and its bins, which are left
-- out if the caller has them. `known` is ';' and of each slice that the caller has 'number flush;'.
local function reply_with(digest, now, flags, known)
  local reply = {now, flags}
  for slice = digest.newest - SLOTS + 1, digest.newest do
    local found = digest.slices[slice]
    if found then
      local name = string.format(';%.0f %s;', slice, found.flush)
      local n = #reply
      reply[n + 1], reply[n + 2] = slice, found.flush
      reply[n + 3] = string.find(known, name, 1, true) and '' or found.bins
    end
  end
  return reply
end
