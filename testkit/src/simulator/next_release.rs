//! The next release, as a rollout meets it: the scripts in `next_release/` store one more field in every record, and slices
//! of half the length.
//!
//! Its readers take records of both releases. Those of today's release keep what they do not know of a bucket; of breakers
//! they take only their own records (review 4.5).

use phalanx_lua::Script;

macro_rules! script {
    ($name:literal, keys $keys:literal, $($include:literal)*) => {
        Script {
            name: $name,
            source: concat!(
                include_str!("../../next_release/include/clock.lua"),
                include_str!("../../next_release/include/value.lua"),
                "local CELL_KEYS = ", $keys, "\nlocal KEYS, ARGV = KEYS, ARGV\n",
                $(include_str!(concat!("../../next_release/include/", $include, ".lua")),)*
                "local function operation()\n",
                include_str!(concat!("../../next_release/", $name, ".lua")),
                "end\n",
                include_str!("../../next_release/include/cells.lua"),
            ),
            virtual_source: "", // it runs on the clock of its server
            keys: $keys,
        }
    };
}

macro_rules! bucket {
    ($name:literal) => {
        script!($name, keys 1, "bucket")
    };
}

macro_rules! breaker {
    ($name:literal) => {
        script!($name, keys 2, "breaker_state" "breaker_override" "breaker_machine" "breaker_store" "breaker_answer")
    };
}

macro_rules! digest {
    ($name:literal) => {
        script!($name, keys 1, "digest")
    };
}

/// The scripts that the next release has changed.
pub(crate) static SCRIPTS: [Script; 15] = [
    bucket!("rate_limit_acquire"),
    script!("rate_limit_acquire_all", keys 64, "bucket"),
    bucket!("rate_limit_lease"),
    bucket!("rate_limit_refund"),
    bucket!("rate_limit_peek"),
    script!("rate_limit_charge", keys 2, "bucket"),
    bucket!("rate_limit_retune"),
    breaker!("breaker_admit"),
    script!(
        "breaker_sync", keys 3,
        "breaker_state" "breaker_override" "breaker_machine" "breaker_store" "breaker_answer" "breaker_lines"
        "breaker_evidence"
    ),
    breaker!("breaker_settle"),
    breaker!("breaker_force"),
    breaker!("breaker_reset"),
    breaker!("breaker_inspect"),
    digest!("digest_flush"),
    digest!("digest_read"),
];
