//! The queue of a dispatcher: cells that wait for a round trip, and the rules by which one may start.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::BatchSource;

/// Round trips of callers in flight near Redis.
const MAX_NEAR_TRIPS: usize = 4;
/// With this many cells in flight, no further round trip starts near Redis. With more, callers of many keys would be sent
/// in twos and threes, and the server would run one script for each.
const MAX_NEAR_SOURCES: usize = 4;
/// Round trips in flight at any distance.
const MAX_TRIPS: usize = 64;
/// The longest and the shortest pause between the starts of two round trips beyond those.
const MAX_PAUSE: Duration = Duration::from_millis(1);
const MIN_PAUSE: Duration = Duration::from_micros(250);
/// Cells in one round trip.
const MAX_SOURCES_PER_TRIP: usize = 64;
/// Cells in a round trip of background work while callers wait or have used the connection lately.
const MAX_BACKGROUND_SOURCES: usize = 8;
/// How long callers count as using the connection after their last round trip has started.
const CALLERS_LATELY: Duration = Duration::from_millis(5);

/// Whether a caller, or the rest of the fleet, waits for what a cell has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A caller waits for the reply, or others need the news at once.
    Caller,
    /// Nobody waits for it.
    Background,
}

/// Whether a cell is queued, and how urgently.
#[derive(Debug, Default)]
pub(crate) struct Queued(AtomicU8);

impl Queued {
    /// Marks the cell as queued. Returns whether it has to be enqueued: it was not queued, or less urgently.
    pub(crate) fn mark(&self, urgency: Urgency) -> bool {
        let level = match urgency {
            Urgency::Background => 1,
            Urgency::Caller => 2,
        };
        self.0.fetch_max(level, Ordering::AcqRel) < level
    }

    /// Marks the cell as not queued, before it is filled in.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Cells that wait for a round trip, and what is in flight.
#[derive(Default)]
pub(super) struct Queue {
    /// Cells with callers, and since when they wait.
    callers: VecDeque<(Instant, Arc<dyn BatchSource>)>,
    background: VecDeque<Arc<dyn BatchSource>>,
    /// Round trips of callers in flight, and the number of cells in them.
    trips: usize,
    in_flight: usize,
    /// Whether the round trip of background work is in flight.
    background_trip: bool,
    /// When the last round trip of callers started.
    last_start: Option<Instant>,
    timer_running: bool,
}

impl Queue {
    pub(super) fn push(&mut self, now: Instant, source: Arc<dyn BatchSource>, urgency: Urgency) {
        match urgency {
            Urgency::Caller => self.callers.push_back((now, source)),
            Urgency::Background => self.background.push_back(source),
        }
    }

    /// Returns whether a round trip of callers starts now, and counts it.
    pub(super) fn begin_for_callers(&mut self, now: Instant, round_trip: Duration) -> bool {
        let near = self.trips < MAX_NEAR_TRIPS && self.in_flight < MAX_NEAR_SOURCES;
        let starts = !self.callers.is_empty() && (near || self.start_time(round_trip).is_some_and(|at| at <= now));
        if starts {
            self.count_start(now);
        }
        starts
    }

    /// Returns whether the round trip of background work starts now, and counts it.
    pub(super) fn begin_for_background(&mut self) -> bool {
        let starts = !self.background.is_empty() && !self.background_trip;
        self.background_trip |= starts;
        starts
    }

    /// Returns whether a caller may send inline: nothing of callers is queued or in flight. Counts its round trip.
    pub(super) fn begin_inline(&mut self, now: Instant) -> bool {
        let idle = self.trips == 0 && self.callers.is_empty();
        if idle {
            self.count_start(now);
            self.in_flight += 1;
        }
        idle
    }

    fn count_start(&mut self, now: Instant) {
        self.trips += 1;
        self.last_start = Some(now);
    }

    /// When the next round trip may start although others are in flight; `None` if only their end makes room.
    fn start_time(&self, round_trip: Duration) -> Option<Instant> {
        // Near Redis a round trip takes as long as the scripts in it: one that starts early only divides the callers of a cell.
        let near = round_trip < MAX_PAUSE;
        let pause = if near { MAX_PAUSE } else { (round_trip / 4).clamp(MIN_PAUSE, MAX_PAUSE) };
        // Twice as many as are in flight if each returns in time. More would wait for a server that is slow or silent.
        let most = (2.0 * round_trip.div_duration_f64(pause)).ceil() as usize;
        let room = self.trips < most.clamp(MAX_NEAR_TRIPS, MAX_TRIPS);
        room.then_some(self.last_start? + pause)
    }

    /// Returns whether a timer has to be started, which then counts as running.
    pub(super) fn needs_timer(&mut self) -> bool {
        !self.callers.is_empty() && !std::mem::replace(&mut self.timer_running, true)
    }

    pub(super) const fn timer_ended(&mut self) {
        self.timer_running = false;
    }

    /// When to look again whether a round trip may start, or a caller has waited for too long; `None` if no caller waits.
    pub(super) fn next_due(&self, now: Instant, longest_wait: Duration, round_trip: Duration) -> Option<Instant> {
        let overdue = self.callers.front()?.0 + longest_wait;
        Some(self.start_time(round_trip).unwrap_or(now + MAX_PAUSE).min(overdue))
    }

    /// Takes the cells that have waited for too long.
    pub(super) fn take_overdue(&mut self, now: Instant, longest_wait: Duration) -> Vec<Arc<dyn BatchSource>> {
        let count = self.callers.iter().take_while(|(since, _)| *since + longest_wait <= now).count();
        self.callers.drain(..count).map(|(_, source)| source).collect()
    }

    pub(super) fn take_all(&mut self) -> Vec<Arc<dyn BatchSource>> {
        let callers = std::mem::take(&mut self.callers).into_iter().map(|(_, source)| source);
        callers.chain(std::mem::take(&mut self.background)).collect()
    }

    /// Takes the cells of the next round trip of a task: its first, or the next one after that has returned with
    /// `in_flight` cells. `None` ends the task's round trips.
    pub(super) fn next(
        &mut self,
        now: Instant,
        urgency: Urgency,
        first: bool,
        in_flight: &mut usize,
    ) -> Option<Vec<Arc<dyn BatchSource>>> {
        self.returned(urgency, std::mem::take(in_flight));
        match urgency {
            Urgency::Caller => {
                // With enough cells in flight elsewhere, the round trips that carry them continue with the queue.
                let enough = !first && self.in_flight >= MAX_NEAR_SOURCES;
                if self.callers.is_empty() || enough {
                    self.trips -= 1;
                    return None;
                }
                *in_flight = self.callers.len().min(MAX_SOURCES_PER_TRIP);
                self.in_flight += *in_flight;
                self.last_start = Some(now);
                Some(self.callers.drain(..*in_flight).map(|(_, source)| source).collect())
            }
            Urgency::Background => {
                if self.background.is_empty() {
                    self.background_trip = false;
                    return None;
                }
                let lately = self.last_start.is_some_and(|start| now.saturating_duration_since(start) < CALLERS_LATELY);
                let most = if lately { MAX_BACKGROUND_SOURCES } else { MAX_SOURCES_PER_TRIP };
                let count = self.background.len().min(most);
                Some(self.background.drain(..count).collect())
            }
        }
    }

    fn returned(&mut self, urgency: Urgency, in_flight: usize) {
        if urgency == Urgency::Caller {
            self.in_flight -= in_flight;
        }
    }

    /// Counts a round trip as ended, with the cells that are in flight in it.
    pub(super) fn end(&mut self, urgency: Urgency, in_flight: usize) {
        self.returned(urgency, in_flight);
        match urgency {
            Urgency::Caller => self.trips -= 1,
            Urgency::Background => self.background_trip = false,
        }
    }

    pub(super) fn callers_waiting(&self) -> usize {
        self.callers.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.trips == 0 && !self.background_trip && self.callers.is_empty() && self.background.is_empty()
    }
}
