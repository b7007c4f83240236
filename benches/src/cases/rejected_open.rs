//! Only a breaker, open: the cost of a rejection.

use std::error::Error;

use super::Case;
use crate::contender::Contender;
use crate::operation::ready;
use crate::{ours, peers};

pub(crate) fn case() -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name: "rejected_open",
        bar: Some(0.10),
        ours: Contender::on_one_thread("phalanx", ours::open_breaker(ready)?).rejecting(),
        peers: vec![
            Contender::on_one_thread("tower-resilience", peers::tower_resilience::open_breaker(ready)?).rejecting(),
            Contender::plain("failsafe", peers::failsafe::open()).rejecting(),
            Contender::plain("recloser", peers::recloser::open()).rejecting(),
        ],
    })
}
