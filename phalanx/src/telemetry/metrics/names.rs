//! The table of instruments: the single definition of names, units and attributes. `docs/telemetry.md` prints the same rows,
//! and a test compares the two.
//!
//! Names follow OpenTelemetry's conventions: dots between words, seconds for time, units of counted things in braces (which
//! Prometheus leaves out). Every instrument of a pipeline has the attributes `phalanx.policy` and `phalanx.route`; a call
//! without a route has the empty string, so that sums over routes are complete.

/// The type of an instrument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instrument {
    /// A monotonic sum.
    Counter,
    /// A distribution of values.
    Histogram,
    /// The value at the time of collection.
    Gauge,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name in OpenTelemetry.
    pub name: &'static str,
    /// Its type.
    pub instrument: Instrument,
    /// Its unit in UCUM; empty for a state.
    pub unit: &'static str,
    /// The attributes of its series.
    pub attributes: &'static [&'static str],
    /// What it measures.
    pub meaning: &'static str,
    /// The name in Prometheus; for a histogram the part before `_bucket`, `_sum` and `_count`.
    pub prometheus: &'static str,
}

/// The policy's name.
pub const POLICY: &str = "phalanx.policy";
/// The route's name; empty for calls without a route.
pub const ROUTE: &str = "phalanx.route";
/// How a call ended: `success`, `failure`, `neutral`, `rejected`, `cancelled`.
pub const OUTCOME: &str = "phalanx.outcome";
/// Which state decided about a call: `fleet`, `leased`, `local`, `degraded`, `forced`, `shadow`.
pub const SOURCE: &str = "phalanx.source";
/// Why a call was rejected.
pub const CODE: &str = "phalanx.code";
/// The name of one of several limits, as configured; never the value of a tag.
pub const LIMIT: &str = "phalanx.limit";
/// Why a retry was not made: `budget`, `deadline`; why a decision was degraded: `connecting`, `outage`, `late`.
pub const REASON: &str = "phalanx.reason";
/// A breaker's phase: `closed`, `open`, `half_open`.
pub const STATE: &str = "phalanx.state";
/// Where a module decides: `connecting`, `shared`, `partial`, `degraded`.
pub const MODE: &str = "phalanx.mode";
/// The setting of a pulled lever: `force_open`, `force_closed`, `hedging_off`, `retries_off`, `max_concurrency`, `chaos`.
pub const LEVER_PULLED: &str = "phalanx.lever";
/// The result of a reload: `applied`, `rejected`.
pub const RESULT: &str = "phalanx.result";
/// The kind of a failure.
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
        /// Every instrument, in the order of `docs/telemetry.md`.
        pub const ALL: &[Named] = &[$($id),*];
    };
}

table! {
    EXECUTIONS: Counter "phalanx.executions" ["{call}"] (POLICY, ROUTE, OUTCOME, SOURCE)
        "finished calls, by outcome and by the state that decided" => "phalanx_executions_total";
    DURATION: Histogram "phalanx.execution.duration" ["s"] (POLICY, ROUTE, OUTCOME)
        "time from the call to its answer, including retries and waits" => "phalanx_execution_duration_seconds";
    DEADLINE_REMAINING: Histogram "phalanx.deadline.remaining" ["s"] (POLICY, ROUTE)
        "time left until the caller's deadline when the call ended; only calls with a deadline" => "phalanx_deadline_remaining_seconds";
    REJECTIONS: Counter "phalanx.rejections" ["{call}"] (POLICY, ROUTE, CODE)
        "calls that a policy rejected or timed out" => "phalanx_rejections_total";
    RETRIES: Counter "phalanx.retries" ["{attempt}"] (POLICY, ROUTE, ERROR_TYPE)
        "failed attempts that were retried" => "phalanx_retries_total";
    RETRIES_DENIED: Counter "phalanx.retries.denied" ["{attempt}"] (POLICY, ROUTE, REASON)
        "failed attempts that were not retried because of the retry budget or the deadline" => "phalanx_retries_denied_total";
    TIMEOUTS: Counter "phalanx.timeouts" ["{attempt}"] (POLICY, ROUTE)
        "attempts that exceeded their timeout" => "phalanx_timeouts_total";
    HEDGES: Counter "phalanx.hedges" ["{hedge}"] (POLICY, ROUTE)
        "hedges sent for slow attempts" => "phalanx_hedges_total";
    HEDGES_WON: Counter "phalanx.hedges.won" ["{hedge}"] (POLICY, ROUTE)
        "hedges whose successful answer was used" => "phalanx_hedges_won_total";
    HEDGES_DENIED: Counter "phalanx.hedges.denied" ["{hedge}"] (POLICY, ROUTE)
        "hedges not sent because the hedge budget was exhausted" => "phalanx_hedges_denied_total";
    FALLBACKS: Counter "phalanx.fallbacks" ["{answer}"] (POLICY, ROUTE)
        "answers served by a fallback" => "phalanx_fallbacks_total";
    BREAKER_STATE: Gauge "phalanx.breaker.state" ["{circuit}"] (POLICY, ROUTE, STATE)
        "1 for the current state of the breaker and 0 for the others; an override counts as the state" => "phalanx_breaker_state";
    BREAKER_TRANSITIONS: Counter "phalanx.breaker.transitions" ["{transition}"] (POLICY, ROUTE, STATE)
        "state changes of a breaker, by the new state" => "phalanx_breaker_transitions_total";
    BREAKER_ODD_REPLICA: Gauge "phalanx.breaker.odd_replica" ["{circuit}"] ()
        "breakers that this replica holds open on its own while they are closed for the fleet" => "phalanx_breaker_odd_replica";
    BULKHEAD_LIMIT: Gauge "phalanx.bulkhead.limit" ["{call}"] (POLICY, ROUTE)
        "concurrency limit of the bulkhead" => "phalanx_bulkhead_limit";
    BULKHEAD_IN_FLIGHT: Gauge "phalanx.bulkhead.in_flight" ["{call}"] (POLICY, ROUTE)
        "calls holding a slot of the bulkhead" => "phalanx_bulkhead_in_flight";
    BULKHEAD_QUEUE_DEPTH: Gauge "phalanx.bulkhead.queue_depth" ["{call}"] (POLICY, ROUTE)
        "calls waiting for a slot of the bulkhead" => "phalanx_bulkhead_queue_depth";
    BULKHEAD_FLEET_LAPSED: Counter "phalanx.bulkhead.fleet.lapsed" ["{call}"] ()
        "calls of this replica that were in flight without a share of the fleet's slots, at most" => "phalanx_bulkhead_fleet_lapsed_total";
    RATE_LIMIT_REMAINING: Gauge "phalanx.rate_limit.remaining" ["{permit}"] (POLICY, ROUTE)
        "permits in the token bucket, as last seen by this process" => "phalanx_rate_limit_remaining";
    RATE_LIMIT_REJECTIONS: Counter "phalanx.rate_limit.rejections" ["{call}"] (POLICY, ROUTE, LIMIT)
        "calls that one of several limits rejected, by limit" => "phalanx_rate_limit_rejections_total";
    RATE_LIMIT_LEASED: Gauge "phalanx.rate_limit.leased" ["{permit}"] ()
        "permits that this replica has leased from the fleet's rate limits and not spent" => "phalanx_rate_limit_leased";
    RATE_LIMIT_LEASE_PERMITS: Counter "phalanx.rate_limit.lease.permits" ["{permit}"] (STATE)
        "leased permits, by what became of them: drawn in all, returned unspent, expired unspent" => "phalanx_rate_limit_lease_permits_total";
    HEDGE_DELAY: Gauge "phalanx.hedge.delay" ["s"] (POLICY, ROUTE)
        "how long an attempt runs before a hedge is sent" => "phalanx_hedge_delay_seconds";
    STORE_DEGRADED: Gauge "phalanx.store.degraded" [""] ()
        "1 while this process makes degraded decisions because the shared store, or a shard of it, does not answer" => "phalanx_store_degraded";
    STORE_MODE: Gauge "phalanx.store.mode" ["{module}"] (MODE)
        "modules of this process by where they decide: not yet connected, in the shared store, in a part of it, degraded" => "phalanx_store_mode";
    STORE_DEGRADED_DECISIONS: Counter "phalanx.store.degraded_decisions" ["{decision}"] (REASON)
        "decisions made without the shared store, by reason: it has never replied, it is not asked during an outage, its reply was late" => "phalanx_store_degraded_decisions_total";
    STORE_SLOWDOWNS: Counter "phalanx.store.slowdowns" ["{slowdown}"] ()
        "times the shared store replied too late for more than 1 % of the decisions" => "phalanx_store_slowdowns_total";
    STORE_OUTAGES: Counter "phalanx.store.outages" ["{outage}"] ()
        "times the shared store stopped answering" => "phalanx_store_outages_total";
    STORE_PUSH_LOST: Gauge "phalanx.store.push_lost" [""] ()
        "1 while this process shares changes late: it is not subscribed to the shared store, or may not publish" => "phalanx_store_push_lost";
    STORE_DURATION: Histogram "phalanx.store.duration" ["s"] ()
        "duration of round trips to the shared store" => "phalanx_store_duration_seconds";
    STORE_ERRORS: Counter "phalanx.store.errors" ["{error}"] (ERROR_TYPE)
        "failed round trips to the shared store" => "phalanx_store_errors_total";
    REPLICAS: Gauge "phalanx.replicas" ["{replica}"] ()
        "live replicas, as last reported by the shared store" => "phalanx_replicas";
    LEVER: Gauge "phalanx.lever" [""] (POLICY, LEVER_PULLED)
        "1 while this lever of a policy, or of every policy (`*`), is pulled" => "phalanx_lever";
    CONFIG_RELOADS: Counter "phalanx.config.reloads" ["{reload}"] (RESULT)
        "configuration reloads, by result" => "phalanx_config_reloads_total";
}
