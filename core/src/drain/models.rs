//! Loom models of a stripe: every interleaving of calls with a drain. Run by `make model`.

use std::sync::atomic::AtomicBool;
use std::task::Wake;

use loom::sync::Arc;
use loom::thread;

use super::*;

/// I-12 (docs/guarantees.md): no call is admitted after the drain has begun, and none that was admitted is missed.
#[test]
fn a_call_is_counted_before_the_drain_or_rejected_by_it() {
    loom::model(|| {
        let stripe = Arc::new(Stripe::new());
        let other = stripe.clone();
        let call = thread::spawn(move || other.enter(false));
        stripe.drain();
        let counted = stripe.in_flight();
        assert_eq!(stripe.in_flight(), counted, "no call is admitted any more");
        assert_eq!(u64::from(call.join().unwrap()), counted);
    });
}

#[test]
fn the_last_call_to_leave_notifies_the_drain_or_is_not_counted_by_it() {
    loom::model(|| {
        let stripe = Arc::new(Stripe::new());
        assert!(stripe.enter(false));
        let other = stripe.clone();
        let call = thread::spawn(move || other.leave());
        stripe.drain();
        let left = stripe.in_flight();
        let notified = call.join().unwrap();
        assert!(notified || left == 0, "the drain would wait for ever");
        assert_eq!(stripe.in_flight(), 0);
    });
}

#[test]
fn a_nested_call_is_admitted_while_the_gate_drains_but_not_once_it_is_closed() {
    loom::model(|| {
        let stripe = Arc::new(Stripe::new());
        assert!(stripe.enter(false));
        stripe.drain();
        let other = stripe.clone();
        let nested = thread::spawn(move || other.enter(true));
        stripe.close();
        let counted = stripe.in_flight();
        assert_eq!(1 + u64::from(nested.join().unwrap()), counted);
    });
}

struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_call_that_starts_to_wait_while_it_is_cancelled_sees_it_or_is_woken() {
    loom::model(|| {
        let stripe = Arc::new(Stripe::new());
        let woken = std::sync::Arc::new(WakeFlag(AtomicBool::new(false)));
        let (other, waker) = (stripe.clone(), Waker::from(woken.clone()));
        let call = thread::spawn(move || {
            let slot = AtomicU32::new(NO_WAKER);
            let cancelled = other.poll_cancelled(&slot, &waker);
            (cancelled, slot.into_inner())
        });
        stripe.cancel();
        let (cancelled, slot) = call.join().unwrap();
        assert!(cancelled || woken.0.load(Ordering::SeqCst));
        stripe.release_waker(slot);
    });
}
