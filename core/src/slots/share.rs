//! The share of one replica: which calls it admits, and what it asks for.
//!
//! [`SlotShare`] is what every call uses: share and slots in use in one word, and the end of the lease. [`ShareHolder`] is the
//! rest, behind a lock: it makes the requests and takes the replies. What a replica may use is never more than what is
//! recorded for it, because
//!
//! * the share is raised only by the reply to the only outstanding request;
//! * it is lowered before a request is made, and a request keeps the higher of the share and the slots in use;
//! * a share counts until nine tenths of its lease have passed since the request was made. Then nothing is kept but the slots
//!   in use.

use std::time::Duration;

use super::{ShareReply, ShareRequest};
use crate::clock::{Time, micros};
use crate::sync::{AtomicU64, Ordering};

/// How long the server keeps a share.
pub const LEASE: Duration = Duration::from_secs(3);

/// How long a replica admits calls within it, from the request on.
const USABLE: Duration = Duration::from_millis(2_700);

/// How often a share is renewed, and how long the highest number of calls counts as wanted, at least.
const RENEWAL: Duration = Duration::from_secs(1);

/// How soon it is renewed if it is to shrink, or if the request before had no reply.
const SOON: Duration = Duration::from_millis(250);

const SHARE_SHIFT: u32 = 32;
const SLOTS: u64 = (1 << SHARE_SHIFT) - 1;

const fn in_use(word: u64) -> u64 {
    word & SLOTS
}

const fn share(word: u64) -> u64 {
    word >> SHARE_SHIFT
}

/// A share and the slots in use. Threads share it by reference.
///
/// Slots are counted and have no guards here: a call that entered must [`leave`](Self::leave).
#[derive(Debug)]
pub struct SlotShare {
    /// The share in the upper half, the slots in use in the lower.
    word: AtomicU64,
    /// The most slots in use since the last request.
    peak: AtomicU64,
    /// Until when the share counts, in microseconds.
    ends: AtomicU64,
}

impl Default for SlotShare {
    /// No share.
    fn default() -> Self {
        Self { word: AtomicU64::new(0), peak: AtomicU64::new(0), ends: AtomicU64::new(0) }
    }
}

impl SlotShare {
    /// Creates a share without a lease: all slots of a process.
    pub fn unleased(slots: u32) -> Self {
        let unleased = Self::default();
        unleased.set_share(slots);
        unleased.ends.store(u64::MAX, Ordering::Relaxed);
        unleased
    }

    /// Sets the share. Calls in flight stay.
    pub fn set_share(&self, slots: u32) {
        self.change(|_| u64::from(slots));
    }

    /// Takes a slot of the share.
    #[inline]
    pub fn enter(&self, now: Time) -> bool {
        now.as_micros() < self.ends.load(Ordering::Acquire) && self.enter_below(share)
    }

    /// Takes a slot whatever the lease, if fewer than `most` are in use.
    pub fn enter_without_lease(&self, most: u32) -> bool {
        self.enter_below(|_| u64::from(most))
    }

    #[inline]
    fn enter_below(&self, most: impl Fn(u64) -> u64) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if in_use(word) >= most(word) {
                return false;
            }
            match self.word.compare_exchange_weak(word, word + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(newer) => word = newer,
            }
        }
        let used = in_use(word) + 1;
        if used > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
        true
    }

    /// Gives a slot back.
    #[inline]
    pub fn leave(&self) {
        self.word.fetch_sub(1, Ordering::Release);
    }

    /// Returns the slots in use.
    pub fn in_use(&self) -> u32 {
        in_use(self.word.load(Ordering::Relaxed)) as u32
    }

    /// Returns the share.
    pub fn share(&self) -> u32 {
        share(self.word.load(Ordering::Relaxed)) as u32
    }

    /// Changes the share; returns the word afterwards.
    fn change(&self, to: impl Fn(u64) -> u64) -> u64 {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let new = in_use(word) | to(share(word)) << SHARE_SHIFT;
            match self.word.compare_exchange_weak(word, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return new,
                Err(newer) => word = newer,
            }
        }
    }

    /// Returns the most slots in use since the last call.
    fn take_peak(&self) -> u32 {
        let used = self.in_use();
        (self.peak.swap(used.into(), Ordering::Relaxed) as u32).max(used)
    }
}

/// A request under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentRequest {
    /// What is sent.
    pub request: ShareRequest,
    /// The cap of this replica's policy.
    pub cap: u32,
    /// When it was made.
    at: Time,
    /// The most slots in use since the request before.
    running: u32,
    /// Whether the lease was over by then.
    was_over: bool,
    /// Whether the server's record was over too, for a time at least: a request that was late may have renewed it meanwhile.
    had_lapsed: bool,
}

/// What a replica asks for, and when.
#[derive(Debug)]
pub struct ShareHolder {
    cap: u32,
    /// The number of the last request.
    number: u64,
    is_waiting: bool,
    /// The most slots in use in this period, and in the one before.
    peaks: [u32; 2],
    period_ends: Time,
    /// When the next request is due; none while nothing is held.
    due: Option<Time>,
    /// The share last granted and not handed back.
    last_share: u32,
    /// The slots that were in use when the lease was over, according to a request without a reply.
    unreported: u32,
}

impl ShareHolder {
    /// Creates a holder of nothing.
    pub const fn new(cap: u32) -> Self {
        Self {
            cap,
            number: 0,
            is_waiting: false,
            peaks: [0; 2],
            period_ends: Time::ZERO,
            due: None,
            last_share: 0,
            unreported: 0,
        }
    }

    /// Sets the cap. A lower one takes effect with the next renewal.
    pub const fn retune(&mut self, cap: u32) {
        self.cap = cap;
    }

    /// Whether a request has no reply yet. There is never a second one.
    pub const fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Makes the request for a number of waiting callers, or to renew.
    pub fn request(&mut self, share: &SlotShare, now: Time, callers: u32) -> SentRequest {
        let running = share.take_peak();
        if now >= self.period_ends {
            self.peaks = [running, self.peaks[0]];
            self.period_ends = now.after(RENEWAL);
        } else {
            self.peaks[0] = self.peaks[0].max(running);
        }
        let ends = share.ends.load(Ordering::Relaxed);
        let was_over = now.as_micros() >= ends;
        let had_lapsed = now.as_micros() >= ends.saturating_add(micros(LEASE - USABLE));
        let busy = share.in_use().saturating_add(callers);
        let want = self.peaks[0].max(self.peaks[1]).max(busy).min(self.cap);
        // Lowered first, so that no call uses what is handed back. After the lease the server may have given it away.
        let most = if was_over { 0 } else { u64::from(want) };
        let word = share.change(|share| share.min(most));
        if !was_over {
            self.last_share = self.last_share.min(want);
        }
        self.number += 1;
        self.is_waiting = true;
        let keep = in_use(word).max(word >> SHARE_SHIFT) as u32;
        let request = ShareRequest { number: self.number, keep, want, is_asking: callers > 0 };
        SentRequest { request, cap: self.cap, at: now, running, was_over, had_lapsed }
    }

    /// Takes the reply to a request. Returns how many calls were in flight, at most, of which the server had nothing recorded.
    pub fn granted(&mut self, share: &SlotShare, sent: &SentRequest, reply: &ShareReply) -> Option<u32> {
        if reply.is_late {
            self.failed(sent, sent.at);
            return None;
        }
        self.is_waiting = false;
        let granted = reply.share.min(self.cap);
        share.ends.store(sent.at.after(USABLE).as_micros(), Ordering::Release);
        share.set_share(granted);
        self.last_share = granted;
        let renewal = if reply.share < reply.held { SOON } else { RENEWAL };
        self.due = (reply.held > 0).then(|| sent.at.after(renewal));
        let recorded = if sent.had_lapsed { 0 } else { reply.recorded };
        let lapsed = sent.running.saturating_sub(recorded).max(std::mem::take(&mut self.unreported));
        (lapsed > 0).then_some(lapsed)
    }

    /// Notes that a request has no reply: it may have been executed.
    pub fn failed(&mut self, sent: &SentRequest, now: Time) {
        self.is_waiting = false;
        self.due = Some(now.after(SOON));
        if sent.was_over {
            self.unreported = self.unreported.max(sent.running);
        }
    }

    /// Forgets what was in use before, so that the next request hands back what is not in use.
    pub fn forget_demand(&mut self, share: &SlotShare) {
        self.peaks = [share.take_peak().min(share.in_use()), 0];
    }

    /// Makes the next request due: the server lost what it had recorded, or calls run without a share.
    pub const fn hurry(&mut self, now: Time) {
        self.due = Some(now);
    }

    /// Returns when the next request is due; none if nothing is held.
    pub const fn due(&self) -> Option<Time> {
        self.due
    }

    /// Returns how many slots may be in use without the server: the last share, or without one a part of the cap.
    pub fn degraded_share(&self, sharers: u32) -> u32 {
        if self.last_share > 0 { self.last_share.min(self.cap) } else { self.cap / sharers.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::SlotTable;
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1_000)
    }

    /// One replica, connected to a table.
    struct Replica {
        id: u64,
        share: SlotShare,
        holder: ShareHolder,
    }

    impl Replica {
        fn new(id: u64, cap: u32) -> Self {
            Self { id, share: SlotShare::default(), holder: ShareHolder::new(cap) }
        }

        fn execute(&self, table: &mut SlotTable, now: Time, sent: &SentRequest) -> ShareReply {
            table.share(now, sent.cap, LEASE, self.id, &sent.request)
        }

        fn ask(&mut self, table: &mut SlotTable, now: Time, callers: u32) -> Option<u32> {
            let sent = self.holder.request(&self.share, now, callers);
            let reply = self.execute(table, now, &sent);
            self.holder.granted(&self.share, &sent, &reply)
        }

        fn enter(&self, now: Time, times: u32) -> u32 {
            (0..times).map(|_| u32::from(self.share.enter(now))).sum()
        }
    }

    #[test]
    fn calls_within_the_share_need_no_request() {
        let (mut table, mut one) = (SlotTable::default(), Replica::new(1, 100));
        assert!(!one.share.enter(at(0)), "no share yet");
        assert_eq!(one.ask(&mut table, at(0), 8), None);
        assert_eq!(one.share.share(), 10, "a quarter more");
        assert_eq!(one.enter(at(0), 12), 10);
        one.share.leave();
        assert_eq!(one.enter(at(2_699), 12), 1);
        one.share.leave();
        assert_eq!(one.enter(at(2_700), 1), 0, "nine tenths of the lease have passed");
    }

    #[test]
    fn a_late_request_that_renews_the_record_hides_no_calls_that_had_no_share() {
        let (mut table, mut one) = (SlotTable::default(), Replica::new(1, 10));
        one.ask(&mut table, at(0), 4);
        assert_eq!(one.enter(at(0), 4), 4);
        let late = one.holder.request(&one.share, at(1_000), 0);
        one.holder.failed(&late, at(1_020));
        // Cut off: the record is over at 3,000, and the request arrives when the connection is back.
        assert_eq!(one.execute(&mut table, at(6_000), &late).recorded, 0);
        assert_eq!(one.ask(&mut table, at(6_010), 0), Some(4));
    }

    #[test]
    fn a_share_that_is_not_used_is_handed_back() {
        let (mut table, mut one) = (SlotTable::default(), Replica::new(1, 10));
        one.ask(&mut table, at(0), 6);
        assert_eq!(one.enter(at(0), 6), 6);
        (0..6).for_each(|_| one.share.leave());
        one.ask(&mut table, at(1_000), 0);
        assert_eq!(one.share.share(), 6, "used a second ago");
        one.ask(&mut table, at(2_000), 0);
        assert_eq!((one.share.share(), one.holder.due()), (6, Some(at(3_000))));
        one.ask(&mut table, at(3_000), 0);
        assert_eq!((one.share.share(), one.holder.due()), (0, None), "nothing is held");
        let mut two = Replica::new(2, 10);
        two.ask(&mut table, at(3_000), 10);
        assert_eq!(two.share.share(), 10);
    }

    #[test]
    fn what_is_in_use_can_be_handed_back_only_when_it_ends() {
        let (mut table, mut one) = (SlotTable::default(), Replica::new(1, 10));
        one.ask(&mut table, at(0), 6);
        assert_eq!(one.enter(at(0), 6), 6);
        one.share.leave();
        one.holder.forget_demand(&one.share);
        one.ask(&mut table, at(100), 0);
        assert_eq!((one.share.share(), one.share.in_use()), (5, 5));
        assert_eq!(one.enter(at(100), 1), 0);
    }

    #[test]
    fn a_lost_reply_leaves_the_share_as_it_is_or_smaller() {
        let (mut table, mut one) = (SlotTable::default(), Replica::new(1, 10));
        one.ask(&mut table, at(0), 2);
        let sent = one.holder.request(&one.share, at(100), 6);
        one.execute(&mut table, at(100), &sent);
        assert!(one.holder.is_waiting());
        one.holder.failed(&sent, at(120));
        assert_eq!((one.share.share(), one.holder.due()), (3, Some(at(370))));
        one.ask(&mut table, at(370), 6);
        assert_eq!(one.share.share(), 6);
    }

    #[test]
    fn a_replica_that_was_suspended_past_its_lease_counts_its_calls_once() {
        let mut table = SlotTable::default();
        let (mut one, mut two) = (Replica::new(1, 10), Replica::new(2, 10));
        one.ask(&mut table, at(0), 10);
        assert_eq!(one.enter(at(0), 4), 4);
        two.ask(&mut table, at(3_000), 10);
        assert_eq!(two.enter(at(3_000), 11), 10, "the lease is over");
        assert_eq!(one.enter(at(5_000), 1), 0);
        assert_eq!(one.ask(&mut table, at(5_000), 1), Some(4));
        assert_eq!(one.share.share(), 0);
        assert_eq!(one.ask(&mut table, at(5_250), 0), None, "counted once");
        let renewal = two.holder.request(&two.share, at(5_300), 0);
        let renewed = two.execute(&mut table, at(5_300), &renewal);
        assert_eq!((renewed.held, renewed.share, renewed.total), (10, 6, 14), "recorded, and the other one gives way");
    }

    #[test]
    fn calls_that_were_recorded_by_a_request_without_a_reply_are_counted_too() {
        let (mut table, mut one) = (SlotTable::default(), Replica::new(1, 10));
        one.ask(&mut table, at(0), 10);
        assert_eq!(one.enter(at(0), 4), 4);
        let sent = one.holder.request(&one.share, at(5_000), 0);
        one.execute(&mut table, at(5_000), &sent);
        one.holder.failed(&sent, at(5_020));
        assert_eq!(one.ask(&mut table, at(5_270), 0), Some(4));
    }

    #[test]
    fn without_the_server_a_replica_keeps_its_last_share_or_has_a_part_of_the_cap() {
        let (mut table, mut one) = (SlotTable::default(), Replica::new(1, 10));
        assert_eq!(one.holder.degraded_share(4), 2);
        one.ask(&mut table, at(0), 6);
        assert_eq!(one.holder.degraded_share(4), 6);
        let lost = one.holder.request(&one.share, at(10_000), 1);
        assert_eq!((lost.request.keep, one.share.share()), (0, 0), "the lease is over");
        one.holder.failed(&lost, at(10_000));
        assert_eq!(one.holder.degraded_share(4), 6);
        assert!((0..6).all(|_| one.share.enter_without_lease(6)) && !one.share.enter_without_lease(6));
    }

    /// One step of a fleet of three.
    #[derive(Clone, Debug)]
    enum Step {
        Enter(usize),
        Leave(usize),
        /// Makes a request and executes it; the reply may be lost.
        Ask(usize, u32, bool),
        /// Executes an earlier request once more.
        Repeat(usize, usize),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..3_usize).prop_map(Step::Enter),
            3 => (0..3_usize).prop_map(Step::Leave),
            3 => (0..3_usize, 0..6_u32, prop::bool::weighted(0.8)).prop_map(|(by, callers, ok)| Step::Ask(by, callers, ok)),
            1 => (0..3_usize, any::<usize>()).prop_map(|(by, which)| Step::Repeat(by, which)),
            2 => (0..1_500_u64).prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        /// Calls of a replica that renews in time are all recorded, so the calls of all such replicas stay below the cap.
        #[test]
        fn recorded_calls_never_exceed_the_cap(cap in 1..12_u32, steps in steps()) {
            let (mut table, mut now) = (SlotTable::default(), at(1_000));
            let mut fleet = [1, 2, 3].map(|id| Replica::new(id, cap));
            let mut sent: [Vec<SentRequest>; 3] = Default::default();
            let mut recorded_until = [Time::ZERO; 3];
            let mut excused = [0_u32; 3]; // calls that were in flight without a share, until they end
            for step in steps {
                match step {
                    Step::Enter(by) => drop(fleet[by].share.enter(now)),
                    Step::Leave(by) => if fleet[by].share.in_use() > 0 {
                        fleet[by].share.leave();
                        excused[by] = excused[by].min(fleet[by].share.in_use());
                    },
                    Step::Ask(by, callers, arrives) => {
                        let Replica { share, holder, .. } = &mut fleet[by];
                        let request = holder.request(share, now, callers);
                        sent[by].push(request);
                        let reply = fleet[by].execute(&mut table, now, &request);
                        recorded_until[by] = now.after(LEASE);
                        let Replica { share, holder, .. } = &mut fleet[by];
                        if arrives {
                            holder.granted(share, &request, &reply);
                        } else {
                            holder.failed(&request, now);
                        }
                    }
                    Step::Repeat(by, which) => if !sent[by].is_empty() && now < recorded_until[by] {
                        let request = sent[by][which % sent[by].len()];
                        fleet[by].execute(&mut table, now, &request);
                    },
                    Step::Wait(millis) => now = now.after(Duration::from_millis(millis)),
                }
                for by in 0..3 {
                    if now >= recorded_until[by] {
                        excused[by] = fleet[by].share.in_use();
                    }
                }
                let calls: u32 = fleet.iter().map(|replica| replica.share.in_use()).sum();
                prop_assert!(calls <= cap + excused.iter().sum::<u32>(), "{calls} calls, {excused:?} excused");
            }
        }
    }
}
