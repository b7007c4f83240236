//! Every interleaving of threads on one block of leased permits, explored by loom: `make model`.

use loom::sync::Arc;
use loom::thread;

use super::*;

fn at(micros: u64) -> Time {
    Time::from_micros(micros)
}

/// Takes a block of this size that is valid until 90 % of `lasts` have passed since zero.
fn take_block(holder: &mut LeaseHolder, cell: &BlockCell, permits: u64, lasts: u64, drawn_at: u64) {
    let rate = Rate::of(&RateLimitSpec::per_second(10_000));
    let drawn = Drawn { permits, ends: at(1_000), lasts: Duration::from_micros(lasts) };
    holder.drawn(cell, at(0), rate, (at(0), permits), (at(drawn_at), drawn), 0, 0.0);
}

#[test]
fn a_permit_of_a_block_that_is_closed_is_spent_or_given_back() {
    loom::model(|| {
        let (cell, mut holder) = (Arc::new(BlockCell::default()), LeaseHolder::default());
        take_block(&mut holder, &cell, 2, 100, 1);
        let other = cell.clone();
        let thread = thread::spawn(move || u64::from(other.spend(at(7), 1).is_some()));
        holder.freeze(&cell);
        let unspent: u64 = holder.take_closed().iter().map(|block| block.unspent).sum();
        assert_eq!(unspent + thread.join().unwrap(), 2);
    });
}

#[test]
fn a_block_is_spent_by_its_own_end_and_not_by_that_of_another() {
    loom::model(|| {
        let (cell, mut holder) = (Arc::new(BlockCell::default()), LeaseHolder::default());
        take_block(&mut holder, &cell, 1, 100, 1);
        let other = cell.clone();
        let thread = thread::spawn(move || other.spend(at(50), 1).map(|spent| spent.drawn_at));
        holder.freeze(&cell);
        // The next block has ended by then.
        take_block(&mut holder, &cell, 1, 10, 2);
        let spent = thread.join().unwrap();
        assert!(spent.is_none() || spent == Some(at(1)), "{spent:?}");
        assert_eq!(holder.held(&cell), 2 - u64::from(spent.is_some()));
    });
}

#[test]
fn a_permit_that_is_put_back_is_spent_once_or_left() {
    loom::model(|| {
        let (cell, mut holder) = (Arc::new(BlockCell::default()), LeaseHolder::default());
        take_block(&mut holder, &cell, 1, 100, 1);
        assert!(cell.spend(at(7), 1).is_some());
        let other = cell.clone();
        let thread = thread::spawn(move || u64::from(other.spend(at(7), 1).is_some()));
        assert!(holder.put_back(&cell, at(7), 1, at(1)));
        assert_eq!(thread.join().unwrap() + holder.held(&cell), 1);
    });
}
