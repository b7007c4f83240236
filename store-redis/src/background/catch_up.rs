//! Polls every breaker once after changes were missed that no log lists, without a herd.
//!
//! After a loss of data, or if the log of changes no longer reaches back far enough, each replica has to find out what it
//! missed, and all replicas at once. Breakers that reject calls, or hold something that Redis has to receive, are polled
//! within a second; all others at a pace at which the whole fleet sends about eighty requests a second, and not in the
//! moments of the recovery itself. Those in use come before those that nothing uses.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::breaker;
use crate::store::inner::StoreInner;

/// Polls a second of a replica that is alone, and of the other replicas together.
const ALONE: f64 = 250.0;
const TOGETHER: f64 = 80.0;

/// When replicas of a fleet begin with those that nothing uses.
const MIN_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(3);

/// In how many rounds the breakers that matter are polled: about a second.
const ROUNDS: usize = 4;

/// The breakers that are still to be polled.
#[derive(Debug, Default)]
pub(crate) struct CatchUp(Mutex<Remaining>);

#[derive(Debug, Default)]
struct Remaining {
    /// Those that reject calls or have something to send, and how many of them a round polls.
    first: VecDeque<Weak<breaker::Shared>>,
    first_per_round: usize,
    rest: VecDeque<Weak<breaker::Shared>>,
    /// When a round last polled some of the rest, and the part of a poll that was left.
    last_round: Option<Instant>,
    part: f64,
}

impl CatchUp {
    /// Begins to poll all breakers that the next round does not poll anyway.
    pub(super) fn begin(&self, store: &StoreInner) {
        let all = store.background.breakers.all();
        let (first, rest): (Vec<_>, Vec<_>) = all.iter().partition(|breaker| breaker.matters());
        let (mut rest, mut unused): (VecDeque<_>, VecDeque<_>) =
            rest.into_iter().partition(|breaker| breaker.is_noted());
        // Replicas begin at different ones.
        for cells in [&mut rest, &mut unused] {
            let start = (store.rng.unit() * cells.len() as f64) as usize;
            cells.rotate_left(start.min(cells.len().saturating_sub(1)));
        }
        rest.append(&mut unused);
        let rest: VecDeque<_> = rest.into_iter().map(Arc::downgrade).collect();
        let first: VecDeque<_> = first.into_iter().map(Arc::downgrade).collect();
        let alone = store.replicas.load(Ordering::Relaxed) <= 1;
        let wait = if alone { Duration::ZERO } else { store.rng.between(MIN_WAIT, MAX_WAIT) };
        let (first_per_round, last_round) = (first.len().div_ceil(ROUNDS), Some(Instant::now() + wait));
        *self.0.lock() = Remaining { first, first_per_round, rest, last_round, part: 0.0 };
    }

    /// Polls the breakers that are due in this round.
    pub(super) fn tick(&self, store: &StoreInner) {
        let mut due: Vec<Weak<breaker::Shared>> = Vec::new();
        {
            let mut remaining = self.0.lock();
            let Remaining { first, first_per_round, rest, last_round, part } = &mut *remaining;
            due.extend(first.drain(..first.len().min(*first_per_round)));
            if let (Some(last), false) = (*last_round, rest.is_empty()) {
                let others = store.replicas.load(Ordering::Relaxed).saturating_sub(1);
                let pace = if others == 0 { ALONE } else { ALONE.min(TOGETHER / f64::from(others)) };
                let now = Instant::now();
                *part += pace * now.saturating_duration_since(last).as_secs_f64();
                *last_round = Some(now.max(last));
                let whole = (*part as usize).min(rest.len());
                *part -= whole as f64;
                due.extend(rest.drain(..whole));
            }
        }
        for breaker in due.iter().filter_map(Weak::upgrade) {
            breaker.poll();
        }
    }
}
