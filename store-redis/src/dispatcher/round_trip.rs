//! One round trip: the calls it carries, and the guarantee that each of them is completed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;

use super::{Dispatcher, ScriptResult};
use crate::failure::Failure;
use crate::invocation::Invocation;

/// The calls of one round trip.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub(super) items: Vec<BatchItem>,
    /// When the oldest request in it was queued.
    pub(super) opened: Option<Instant>,
}

pub(super) struct BatchItem {
    pub(super) call: Option<Invocation>,
    pub(super) complete: Option<Box<dyn FnOnce(ScriptResult) + Send>>,
}

impl Outgoing {
    pub(crate) fn add(&mut self, call: Invocation, complete: impl FnOnce(ScriptResult) + Send + 'static) {
        self.items.push(BatchItem { call: Some(call), complete: Some(Box::new(complete)) });
    }

    /// Records that a request has been waiting since `since`.
    pub(crate) fn waiting_since(&mut self, since: Instant) {
        self.opened = Some(self.opened.map_or(since, |opened| opened.min(since)));
    }
}

/// A dropped item completes with a failure.
impl Drop for BatchItem {
    fn drop(&mut self) {
        if let Some(complete) = self.complete.take() {
            complete(Err(Failure::NotSent));
        }
    }
}

/// A round trip in flight.
pub(super) struct RoundTrip {
    dispatcher: Arc<Dispatcher>,
    /// Cells in it.
    in_flight: usize,
    ended: bool,
}

impl RoundTrip {
    pub(super) fn new(dispatcher: &Arc<Dispatcher>, in_flight: usize) -> Self {
        Self { dispatcher: dispatcher.clone(), in_flight, ended: false }
    }

    /// Sends what the queue holds, and continues until the queue is empty.
    pub(super) async fn run(mut self) {
        while let Some(sources) = self.dispatcher.next_sources(&mut self.in_flight) {
            let mut outgoing = Outgoing::default();
            sources.into_iter().for_each(|source| source.fill(&mut outgoing));
            if !outgoing.items.is_empty() {
                self.dispatcher.send_outgoing(outgoing).await;
                self.dispatcher.wait_for_more().await;
            }
        }
        self.ended = true;
    }
}

impl RoundTrip {
    /// Ends, or continues in a task of its own if cells are waiting.
    fn finish(mut self) {
        let dispatcher = self.dispatcher.clone();
        let mut queue = dispatcher.queue.lock();
        if !queue.waiting.is_empty() {
            drop(queue);
            return dispatcher.spawn(self.run());
        }
        queue.in_flight -= self.in_flight;
        queue.round_trips -= 1;
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
            trip.dispatcher.send_outgoing(outgoing).await;
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
            {
                let mut queue = self.dispatcher.queue.lock();
                queue.round_trips -= 1;
                queue.in_flight -= self.in_flight;
            }
            self.dispatcher.fail_queued();
            self.dispatcher.trip_ended.notify_waiters();
        }
    }
}
