//! One stage at a time, compared with crates for that stage.

use std::error::Error;

use super::Case;
use crate::contender::Contender;
use crate::operation::{Operation, pending_once, ready};
use crate::{ours, peers};

pub(crate) fn cases() -> Result<Vec<Case>, Box<dyn Error>> {
    Ok(vec![
        rate_limit()?,
        rate_limit_stage()?,
        breaker()?,
        breaker_stage()?,
        bulkhead()?,
        bulkhead_stage()?,
        retry()?,
        timeout("timeout_standalone", ready)?,
        timeout("timeout_standalone_pending", pending_once)?,
    ])
}

/// A synchronous function on both sides.
fn rate_limit() -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name: "rate_limit_standalone",
        bar: Some(1.5),
        ours: Contender::plain("phalanx", ours::rate_limiter()?),
        peers: vec![Contender::plain("governor", peers::governor::check())],
    })
}

/// The same as a stage around an operation, on both sides.
fn rate_limit_stage() -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name: "rate_limit_stage",
        bar: None,
        ours: Contender::on_one_thread("phalanx", ours::rate_limit(ready)?),
        peers: vec![
            Contender::on_one_thread("tower-resilience", peers::tower_resilience::rate_limit(ready)?),
            Contender::on_one_thread("tower", peers::tower::rate_limit(ready)),
        ],
    })
}

fn breaker() -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name: "breaker_standalone",
        bar: Some(0.6),
        ours: Contender::plain("phalanx", ours::circuit_breaker()?),
        peers: vec![
            Contender::plain("failsafe", peers::failsafe::closed()),
            Contender::plain("recloser", peers::recloser::closed()),
        ],
    })
}

fn breaker_stage() -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name: "breaker_stage",
        bar: None,
        ours: Contender::on_one_thread("phalanx", ours::breaker(ready)?),
        peers: vec![Contender::on_one_thread("tower-resilience", peers::tower_resilience::breaker(ready)?)],
    })
}

/// A synchronous function on both sides.
fn bulkhead() -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name: "bulkhead_standalone",
        bar: Some(2.0),
        ours: Contender::plain("phalanx", ours::bulkhead_standalone()?),
        peers: vec![Contender::plain("tokio", peers::tokio::semaphore())],
    })
}

fn bulkhead_stage() -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name: "bulkhead_stage",
        bar: None,
        ours: Contender::on_one_thread("phalanx", ours::bulkhead(ready)?),
        peers: vec![
            Contender::on_one_thread("tower-resilience", peers::tower_resilience::bulkhead(ready)?),
            Contender::on_one_thread("tower", peers::tower::concurrency_limit(ready)),
        ],
    })
}

fn retry() -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name: "retry_standalone",
        bar: None,
        ours: Contender::on_one_thread("phalanx", ours::retry(ready)?),
        peers: vec![
            Contender::on_one_thread("backon", peers::backon::Retried(ready)),
            Contender::on_one_thread("tower-resilience", peers::tower_resilience::retry(ready)),
            Contender::on_one_thread("tower", peers::tower::retry(ready)),
        ],
    })
}

fn timeout(name: &'static str, operation: impl Operation) -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name,
        bar: None,
        ours: Contender::on_one_thread("phalanx", ours::timeout(operation)?),
        peers: vec![
            Contender::on_one_thread("tokio", peers::tokio::Timed(operation)),
            Contender::on_one_thread("tower", peers::tower::timeout(operation)),
            Contender::on_one_thread("tower-resilience", peers::tower_resilience::timeout(operation)),
        ],
    })
}
