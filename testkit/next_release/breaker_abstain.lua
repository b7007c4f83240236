-- breaker_abstain: answers a call for evidence for a replica that has not used the breaker.
-- KEYS: [1] the evidence of the replicas of the breaker
-- ARGV: [1] id of the replica, [2] the call
-- returns: now, 1 if the call was known
-- keeps: the evidence (include/breaker_lines.lua), for ten minutes; writes nothing if no replica has sent any
local now = server_now()
local text = read_lines(KEYS[1])
if text == '' then return {now, 0} end
local rest, own = take_line(text, ARGV[1], now)
own.call, own.at = tonumber(ARGV[2]), now
save_lines(KEYS[1], rest, own)
return {now, 1}
