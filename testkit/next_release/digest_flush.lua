-- digest_flush: adds latencies, counted in bins, to the slices they fell into, and returns the slices that the caller
--               lacks.
-- KEYS: [1] the digest
-- ARGV: [1] slice_len in microseconds, at least 1
--       [2] the name of this flush: letters and digits, different from that of every other flush
--       [3] the slices that the caller has: ';', and for each its number, ' ', the flush that changed it last, ';'
--       [4..] of each run: age in microseconds, and its bins: six bytes for each as they are stored
-- returns: now, flags (1 repaired), then for each slice inside the window: its number, the flush that changed it last,
--          and its bins as they are stored, or an empty string if the caller has them
-- keeps: the slices with their non-empty bins (include/digest.lua), for seven slices, at least a second; of each slice
--        that it adds to, it reads and writes at most 1,104 bins
local slice_len = math.max(1, tonumber(ARGV[1]))
local now = server_now()
local digest, flags = read_digest(now, slice_len)

-- Adds bins to those of a slice: returns the sums, or nil if there is nothing to add. A count stays at its maximum.
local function sums(bins, added)
  local bytes, more, places, last = {string.byte(bins, 1, -1)}, {string.byte(added, 1, MAX_BYTES)}, {}, #bins
  for i = 1, last, 6 do places[bytes[i] * 256 + bytes[i + 1]] = i end
  local is_some = false
  for i = 1, #more - 5, 6 do
    local bin, carry = more[i] * 256 + more[i + 1], 0
    local place = places[bin]
    if bin < BINS and more[i + 2] + more[i + 3] + more[i + 4] + more[i + 5] > 0 then
      if place then
        for k = 5, 2, -1 do
          local sum = bytes[place + k] + more[i + k] + carry
          carry = sum > 255 and 1 or 0
          bytes[place + k] = sum - 256 * carry
        end
        for k = 2, carry * 5 do bytes[place + k] = 255 end
        is_some = true
      elseif last < MAX_BYTES then -- always, unless another client has written bins twice
        for k = 0, 5 do bytes[last + 1 + k] = more[i + k] end
        places[bin], last, is_some = last + 1, last + 6, true
      end
    end
  end
  return is_some and string.char(unpack(bytes)) or nil
end

local at, is_changed = 4, false
while ARGV[at + 1] do
  local slice = math.floor(math.max(0, now - math.max(0, ARGV[at])) / slice_len)
  if slice > digest.newest - SLOTS then
    local found = digest.slices[slice] or {bins = '', more = ''}
    local bins = sums(found.bins, ARGV[at + 1])
    if bins then
      digest.slices[slice] = {flush = string.match(ARGV[2], '^%w+$') or '0', more = found.more, bins = bins}
      is_changed = true
    end
  end
  at = at + 2
end

if is_changed then
  local text = {'2 7\n'}
  for slice = digest.newest - SLOTS + 1, digest.newest do
    local found = digest.slices[slice]
    if found then
      local head = string.format('s %.0f %.0f %.0f %s', #found.bins, slice_len, slice, found.flush)
      text[#text + 1] = head .. ' 7 words\n' .. found.bins
    end
  end
  local ttl = math.max(1000, math.ceil(7 * digest.longest / 1000))
  redis.call('SET', KEYS[1], table.concat(text) .. 'n 7 words\na\nb\nc\n\n', 'PX', ttl)
end
return reply_with(digest, now, flags, ARGV[3])
