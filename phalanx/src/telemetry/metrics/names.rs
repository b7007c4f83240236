//! The table of instruments: the one place where names, units and attributes stand. The documentation prints the same
//! rows, and a test compares the two.
//!
//! Names follow OpenTelemetry's conventions: dots between words, seconds for time, units of things counted in braces
//! (which Prometheus leaves out). Attributes are `phalanx.policy` and `phalanx.route` for everything that happens on a
//! pipeline; the route of a policy as a whole is the empty text, so that sums over routes are complete.

/// What an instrument does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instrument {
    /// Only ever grows.
    Counter,
    /// Values by size.
    Histogram,
    /// What stands at the moment of collection.
    Gauge,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// OpenTelemetry's name.
    pub name: &'static str,
    /// What it does.
    pub instrument: Instrument,
    /// Its unit in UCUM; empty for a state.
    pub unit: &'static str,
    /// The attributes of its series.
    pub attributes: &'static [&'static str],
    /// What it says.
    pub meaning: &'static str,
    /// Prometheus' name; of a histogram, what comes before `_bucket`, `_sum` and `_count`.
    pub prometheus: &'static str,
}

/// The policy's name.
pub const POLICY: &str = "phalanx.policy";
/// The route's name; empty for a policy as a whole.
pub const ROUTE: &str = "phalanx.route";
/// How a call ended: `success`, `failure`, `neutral`, `rejected`, `cancelled`.
pub const OUTCOME: &str = "phalanx.outcome";
/// Whose state a call was decided on: `fleet`, `leased`, `local`, `degraded`, `forced`, `shadow`.
pub const SOURCE: &str = "phalanx.source";
/// Why a call was rejected.
pub const CODE: &str = "phalanx.code";
/// Why something was not done: `budget`, `deadline`.
pub const REASON: &str = "phalanx.reason";
/// A circuit's phase: `closed`, `open`, `half_open`.
pub const STATE: &str = "phalanx.state";
/// What is pulled: `force_open`, `force_closed`, `hedging_off`, `retries_off`, `max_concurrency`.
pub const LEVER_PULLED: &str = "phalanx.lever";
/// What became of it: `applied`, `rejected`.
pub const RESULT: &str = "phalanx.result";
/// What kind of failure it was.
pub const ERROR_TYPE: &str = "error.type";

macro_rules! table {
    ($($id:ident: $instrument:ident $name:literal [$unit:literal] ($($attribute:ident),*) $meaning:literal => $prometheus:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $meaning, ".")]
            pub const $id: Named = Named {
                name: $name,
                instrument: Instrument::$instrument,
                unit: $unit,
                attributes: &[$($attribute),*],
                meaning: $meaning,
                prometheus: $prometheus,
            };
        )*
        /// Every instrument, in the order of the documentation.
        pub const ALL: &[Named] = &[$($id),*];
    };
}

table! {
    EXECUTIONS: Counter "phalanx.executions" ["{call}"] (POLICY, ROUTE, OUTCOME, SOURCE)
        "calls that ended, by how and on whose state" => "phalanx_executions_total";
    DURATION: Histogram "phalanx.execution.duration" ["s"] (POLICY, ROUTE, OUTCOME)
        "from the call to its answer, retries and waits included" => "phalanx_execution_duration_seconds";
    DEADLINE_REMAINING: Histogram "phalanx.deadline.remaining" ["s"] (POLICY, ROUTE)
        "what was left of the caller's time at the end; calls with a deadline only" => "phalanx_deadline_remaining_seconds";
    REJECTIONS: Counter "phalanx.rejections" ["{call}"] (POLICY, ROUTE, CODE)
        "calls that a policy rejected or cut off" => "phalanx_rejections_total";
    RETRIES: Counter "phalanx.retries" ["{attempt}"] (POLICY, ROUTE, ERROR_TYPE)
        "attempts that failed and were followed by another" => "phalanx_retries_total";
    RETRIES_DENIED: Counter "phalanx.retries.denied" ["{attempt}"] (POLICY, ROUTE, REASON)
        "attempts that would have been repeated and were not" => "phalanx_retries_denied_total";
    TIMEOUTS: Counter "phalanx.timeouts" ["{attempt}"] (POLICY, ROUTE)
        "attempts that took longer than their timeout" => "phalanx_timeouts_total";
    HEDGES: Counter "phalanx.hedges" ["{hedge}"] (POLICY, ROUTE)
        "copies of slow attempts that were sent" => "phalanx_hedges_total";
    HEDGES_WON: Counter "phalanx.hedges.won" ["{hedge}"] (POLICY, ROUTE)
        "copies whose good answer was taken" => "phalanx_hedges_won_total";
    HEDGES_DENIED: Counter "phalanx.hedges.denied" ["{hedge}"] (POLICY, ROUTE)
        "copies that were not sent because the budget was used up" => "phalanx_hedges_denied_total";
    FALLBACKS: Counter "phalanx.fallbacks" ["{answer}"] (POLICY, ROUTE)
        "answers that a fallback gave" => "phalanx_fallbacks_total";
    BREAKER_STATE: Gauge "phalanx.breaker.state" ["{circuit}"] (POLICY, ROUTE, STATE)
        "1 for the circuit's present state and 0 for the others; an operator's word counts as the state" => "phalanx_breaker_state";
    BREAKER_TRANSITIONS: Counter "phalanx.breaker.transitions" ["{transition}"] (POLICY, ROUTE, STATE)
        "changes of a circuit's state, by the new one" => "phalanx_breaker_transitions_total";
    BULKHEAD_LIMIT: Gauge "phalanx.bulkhead.limit" ["{call}"] (POLICY, ROUTE)
        "calls that may run at a time" => "phalanx_bulkhead_limit";
    BULKHEAD_IN_FLIGHT: Gauge "phalanx.bulkhead.in_flight" ["{call}"] (POLICY, ROUTE)
        "calls that run" => "phalanx_bulkhead_in_flight";
    BULKHEAD_QUEUE_DEPTH: Gauge "phalanx.bulkhead.queue_depth" ["{call}"] (POLICY, ROUTE)
        "calls that wait for a slot" => "phalanx_bulkhead_queue_depth";
    RATE_LIMIT_REMAINING: Gauge "phalanx.rate_limit.remaining" ["{permit}"] (POLICY, ROUTE)
        "permits in the bucket, as this process last knew" => "phalanx_rate_limit_remaining";
    HEDGE_DELAY: Gauge "phalanx.hedge.delay" ["s"] (POLICY, ROUTE)
        "how long an attempt may take before a copy is sent" => "phalanx_hedge_delay_seconds";
    STORE_DEGRADED: Gauge "phalanx.store.degraded" [""] ()
        "1 while this process decides alone because the shared store, or a shard of it, does not answer" => "phalanx_store_degraded";
    STORE_OUTAGES: Counter "phalanx.store.outages" ["{outage}"] ()
        "times that the shared store stopped answering" => "phalanx_store_outages_total";
    STORE_DURATION: Histogram "phalanx.store.duration" ["s"] ()
        "round trips to the shared store" => "phalanx_store_duration_seconds";
    STORE_ERRORS: Counter "phalanx.store.errors" ["{error}"] (ERROR_TYPE)
        "round trips to the shared store that failed" => "phalanx_store_errors_total";
    REPLICAS: Gauge "phalanx.replicas" ["{replica}"] ()
        "replicas that are alive, as the shared store last told" => "phalanx_replicas";
    LEVER: Gauge "phalanx.lever" [""] (POLICY, LEVER_PULLED)
        "1 while an operator has this lever of a policy, or of every one (`*`), pulled" => "phalanx_lever";
    CONFIG_RELOADS: Counter "phalanx.config.reloads" ["{reload}"] (RESULT)
        "newer configurations that came, by what became of them" => "phalanx_config_reloads_total";
}
