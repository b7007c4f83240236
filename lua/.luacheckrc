-- Run from this folder: `cd lua && luacheck scripts`.
std = "lua51"
max_line_length = 120
read_globals = {"redis", "KEYS", "ARGV"}

-- Includes are prepended to a script: what they define is unused in the include and undefined in the script.
files["scripts/include"] = {ignore = {"211"}}
files["scripts/include/cells.lua"] = {globals = {"KEYS", "ARGV"}, read_globals = {"CELL_KEYS", "operation"}}
files["scripts"] = {read_globals = {"server_now", "read_value"}}
files["**/rate_limit_*.lua"] = {
  read_globals = {
    "MAX_UNITS", "OTHER_RATE", "LEASE_SLOTS", "EMPTY", "FROM", "UNITS", "SLOT", "PAUSE", "DEBT", "convert", "load_bucket",
    "save_bucket", "add_debt", "parse_tail", "format_tail", "leased_permits", "tidy_leases", "lease_slot",
  },
}
files["**/rate_limit_acquire_all.lua"] = {globals = {"KEYS"}} -- an include looks at the first key
files["**/breaker_*.lua"] = {
  read_globals = {
    "CLOSED", "OPEN", "HALF_OPEN", "FORCED_OPEN", "FORCED_CLOSED", "DISABLED", "METRICS_ONLY", "REPAIRED", "OTHER_SPEC",
    "RESTORED", "ADOPTED", "MAX_BACKSTEP", "MAX_ESCALATION", "MAX_U32", "MAX_COUNT", "MAX_EXACT", "MAX_SERIAL", "MAX_TEXT", "MAX_AHEAD",
    "MAX_WORD", "MAX_LEASES", "MAX_WINDOWS", "OVERRIDE_KEPT", "RELEASE_KEPT", "SLICES", "split", "within", "read_spec", "read_entry",
    "new_window", "clear_windows", "fresh", "restored", "parse", "anchor", "settle_override", "adopt", "entry_text",
    "count_in", "load", "save", "probes_in_flight", "touch", "sum", "begin", "enter", "open", "reaches", "count", "commit",
    "build_reply", "MAX_ASKED", "read_lines", "save_lines", "take_line", "parse_lines", "weigh", "RECENT", "is_sampled", "has_quorum", "forget_streak",
  },
}
files["**/digest_*.lua"] = {read_globals = {"SLOTS", "BINS", "MAX_BYTES", "read_digest", "reply_with"}}
files["**/tally_*.lua"] = {read_globals = {"SLICES", "load_tally", "add_to", "sum", "save_tally"}}
files["**/slots_*.lua"] = {read_globals = {"MAX_HOLDERS", "MAX_LEASE", "MAX_SLOTS", "load_holders", "grant", "save_holders"}}
files["**/lock_*.lua"] = {
  read_globals = {"MAX_BACKSTEP", "MAX_EXACT", "MAX_TTL", "is_more", "read_lock", "save_lock", "save_mark"},
}
files["**/idempotency_*.lua"] = {
  read_globals = {"MAX_BACKSTEP", "MAX_TTL", "read_live_request", "save", "save_claim", "publish_end"},
}
