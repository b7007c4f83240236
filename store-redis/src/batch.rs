//! A batch: the requests of one key that share a round trip. Requests join the open batch while the previous round trip
//! is in flight.
//!
//! A batch is completed once, as a whole; replies are in the order of the requests. Callers need no timer of their own,
//! because the round trip has one. A request that its caller drops before the batch is sent is replaced by
//! [`BatchRequest::CANCELLED`]; a reply whose caller is gone is handed back through [`Coalesce::reclaim`].

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::dispatcher::InlineRequest;

/// Runs of equal requests in one batch. Each run is a group of script arguments, and a script has to stay short.
const MAX_RUNS: usize = 256;

/// A request that can be batched.
pub(crate) trait BatchRequest: Clone + PartialEq {
    const CANCELLED: Self;
}

/// Requests that share one round trip.
#[derive(Debug)]
pub(crate) struct Batch<Q, R> {
    replies: OnceLock<Vec<R>>,
    callers: Mutex<Callers<Q>>,
    pub(crate) opened: Instant,
}

#[derive(Debug)]
struct Callers<Q> {
    requests: Vec<Q>,
    runs: usize,
    wakers: Vec<Waker>,
    closed: bool,
    /// Indices of callers that were dropped after the batch was closed.
    abandoned: Vec<usize>,
}

impl<Q: BatchRequest, R: Clone> Batch<Q, R> {
    pub(crate) fn new() -> Self {
        let callers =
            Callers { requests: Vec::new(), runs: 0, wakers: Vec::new(), closed: false, abandoned: Vec::new() };
        Self { replies: OnceLock::new(), callers: Mutex::new(callers), opened: Instant::now() }
    }

    /// Adds a request and returns its index; `None` if the batch is closed or full.
    pub(crate) fn join(&self, request: Q, waker: &Waker) -> Option<usize> {
        let mut callers = self.callers.lock();
        if callers.closed || callers.runs >= MAX_RUNS {
            return None;
        }
        callers.runs += usize::from(callers.requests.last() != Some(&request));
        callers.requests.push(request);
        callers.wakers.push(waker.clone());
        Some(callers.requests.len() - 1)
    }

    /// Closes the batch and returns its requests in order.
    pub(crate) fn close(&self) -> Vec<Q> {
        let mut callers = self.callers.lock();
        callers.closed = true;
        std::mem::take(&mut callers.requests)
    }

    /// Stores the replies and wakes the callers. Returns the replies of callers that were dropped meanwhile.
    pub(crate) fn complete(&self, replies: Vec<R>) -> Vec<R> {
        let (wakers, abandoned) = {
            let mut callers = self.callers.lock();
            callers.closed = true;
            let orphans = callers.abandoned.iter().filter_map(|index| replies.get(*index).cloned()).collect();
            let _ = self.replies.set(replies);
            (std::mem::take(&mut callers.wakers), orphans)
        };
        wakers.into_iter().for_each(Waker::wake);
        abandoned
    }

    fn is_completed(&self) -> bool {
        self.replies.get().is_some()
    }

    fn poll(&self, index: usize, waker: &Waker) -> Poll<Option<R>> {
        if let Some(replies) = self.replies.get() {
            return Poll::Ready(replies.get(index).cloned());
        }
        let mut callers = self.callers.lock();
        match (self.replies.get(), callers.wakers.get_mut(index)) {
            (Some(replies), _) => Poll::Ready(replies.get(index).cloned()),
            (None, Some(known)) => {
                known.clone_from(waker);
                Poll::Pending
            }
            (None, None) => Poll::Ready(None),
        }
    }

    /// Withdraws a caller. Returns its reply if there is one already.
    fn abandon(&self, index: usize) -> Option<R> {
        let mut callers = self.callers.lock();
        if let Some(replies) = self.replies.get() {
            return replies.get(index).cloned();
        }
        match callers.requests.get_mut(index) {
            Some(request) => *request = Q::CANCELLED, // empty once the batch is closed
            None => callers.abandoned.push(index),
        }
        None
    }
}

/// The batches of one key that are not closed yet; only the last can be joined.
#[derive(Debug)]
pub(crate) struct Batches<Q, R>(Vec<Arc<Batch<Q, R>>>);

impl<Q, R> Default for Batches<Q, R> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<Q: BatchRequest, R: Clone> Batches<Q, R> {
    /// Adds a request to the last batch, or to a new one if that is full.
    pub(crate) fn join(&mut self, request: Q, waker: &Waker) -> (Arc<Batch<Q, R>>, usize) {
        let joined = self.0.last().and_then(|batch| Some((batch.clone(), batch.join(request.clone(), waker)?)));
        joined.unwrap_or_else(|| {
            let batch = Arc::new(Batch::new());
            let index = batch.join(request, waker).unwrap_or(0); // not shared yet, so it cannot be full
            self.0.push(batch.clone());
            (batch, index)
        })
    }

    pub(crate) fn take(&mut self) -> Vec<Arc<Batch<Q, R>>> {
        std::mem::take(&mut self.0)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A cell that merges concurrent requests for its key into batches.
pub(crate) trait Coalesce: Send + Sync {
    type Request: BatchRequest + Send;
    type Reply: Clone + Send + Sync;

    /// Adds the request to an open batch and schedules that batch. With nothing queued or in flight, returns an
    /// [`InlineRequest`] instead, which the caller polls itself.
    fn submit(self: &Arc<Self>, request: Self::Request, waker: &Waker) -> (Joined<Self>, Option<InlineRequest>);

    /// Returns what Redis granted to a caller that was dropped.
    fn reclaim(self: &Arc<Self>, reply: Self::Reply);
}

/// The future of one request: resolves to its reply, or to `None` if there is none.
pub(crate) struct PendingRequest<'a, C: Coalesce> {
    target: &'a Arc<C>,
    request: C::Request,
    joined: Option<Joined<C>>,
    inline: Option<InlineRequest>,
}

/// A batch, and the index of one request in it.
pub(crate) type Joined<C> = (Arc<Batch<<C as Coalesce>::Request, <C as Coalesce>::Reply>>, usize);

impl<'a, C: Coalesce> PendingRequest<'a, C> {
    pub(crate) const fn new(target: &'a Arc<C>, request: C::Request) -> Self {
        Self { target, request, joined: None, inline: None }
    }
}

impl<C: Coalesce> Future for PendingRequest<'_, C> {
    type Output = Option<C::Reply>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.joined.is_none() {
            let (joined, inline) = this.target.submit(this.request.clone(), cx.waker());
            (this.joined, this.inline) = (Some(joined), inline);
        }
        let Some((batch, index)) = &this.joined else { return Poll::Ready(None) };
        if let Some(inline) = &mut this.inline {
            if inline.poll(cx).is_ready() {
                this.inline = None;
            } else if !batch.is_completed() {
                // Only that round trip completes the batch. It wakes this task, which must not wake itself then.
                return Poll::Pending;
            }
        }
        let reply = std::task::ready!(batch.poll(*index, cx.waker()));
        // A round trip may go on when the time of this request is over: then it is spawned.
        (this.joined, this.inline) = (None, None);
        Poll::Ready(reply)
    }
}

// No field is pinned.
impl<C: Coalesce> Unpin for PendingRequest<'_, C> {}

impl<C: Coalesce> Drop for PendingRequest<'_, C> {
    fn drop(&mut self) {
        if let Some((batch, index)) = self.joined.take()
            && let Some(reply) = batch.abandon(index)
        {
            self.target.reclaim(reply);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl BatchRequest for u32 {
        const CANCELLED: Self = 0;
    }

    fn batch() -> Batch<u32, char> {
        Batch::new()
    }

    #[test]
    fn replies_are_in_the_order_of_the_requests() {
        let batch = batch();
        let indices = [7, 8].map(|request| batch.join(request, Waker::noop()));
        assert_eq!(indices, [Some(0), Some(1)]);
        assert_eq!(batch.close(), [7, 8]);
        assert_eq!(batch.join(9, Waker::noop()), None, "the batch is closed");
        assert!(batch.complete(vec!['a', 'b']).is_empty());
        assert_eq!(batch.poll(1, Waker::noop()), Poll::Ready(Some('b')));
    }

    #[test]
    fn a_request_dropped_before_the_batch_is_sent_is_cancelled() {
        let batch = batch();
        batch.join(7, Waker::noop());
        assert_eq!(batch.abandon(0), None);
        assert_eq!(batch.close(), [0]);
    }

    #[test]
    fn a_reply_to_a_dropped_caller_is_handed_back_exactly_once() {
        let batch = batch();
        for _ in 0..2 {
            batch.join(7, Waker::noop());
        }
        batch.close();
        assert_eq!(batch.abandon(1), None);
        assert_eq!(batch.complete(vec!['a', 'b']), ['b'], "dropped before the reply");
        assert_eq!(batch.abandon(0), Some('a'), "dropped after the reply");
    }
}
