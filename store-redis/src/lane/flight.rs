//! One flight: what it carries, who flies it, and that it lands whatever happens.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;

use super::{Lane, Replied};
use crate::failure::Failure;
use crate::invocation::Invocation;

/// What a flight carries.
#[derive(Default)]
pub(crate) struct Manifest {
    pub(super) legs: Vec<Leg>,
    /// Since when the one who waits longest has been waiting.
    pub(super) opened: Option<Instant>,
}

pub(super) struct Leg {
    pub(super) call: Option<Invocation>,
    pub(super) land: Option<Box<dyn FnOnce(Replied) + Send>>,
}

impl Manifest {
    pub(crate) fn add(&mut self, call: Invocation, land: impl FnOnce(Replied) + Send + 'static) {
        self.legs.push(Leg { call: Some(call), land: Some(Box::new(land)) });
    }

    /// Somebody has been waiting since then.
    pub(crate) fn waiting_since(&mut self, since: Instant) {
        self.opened = Some(self.opened.map_or(since, |opened| opened.min(since)));
    }
}

/// A flight that is lost lands with a failure.
impl Drop for Leg {
    fn drop(&mut self) {
        if let Some(land) = self.land.take() {
            land(Err(Failure::NotAsked));
        }
    }
}

/// A flight under way.
pub(super) struct Flight {
    lane: Arc<Lane>,
    /// Cells on it.
    aboard: usize,
    landed: bool,
}

impl Flight {
    pub(super) fn new(lane: &Arc<Lane>, aboard: usize) -> Self {
        Self { lane: lane.clone(), aboard, landed: false }
    }

    /// Carries who is ready, and goes on as long as there is somebody.
    pub(super) async fn fly(mut self) {
        while let Some(passengers) = self.lane.next_passengers(&mut self.aboard) {
            let mut manifest = Manifest::default();
            passengers.into_iter().for_each(|passenger| passenger.board(&mut manifest));
            if !manifest.legs.is_empty() {
                self.lane.carry_all(manifest).await;
                self.lane.gather().await;
            }
        }
        self.landed = true;
    }
}

impl Flight {
    /// Ends, or flies on by itself if somebody waits.
    fn land(mut self) {
        let lane = self.lane.clone();
        let mut ready = lane.ready.lock();
        if !ready.queue.is_empty() {
            drop(ready);
            return lane.launch(self.fly());
        }
        ready.aboard -= self.aboard;
        ready.flying -= 1;
        self.landed = true;
        drop(ready);
        lane.landed.notify_waiters();
    }
}

/// A caller who flies himself.
pub(crate) struct Pilot(pub(super) Flight);

impl Pilot {
    /// Carries what is his; whoever has come meanwhile flies on without him.
    pub(crate) fn fly(self, manifest: Manifest) -> Solo {
        let lane = self.0.lane.clone();
        let flight = async move {
            let flight = self.0;
            flight.lane.carry_all(manifest).await;
            flight.land();
        };
        Solo { flight: Some(Box::pin(flight)), lane }
    }
}

/// A flight that its caller flies. If he goes away it flies on by itself.
pub(crate) struct Solo {
    flight: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    lane: Arc<Lane>,
}

impl Solo {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(flight) = &mut self.flight {
            std::task::ready!(flight.as_mut().poll(cx));
            self.flight = None;
        }
        Poll::Ready(())
    }
}

impl Drop for Solo {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            self.lane.launch(flight);
        }
    }
}

/// A flight that ends before its time (its runtime was shut down, or there is none) strands nobody.
impl Drop for Flight {
    fn drop(&mut self) {
        if !self.landed {
            {
                let mut ready = self.lane.ready.lock();
                ready.flying -= 1;
                ready.aboard -= self.aboard;
            }
            self.lane.ground();
            self.lane.landed.notify_waiters();
        }
    }
}
