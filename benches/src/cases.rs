//! The cases: what is compared, and the bar of each comparison.
//!
//! The bar applies to the first peer, whose row has the plain case name; rows of other peers have their name after a dot.

mod attribute;
mod layer;
mod pass_through;
mod queue;
mod rejected_open;
mod stack;
mod stages_standalone;

use std::error::Error;

use crate::contender::{Contender, Runtimes};

/// One comparison: the same work by Phalanx and by peers.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The largest acceptable ratio to the first peer; none without a bar.
    pub(crate) bar: Option<f64>,
    pub(crate) ours: Contender,
    pub(crate) peers: Vec<Contender>,
}

/// Builds all cases.
pub(crate) fn all(runtimes: &Runtimes) -> Result<Vec<Case>, Box<dyn Error>> {
    let mut cases = vec![pass_through::case()?];
    cases.extend(stack::cases(runtimes)?);
    cases.push(attribute::case()?);
    cases.push(layer::case()?);
    cases.push(rejected_open::case()?);
    cases.extend(stages_standalone::cases()?);
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
