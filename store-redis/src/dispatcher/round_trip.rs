//! Round trips: the calls that one carries, and the guarantee that each of them is completed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;

use super::{BatchSource, Dispatcher, ScriptResult, Urgency};
use crate::failure::Failure;
use crate::invocation::Invocation;

/// The calls of one round trip.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub(super) items: Vec<BatchItem>,
}

pub(super) struct BatchItem {
    pub(super) call: Option<Invocation>,
    /// Since when the oldest request in it waits; `None` if it began when it was filled in.
    pub(super) opened: Option<Instant>,
    complete: Option<Box<dyn FnOnce(ScriptResult) + Send>>,
}

impl Outgoing {
    pub(crate) fn add(&mut self, call: Invocation, complete: impl FnOnce(ScriptResult) + Send + 'static) {
        self.items.push(BatchItem { call: Some(call), opened: None, complete: Some(Box::new(complete)) });
    }

    /// Adds a call whose oldest request has been waiting since `opened`.
    pub(crate) fn add_waiting(
        &mut self,
        opened: Instant,
        call: Invocation,
        complete: impl FnOnce(ScriptResult) + Send + 'static,
    ) {
        self.items.push(BatchItem { call: Some(call), opened: Some(opened), complete: Some(Box::new(complete)) });
    }
}

impl BatchItem {
    pub(super) const fn is_completed(&self) -> bool {
        self.complete.is_none()
    }

    /// Completes it, unless it is completed.
    pub(super) fn complete(&mut self, reply: ScriptResult) {
        if let Some(complete) = self.complete.take() {
            complete(reply);
        }
    }
}

/// A dropped item completes with a failure.
impl Drop for BatchItem {
    fn drop(&mut self) {
        self.complete(Err(Failure::NotSent));
    }
}

/// A task that makes round trips, one after the other, until the queue is empty.
pub(super) struct RoundTrip {
    dispatcher: Arc<Dispatcher>,
    urgency: Urgency,
    /// Cells of callers in the current round trip.
    in_flight: usize,
    ended: bool,
}

impl RoundTrip {
    pub(super) fn new(dispatcher: &Arc<Dispatcher>, urgency: Urgency, in_flight: usize) -> Self {
        Self { dispatcher: dispatcher.clone(), urgency, in_flight, ended: false }
    }

    /// Sends what the queue holds, and continues until the queue is empty.
    pub(super) async fn run(mut self) {
        let mut first = true;
        while let Some(sources) = self.next(first) {
            let mut outgoing = Outgoing::default();
            sources.into_iter().for_each(|source| source.fill(&mut outgoing));
            if !outgoing.items.is_empty() {
                self.dispatcher.send_outgoing(outgoing, self.urgency).await;
                if self.urgency == Urgency::Caller {
                    self.dispatcher.wait_for_more().await;
                }
            }
            first = false;
        }
        self.ended = true;
        self.dispatcher.trip_ended.notify_waiters();
    }

    fn next(&mut self, first: bool) -> Option<Vec<Arc<dyn BatchSource>>> {
        let mut queue = self.dispatcher.queue.lock();
        queue.next(Instant::now(), self.urgency, first, &mut self.in_flight)
    }

    /// Ends, or continues in a task of its own if callers are waiting.
    fn finish(mut self) {
        let dispatcher = self.dispatcher.clone();
        let mut queue = dispatcher.queue.lock();
        if queue.callers_waiting() > 0 {
            drop(queue);
            return dispatcher.spawn(self.run());
        }
        queue.end(self.urgency, self.in_flight);
        self.ended = true;
        drop(queue);
        dispatcher.trip_ended.notify_waiters();
    }
}

/// The right to send inline: a round trip that its caller polls.
pub(crate) struct InlineTrip(pub(super) RoundTrip);

impl InlineTrip {
    /// Sends the caller's own calls; cells queued meanwhile are sent by a spawned task.
    pub(crate) fn send(self, outgoing: Outgoing) -> InlineRequest {
        let dispatcher = self.0.dispatcher.clone();
        let trip = async move {
            let trip = self.0;
            trip.dispatcher.send_outgoing(outgoing, Urgency::Caller).await;
            trip.finish();
        };
        InlineRequest { trip: Some(Box::pin(trip)), dispatcher }
    }
}

/// A round trip polled by its caller. If the caller drops it, it is spawned.
pub(crate) struct InlineRequest {
    trip: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    dispatcher: Arc<Dispatcher>,
}

impl InlineRequest {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(trip) = &mut self.trip {
            std::task::ready!(trip.as_mut().poll(cx));
            self.trip = None;
        }
        Poll::Ready(())
    }
}

impl Drop for InlineRequest {
    fn drop(&mut self) {
        if let Some(trip) = self.trip.take() {
            self.dispatcher.spawn(trip);
        }
    }
}

/// A round trip that ends early (its runtime was shut down, or there is none) completes everything with a failure.
impl Drop for RoundTrip {
    fn drop(&mut self) {
        if !self.ended {
            self.dispatcher.queue.lock().end(self.urgency, self.in_flight);
            self.dispatcher.fail_queued();
            self.dispatcher.trip_ended.notify_waiters();
        }
    }
}
