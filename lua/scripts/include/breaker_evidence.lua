-- What the replicas know together. A replica sends its outcomes when some of them are bad, so Redis knows the failures
-- of all replicas and the successes of few. Before a breaker of several replicas trips, they are asked for the rest:
-- each answers with what it has not sent, and with its own window. The windows decide. One that does not answer in time
-- counts as the mean of the others, without failures: silence does not trip. Of many replicas a sample is asked, drawn
-- anew for each call, and stands for all.
local FEW, ASK_INTERVAL, ASK_PACE, RECENT, CALL_KEPT = 8, 250000, 5000, 50000, 1000000

local function is_sampled(s)
  return s.live > MAX_ASKED
end

-- The lines that count: of replicas that have answered the call, or of few replicas have told what they know lately.
local function heard_lines(s, lines)
  local heard = {}
  for _, known in ipairs(lines) do
    local answers = s.asked > 0 and known.call == s.call
    local counts = answers or not is_sampled(s) and known.at > s.now - RECENT
    if counts and known.at >= s.since then heard[#heard + 1] = known end
  end
  return heard
end

-- How many replicas had calls in the window, how many of them are over the threshold by their own, and whether this one
-- is. Of replicas with few calls each, each needs its part of min_throughput.
local function opinions(s, spec, lines, own, scale)
  local used, over, own_over = {}, 0, false
  for _, known in ipairs(lines) do
    if known.calls > 0 and known.at > s.now - spec.window and known.at >= s.since then used[#used + 1] = known end
  end
  local least = math.ceil(spec.min_throughput / (#used * scale))
  for _, known in ipairs(used) do
    if reaches(spec, least, known.streak, known.calls, known.failures, known.slow) then
      over, own_over = over + 1, own_over or known == own
    end
  end
  return #used, over, own_over
end

local function has_quorum(spec)
  return spec.quorum_share > 0 or spec.quorum_replicas > 0
end

-- Whether enough of the replicas with calls are over the threshold; `scale`: for how many each of them stands.
local function is_quorum(spec, users, over, scale)
  if not has_quorum(spec) then return true end
  if spec.quorum_share > 0 then return over >= spec.quorum_share * users end
  return over * scale >= math.min(spec.quorum_replicas, users * scale)
end

-- Whether what is known would trip if nothing were missing but the rest of min_throughput.
local function is_suspect(s, spec)
  local calls, failures, slow = sum(s)
  return reaches(spec, 0, s.streak, math.max(calls, spec.min_throughput), failures, slow)
end

-- Whether what was heard trips; then whether it was enough to tell. Failures in a row are known only from the answers
-- of half of them: one success of the others would end them.
local function is_proven(s, spec, heard, asked, answered, scale)
  local calls, failures, slow = 0, 0, 0
  for _, known in ipairs(heard) do
    calls, failures, slow = calls + known.calls, failures + known.failures, slow + known.slow
  end
  calls = calls + math.max(0, asked - #heard) * calls / math.max(1, #heard)
  local known = 2 * answered >= asked or spec.consecutive_failures == 1 -- one failure has nothing between
  local enough = calls * scale >= spec.min_throughput
  return reaches(spec, enough and 0 or calls + 1, known and s.streak or 0, calls, failures, slow), enough
end

-- How many of these lines answer the call.
local function count_answers(s, text)
  local _, answers = text:gsub(string.format(' %.0f ', s.call), '')
  return answers
end

-- Whether the replicas may be asked: if they are many, not in close succession after answers that were enough to tell.
local function may_ask(s)
  return s.call == 0 or s.live <= FEW or s.now >= s.call + math.min(ASK_INTERVAL, ASK_PACE * s.live)
end

-- Whether the windows that were heard lately tell everything: failures in a row are known only from answers.
local function is_known(s, spec)
  return spec.consecutive_failures == 0 or s.streak < spec.consecutive_failures
end

-- Decides after bad news or an answer: trips, waits for the replicas, or asks them, who have `answer_time` to answer.
-- `rest`: the lines of the others.
local function weigh(s, spec, rest, own, answer_time)
  if s.phase ~= CLOSED or s.override == FORCED_CLOSED or s.override == DISABLED then return end
  -- The replica that asked did not come back to close the call.
  if s.asked > 0 and s.now > s.answer_until + CALL_KEPT then s.asked = 0 end
  local answered = 0
  if s.asked > 0 then
    answered = count_answers(s, rest) + (own.call == s.call and 1 or 0)
    if answered < s.asked and s.now < s.answer_until then return end
  elseif not has_quorum(spec) and not (s.bad_news and is_suspect(s, spec)) then
    return
  elseif (is_sampled(s) or not has_quorum(spec)) and not may_ask(s) and spec.consecutive_failures ~= 1 then
    return
  end
  local lines = parse_lines(rest, s.now)
  lines[#lines + 1] = own
  local asked = s.asked > 0 and s.asked or math.min(s.live, MAX_ASKED)
  local scale = math.max(1, s.live / asked)
  local heard = heard_lines(s, lines)
  local users, over, own_over = opinions(s, spec, is_sampled(s) and heard or lines, own, scale)
  if s.asked == 0 and not s.bad_news then
    s.odd = own_over -- a replica that comes back after its call was closed by the answer of another one
    return
  elseif s.asked == 0 and not is_suspect(s, spec) and not own_over then
    return
  end
  local proven, enough = is_proven(s, spec, heard, asked, answered, scale)
  local agreed = is_quorum(spec, users, over, scale)
  local complete = #heard >= asked or spec.consecutive_failures == 1 and s.streak > 0
  if s.asked > 0 then
    s.asked = 0
    touch(s)
    if proven and agreed then return open(s, spec) end
    if not enough then s.call = 0 end -- the next bad news may ask at once
  elseif complete and proven and agreed then
    return open(s, spec)
  elseif may_ask(s) and not (complete and is_known(s, spec)) then
    s.call, s.asked, s.answer_until, s.asks = s.now, asked, s.now + answer_time, true
    own.call = s.call
    return
  end
  -- Over the threshold without the fleet: because the others are not, or because too few of them were heard.
  s.odd = own_over and (2 * #heard < asked or has_quorum(spec))
end
