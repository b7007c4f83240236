//! The Lua scripts with which Phalanx keeps fleet state in Redis, embedded.
//!
//! One file in `scripts/` for each operation; its header says what it does, which `KEYS` and `ARGV` it takes, what it
//! returns and what it keeps (a test holds the headers to it). What operations share stands in `scripts/include/` and
//! is put before them here, at compile time. The promises of all of them:
//!
//! * one key a script (two, in one hash tag, where the header says so), every write with a TTL, reads and rejections
//!   write nothing;
//! * whole microseconds of the server's clock, asked once; every number exact in a double;
//! * what is stored is not trusted: anything that we cannot have written counts as lost, and is overwritten.

/// A script: its text, for `EVAL`, `EVALSHA` and the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    /// The operation, which is also the name of its file.
    pub name: &'static str,
    /// What runs on a server, on the server's clock.
    pub source: &'static str,
    /// The same with the time, in microseconds, as one more argument after all others: for tests.
    pub virtual_source: &'static str,
    /// How many keys it takes.
    pub keys: usize,
}

macro_rules! assembled {
    ($clock:literal, [$($include:literal)*], $name:literal) => {
        concat!(
            include_str!(concat!("../scripts/include/", $clock, ".lua")),
            $(include_str!(concat!("../scripts/include/", $include, ".lua")),)*
            include_str!(concat!("../scripts/", $name, ".lua")),
        )
    };
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $constant:ident = $name:literal, keys $keys:literal, includes $includes:tt;)*) => {
        $(
            $(#[$doc])*
            pub const $constant: Script = Script {
                name: $name,
                source: assembled!("clock", $includes, $name),
                virtual_source: assembled!("clock_virtual", $includes, $name),
                keys: $keys,
            };
        )*

        /// Every script there is.
        pub const ALL: &[Script] = &[$($constant),*];
    };
}

scripts! {
    /// Takes permits for callers in groups.
    RATE_LIMIT_ACQUIRE = "rate_limit_acquire", keys 1, includes ["bucket"];
    /// Gives permits back that were not used.
    RATE_LIMIT_REFUND = "rate_limit_refund", keys 1, includes ["bucket"];
    /// Looks into a bucket without taking.
    RATE_LIMIT_PEEK = "rate_limit_peek", keys 1, includes ["bucket"];
    /// Keeps the permits there are when the rate changes.
    RATE_LIMIT_RETUNE = "rate_limit_retune", keys 1, includes ["bucket"];
    /// Asks for calls to pass a circuit.
    BREAKER_ADMIT = "breaker_admit", keys 1, includes ["breaker_state" "breaker_machine" "breaker_answer"];
    /// Tells a circuit what became of calls, and how it stands.
    BREAKER_SYNC = "breaker_sync", keys 1, includes ["breaker_state" "breaker_machine" "breaker_answer"];
    /// Tells a circuit what became of probes.
    BREAKER_SETTLE = "breaker_settle", keys 1, includes ["breaker_state" "breaker_machine" "breaker_answer"];
    /// Puts an operator's word above a circuit's phase, or takes it away.
    BREAKER_FORCE = "breaker_force", keys 1, includes ["breaker_state" "breaker_machine" "breaker_answer"];
    /// Closes a circuit and forgets what it has seen.
    BREAKER_RESET = "breaker_reset", keys 1, includes ["breaker_state" "breaker_machine" "breaker_answer"];
    /// What can be seen of a circuit from outside.
    BREAKER_INSPECT = "breaker_inspect", keys 1, includes ["breaker_state" "breaker_machine" "breaker_answer"];
    /// Adds latencies, counted in bins.
    DIGEST_FLUSH = "digest_flush", keys 1, includes ["digest"];
    /// The counted latencies of the window.
    DIGEST_READ = "digest_read", keys 1, includes ["digest"];
    /// Counts a replica among the living, and the living.
    MEMBERSHIP_HEARTBEAT = "membership_heartbeat", keys 2, includes [];
    /// A replica no longer counts among the living.
    MEMBERSHIP_LEAVE = "membership_leave", keys 1, includes [];
    /// Takes a lock, or keeps it.
    LOCK_ACQUIRE = "lock_acquire", keys 2, includes ["lock"];
    /// Keeps a lock that is held.
    LOCK_RENEW = "lock_renew", keys 1, includes ["lock"];
    /// Frees a lock that is held.
    LOCK_RELEASE = "lock_release", keys 1, includes ["lock"];
    /// Marks the work under a lock that is held as done, and frees the lock.
    LOCK_COMPLETE = "lock_complete", keys 2, includes ["lock"];
    /// The fence under which work was last done.
    LOCK_COMPLETED = "lock_completed", keys 1, includes ["lock"];
    /// Claims a request, or finds what became of it.
    IDEMPOTENCY_CLAIM = "idempotency_claim", keys 1, includes ["idempotency"];
    /// Keeps a claim that is held.
    IDEMPOTENCY_RENEW = "idempotency_renew", keys 1, includes ["idempotency"];
    /// Keeps the answer to a request.
    IDEMPOTENCY_COMPLETE = "idempotency_complete", keys 1, includes ["idempotency"];
    /// Gives a claim up.
    IDEMPOTENCY_RELEASE = "idempotency_release", keys 1, includes ["idempotency"];
    /// Writes and reads back.
    PROBE = "probe", keys 1, includes [];
}

/// The Redis commands that the scripts call, in alphabetical order: what an account must be granted, beside `EVAL` and
/// `EVALSHA`. A test holds the list to the scripts.
pub const COMMANDS: &[&str] = &[
    "BITFIELD",
    "DEL",
    "GET",
    "GETRANGE",
    "PEXPIRE",
    "PUBLISH",
    "SET",
    "SETRANGE",
    "TIME",
    "ZADD",
    "ZCARD",
    "ZREM",
    "ZREMRANGEBYSCORE",
];
