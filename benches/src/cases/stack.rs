//! All five stages (retry, breaker, bulkhead, rate limit, timeout), with one caller and with 64 tasks on two workers; the
//! same with a hedge that is never sent; and the same with telemetry, compared with itself without.
//!
//! The stages are listed in `ours::stack` and in `peers::tower_resilience::stack`; a new stage is added to both.

use std::error::Error;

use super::Case;
use crate::contender::{Contender, Runtimes};
use crate::operation::{Operation, pending_once, ready};
use crate::{ours, peers};

pub(crate) fn cases(runtimes: &Runtimes) -> Result<Vec<Case>, Box<dyn Error>> {
    Ok(vec![
        one_thread("stack_ready_1t", 0.10, ready)?,
        one_thread("stack_pending_1t", 0.25, pending_once)?,
        two_workers("stack_ready_64", 0.06, ready, runtimes)?,
        two_workers("stack_pending_64", 0.20, pending_once, runtimes)?,
        hedged("stack6_ready_1t", 0.10, ready)?,
        hedged("stack6_pending_1t", 0.20, pending_once)?,
        observed("stack_observed_1t", 2.5)?,
        observed_by_two_workers("stack_observed_64", runtimes)?,
    ])
}

fn one_thread(name: &'static str, bar: f64, operation: impl Operation) -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name,
        bar: Some(bar),
        ours: Contender::on_one_thread("phalanx", ours::stack(operation)?),
        peers: vec![
            Contender::on_one_thread("tower-resilience", peers::tower_resilience::stack(operation)?),
            Contender::on_one_thread("tower", peers::tower::stack(operation)),
        ],
    })
}

fn two_workers(
    name: &'static str,
    bar: f64,
    operation: impl Operation,
    runtimes: &Runtimes,
) -> Result<Case, Box<dyn Error>> {
    let phalanx = ours::stack(operation)?;
    let resilience = peers::tower_resilience::stack(operation)?;
    Ok(Case {
        name,
        bar: Some(bar),
        ours: runtimes.on_two_workers("phalanx", || phalanx),
        peers: vec![
            runtimes.on_two_workers("tower-resilience", || resilience),
            runtimes.on_two_workers("tower", || peers::tower::shared_stack(operation)),
        ],
    })
}

fn hedged(name: &'static str, bar: f64, operation: impl Operation) -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name,
        bar: Some(bar),
        ours: Contender::on_one_thread("phalanx", ours::hedged_stack(operation)?),
        peers: vec![Contender::on_one_thread("tower-resilience", peers::tower_resilience::hedged_stack(operation)?)],
    })
}

/// The cost of telemetry: the same stack with metrics, and with tracing disabled by a filter.
fn observed(name: &'static str, bar: f64) -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name,
        bar: Some(bar),
        ours: Contender::on_one_thread("phalanx", ours::observed::stack(ready)?),
        peers: vec![Contender::on_one_thread("unobserved", ours::stack(ready)?)],
    })
}

/// The same with contention, most of it in the SDK, which keeps its series behind locks.
fn observed_by_two_workers(name: &'static str, runtimes: &Runtimes) -> Result<Case, Box<dyn Error>> {
    let (observed, plain) = (ours::observed::stack(ready)?, ours::stack(ready)?);
    Ok(Case {
        name,
        bar: None,
        ours: runtimes.on_two_workers("phalanx", || observed),
        peers: vec![runtimes.on_two_workers("unobserved", || plain)],
    })
}
