//! The leased permits of one replica: blocks that it draws from the fleet's bucket and grants to its callers by itself.
//!
//! ```text
//!   call ──► BlockCell::spend: one compare-and-swap, no lock
//!               │ none left, or half of them
//!               ▼
//!            LeaseHolder (under the store's lock) ──► draw ──► Bucket::draw ──► drawn: the current block, or the next one
//!               │ the lease ends, demand falls, the rate changes, the replica leaves
//!               ▼
//!            freeze ──► ClosedBlock ──► Bucket::close
//! ```
//!
//! * A block is as large as the replica's demand of half a lease, and is valid for nine tenths of the lease since the request
//!   for it was **sent**: the bucket's lease begins later, and clocks differ by less than the rest.
//! * A block is frozen before it is reported, and never reported twice. One whose reply was lost is never spent.
//! * A replica draws only while that pays: with at least [`MIN_BLOCK`] permits of demand in half a lease, and a lease of at
//!   least eight round trips. Otherwise every call asks the bucket.
//! * After a draw that got less than it wanted, the next one waits for a random time. The bucket keeps what is not asked for.

use std::time::Duration;

use super::{Drawn, MIN_BLOCK, Rate};
use crate::clock::{Time, micros};
use crate::striped::CacheLine;
use crate::sync::{AtomicU64, Ordering};

/// Round trips that a lease is worth at least.
const ROUND_TRIPS_PER_LEASE: u32 = 8;
/// The longest pause after a draw that got less than it wanted.
const MAX_PAUSE: Duration = Duration::from_millis(25);

/// Permits in the lower half of the word; the upper half counts the blocks.
const LEFT: u64 = 0xFFFF_FFFF;

/// The block that a replica spends: one word, changed by compare-and-swap, and what a spender needs to know of the block.
///
/// A block is replaced in two steps: the word is emptied and gets another number, then the rest is written. So a thread that
/// has read the rest of one block and the word of another fails to swap.
#[derive(Debug)]
pub struct BlockCell(CacheLine<Fields>);

#[derive(Debug)]
struct Fields {
    word: AtomicU64,
    /// The block is valid from then until then, on the replica's clock.
    from: AtomicU64,
    until: AtomicU64,
    /// When it was drawn, on the bucket's clock.
    drawn_at: AtomicU64,
    /// At this number of permits another block is worth drawing.
    low: AtomicU64,
}

/// Permits that were spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// Permits that the block has left.
    pub left: u32,
    /// When the block was drawn, on the bucket's clock: a refund names it.
    pub drawn_at: Time,
    /// Whether these permits were those by which the block became low, so that [`LeaseHolder::draw`] has to be asked.
    pub is_low: bool,
}

impl Default for BlockCell {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self(CacheLine(Fields { word: zero(), from: zero(), until: zero(), drawn_at: zero(), low: zero() }))
    }
}

impl BlockCell {
    /// Spends permits, if the block has as many and is valid at this time. The time must have been read after the last await.
    #[inline]
    pub fn spend(&self, now: Time, cost: u32) -> Option<Spent> {
        let fields = &self.0.0;
        let now = now.as_micros();
        let mut word = fields.word.load(Ordering::Acquire);
        loop {
            let left = (word & LEFT) as u32;
            let valid = now < fields.until.load(Ordering::Acquire) && now >= fields.from.load(Ordering::Acquire);
            if left < cost || !valid {
                return None;
            }
            let drawn_at = Time::from_micros(fields.drawn_at.load(Ordering::Acquire));
            let low = fields.low.load(Ordering::Acquire);
            match fields.word.compare_exchange(word, word - u64::from(cost), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let is_low = u64::from(left) > low && u64::from(left - cost) <= low;
                    return Some(Spent { left: left - cost, drawn_at, is_low });
                }
                Err(other) => word = other,
            }
        }
    }

    /// Returns the permits that are left, valid or not.
    fn left(&self) -> u64 {
        self.0.0.word.load(Ordering::Acquire) & LEFT
    }

    /// Ends the block. Returns the permits that were left: none of them will be spent.
    fn freeze(&self) -> u64 {
        let fields = &self.0.0;
        let mut word = fields.word.load(Ordering::Acquire);
        loop {
            let next = ((word >> 32) + 1) << 32;
            match fields.word.compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return word & LEFT,
                Err(other) => word = other,
            }
        }
    }

    /// Replaces the block. Only the thread that holds the lock of the holder does.
    fn install(&self, block: &Block) {
        self.freeze();
        let fields = &self.0.0;
        fields.from.store(block.from.as_micros(), Ordering::Release);
        fields.until.store(block.until.as_micros(), Ordering::Release);
        fields.drawn_at.store(block.drawn_at.as_micros(), Ordering::Release);
        fields.low.store(block.size / 2, Ordering::Release);
        fields.word.fetch_add(block.size, Ordering::AcqRel);
    }

    /// Puts permits back into the block, which has this size.
    fn put_back(&self, cost: u64, size: u64) {
        let put = |word: u64| Some(word - (word & LEFT) + ((word & LEFT) + cost).min(size));
        // Cannot fail: the closure always returns a value.
        let _ = self.0.0.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, put);
    }
}

/// A block of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) size: u64,
    from: Time,
    until: Time,
    drawn_at: Time,
    ends: Time,
}

/// A block that will not be spent any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedBlock {
    /// The end of its lease, on the bucket's clock: it identifies the lease.
    pub ends: Time,
    /// Permits that were drawn.
    pub size: u64,
    /// Permits that were not spent.
    pub unspent: u64,
}

/// What happened to the permits that a replica has leased so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseTally {
    /// Permits that were drawn.
    pub drawn: u64,
    /// Permits that were not spent, of blocks that were reported to the bucket.
    pub returned: u64,
    /// Permits that were not spent, of blocks that were not reported in time.
    pub expired: u64,
}

/// How many permits callers ask for in half a lease. Rises at once and falls by half.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    pub(super) since: Time,
    pub(super) asked: u64,
    pub(super) per_window: u64,
}

impl Demand {
    /// Takes the number of permits that were asked for so far.
    fn update(&mut self, now: Time, asked: u64, window: u64) {
        let passed = micros(now.since(self.since));
        if passed < window {
            return;
        }
        let new = u128::from(asked.saturating_sub(self.asked)) * u128::from(window) / u128::from(passed.max(1));
        let new = u64::try_from(new).unwrap_or(u64::MAX);
        let former = if passed < 2 * window { self.per_window } else { 0 };
        *self = Self { since: now, asked, per_window: new.max(u64::midpoint(new, former)) };
    }
}

/// The leased permits of one replica, beside its [`BlockCell`]. Every method is called under one lock, with the same cell and
/// with times of one monotonic clock.
#[derive(Debug, Default)]
pub struct LeaseHolder {
    /// The block in the cell.
    pub(super) current: Option<Block>,
    /// Drawn before the current one was used up.
    next: Option<Block>,
    closed: Vec<ClosedBlock>,
    pub(super) demand: Demand,
    /// Permits that were asked for and not taken from a block.
    pub(super) asked: u64,
    /// Permits that were taken from former blocks.
    spent: u64,
    /// Whether a draw is under way.
    drawing: bool,
    pub(super) paused_until: Time,
    tally: LeaseTally,
}

impl LeaseHolder {
    /// Spends permits that the cell does not have, from the next block if there is one. Otherwise they are counted as asked
    /// for.
    pub fn spend_next(&mut self, cell: &BlockCell, now: Time, cost: u32) -> Option<Spent> {
        let spent = if self.renew(cell, now) { cell.spend(now, cost) } else { None };
        if spent.is_none() {
            self.asked = self.asked.saturating_add(u64::from(cost));
        }
        spent
    }

    /// Replaces a block that is used up or has ended. Returns whether there is another one. A block that is used up stays until
    /// there is: permits may be put back into it.
    fn renew(&mut self, cell: &BlockCell, now: Time) -> bool {
        let ended = |block: &Block| now >= block.until || now < block.from;
        if let Some(block) = self.next.take_if(|block| ended(block)) {
            self.close(block, block.size);
        }
        let used_up = self.next.is_some() && cell.left() == 0;
        if self.current.is_some_and(|block| used_up || ended(&block)) {
            self.retire(cell);
        }
        let next = if self.current.is_none() { self.next.take() } else { None };
        if let Some(block) = next {
            cell.install(&block);
            self.current = Some(block);
        }
        next.is_some()
    }

    /// Freezes the current block.
    fn retire(&mut self, cell: &BlockCell) {
        if let Some(block) = self.current.take() {
            let unspent = cell.freeze();
            self.spent += block.size - unspent;
            self.close(block, unspent);
        }
    }

    fn close(&mut self, block: Block, unspent: u64) {
        if unspent > 0 {
            self.closed.push(ClosedBlock { ends: block.ends, size: block.size, unspent });
        }
    }

    /// Freezes all blocks: the rate changes, or the replica leaves.
    pub fn freeze(&mut self, cell: &BlockCell) {
        self.retire(cell);
        if let Some(block) = self.next.take() {
            self.close(block, block.size);
        }
    }

    /// Returns how many permits to draw, if a request for them is worth sending now. The caller sends it, and calls
    /// [`Self::drawn`] or [`Self::draw_failed`].
    pub fn draw(&mut self, cell: &BlockCell, now: Time, rate: Rate, round_trip: Duration) -> Option<u64> {
        self.renew(cell, now);
        let window = micros(rate.lease_time()) / 2;
        self.demand.update(now, self.asked_so_far(cell), window);
        let is_low = self.current.is_none_or(|block| cell.left() <= block.size / 2);
        let near = validity(rate.lease_time()) >= ROUND_TRIPS_PER_LEASE * round_trip;
        let want = self.demand.per_window.min(rate.max_block()).min(LEFT);
        let draws = !self.drawing && is_low && self.next.is_none() && now >= self.paused_until;
        (draws && near && want >= MIN_BLOCK).then(|| {
            self.drawing = true;
            want
        })
    }

    /// Takes the reply to a request for `want` permits that was sent at `sent`, which the bucket answered at `drawn_at`, on
    /// its clock, with a level of `level` units left. `chance` is a random number below 1. Returns until when the bucket is not
    /// worth asking, if there were fewer permits than wanted.
    #[allow(clippy::too_many_arguments)]
    pub fn drawn(
        &mut self,
        cell: &BlockCell,
        now: Time,
        rate: Rate,
        (sent, want): (Time, u64),
        (drawn_at, drawn): (Time, Drawn),
        level: i64,
        chance: f64,
    ) -> Option<Time> {
        self.drawing = false;
        let permits = drawn.permits.min(want);
        if permits > 0 {
            self.tally.drawn += permits;
            let until = sent.after(validity(drawn.lasts));
            let block = Block { size: permits, from: sent, until, drawn_at, ends: drawn.ends };
            match self.next {
                None => self.next = Some(block),
                Some(_) => self.close(block, permits),
            }
            self.renew(cell, now);
        }
        (permits < want).then(|| {
            let missing = (rate.price as i64).saturating_sub(level);
            let retry_after = rate.time_for(u64::try_from(missing).unwrap_or(0));
            let pause = MAX_PAUSE.min(rate.lease_time()).mul_f64(f64::midpoint(1.0, chance));
            self.paused_until = now.after(retry_after.max(pause));
            self.paused_until
        })
    }

    /// Notes that a request for permits got no reply. What it has drawn is lost.
    pub const fn draw_failed(&mut self) {
        self.drawing = false;
    }

    /// Freezes blocks that have ended, and all blocks if demand has fallen. Returns when to look again; `None` without blocks.
    pub fn tick(&mut self, cell: &BlockCell, now: Time, rate: Rate) -> Option<Time> {
        self.renew(cell, now);
        let window = micros(rate.lease_time()) / 2;
        self.demand.update(now, self.asked_so_far(cell), window);
        if self.demand.per_window < MIN_BLOCK {
            self.freeze(cell);
        }
        let ends = self.current.iter().chain(&self.next).map(|block| block.until).min()?;
        Some(ends.min(self.demand.since.after(Duration::from_micros(window))))
    }

    /// Takes the blocks that have to be reported, once. The caller reports them, and calls [`Self::reported`].
    pub fn take_closed(&mut self) -> Vec<ClosedBlock> {
        std::mem::take(&mut self.closed)
    }

    /// Notes whether blocks were reported. Those that were not are lost: the bucket is refilled when their leases have ended.
    pub fn reported(&mut self, blocks: &[ClosedBlock], answered: bool) {
        let counter = if answered { &mut self.tally.returned } else { &mut self.tally.expired };
        *counter += unspent(blocks);
    }

    /// Whether blocks have to be reported.
    pub fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Whether it has blocks.
    pub const fn holds(&self) -> bool {
        self.current.is_some() || self.next.is_some()
    }

    /// Puts permits back that were taken from the block which was drawn at this time. Returns whether it is still there.
    pub fn put_back(&mut self, cell: &BlockCell, now: Time, cost: u32, drawn_at: Time) -> bool {
        let block = self.current.filter(|block| block.drawn_at == drawn_at && now < block.until && now >= block.from);
        if let Some(block) = block {
            cell.put_back(u64::from(cost), block.size);
        }
        block.is_some()
    }

    /// Returns the permits that are drawn and neither spent nor reported.
    pub fn held(&self, cell: &BlockCell) -> u64 {
        let current = if self.current.is_some() { cell.left() } else { 0 };
        current + self.next.map_or(0, |block| block.size) + unspent(&self.closed)
    }

    /// Returns what happened to the permits.
    pub const fn tally(&self) -> LeaseTally {
        self.tally
    }

    /// Returns how many permits were asked for so far, here and from the cell.
    fn asked_so_far(&self, cell: &BlockCell) -> u64 {
        self.asked + self.spent + self.current.map_or(0, |block| block.size - cell.left().min(block.size))
    }
}

fn unspent(blocks: &[ClosedBlock]) -> u64 {
    blocks.iter().map(|block| block.unspent).sum()
}

/// Returns for how long a block of such a lease may be spent.
fn validity(lease: Duration) -> Duration {
    lease * 9 / 10
}
