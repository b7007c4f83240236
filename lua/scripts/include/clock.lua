-- The server's clock: the only TIME of all scripts, in whole microseconds. A script asks once.
local function server_now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
