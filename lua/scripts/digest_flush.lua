-- digest_flush: adds latencies, counted in bins, to the slices they fell into.
-- KEYS: [1] the digest
-- ARGV: [1] slice_len in microseconds
--       [2] number of runs
--       [3..] of each run: age in microseconds, number of bins, and for each bin: its number (0 to 1,103) and its count
-- returns: now, flags (1 repaired, 2 stored with another slice_len and cleared)
-- keeps: a header and five slots of packed counters (include/digest.lua), for seven slices, at least a second
local slice_len = tonumber(ARGV[1])
local now = server_now()
local slices, flags, newest = read_header(now, slice_len)
local clean = not slices
if clean then slices, newest = {[0] = 0, 0, 0, 0, 0}, 0 end
newest = math.max(newest, math.floor(now / slice_len))

-- Returns the BITFIELD command for the bins of one run, which begin at ARGV[first].
local function additions(slot, first, bins)
  local args = {'BITFIELD', KEYS[1], 'OVERFLOW', 'SAT'}
  for i = first, first + 2 * bins - 2, 2 do
    if not ARGV[i + 1] then break end
    local bin, count = tonumber(ARGV[i]), math.min(tonumber(ARGV[i + 1]), 4294967295)
    if bin >= 0 and bin < BINS and count > 0 and #args < 4 + 4 * BINS then
      local n, offset = #args, '#' .. (HEADER / 4 + slot * BINS + bin)
      args[n + 1], args[n + 2], args[n + 3], args[n + 4] = 'INCRBY', 'u32', offset, count
    end
  end
  return #args > 4 and args or nil
end

local fields, zeroed, at = {}, {}, 3
for _ = 1, tonumber(ARGV[2]) do
  if not ARGV[at + 1] then break end
  local slice, bins = math.floor(math.max(0, now - math.max(0, ARGV[at])) / slice_len), math.max(0, ARGV[at + 1])
  local slot = slice % SLOTS
  local args = slice > newest - SLOTS and additions(slot, at + 2, bins)
  if args then
    fields[#fields + 1] = args
    if slices[slot] < slice then slices[slot], zeroed[slot] = slice, true end
  end
  at = at + 2 + 2 * bins
end
if #fields == 0 then return {now, flags} end

local header = string.format('ph1 ' .. string.rep('%016.0f', 6) .. string.rep(' ', HEADER - 100), slice_len, slices[0],
  slices[1], slices[2], slices[3], slices[4])
local ttl = math.max(1000, math.ceil(7 * slice_len / 1000))
if clean then
  -- SET replaces a key of any type.
  redis.call('SET', KEYS[1], header, 'PX', ttl)
else
  redis.call('SETRANGE', KEYS[1], 0, header)
  redis.call('PEXPIRE', KEYS[1], ttl)
  for slot in pairs(zeroed) do
    redis.call('SETRANGE', KEYS[1], HEADER + slot * 4 * BINS, string.rep('\0', 4 * BINS))
  end
end
for _, args in ipairs(fields) do redis.call(unpack(args)) end
return {now, flags}
