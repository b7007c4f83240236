//! The queue of a bulkhead: whether a hand-over with 10,000 waiters costs more than one with 100.
//!
//! The "peer" is the same queue with 100 waiters, so the ratio is the growth.

use std::error::Error;

use super::Case;
use crate::contender::Contender;
use crate::ours::queue::{DisplacingQueue, HandOverQueue};

const FEW: u32 = 100;
const MANY: u32 = 10_000;

pub(crate) fn cases() -> Result<Vec<Case>, Box<dyn Error>> {
    let (mut many, mut few) = (HandOverQueue::among(MANY)?, HandOverQueue::among(FEW)?);
    let hand_over = Case {
        name: "queue_wake_10000",
        bar: Some(2.0),
        ours: Contender::plain("phalanx", move || many.hand_over()),
        peers: vec![Contender::plain("100-waiters", move || few.hand_over())],
    };
    let (mut many, mut few) = (DisplacingQueue::among(MANY)?, DisplacingQueue::among(FEW)?);
    let displace = Case {
        name: "queue_displace_10000",
        bar: None,
        ours: Contender::plain("phalanx", move || many.displace()),
        peers: vec![Contender::plain("100-waiters", move || few.displace())],
    };
    Ok(vec![hand_over, displace])
}
