//! `#[resilient]` compared with the equivalent hand-written call: it must add no cost.

use std::error::Error;

use super::Case;
use crate::contender::Contender;
use crate::operation::ready;
use crate::ours;

pub(crate) fn case() -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name: "macro_stack_1t",
        bar: Some(1.05),
        ours: Contender::on_one_thread("phalanx", ours::by_attribute(ready)?),
        peers: vec![Contender::on_one_thread("by-hand", ours::by_hand(ready)?)],
    })
}
