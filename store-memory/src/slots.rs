//! The slots of one key: core's share without a lease, which is the whole cap.

use phalanx_core::clock::Time;
use phalanx_core::rejection::Source;
use phalanx_core::slots::share::SlotShare;
use phalanx_core::store::SlotReply;
use phalanx_core::table::{Entry, Retention};

/// The slots of one key.
#[derive(Debug)]
pub struct SlotCell(SlotShare);

impl Entry for SlotCell {
    fn retention(&self) -> Retention {
        if self.0.in_use() == 0 { Retention::Disposable } else { Retention::Pinned }
    }
}

impl SlotCell {
    /// Creates free slots.
    pub fn new(cap: u32) -> Self {
        Self(SlotShare::unleased(cap))
    }

    /// Sets the cap. Calls in flight stay.
    pub fn retune(&self, cap: u32) {
        self.0.set_share(cap);
    }

    /// Takes a slot, if one is free.
    #[inline]
    pub fn take(&self, now: Time) -> SlotReply {
        SlotReply { is_granted: self.0.enter(now), source: Source::Local }
    }

    /// Returns a slot.
    #[inline]
    pub fn give_back(&self) {
        self.0.leave();
    }
}
