//! The next release, as a rollout meets it: the scripts in `next_release/` store one more field in every record, and slices
//! of half the length.
//!
//! Its readers take records of both releases. Those of today's release keep what they do not know of a bucket; of breakers
//! they take only their own records (review 4.5).

use phalanx_lua::Script;

macro_rules! script {
    ($name:literal, $($include:literal)*) => {
        Script {
            name: $name,
            source: concat!(
                include_str!("../../next_release/include/clock.lua"),
                include_str!("../../next_release/include/value.lua"),
                "local CELL_KEYS = 1\nlocal function operation(KEYS, ARGV)\n",
                $(include_str!(concat!("../../next_release/include/", $include, ".lua")),)*
                include_str!(concat!("../../next_release/", $name, ".lua")),
                "end\n",
                include_str!("../../next_release/include/cells.lua"),
            ),
            virtual_source: "", // it runs on the clock of its server
            keys: 1,
        }
    };
}

macro_rules! bucket {
    ($name:literal) => {
        script!($name, "bucket")
    };
}

macro_rules! breaker {
    ($name:literal) => {
        script!($name, "breaker_state" "breaker_override" "breaker_machine" "breaker_store" "breaker_answer")
    };
}

/// The scripts that the next release has changed.
pub(crate) static SCRIPTS: [Script; 10] = [
    bucket!("rate_limit_acquire"),
    bucket!("rate_limit_refund"),
    bucket!("rate_limit_peek"),
    bucket!("rate_limit_retune"),
    breaker!("breaker_admit"),
    breaker!("breaker_sync"),
    breaker!("breaker_settle"),
    breaker!("breaker_force"),
    breaker!("breaker_reset"),
    breaker!("breaker_inspect"),
];
