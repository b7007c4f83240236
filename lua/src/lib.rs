//! The Lua scripts with which Phalanx stores fleet state in Redis, embedded at compile time.
//!
//! Each file in `scripts/` is one operation. Its header lists what it does, its `KEYS` and `ARGV`, what it returns and
//! what it keeps (checked by a test). Code shared by several operations is in `scripts/include/` and is prepended here.
//!
//! The header describes one cell: the keys and arguments of one operation. A script can also run on many cells of one
//! partition at once, whose keys have the same hash tag (`scripts/include/cells.lua`): `ARGV` then begins with the number
//! of arguments of each cell, and the reply is an array of one reply for each.
//!
//! All scripts guarantee:
//!
//! * one key per cell (more with the same hash tag, where the header lists more); every write has a TTL; reads and
//!   rejections write nothing, except where the header says so;
//! * times are whole microseconds of the server's clock, read once; every number is exact in a double;
//! * stored state is not trusted: anything that no script can have written counts as lost and is overwritten;
//! * the work is bounded by the stored state and by the arguments that are there, not by a count among them.
//!
//! ```
//! let acquire = phalanx_lua::RATE_LIMIT_ACQUIRE;
//! assert_eq!((acquire.name, acquire.keys), ("rate_limit_acquire", 1));
//! assert!(acquire.source.contains("redis.call('TIME')"));
//! assert!(!acquire.virtual_source.contains("'TIME'"), "takes the time as an argument");
//! ```

/// A script with its source text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    /// The operation, which is also the name of its file.
    pub name: &'static str,
    /// The source, with the server's clock.
    pub source: &'static str,
    /// The source with a virtual clock, for tests: the time in microseconds is an additional last argument.
    pub virtual_source: &'static str,
    /// The number of keys of one cell; of a script that can do with fewer, the most.
    pub keys: usize,
}

macro_rules! assembled {
    ($clock:literal, $keys:literal, [$($include:literal)*], $name:literal) => {
        concat!(
            include_str!(concat!("../scripts/include/", $clock, ".lua")),
            include_str!("../scripts/include/value.lua"),
            "local CELL_KEYS = ", $keys, "\nlocal KEYS, ARGV = KEYS, ARGV\n", // those of a cell
            $(include_str!(concat!("../scripts/include/", $include, ".lua")),)*
            "local function operation()\n",
            include_str!(concat!("../scripts/", $name, ".lua")),
            "end\n",
            include_str!("../scripts/include/cells.lua"),
        )
    };
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $constant:ident = $name:literal, keys $keys:literal, includes $includes:tt;)*) => {
        $(
            $(#[$doc])*
            pub const $constant: Script = Script {
                name: $name,
                source: assembled!("clock", $keys, $includes, $name),
                virtual_source: assembled!("clock_virtual", $keys, $includes, $name),
                keys: $keys,
            };
        )*

        /// All scripts. Those of one cell are in the order in which it sends them.
        pub const ALL: &[Script] = &[$($constant),*];
    };
}

scripts! {
    /// Converts the level of a bucket to another rate.
    RATE_LIMIT_RETUNE = "rate_limit_retune", keys 1, includes ["bucket"];
    /// Charges permits for work that is done.
    RATE_LIMIT_CHARGE = "rate_limit_charge", keys 2, includes ["bucket"];
    /// Returns permits that were not used.
    RATE_LIMIT_REFUND = "rate_limit_refund", keys 1, includes ["bucket"];
    /// Takes permits for groups of callers.
    RATE_LIMIT_ACQUIRE = "rate_limit_acquire", keys 1, includes ["bucket"];
    /// Takes permits of several buckets for groups of callers: of all their limits, or of none.
    RATE_LIMIT_ACQUIRE_ALL = "rate_limit_acquire_all", keys 64, includes ["bucket"];
    /// Closes blocks of leased permits, and leases another block.
    RATE_LIMIT_LEASE = "rate_limit_lease", keys 1, includes ["bucket"];
    /// Reads the level of a bucket.
    RATE_LIMIT_PEEK = "rate_limit_peek", keys 1, includes ["bucket"];
    /// Sets the override of a breaker, or releases it.
    BREAKER_FORCE = "breaker_force", keys 2, includes [
        "breaker_state" "breaker_override" "breaker_machine" "breaker_store" "breaker_answer"
    ];
    /// Closes a breaker and clears its counts.
    BREAKER_RESET = "breaker_reset", keys 2, includes [
        "breaker_state" "breaker_override" "breaker_machine" "breaker_store" "breaker_answer"
    ];
    /// Records the outcomes of probes.
    BREAKER_SETTLE = "breaker_settle", keys 2, includes [
        "breaker_state" "breaker_override" "breaker_machine" "breaker_store" "breaker_answer"
    ];
    /// Records the outcomes of calls and returns the state.
    BREAKER_SYNC = "breaker_sync", keys 3, includes [
        "breaker_state" "breaker_override" "breaker_machine" "breaker_store" "breaker_answer" "breaker_lines"
        "breaker_evidence"
    ];
    /// Answers a call for evidence for a replica that has not used the breaker.
    BREAKER_ABSTAIN = "breaker_abstain", keys 1, includes ["breaker_lines"];
    /// Asks for the admission of calls.
    BREAKER_ADMIT = "breaker_admit", keys 2, includes [
        "breaker_state" "breaker_override" "breaker_machine" "breaker_store" "breaker_answer"
    ];
    /// Reads the state of a breaker.
    BREAKER_INSPECT = "breaker_inspect", keys 2, includes [
        "breaker_state" "breaker_override" "breaker_machine" "breaker_store" "breaker_answer"
    ];
    /// Reads the number of the last change of every partition.
    LOG_HEADS = "log_heads", keys 64, includes [];
    /// Reads the changes of a partition since one that is known.
    LOG_READ = "log_read", keys 1, includes [];
    /// Adds latencies to a digest, counted in bins, and returns the slices that the caller lacks.
    DIGEST_FLUSH = "digest_flush", keys 1, includes ["digest"];
    /// Reads the slices of the window that the caller lacks.
    DIGEST_READ = "digest_read", keys 1, includes ["digest"];
    /// Adds to a tally, takes marks and reads the window.
    TALLY_SYNC = "tally_sync", keys 1, includes ["tally"];
    /// Renews, grants or takes back a share of slots.
    SLOTS_SHARE = "slots_share", keys 1, includes ["slots"];
    /// Registers a replica as live and counts the live replicas.
    MEMBERSHIP_HEARTBEAT = "membership_heartbeat", keys 2, includes [];
    /// Removes a replica from the live ones.
    MEMBERSHIP_LEAVE = "membership_leave", keys 1, includes [];
    /// Acquires or extends a lock.
    LOCK_ACQUIRE = "lock_acquire", keys 2, includes ["lock"];
    /// Extends a held lock.
    LOCK_RENEW = "lock_renew", keys 1, includes ["lock"];
    /// Releases a held lock.
    LOCK_RELEASE = "lock_release", keys 1, includes ["lock"];
    /// Marks the work under a held lock as completed and releases the lock.
    LOCK_COMPLETE = "lock_complete", keys 2, includes ["lock"];
    /// Reads the fence under which the work was completed.
    LOCK_COMPLETED = "lock_completed", keys 1, includes ["lock"];
    /// Claims an idempotency key, or returns its state.
    IDEMPOTENCY_CLAIM = "idempotency_claim", keys 1, includes ["idempotency"];
    /// Extends a claim.
    IDEMPOTENCY_RENEW = "idempotency_renew", keys 1, includes ["idempotency"];
    /// Stores the answer of a request.
    IDEMPOTENCY_COMPLETE = "idempotency_complete", keys 1, includes ["idempotency"];
    /// Releases a claim.
    IDEMPOTENCY_RELEASE = "idempotency_release", keys 1, includes ["idempotency"];
    /// The health check: writes and reads back.
    PROBE = "probe", keys 1, includes [];
}

/// The Redis commands that the scripts call, in alphabetical order. An account needs them besides `EVAL` and `EVALSHA`.
/// A test compares the list with the scripts.
pub const COMMANDS: &[&str] =
    &["DEL", "GET", "GETRANGE", "PEXPIRE", "PUBLISH", "SET", "TIME", "ZADD", "ZCARD", "ZREM", "ZREMRANGEBYSCORE"];
