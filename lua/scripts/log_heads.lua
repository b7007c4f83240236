-- log_heads: reads the number of the last change of each of these partitions.
-- KEYS: [1..] the logs of the partitions, at most 64
-- ARGV: none
-- returns: now, and the last number of each log; 0 if there is none
-- keeps: nothing; writes nothing
local reply = {server_now()}
for partition = 1, #KEYS do
  local head = redis.pcall('GETRANGE', KEYS[partition], 0, 15)
  reply[partition + 1] = type(head) == 'string' and string.find(head, '^%d+$') and tonumber(head) or 0
end
return reply
