-- Reads the string under a key: all of it if it is no longer than `most` bytes, else one byte more. A foreign value may
-- be of any size, and Redis would copy all of it. (Numbers as text where that matters: Redis formats them slowly.)
local function read_value(key, most)
  local text = redis.pcall('GETRANGE', key, '0', most)
  -- Empty, or missing, which GET tells apart.
  if text == '' then return redis.pcall('GET', key) end
  return text
end
