-- The server's clock in whole microseconds. Each script reads it once.
local script_time
local function server_now()
  if not script_time then
    local time = redis.call('TIME')
    script_time = time[1] * 1000000 + time[2]
  end
  return script_time
end
