//! The status map: the HTTP status of each rejection code, with this service's overrides (429 for `draining` or
//! `bulkhead_full` is a common choice).

use std::collections::HashMap;

use phalanx_core::policy::validate::Mistake;
use phalanx_core::rejection::RejectionCode;

/// Overrides of [`RejectionCode::status`].
#[derive(Debug, Default)]
pub(crate) struct StatusMap(HashMap<RejectionCode, u16>);

impl StatusMap {
    pub(crate) fn set(&mut self, code: RejectionCode, status: u16) {
        self.0.insert(code, status);
    }

    pub(crate) fn of(&self, code: RejectionCode) -> u16 {
        self.0.get(&code).copied().unwrap_or(code.status())
    }

    pub(crate) fn mistakes(&self) -> Vec<Mistake> {
        let invalid = self.0.iter().filter(|(_, status)| !(400..600).contains(*status));
        let mut mistakes: Vec<_> = invalid
            .map(|(code, status)| {
                let reason = format!("{status} is not an error status: choose one between 400 and 599");
                Mistake::new(format!("statuses.{code}"), reason)
            })
            .collect();
        mistakes.sort_by(|a, b| a.path.cmp(&b.path));
        mistakes
    }
}
