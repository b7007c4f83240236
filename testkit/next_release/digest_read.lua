-- digest_read: returns the slices inside the window that the caller lacks; the caller computes the quantile.
-- KEYS: [1] the digest
-- ARGV: [1] slice_len in microseconds, at least 1
--       [2] the slices that the caller has: ';', and for each its number, ' ', the flush that changed it last, ';'
-- returns: now, flags (1 corrupt), then for each slice inside the window: its number, the flush that changed it last,
--          and its bins as they are stored (include/digest.lua), at most 1,104; an empty string if it has them
-- keeps: nothing; writes nothing
local slice_len = math.max(1, tonumber(ARGV[1]))
local now = server_now()
local digest, flags = read_digest(now, slice_len)
return reply_with(digest, now, flags, ARGV[2])
