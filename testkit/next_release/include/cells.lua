-- The end of every script: runs `operation` on each cell. A script that is called with the keys of several cells gets
-- the number of arguments of each cell first, then their arguments, and returns one reply for each. A cell that fails
-- returns the text of its error and leaves the others alone.
local cells = #KEYS / CELL_KEYS
if cells <= 1 then return operation() end
local all_keys, all_args, replies, read = KEYS, ARGV, {}, cells
for cell = 1, cells do
  KEYS, ARGV = {}, {}
  for i = 1, CELL_KEYS do KEYS[i] = all_keys[(cell - 1) * CELL_KEYS + i] end
  for i = 1, math.min(tonumber(all_args[cell]), #all_args - read) do ARGV[i] = all_args[read + i] end
  read = read + #ARGV
  local _, reply = pcall(operation)
  local failed = type(reply) ~= 'table' and reply or reply.err
  replies[cell] = failed and tostring(failed) or reply
end
return replies
