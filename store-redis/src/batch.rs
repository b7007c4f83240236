//! Callers who ask one key together: they join while a round trip is under way and share the next one.
//!
//! A batch is answered once, as a whole, in the order in which its callers came. Nobody waits on a timer of his own: the
//! flight that carries the batch has one. A caller who goes away before the flight leaves is not asked for; one who
//! goes away later gets his answer all the same, and what it granted is given back.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::lane::Solo;

/// Callers in one batch who ask otherwise than the one before: a script is told of each, and has to stay short.
const TURNS: usize = 256;

/// What is asked for a caller who went away.
pub(crate) trait Void: Copy + PartialEq {
    const VOID: Self;
}

/// Callers who ask together.
#[derive(Debug)]
pub(crate) struct Batch<A, R> {
    answers: OnceLock<Vec<R>>,
    callers: Mutex<Callers<A>>,
    pub(crate) opened: Instant,
}

#[derive(Debug)]
struct Callers<A> {
    asks: Vec<A>,
    turns: usize,
    wakers: Vec<Waker>,
    left: bool,
    /// Who went away after the flight had left.
    gone: Vec<usize>,
}

impl<A: Void, R: Copy> Batch<A, R> {
    pub(crate) fn new() -> Self {
        let callers = Callers { asks: Vec::new(), turns: 0, wakers: Vec::new(), left: false, gone: Vec::new() };
        Self { answers: OnceLock::new(), callers: Mutex::new(callers), opened: Instant::now() }
    }

    /// Joins, if the flight has not left and is not full. The caller's place.
    pub(crate) fn join(&self, ask: A, waker: &Waker) -> Option<usize> {
        let mut callers = self.callers.lock();
        if callers.left || callers.turns >= TURNS {
            return None;
        }
        callers.turns += usize::from(callers.asks.last() != Some(&ask));
        callers.asks.push(ask);
        callers.wakers.push(waker.clone());
        Some(callers.asks.len() - 1)
    }

    /// The flight leaves: what is asked for, in order.
    pub(crate) fn board(&self) -> Vec<A> {
        let mut callers = self.callers.lock();
        callers.left = true;
        std::mem::take(&mut callers.asks)
    }

    /// The answers are there. Those of callers who went away meanwhile come back.
    pub(crate) fn answer(&self, answers: Vec<R>) -> Vec<R> {
        let (wakers, gone) = {
            let mut callers = self.callers.lock();
            callers.left = true;
            let orphans = callers.gone.iter().filter_map(|place| answers.get(*place).copied()).collect();
            let _ = self.answers.set(answers);
            (std::mem::take(&mut callers.wakers), orphans)
        };
        wakers.into_iter().for_each(Waker::wake);
        gone
    }

    fn poll(&self, place: usize, waker: &Waker) -> Poll<Option<R>> {
        if let Some(answers) = self.answers.get() {
            return Poll::Ready(answers.get(place).copied());
        }
        let mut callers = self.callers.lock();
        match (self.answers.get(), callers.wakers.get_mut(place)) {
            (Some(answers), _) => Poll::Ready(answers.get(place).copied()),
            (None, Some(known)) => {
                known.clone_from(waker);
                Poll::Pending
            }
            (None, None) => Poll::Ready(None),
        }
    }

    /// The caller goes away. His answer, if it is there already.
    fn leave(&self, place: usize) -> Option<R> {
        let mut callers = self.callers.lock();
        if let Some(answers) = self.answers.get() {
            return answers.get(place).copied();
        }
        match callers.asks.get_mut(place) {
            Some(ask) => *ask = A::VOID, // once it has left they are gone from here
            None => callers.gone.push(place),
        }
        None
    }
}

/// The batches of one key that have not left; only the last can be joined.
#[derive(Debug)]
pub(crate) struct Batches<A, R>(Vec<Arc<Batch<A, R>>>);

impl<A, R> Default for Batches<A, R> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<A: Void, R: Copy> Batches<A, R> {
    /// A place in the last batch, or in a new one if that is full.
    pub(crate) fn join(&mut self, ask: A, waker: &Waker) -> (Arc<Batch<A, R>>, usize) {
        let joined = self.0.last().and_then(|batch| Some((batch.clone(), batch.join(ask, waker)?)));
        joined.unwrap_or_else(|| {
            let batch = Arc::new(Batch::new());
            let place = batch.join(ask, waker).unwrap_or(0); // nobody else knows it yet
            self.0.push(batch.clone());
            (batch, place)
        })
    }

    pub(crate) fn take(&mut self) -> Vec<Arc<Batch<A, R>>> {
        std::mem::take(&mut self.0)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Where callers of one key sit down.
pub(crate) trait Desk: Send + Sync {
    type Ask: Void + Send;
    type Answer: Copy + Send + Sync;

    /// Finds a place in a batch that has not left, and sees to it that it will. Who is alone may get a flight of his own,
    /// to be flown by himself.
    fn sit(self: &Arc<Self>, ask: Self::Ask, waker: &Waker) -> (Seat<Self>, Option<Solo>);

    /// Takes back what was granted to a caller who went away.
    fn give_back(self: &Arc<Self>, answer: Self::Answer);
}

/// A caller who waits for his answer.
pub(crate) struct Asking<'a, D: Desk> {
    desk: &'a Arc<D>,
    ask: D::Ask,
    seat: Option<Seat<D>>,
    solo: Option<Solo>,
}

/// A batch and a place in it.
pub(crate) type Seat<D> = (Arc<Batch<<D as Desk>::Ask, <D as Desk>::Answer>>, usize);

impl<'a, D: Desk> Asking<'a, D> {
    pub(crate) const fn new(desk: &'a Arc<D>, ask: D::Ask) -> Self {
        Self { desk, ask, seat: None, solo: None }
    }
}

impl<D: Desk> Future for Asking<'_, D> {
    type Output = Option<D::Answer>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.seat.is_none() {
            let (seat, solo) = this.desk.sit(this.ask, cx.waker());
            (this.seat, this.solo) = (Some(seat), solo);
        }
        if let Some(solo) = &mut this.solo {
            std::task::ready!(solo.poll(cx)); // wakes this task itself, so the batch need not
            this.solo = None;
        }
        let Some((batch, place)) = &this.seat else { return Poll::Ready(None) };
        let answer = std::task::ready!(batch.poll(*place, cx.waker()));
        this.seat = None;
        Poll::Ready(answer)
    }
}

// Nothing in it is pinned.
impl<D: Desk> Unpin for Asking<'_, D> {}

impl<D: Desk> Drop for Asking<'_, D> {
    fn drop(&mut self) {
        if let Some((batch, place)) = self.seat.take()
            && let Some(answer) = batch.leave(place)
        {
            self.desk.give_back(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Void for u32 {
        const VOID: Self = 0;
    }

    fn batch() -> Batch<u32, char> {
        Batch::new()
    }

    #[test]
    fn each_gets_his_own_answer_in_the_order_they_came() {
        let batch = batch();
        let places = [7, 8].map(|ask| batch.join(ask, Waker::noop()));
        assert_eq!(places, [Some(0), Some(1)]);
        assert_eq!(batch.board(), [7, 8]);
        assert_eq!(batch.join(9, Waker::noop()), None, "the flight has left");
        assert!(batch.answer(vec!['a', 'b']).is_empty());
        assert_eq!(batch.poll(1, Waker::noop()), Poll::Ready(Some('b')));
    }

    #[test]
    fn who_goes_before_the_flight_is_not_asked_for() {
        let batch = batch();
        batch.join(7, Waker::noop());
        assert_eq!(batch.leave(0), None);
        assert_eq!(batch.board(), [0]);
    }

    #[test]
    fn what_was_granted_to_one_who_went_is_handed_back_exactly_once() {
        let batch = batch();
        for _ in 0..2 {
            batch.join(7, Waker::noop());
        }
        batch.board();
        assert_eq!(batch.leave(1), None);
        assert_eq!(batch.answer(vec!['a', 'b']), ['b'], "gone before the answer");
        assert_eq!(batch.leave(0), Some('a'), "gone after it");
    }
}
