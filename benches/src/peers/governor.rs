//! `governor`: a direct (unkeyed) limiter with its default clock, checked.

use std::num::NonZeroU32;

use governor::{Quota, RateLimiter};

use crate::settings::UNREACHABLE_RATE;

pub(crate) fn check() -> impl FnMut() -> bool {
    let rate = NonZeroU32::new(UNREACHABLE_RATE).unwrap_or(NonZeroU32::MAX);
    let limiter = RateLimiter::direct(Quota::per_second(rate));
    move || limiter.check().is_ok()
}
