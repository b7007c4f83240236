//! Faults of single requests, chosen by the script that they carry.

use std::time::Duration;

/// What happens to a chosen request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetedFault {
    /// It is lost on its way and never executed.
    LoseRequest,
    /// It arrives this much later, after requests that were sent behind it.
    DelayRequest(Duration),
    /// It is executed, and its reply is lost.
    LoseReply,
}

impl TargetedFault {
    const fn is_of_request(self) -> bool {
        matches!(self, Self::LoseRequest | Self::DelayRequest(_))
    }
}

#[derive(Debug)]
struct Target {
    script: String,
    /// How many requests with the script are still to come, the chosen one included.
    nth: u64,
    fault: TargetedFault,
}

/// The faults that have not happened yet.
#[derive(Debug, Default)]
pub(crate) struct TargetedFaults(Vec<Target>);

impl TargetedFaults {
    /// Adds a fault of the `nth` request, from 1, that carries this script.
    pub(crate) fn add(&mut self, script: &str, nth: u64, fault: TargetedFault) {
        self.0.push(Target { script: script.to_owned(), nth: nth.max(1), fault });
    }

    /// Returns how many have not happened yet.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes the fault of a request that is sent with these scripts.
    pub(super) fn of_request(&mut self, scripts: &[&str]) -> Option<TargetedFault> {
        self.take(scripts, true)
    }

    /// Takes the fault of a reply to these scripts, which were executed.
    pub(super) fn of_reply(&mut self, scripts: &[&str]) -> Option<TargetedFault> {
        self.take(scripts, false)
    }

    fn take(&mut self, scripts: &[&str], of_request: bool) -> Option<TargetedFault> {
        let matching = self.0.iter_mut().enumerate().filter(|(_, target)| {
            target.fault.is_of_request() == of_request && scripts.contains(&target.script.as_str())
        });
        let mut due = None;
        for (index, target) in matching {
            target.nth -= 1;
            if target.nth == 0 && due.is_none() {
                due = Some(index);
            } else {
                target.nth = target.nth.max(1); // one fault per request
            }
        }
        due.map(|index| self.0.remove(index).fault)
    }
}
