//! The no-op spans, where the feature `tracing` is off: zero-sized, and every method is empty.

use std::time::Duration;

use crate::decision::Decision;
use crate::key::StateKey;
use crate::kind::{Kind, Outcome};

/// No names.
pub(crate) struct SpanNames;

impl SpanNames {
    pub(crate) const fn new(_: &StateKey, _: bool) -> Self {
        Self
    }

    pub(crate) const fn any(&self) -> bool {
        false
    }
}

/// No span.
#[derive(Default)]
pub(crate) struct Trace(());

/// The guard of no span.
pub(crate) struct Entered;

impl Trace {
    #[inline(always)]
    pub(crate) const fn begin(_: &SpanNames) -> Self {
        Self(())
    }

    #[inline(always)]
    pub(crate) const fn is_live(&self) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) const fn enter(&self) -> Entered {
        Entered
    }

    #[inline(always)]
    pub(crate) const fn enter_call(&self) -> Entered {
        Entered
    }

    #[inline(always)]
    pub(crate) const fn begin_attempt(&mut self, _: u32, _: Option<Duration>) {}

    #[inline(always)]
    pub(crate) const fn begin_hedge(&self, _: u32, _: Option<Duration>, _: u32) -> Self {
        Self(())
    }

    #[inline(always)]
    pub(crate) const fn end_attempt(&mut self, _: Outcome, _: Option<Kind>) {}

    #[inline(always)]
    pub(crate) const fn adopt(&mut self, _: &mut Self) {}

    #[inline(always)]
    pub(crate) const fn end(&mut self, _: Option<Outcome>, _: Option<Kind>, _: &Decision, _: bool) {}

    #[inline(always)]
    pub(crate) const fn mark_degraded(&mut self) {}
}

/// Returns the work unchanged.
pub(crate) const fn in_current_span<F>(work: F) -> F {
    work
}
