-- rate_limit_peek: reads the level of a bucket.
-- KEYS: [1] the bucket
-- ARGV: [1] gain: units per microsecond
--       [2] price: units per permit
--       [3] capacity: units the bucket holds
-- returns: now, level, flags (1 corrupt, 2 stored by another rate)
-- keeps: nothing; writes nothing
local rate = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]
local now = server_now()
local level, _, flags = load_bucket(now, rate, tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]))
return {now, level, flags}
