//! Cases of `BreakerStore::record` and `BreakerStore::observe_quantile` on a closed circuit: what trips it.

use super::*;

pub async fn failures_at_the_ratio_trip<B: Bed>() {
    let fleet = Fleet::<B>::new(&ratio()).await;
    fleet.calls(5, Outcome::Success).await;
    fleet.calls(4, Outcome::Failure).await;
    fleet.call(&fleet.two, Outcome::Failure, TRIPPED).await;
    assert_eq!(fleet.one.admit().await, Err(circuit_open(BREAK)));

    let below = Fleet::<B>::new(&ratio()).await;
    below.calls(6, Outcome::Success).await;
    below.calls(5, Outcome::Failure).await;
    below.assert_phase(Phase::Closed, FIRST_CLOSED).await;
    below.call(&below.one, Outcome::Failure, TRIPPED).await;

    let too_few = Fleet::<B>::new(&ratio()).await;
    too_few.calls(9, Outcome::Failure).await;
    too_few.assert_view(BreakerView { calls: 9, failures: 9, streak: 9, ..FRESH }).await;
    // Failures outside the window do not count: this is the tenth failure, but the first of its window.
    too_few.advance(WINDOW).await;
    too_few.call(&too_few.two, Outcome::Failure, None).await;
    too_few.assert_view(BreakerView { calls: 1, failures: 1, streak: 10, ..FRESH }).await;
}

pub async fn failures_in_a_row_trip<B: Bed>() {
    let fleet = Fleet::<B>::new(&BreakerSpec::consecutive_failures(3).break_for(BREAK)).await;
    fleet.calls(2, Outcome::Failure).await;
    fleet.call(&fleet.two, Outcome::Success, None).await;
    fleet.calls(2, Outcome::Failure).await;
    fleet.assert_view(BreakerView { calls: 5, failures: 4, streak: 2, ..FRESH }).await;
    // Consecutive failures have no window: time does not reset the streak.
    fleet.advance(60 * SECOND).await;
    fleet.call(&fleet.one, Outcome::Failure, TRIPPED).await;
    assert_eq!(fleet.two.admit().await, Err(circuit_open(BREAK)));
}

pub async fn slow_calls_trip<B: Bed>() {
    let spec = BreakerSpec::slow_call_ratio(0.5, SECOND).min_throughput(6).break_for(BREAK);
    let fleet = Fleet::<B>::new(&spec).await;
    let calls = [
        (&fleet.one, Outcome::Success, SECOND - MICRO, None),
        (&fleet.two, Outcome::Success, QUICK, None),
        (&fleet.one, Outcome::Failure, QUICK, None),
        (&fleet.two, Outcome::Success, SECOND, None),
        (&fleet.one, Outcome::Failure, SECOND, None),
        (&fleet.two, Outcome::Success, 2 * SECOND, TRIPPED),
    ];
    for (replica, outcome, latency, expected) in calls {
        let ticket = replica.admitted().await;
        fleet.end_after(replica, ticket, outcome, latency, expected).await;
    }
    assert_eq!(fleet.one.admit().await, Err(circuit_open(BREAK)));
}

pub async fn a_burst_across_a_slice_edge_trips<B: Bed>() {
    let fleet = Fleet::<B>::new(&ratio()).await;
    // The edge of a window is the edge of a slice, however many slices a store uses. A tumbling window would split the
    // burst into two halves, neither of which trips.
    advance_to_edge(&fleet.bed, WINDOW).await;
    fleet.advance(WINDOW - MICRO).await;
    fleet.calls(5, Outcome::Failure).await;
    fleet.advance(MICRO).await;
    fleet.calls(4, Outcome::Failure).await;
    fleet.assert_view(BreakerView { calls: 9, failures: 9, streak: 9, ..FRESH }).await;
    fleet.call(&fleet.two, Outcome::Failure, TRIPPED).await;
}

pub async fn successes_never_trip<B: Bed>() {
    let fleet = Fleet::<B>::new(&ratio()).await;
    fleet.calls(9, Outcome::Failure).await;
    // The tenth call reaches the minimum throughput with nine failures, but it is a success.
    fleet.calls(3, Outcome::Success).await;
    fleet.assert_view(BreakerView { calls: 12, failures: 9, ..FRESH }).await;
    fleet.call(&fleet.two, Outcome::Failure, TRIPPED).await;
}

pub async fn neutral_and_cancelled_outcomes_count_for_nothing<B: Bed>() {
    let spec = BreakerSpec::consecutive_failures(3).or_slow_call_ratio(0.1, SECOND).min_throughput(1).break_for(BREAK);
    let fleet = Fleet::<B>::new(&spec).await;
    fleet.calls(2, Outcome::Failure).await;
    for outcome in [Outcome::Neutral, Outcome::Cancelled] {
        for replica in [&fleet.one, &fleet.two] {
            let ticket = replica.admitted().await;
            fleet.end_after(replica, ticket, outcome, 60 * SECOND, None).await;
        }
    }
    fleet.assert_view(BreakerView { calls: 2, failures: 2, streak: 2, ..FRESH }).await;
    fleet.call(&fleet.two, Outcome::Failure, TRIPPED).await;
}

pub async fn a_quantile_over_its_threshold_for_long_enough_trips<B: Bed>() {
    let fleet = Fleet::<B>::new(&BreakerSpec::latency(0.95, SECOND, 5 * SECOND).break_for(BREAK)).await;
    let over = Some(SECOND + MICRO);
    // A quantile at the threshold restarts the period, and so does a window without any.
    fleet.quantile(&fleet.one, over, None).await;
    fleet.advance(5 * SECOND - MICRO).await;
    fleet.quantile(&fleet.one, over, None).await;
    fleet.quantile(&fleet.one, Some(SECOND), None).await;
    fleet.advance(5 * SECOND).await;
    fleet.quantile(&fleet.one, over, None).await;
    fleet.advance(WINDOW + MICRO).await;
    fleet.quantile(&fleet.one, over, None).await;
    fleet.assert_phase(Phase::Closed, FIRST_CLOSED).await;
    fleet.advance(5 * SECOND - MICRO).await;
    fleet.quantile(&fleet.one, over, None).await;
    // A replica that knows no quantile changes nothing.
    fleet.quantile(&fleet.two, None, None).await;
    fleet.advance(MICRO).await;
    fleet.quantile(&fleet.one, over, TRIPPED).await;
    assert_eq!(fleet.two.admit().await, Err(circuit_open(BREAK)));
}
