//! Every order in which calls and a drain can meet on a stripe, explored by loom: `make model`.

use std::sync::atomic::AtomicBool;
use std::task::Wake;

use loom::sync::Arc;
use loom::thread;

use super::*;

/// FAULTS I-12: no call is let in after the door was shut, and none that was let in is missed.
#[test]
fn a_call_is_counted_before_the_door_shuts_or_sees_it_shut() {
    loom::model(|| {
        let stripe = Arc::new(Stripe::new());
        let other = stripe.clone();
        let call = thread::spawn(move || other.enter(false));
        stripe.drain();
        let counted = stripe.in_flight();
        assert_eq!(stripe.in_flight(), counted, "nobody comes in any more");
        assert_eq!(u64::from(call.join().unwrap()), counted);
    });
}

#[test]
fn the_last_call_out_of_a_shut_door_says_so_or_is_not_counted_any_more() {
    loom::model(|| {
        let stripe = Arc::new(Stripe::new());
        assert!(stripe.enter(false));
        let other = stripe.clone();
        let call = thread::spawn(move || other.leave());
        stripe.drain();
        let left = stripe.in_flight();
        let told = call.join().unwrap();
        assert!(told || left == 0, "who waits would wait for ever");
        assert_eq!(stripe.in_flight(), 0);
    });
}

#[test]
fn a_call_inside_another_passes_a_door_that_is_shut_but_not_one_that_is_closed() {
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

struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_call_that_goes_to_sleep_while_it_is_cancelled_is_told_or_woken() {
    loom::model(|| {
        let stripe = Arc::new(Stripe::new());
        let bell = std::sync::Arc::new(Bell(AtomicBool::new(false)));
        let (other, waker) = (stripe.clone(), Waker::from(bell.clone()));
        let call = thread::spawn(move || {
            let bed = AtomicU32::new(AWAKE);
            let told = other.sleep(&bed, &waker);
            (told, bed.into_inner())
        });
        stripe.cancel();
        let (told, bed) = call.join().unwrap();
        assert!(told || bell.0.load(Ordering::SeqCst));
        stripe.wake_up(bed);
    });
}
