//! A breaker alone, open: how fast is a call refused?

use std::error::Error;

use super::Case;
use crate::contender::Contender;
use crate::operation::ready;
use crate::{ours, peers};

pub(crate) fn case() -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name: "refused_open",
        bar: Some(0.10),
        ours: Contender::on_one_thread("phalanx", ours::open_breaker(ready)?).refusing(),
        peers: vec![
            Contender::on_one_thread("tower-resilience", peers::tower_resilience::open_breaker(ready)?).refusing(),
            Contender::plain("failsafe", peers::failsafe::open()).refusing(),
            Contender::plain("recloser", peers::recloser::open()).refusing(),
        ],
    })
}
