//! No stage: the cost of the library itself.

use std::error::Error;

use super::Case;
use crate::contender::Contender;
use crate::operation::ready;
use crate::{ours, peers};

pub(crate) fn case() -> Result<Case, Box<dyn Error>> {
    Ok(Case {
        name: "pass_through",
        bar: None,
        ours: Contender::on_one_thread("phalanx", ours::pass_through(ready)?),
        peers: vec![
            Contender::on_one_thread("no-library", peers::no_library::Direct(ready)),
            Contender::on_one_thread("tower", peers::tower::pass_through(ready)),
        ],
    })
}
