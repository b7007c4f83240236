-- The virtual clock of tests: the last argument of the script, in whole microseconds.
local script_time = tonumber(ARGV[#ARGV])
local function server_now()
  return script_time
end
