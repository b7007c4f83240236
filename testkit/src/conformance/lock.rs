//! Conformance cases of `LockStore`: one owner at a time, increasing fences, and marks of completed work.

#![allow(missing_docs)] // the name of a case describes it

use std::time::Duration;

use phalanx_core::lock::{Acquired, LockStore};

use super::{MICRO, SECOND};
use crate::bed::LockBed;

const TTL: Duration = Duration::from_secs(30);

/// Tries to acquire a lock.
async fn ask<B: LockBed>(locks: &B::Locks, name: &str, owner: &str) -> Acquired {
    locks.acquire(name, owner, TTL).await.expect("the lock store replies")
}

/// Acquires a lock and returns its fence.
async fn take<B: LockBed>(locks: &B::Locks, name: &str, owner: &str) -> u64 {
    match ask::<B>(locks, name, owner).await {
        Acquired::Held { fence } => fence,
        taken @ Acquired::Taken { .. } => panic!("{owner} could not acquire {name}: {taken:?}"),
    }
}

fn left(acquired: Acquired) -> Option<Duration> {
    match acquired {
        Acquired::Held { .. } => None,
        Acquired::Taken { left, .. } => Some(left),
    }
}

pub async fn a_free_lock_is_taken_for_its_ttl<B: LockBed>() {
    let bed = B::new().await;
    let (a, b) = (bed.locks(), bed.locks());
    take::<B>(&a, "l", "a").await;
    bed.advance(TTL - MICRO).await;
    assert_eq!(left(ask::<B>(&b, "l", "b").await), Some(MICRO));
}

pub async fn a_lock_that_is_held_is_rejected_with_the_time_left<B: LockBed>() {
    let bed = B::new().await;
    let (a, b) = (bed.locks(), bed.locks());
    let fence = take::<B>(&a, "l", "a").await;
    bed.advance(SECOND).await;
    assert_eq!(ask::<B>(&b, "l", "b").await, Acquired::Taken { fence, left: TTL - SECOND });
}

pub async fn its_owner_may_take_it_again_under_a_higher_fence<B: LockBed>() {
    let bed = B::new().await;
    let (a, b) = (bed.locks(), bed.locks());
    let first = take::<B>(&a, "l", "a").await;
    bed.advance(SECOND).await;
    let second = take::<B>(&a, "l", "a").await;
    assert!(second > first, "{first}, then {second}");
    assert_eq!(ask::<B>(&b, "l", "b").await, Acquired::Taken { fence: second, left: TTL });
}

pub async fn a_late_release_of_its_owner_does_not_free_a_lock_that_was_taken_again<B: LockBed>() {
    let bed = B::new().await;
    let (a, b) = (bed.locks(), bed.locks());
    let first = take::<B>(&a, "l", "a").await;
    let second = take::<B>(&a, "l", "a").await;
    assert_eq!(a.release("l", "a", first).await, Ok(false));
    assert_eq!(a.complete("l", "a", first, "v1", TTL).await, Ok(false));
    assert_eq!(ask::<B>(&b, "l", "b").await, Acquired::Taken { fence: second, left: TTL });
    assert_eq!(a.renew("l", "a", second, TTL).await, Ok(true));
}

pub async fn a_lock_that_ran_out_is_free<B: LockBed>() {
    let bed = B::new().await;
    let (a, b) = (bed.locks(), bed.locks());
    take::<B>(&a, "l", "a").await;
    bed.advance(TTL).await;
    take::<B>(&b, "l", "b").await;
    assert_eq!(left(ask::<B>(&a, "l", "a").await), Some(TTL));
}

pub async fn every_new_holder_has_a_higher_fence<B: LockBed>() {
    let bed = B::new().await;
    let (a, b) = (bed.locks(), bed.locks());
    let mut fences = vec![take::<B>(&a, "l", "a").await];
    // Released while the clock stands still; expired; completed; acquired again by the same owner.
    assert_eq!(a.release("l", "a", fences[0]).await, Ok(true));
    fences.push(take::<B>(&b, "l", "b").await);
    bed.advance(TTL).await;
    fences.push(take::<B>(&a, "l", "a").await);
    assert_eq!(a.complete("l", "a", fences[2], "1", SECOND).await, Ok(true));
    fences.push(take::<B>(&a, "l", "a").await);
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}

pub async fn different_names_never_share_a_lock<B: LockBed>() {
    let bed = B::new().await;
    let locks = bed.locks();
    for name in ["l", "L", "", "l:f", "{l}", "l\n"] {
        take::<B>(&locks, name, name).await;
    }
}

pub async fn a_renewed_lock_is_held_for_another_ttl<B: LockBed>() {
    let bed = B::new().await;
    let (a, b) = (bed.locks(), bed.locks());
    let fence = take::<B>(&a, "l", "a").await;
    bed.advance(TTL - MICRO).await;
    assert_eq!(a.renew("l", "a", fence, 2 * TTL).await, Ok(true));
    assert_eq!(ask::<B>(&b, "l", "b").await, Acquired::Taken { fence, left: 2 * TTL });
}

pub async fn a_lock_that_ran_out_cannot_be_renewed<B: LockBed>() {
    let bed = B::new().await;
    let locks = bed.locks();
    let fence = take::<B>(&locks, "l", "a").await;
    bed.advance(TTL).await;
    assert_eq!(locks.renew("l", "a", fence, TTL).await, Ok(false));
    take::<B>(&locks, "l", "b").await;
}

pub async fn a_lock_that_another_owner_took_cannot_be_renewed<B: LockBed>() {
    let bed = B::new().await;
    let (a, b) = (bed.locks(), bed.locks());
    let old = take::<B>(&a, "l", "a").await;
    bed.advance(TTL).await;
    let new = take::<B>(&b, "l", "b").await;
    bed.advance(SECOND).await;
    assert_eq!(a.renew("l", "a", old, TTL).await, Ok(false));
    assert_eq!(a.renew("l", "a", new, TTL).await, Ok(false));
    assert_eq!(b.renew("l", "b", old, TTL).await, Ok(false));
    assert_eq!(left(ask::<B>(&a, "l", "a").await), Some(TTL - SECOND));
}

pub async fn a_released_lock_is_free_at_once<B: LockBed>() {
    let bed = B::new().await;
    let (a, b) = (bed.locks(), bed.locks());
    let fence = take::<B>(&a, "l", "a").await;
    assert_eq!(a.release("l", "a", fence).await, Ok(true));
    take::<B>(&b, "l", "b").await;
    assert_eq!(a.release("l", "a", fence).await, Ok(false));
}

pub async fn a_release_by_another_owner_changes_nothing<B: LockBed>() {
    let bed = B::new().await;
    let (a, b) = (bed.locks(), bed.locks());
    let fence = take::<B>(&a, "l", "a").await;
    assert_eq!(b.release("l", "b", fence).await, Ok(false));
    assert_eq!(b.release("l", "a", fence + 1).await, Ok(false));
    assert_eq!(b.release("other", "a", fence).await, Ok(false));
    assert_eq!(left(ask::<B>(&b, "l", "b").await), Some(TTL));
}

pub async fn a_lock_that_is_withdrawn_from_is_free_at_once<B: LockBed>() {
    let bed = B::new().await;
    let (a, b) = (bed.locks(), bed.locks());
    take::<B>(&a, "l", "a").await;
    assert_eq!(a.withdraw("l", "a").await, Ok(true));
    take::<B>(&b, "l", "b").await;
    bed.advance(TTL).await;
    assert_eq!(b.withdraw("l", "b").await, Ok(false), "it has run out");
    assert_eq!(b.withdraw("free", "b").await, Ok(false));
}

pub async fn a_withdrawal_by_another_owner_changes_nothing<B: LockBed>() {
    let bed = B::new().await;
    let (a, b) = (bed.locks(), bed.locks());
    take::<B>(&a, "l", "a").await;
    assert_eq!(b.withdraw("l", "b").await, Ok(false));
    assert_eq!(left(ask::<B>(&b, "l", "b").await), Some(TTL));
}

pub async fn completed_work_is_marked_with_its_fence_and_its_lock_is_free<B: LockBed>() {
    let bed = B::new().await;
    let (a, b) = (bed.locks(), bed.locks());
    let first = take::<B>(&a, "l", "a").await;
    assert_eq!(b.completed("l", "v1").await, Ok(None));
    assert_eq!(a.complete("l", "a", first, "v1", TTL).await, Ok(true));
    assert_eq!(b.completed("l", "v1").await, Ok(Some(first)));
    let second = take::<B>(&b, "l", "b").await;
    assert_eq!(b.complete("l", "b", second, "v1", TTL).await, Ok(true));
    assert_eq!(a.completed("l", "v1").await, Ok(Some(second)));
}

pub async fn work_whose_lock_was_lost_is_not_marked<B: LockBed>() {
    let bed = B::new().await;
    let (a, b) = (bed.locks(), bed.locks());
    let old = take::<B>(&a, "l", "a").await;
    bed.advance(TTL).await;
    take::<B>(&b, "l", "b").await;
    assert_eq!(a.complete("l", "a", old, "v1", TTL).await, Ok(false));
    let expired = take::<B>(&a, "m", "a").await;
    bed.advance(TTL).await;
    assert_eq!(a.complete("m", "a", expired, "v1", TTL).await, Ok(false), "expired, although still free");
    assert_eq!((b.completed("l", "v1").await, b.completed("m", "v1").await), (Ok(None), Ok(None)));
}

pub async fn a_mark_is_of_one_name_and_one_version<B: LockBed>() {
    let bed = B::new().await;
    let locks = bed.locks();
    let fence = take::<B>(&locks, "l", "a").await;
    assert_eq!(locks.complete("l", "a", fence, "v1", TTL).await, Ok(true));
    assert_eq!(locks.completed("l", "v2").await, Ok(None));
    assert_eq!(locks.completed("m", "v1").await, Ok(None));
}

pub async fn a_mark_that_is_not_read_is_forgotten_after_its_time<B: LockBed>() {
    let bed = B::new().await;
    let locks = bed.locks();
    let fence = take::<B>(&locks, "l", "a").await;
    assert_eq!(locks.complete("l", "a", fence, "v1", TTL).await, Ok(true));
    bed.advance(TTL).await;
    assert_eq!(locks.completed("l", "v1").await, Ok(None));
}

pub async fn a_mark_that_is_read_is_kept_for_another_time<B: LockBed>() {
    let bed = B::new().await;
    let locks = bed.locks();
    let fence = take::<B>(&locks, "l", "a").await;
    assert_eq!(locks.complete("l", "a", fence, "v1", TTL).await, Ok(true));
    for _ in 0..2 {
        bed.advance(TTL - MICRO).await;
        assert_eq!(locks.completed("l", "v1").await, Ok(Some(fence)));
    }
    bed.advance(TTL).await;
    assert_eq!(locks.completed("l", "v1").await, Ok(None));
}
