//! All stages around a tower service: one Phalanx layer, five layers of each peer, called in the same way.

use std::error::Error;

use super::Case;
use crate::contender::Contender;
use crate::operation::ready;
use crate::{ours, peers};

pub(crate) fn case() -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name: "layer_ready_1t",
        bar: Some(0.15),
        ours: Contender::on_one_thread("phalanx", ours::layer::stack(ready)?),
        peers: vec![
            Contender::on_one_thread("tower-resilience", peers::tower_resilience::stack(ready)?),
            Contender::on_one_thread("tower", peers::tower::stack(ready)),
        ],
    })
}
