//! Charges of work that is done: sent in the background, and taken from the bucket once.
//!
//! A request names the permits that this replica has charged in all, and those of which it knows that they arrived. The script
//! keeps the first number and takes the difference to the one that it kept last, so that a request may be repeated, and may
//! run late. One request is under way at a time. One without a reply is repeated by the background task.
//!
//! Without Redis the twin pays. What it was charged is also kept, like what it grants ([`Uncharged`](super::twin::Uncharged)),
//! but without a limit: time makes up for it once the bucket must have been full, and the rest is sent afterwards.

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::rate_limit::Rate;
use phalanx_lua as lua;

use super::twin::{Seen, refilled};
use super::{Shared, SharedBucket, State};
use crate::dispatcher::Outgoing;
use crate::invocation::integers;
use crate::keys::{Key, Keys};

/// After what time a request without a reply is repeated.
const REPEAT_AFTER: Duration = Duration::from_millis(100);

/// What this replica has charged to a bucket, in permits.
#[derive(Debug, Default)]
pub(super) struct Charges {
    /// Not yet part of a request.
    unsent: u64,
    /// Charged to a twin, in units of the bucket's present rate, as of a time.
    by_twin: u64,
    by_twin_at: Time,
    /// In all requests so far, and of these the permits that are known to have arrived.
    requested: u64,
    arrived: u64,
    in_flight: bool,
    /// Where the server keeps what was requested: of this cell alone, as another one counts anew.
    key: Option<Key>,
}

/// A request that is sent.
struct ChargeRequest {
    key: Key,
    rate: Rate,
    arrived: u64,
    requested: u64,
}

impl Charges {
    fn add(&mut self, permits: u32) {
        self.unsent = self.unsent.saturating_add(permits.into());
    }

    fn add_by_twin(&mut self, permits: u32, now: Time, seen: Option<Seen>, rate: Rate, divisor: u32) {
        self.advance(now, seen, rate, divisor);
        self.by_twin = self.by_twin.saturating_add(u64::from(permits).saturating_mul(rate.price));
    }

    /// Lets time make up for what a twin was charged.
    fn advance(&mut self, now: Time, seen: Option<Seen>, rate: Rate, divisor: u32) {
        self.by_twin = self.by_twin.saturating_sub(refilled(self.by_twin_at, now, seen, rate, divisor));
        self.by_twin_at = self.by_twin_at.max(now);
    }

    /// Takes back permits that were not sent. Returns the others.
    fn remove(&mut self, permits: u32, rate: Rate) -> u32 {
        let sent = u64::from(permits).saturating_sub(self.unsent);
        self.unsent = self.unsent.saturating_sub(permits.into());
        let by_twin = self.by_twin / rate.price;
        self.by_twin -= by_twin.min(sent) * rate.price;
        u32::try_from(sent.saturating_sub(by_twin)).unwrap_or(0)
    }

    /// Returns the permits that have not arrived, as far as is known.
    pub(super) const fn permits(&self, rate: Rate) -> u64 {
        (self.requested - self.arrived).saturating_add(self.unsent).saturating_add(self.by_twin.div_ceil(rate.price))
    }

    pub(super) fn is_settled(&self) -> bool {
        self.permits(Rate { gain: 1, price: 1, capacity: 1 }) == 0
    }

    /// Begins a request, if there is something to send and none is under way. Returns the permits that arrived, and those
    /// that were requested.
    fn begin(&mut self, now: Time, seen: Option<Seen>, rate: Rate, divisor: u32) -> Option<(u64, u64)> {
        if self.in_flight || self.is_settled() {
            return None;
        }
        self.advance(now, seen, rate, divisor);
        let new =
            std::mem::take(&mut self.unsent).saturating_add(std::mem::take(&mut self.by_twin).div_ceil(rate.price));
        self.requested = self.requested.saturating_add(new);
        self.in_flight = self.requested > self.arrived;
        self.in_flight.then_some((self.arrived, self.requested))
    }

    /// Ends a request.
    fn end(&mut self, requested: u64, answered: bool) {
        self.in_flight = false;
        if answered {
            self.arrived = self.arrived.max(requested);
        }
    }

    /// Converts to another rate, rounded up to whole permits.
    pub(super) const fn retune(&mut self, old: Rate, new: Rate) {
        self.by_twin = self.by_twin.div_ceil(old.price).saturating_mul(new.price);
    }
}

impl SharedBucket {
    /// Charges permits in the background; without Redis also the twin.
    pub fn charge(&self, permits: u32) {
        let shared = &self.0;
        if permits == 0 {
            return;
        }
        shared.store.ensure_background();
        let is_down = shared.store.dispatcher(shared.redis_key.slot).latch.is_down();
        {
            let mut state = shared.state.lock();
            if is_down {
                let now = shared.store.clock.now();
                shared.twin(&mut state, now).charge(permits);
                let State { charges, seen, rate, .. } = &mut *state;
                charges.add_by_twin(permits, now, *seen, *rate, shared.store.degraded_sharers());
            } else {
                state.charges.add(permits);
            }
        }
        if !is_down {
            shared.enqueue();
        }
        shared.note_lease();
    }

    /// Gives back permits that were charged a moment ago.
    pub fn discharge(&self, permits: u32) {
        let shared = &self.0;
        let now = shared.store.clock.now();
        let is_down = shared.store.dispatcher(shared.redis_key.slot).latch.is_down();
        let (sent, due) = {
            let mut state = shared.state.lock();
            let rate = state.rate;
            let sent = state.charges.remove(permits, rate);
            if is_down {
                if let Some(twin) = &state.twin {
                    twin.discharge(permits - sent, now);
                }
                return;
            }
            // No later than now on the server's clock: it had this time when it sent its last reply.
            (sent, state.server_seen.map(|(server, at)| server.after(now.since(at))))
        };
        if let Some(due) = due {
            shared.queue_refund(sent, due);
        }
    }
}

impl Shared {
    /// Adds the request for what was charged, if there is one.
    pub(super) fn fill_charges(self: &Arc<Self>, outgoing: &mut Outgoing) {
        let Some(request) = self.charge_request() else { return };
        let ChargeRequest { key, rate, arrived, requested } = request;
        let mut call = self.store.invocation(&lua::RATE_LIMIT_CHARGE, &[&self.redis_key, &key]);
        call.arg(rate.gain).arg(rate.price).arg(rate.capacity).arg(arrived).arg(requested);
        let shared = self.clone();
        outgoing.add(call, move |reply| {
            let integers = reply.map_or_else(|_| Vec::new(), |value| integers(&value));
            shared.note_reply(rate, &integers);
            let more = {
                let mut state = shared.state.lock();
                state.charges.end(requested, integers.len() > 2);
                integers.len() > 2 && !state.charges.is_settled()
            };
            if more {
                shared.enqueue();
            }
        });
    }

    fn charge_request(&self) -> Option<ChargeRequest> {
        if self.store.dispatcher(self.redis_key.slot).latch.is_down() {
            return None; // time makes up for what the twin pays
        }
        let mut state = self.state.lock();
        let State { charges, seen, rate, .. } = &mut *state;
        let now = self.store.clock.now();
        let (arrived, requested) = charges.begin(now, *seen, *rate, self.store.degraded_sharers())?;
        let key = charges.key.get_or_insert_with(|| Keys::charges(&self.redis_key, self.store.rng.next()));
        Some(ChargeRequest { key: key.clone(), rate: *rate, arrived, requested })
    }

    /// Sends charges that have not arrived. Returns after what time to look again; `None` if all have.
    pub(super) fn repeat_charges(self: &Arc<Self>) -> Option<Duration> {
        if self.state.lock().charges.is_settled() {
            return None;
        }
        if !self.store.dispatcher(self.redis_key.slot).latch.is_down() {
            self.enqueue();
        }
        Some(REPEAT_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use phalanx_core::rate_limit::RateLimitSpec;

    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1_000)
    }

    /// A hundred permits a second, and a hundred at once.
    fn rate() -> Rate {
        Rate::of(&RateLimitSpec::per_second(100))
    }

    #[test]
    fn a_request_names_all_permits_so_far_and_is_repeated_until_it_is_answered() {
        let mut charges = Charges::default();
        charges.add(7);
        assert_eq!(charges.begin(at(0), None, rate(), 1), Some((0, 7)));
        charges.add(2);
        assert_eq!(charges.begin(at(1), None, rate(), 1), None, "one at a time");
        charges.end(7, false);
        assert_eq!(charges.begin(at(2), None, rate(), 1), Some((0, 9)), "whether seven arrived is not known");
        charges.end(9, true);
        assert!(charges.is_settled());
        assert_eq!(charges.begin(at(3), None, rate(), 1), None);
        charges.add(1);
        assert_eq!(charges.begin(at(4), None, rate(), 1), Some((9, 10)));
    }

    #[test]
    fn time_makes_up_for_what_a_twin_paid_and_not_for_what_was_sent_or_will_be() {
        let seen = Some(Seen { level: 50 * rate().price as i64, at: at(0) });
        let mut charges = Charges::default();
        charges.add(3);
        charges.add_by_twin(500, at(100), seen, rate(), 2);
        assert_eq!(charges.permits(rate()), 503, "more than the bucket holds");
        // Full after half a second; then this replica's half of the rate.
        assert_eq!(charges.begin(at(1_500), seen, rate(), 2), Some((0, 453)));
        charges.end(453, false);
        assert_eq!(charges.begin(at(60_000), seen, rate(), 2), Some((0, 453)));
    }

    #[test]
    fn what_was_not_sent_is_taken_back_and_the_rest_is_refunded() {
        let mut charges = Charges::default();
        charges.add(5);
        assert_eq!(charges.remove(3, rate()), 0);
        assert_eq!(charges.remove(3, rate()), 1);
        charges.add_by_twin(5, at(0), None, rate(), 1);
        assert_eq!(charges.remove(7, rate()), 2);
        assert!(charges.is_settled());
    }

    #[test]
    fn another_rate_changes_no_permits() {
        let new = Rate::of(&RateLimitSpec::new(7, Duration::from_secs(60)).burst(30));
        let mut charges = Charges::default();
        charges.add(5);
        charges.add_by_twin(200, at(0), None, rate(), 1);
        charges.retune(rate(), new);
        assert_eq!(charges.permits(new), 205);
    }
}
