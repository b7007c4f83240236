//! What is compared with what, and the bar each comparison has to meet.
//!
//! The plain case name belongs to the first peer, the one that the bar names; the report puts every other
//! peer's name after a dot.

mod attribute;
mod layer;
mod pass_through;
mod queue;
mod rejected_open;
mod stack;
mod stages_alone;

use std::error::Error;

use crate::contender::{Contender, Runtimes};

/// One comparison: the same work by us and by peers.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The greatest ratio to the first peer that will do; none where no bar is set.
    pub(crate) bar: Option<f64>,
    pub(crate) ours: Contender,
    pub(crate) peers: Vec<Contender>,
}

/// Every case, ready to be measured.
pub(crate) fn all(runtimes: &Runtimes) -> Result<Vec<Case>, Box<dyn Error>> {
    let mut cases = vec![pass_through::case()?];
    cases.extend(stack::cases(runtimes)?);
    cases.push(attribute::case()?);
    cases.push(layer::case()?);
    cases.push(rejected_open::case()?);
    cases.extend(stages_alone::cases()?);
    cases.extend(queue::cases()?);
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::all;
    use crate::contender::Runtimes;

    #[test]
    fn every_contender_admits_or_rejects_as_its_case_expects() {
        let runtimes = Runtimes::start().unwrap();
        let _timers = runtimes.enter_one_thread();
        for case in all(&runtimes).unwrap() {
            for mut contender in std::iter::once(case.ours).chain(case.peers) {
                if let Err(reason) = contender.run(200) {
                    panic!("{}: {reason}", case.name);
                }
            }
        }
    }
}
