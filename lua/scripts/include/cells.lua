-- The end of every script: runs `operation` on each cell. A script that is called with the keys of several cells gets
-- the number of arguments of each cell first, then their arguments, and returns one reply for each. A cell that fails
-- returns the text of its error and leaves the others alone.
local cells = #KEYS / CELL_KEYS
if cells == 1 then return operation(KEYS, ARGV) end
local replies, read = {}, cells
for cell = 1, cells do
  local keys, args = {}, {}
  for i = 1, CELL_KEYS do keys[i] = KEYS[(cell - 1) * CELL_KEYS + i] end
  for i = 1, math.min(tonumber(ARGV[cell]), #ARGV - read) do args[i] = ARGV[read + i] end
  read = read + #args
  local _, reply = pcall(operation, keys, args)
  local failed = type(reply) ~= 'table' and reply or reply.err
  replies[cell] = failed and tostring(failed) or reply
end
return replies
