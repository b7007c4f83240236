//! How a replica learns how a circuit stands, and what its front shows then.

use phalanx_core::breaker::FastAnswer;
use phalanx_core::breaker::{Phase, Seen, Transition};
use phalanx_core::clock::Time;
use phalanx_core::event::EventKind;
use phalanx_core::rate_limit::MAX_BACKSTEP;

use super::view::View;
use super::{Inner, Known, Shared};

/// Who says how a circuit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Redis, asked by us: the truth of that moment.
    Reply,
    /// The same, and whoever asked tells observers of the changes that asking brought about.
    Told,
    /// Redis, unasked: may have been overtaken by a reply.
    Push,
}

impl Shared {
    /// Takes what a reply or a message says for the truth, unless something newer is known, and tells observers of every
    /// change of phase once: our own when its reply comes, another's by its message, or, if that was lost or is late, by
    /// the first reply that shows it.
    pub(crate) fn learn(&self, view: View, changes: &[Transition], word: Word) {
        let now = self.fleet.clock.now();
        let mut inner = self.inner.lock();
        let before = inner.known.map(|known| known.view);
        if !before.is_some_and(|known| is_overtaken(&view, &known, word)) {
            inner.known = Some(Known { view, until: now.after(view.left) });
            self.show(&mut inner, now);
        }
        drop(inner);
        let news = before.is_some_and(|known| view.epoch > known.epoch && view.phase != known.phase);
        let listed = changes.iter().any(|change| change.epoch == view.epoch);
        match word {
            Word::Push => changes.iter().filter(|_| news).for_each(|change| self.emit(*change)),
            Word::Reply => changes.iter().for_each(|change| self.emit(*change)),
            Word::Told => {}
        }
        if let (Some(known), true, false) = (before, news && word != Word::Push, listed) {
            // What is not known of another's change is left out.
            let break_for = (view.phase == Phase::Open).then_some(view.left);
            let (from, to) = (known.phase, view.phase);
            self.emit(Transition { from, to, epoch: view.epoch, break_for, seen: Seen::default() });
        }
    }

    /// What the front shows: what was last heard, unless the twin decides or this replica holds the circuit open.
    pub(super) fn show(&self, inner: &mut Inner, now: Time) {
        inner.held_open = inner.held_open.filter(|until| now < *until);
        let Some(known) = &inner.known else {
            return self.front.publish(0, inner.held_open.map_or(FastAnswer::Ask, FastAnswer::Open));
        };
        let shown = match (known.view.overridden, known.view.phase) {
            _ if self.is_away() => FastAnswer::Ask,
            (None, _) if inner.held_open.is_some() => FastAnswer::Open(inner.held_open.unwrap_or(now)),
            (None, Phase::Closed) if !known.view.ramping => FastAnswer::Closed,
            (None, Phase::Open) => FastAnswer::Open(known.until),
            _ => FastAnswer::Ask,
        };
        self.front.publish(known.view.epoch, shown);
    }

    pub(super) fn emit(&self, change: Transition) {
        self.fleet.observers.emit(&self.key, EventKind::Transition(change));
    }
}

/// A message may have been overtaken by a reply, and a reply by a message. Where the server's clock stepped back, a reply is
/// the truth all the same.
fn is_overtaken(view: &View, known: &View, word: Word) -> bool {
    let behind = known.at.saturating_sub(view.at);
    let stepped_back = behind > MAX_BACKSTEP.as_micros() as u64 && word != Word::Push;
    behind > 0 && !stepped_back || word == Word::Push && view.epoch < known.epoch
}
