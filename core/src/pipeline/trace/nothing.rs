//! The stand-in where the feature `tracing` is off: nothing, in no bytes.

use std::time::Duration;

use crate::decision::Decision;
use crate::key::StateKey;
use crate::kind::{Kind, Outcome};

/// Nothing to write on a span.
pub(crate) struct Traced;

impl Traced {
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

/// Being inside no span.
pub(crate) struct Entered;

impl Trace {
    #[inline(always)]
    pub(crate) const fn begin(_: &Traced) -> Self {
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
    pub(crate) const fn begin_copy(&self, _: u32, _: Option<Duration>, _: u32) -> Self {
        Self(())
    }

    #[inline(always)]
    pub(crate) const fn end_attempt(&mut self, _: Outcome, _: Option<Kind>) {}

    #[inline(always)]
    pub(crate) const fn adopt(&mut self, _: &mut Self) {}

    #[inline(always)]
    pub(crate) const fn end(&mut self, _: Option<Outcome>, _: Option<Kind>, _: &Decision, _: bool) {}

    #[inline(always)]
    pub(crate) const fn degrade(&mut self) {}
}

/// The work as it is.
pub(crate) const fn carried<F>(work: F) -> F {
    work
}
