-- The stored digest: a header of 128 bytes ('ph1 ', slice_len and the slice of each slot in 16 digits, blanks), then
-- five slots of 1,104 counters of 32 bits. A slice is stored in the slot of its number modulo five.
local SLOTS, BINS, HEADER, MAX_BACKSTEP = 5, 1104, 128, 1000000
local MAX_SIZE = 65536 -- of a digest that a later release may have written
local REPAIRED, OTHER_LENGTH = 1, 2

-- Returns the slices in the header, or nil if they cannot be used; flags; the newest slice.
local function read_header(now, slice_len)
  local header = redis.pcall('GETRANGE', KEYS[1], 0, HEADER - 1)
  if header == '' then return nil, 0 end
  if type(header) ~= 'string' or not string.find(header, '^ph1 %d+ +$') or string.find(header, ' ', 5, true) ~= 101
    or #header ~= HEADER then return nil, REPAIRED end
  -- Appended to by another client. Writes change a digest in place, so it would stay as long as it is used.
  if redis.pcall('GETRANGE', KEYS[1], MAX_SIZE, MAX_SIZE) ~= '' then return nil, REPAIRED end
  if tonumber(string.sub(header, 5, 20)) ~= slice_len then return nil, OTHER_LENGTH end
  local slices, newest = {}, 0
  for slot = 0, SLOTS - 1 do
    local slice = tonumber(string.sub(header, 21 + 16 * slot, 36 + 16 * slot))
    -- An unused slot holds 0, which as a slice number belongs to the first slot only.
    if slice % SLOTS ~= slot and slice ~= 0 then return nil, REPAIRED end
    slices[slot], newest = slice, math.max(newest, slice)
  end
  -- The clock stepped back: these counts are from the future.
  if newest * slice_len > now + MAX_BACKSTEP then return nil, 0 end
  return slices, 0, newest
end
