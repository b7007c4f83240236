-- The server's clock in whole microseconds. Each script calls it once.
local function server_now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
