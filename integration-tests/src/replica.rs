//! A replica of the fleet under test: a module over Redis, callers, and a dependency that does as it is told.
//!
//! ```text
//!   test ── Order ──► Worker ── callers ──► module ──► Redis
//!        ◄─ Report ──   │ ledger: what became of the calls
//!                       │ ear: what observers were told
//! ```
//!
//! A [`Worker`] is a replica in the test's own process. The program `replica` is one in a process of its own, so that it
//! can be stopped and killed; a [`Child`] is the test's end of it. Both take the same orders and give the same reports,
//! and all moments in them are of one clock ([`Moment`]), so that what two processes saw can be compared.

mod callers;
mod child;
mod dependency;
mod ear;
mod ledger;
mod moment;
mod orders;
mod starvation;
mod worker;

pub use self::child::Child;
pub use self::dependency::Behaviour;
pub use self::ear::{Heard, Told};
pub use self::ledger::{Span, Tally, Waits};
pub use self::moment::Moment;
pub use self::orders::{Gauges, Load, Order, Report, Setup};
pub use self::worker::Worker;
