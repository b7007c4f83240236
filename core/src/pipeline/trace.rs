//! Spans of `tracing`: one for a call, and inside it one for each attempt and each copy of one.
//!
//! ```text
//!   phalanx.call  INFO   policy route · attempts outcome code error.type breaker_state deadline_remaining_ms source …
//!     ├─ phalanx.attempt  DEBUG  attempt timeout_ms hedge · outcome error.type
//!     ├─ phalanx.attempt
//! ```
//!
//! What it promises:
//! * the operation runs inside its attempt's span, in every poll, and so does whatever it calls; waits are outside;
//! * observers are told, and a fallback answers, inside the call's span;
//! * whatever becomes of a call, its span ends with an outcome: a call whose caller went away is `cancelled`;
//! * a module that is not traced pays one test of a pointer for each poll; without the feature there is nothing to pay.
//!
//! Not an observer, which is told of things after they happened: a span has to be there while they do.

#[cfg_attr(feature = "tracing", path = "trace/spans.rs")]
#[cfg_attr(not(feature = "tracing"), path = "trace/nothing.rs")]
mod chosen;

pub(crate) use self::chosen::{Trace, Traced, carried};
