//! The counters and histograms that record events, created from the table in `names.rs`.

use opentelemetry::metrics::{Counter, Histogram, Meter};

use super::names::{self, Named};

/// Bucket bounds of call durations in seconds, from fast in-memory calls to slow remote ones.
const CALL_BOUNDS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0];

/// Bucket bounds of round trips to the store, whose budget is some milliseconds.
const ROUND_TRIP_BOUNDS: [f64; 11] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25];

#[derive(Debug)]
pub(super) struct Instruments {
    pub(super) duration: Histogram<f64>,
    pub(super) deadline_remaining: Histogram<f64>,
    pub(super) rejections: Counter<u64>,
    pub(super) limit_rejections: Counter<u64>,
    pub(super) retries: Counter<u64>,
    pub(super) retries_denied: Counter<u64>,
    pub(super) timeouts: Counter<u64>,
    pub(super) hedges: Counter<u64>,
    pub(super) hedges_won: Counter<u64>,
    pub(super) hedges_denied: Counter<u64>,
    pub(super) fallbacks: Counter<u64>,
    pub(super) transitions: Counter<u64>,
    pub(super) fleet_lapsed: Counter<u64>,
    pub(super) store_slowdowns: Counter<u64>,
    pub(super) store_outages: Counter<u64>,
    pub(super) store_duration: Histogram<f64>,
    pub(super) store_errors: Counter<u64>,
    pub(super) config_reloads: Counter<u64>,
}

impl Instruments {
    pub(super) fn new(meter: &Meter) -> Self {
        let counter =
            |named: Named| meter.u64_counter(named.name).with_unit(named.unit).with_description(named.meaning).build();
        let histogram = |named: Named, bounds: &[f64]| {
            let histogram = meter.f64_histogram(named.name).with_unit(named.unit).with_description(named.meaning);
            histogram.with_boundaries(bounds.to_vec()).build()
        };
        Self {
            duration: histogram(names::DURATION, &CALL_BOUNDS),
            deadline_remaining: histogram(names::DEADLINE_REMAINING, &CALL_BOUNDS),
            rejections: counter(names::REJECTIONS),
            limit_rejections: counter(names::RATE_LIMIT_REJECTIONS),
            retries: counter(names::RETRIES),
            retries_denied: counter(names::RETRIES_DENIED),
            timeouts: counter(names::TIMEOUTS),
            hedges: counter(names::HEDGES),
            hedges_won: counter(names::HEDGES_WON),
            hedges_denied: counter(names::HEDGES_DENIED),
            fallbacks: counter(names::FALLBACKS),
            transitions: counter(names::BREAKER_TRANSITIONS),
            fleet_lapsed: counter(names::BULKHEAD_FLEET_LAPSED),
            store_slowdowns: counter(names::STORE_SLOWDOWNS),
            store_outages: counter(names::STORE_OUTAGES),
            store_duration: histogram(names::STORE_DURATION, &ROUND_TRIP_BOUNDS),
            store_errors: counter(names::STORE_ERRORS),
            config_reloads: counter(names::CONFIG_RELOADS),
        }
    }
}
