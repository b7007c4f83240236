//! What Redis' word means for each of the callers who asked together.

use std::sync::Arc;

use phalanx_core::breaker::{Admission, Override, Ticket};
use phalanx_core::clock::Time;
use phalanx_core::rejection::{RejectionCode, Source};
use phalanx_core::store::AdmitReply;

use super::view::Report;
use super::{Given, Shared, Together, Wish, Word};
use crate::batch::Desk;
use crate::invocation::integers;
use crate::lane::Replied;

impl Shared {
    /// Answers everybody in the batch.
    pub(super) fn answer(self: &Arc<Self>, batch: &Together, wishes: &[Wish], steps: u64, reply: Replied) {
        let report = reply.ok().and_then(|value| Report::read(&integers(&value)));
        let answers = match &report {
            None => vec![None; wishes.len()], // the twin decides
            Some(report) => self.answers(report, wishes, steps),
        };
        if let Some(report) = &report {
            self.learn(report.view, &report.transitions, Word::Told); // the first caller tells them
            self.note_oddities(report);
        }
        for orphan in batch.answer(answers) {
            self.give_back(orphan);
        }
    }

    /// What the script's word means for each caller.
    fn answers(&self, report: &Report, wishes: &[Wish], steps: u64) -> Vec<Option<Given>> {
        let now = self.fleet.clock.now();
        let mut change = report.transitions.last().copied();
        let mut asked = 0;
        let answer = |wish: &Wish| {
            if *wish == Wish::Gone {
                return None;
            }
            asked += 1;
            Some((self.one_answer(report, asked, steps, now)?, change.take()))
        };
        wishes.iter().map(answer).collect()
    }

    /// The answer to the `n`-th caller, from 1.
    fn one_answer(&self, report: &Report, n: u64, steps: u64, now: Time) -> Option<AdmitReply> {
        let [mode, a, b, ..] = report.tail[..] else { return None };
        let (a, b) = (u64::try_from(a).ok()?, u64::try_from(b).ok()?);
        let view = &report.view;
        let passes = |lease| Admission::Admitted(Ticket { epoch: view.epoch, lease });
        let rejected = |code, until| Admission::Rejected { code, until };
        let quota = rejected(RejectionCode::ProbeQuota, Time::NEVER);
        let passed = |calls: u64| calls * (a + 1) / (steps + 1);
        let admission = match (mode, a) {
            (0, _) => passes(None),
            (1, 1) => rejected(RejectionCode::CircuitOpen, now.after(view.left)),
            (1, 3) => rejected(RejectionCode::ForcedOpen, Time::NEVER),
            (2, _) if n <= b => passes(Some(a + n - 1)),
            (3, _) if passed(b + n) > passed(b + n - 1) => passes(None),
            _ => quota,
        };
        let (admission, source) = match (view.overridden, admission) {
            (None, decided) => (decided, Source::Fleet),
            // Reports and decides nothing.
            (Some(Override::MetricsOnly), Admission::Rejected { .. }) => (passes(None), Source::Shadow),
            (Some(Override::MetricsOnly), decided) => (decided, Source::Shadow),
            (Some(_), decided) => (decided, Source::Override),
        };
        Some(AdmitReply { admission, source })
    }
}
