//! A replica of the fleet under test: a module over Redis, callers, and a dependency whose behaviour the test controls.
//!
//! ```text
//!   test ── Command ─► replica ── callers ──► module ──► Redis
//!        ◄─ Report ───   │ ledger: results of the calls
//!                        │ event log: events emitted to observers
//! ```
//!
//! A [`LocalReplica`] runs in the test process. The program `replica` runs one in a child process, which can be stopped
//! and killed; [`ReplicaProcess`] is its handle in the test. Both execute the same commands and return the same reports,
//! and all times in them are of one clock ([`Moment`]), so that reports of different processes can be compared.

mod callers;
mod commands;
mod dependency;
mod event_log;
mod ledger;
mod local;
mod moment;
mod process;
mod starvation;

pub use self::commands::{Command, Gauges, Load, Report, Setup};
pub use self::dependency::DependencyBehavior;
pub use self::event_log::{LoggedEvent, LoggedKind};
pub use self::ledger::{Span, Tally, WaitStats};
pub use self::local::LocalReplica;
pub use self::moment::Moment;
pub use self::process::ReplicaProcess;
