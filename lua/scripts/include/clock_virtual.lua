-- The virtual clock of tests: the last argument, in whole microseconds.
local function server_now()
  return tonumber(ARGV[#ARGV])
end
