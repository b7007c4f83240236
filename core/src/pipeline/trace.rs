//! Spans of `tracing`: one for a call, and inside it one for each attempt and each hedge.
//!
//! ```text
//!   phalanx.call  INFO   policy route · attempts outcome code error.type breaker_state deadline_remaining_ms source …
//!     ├─ phalanx.attempt  DEBUG  attempt timeout_ms hedge · outcome error.type
//!     ├─ phalanx.attempt
//! ```
//!
//! Guarantees:
//! * The operation runs inside the span of its attempt, in every poll, and so does everything it calls; waits do not.
//! * Events are emitted, and a fallback answers, inside the span of the call.
//! * Every span ends with an outcome, however the call ends: `cancelled` if the caller dropped the future.
//! * A module that is not traced pays one null check per poll; without the feature it pays nothing.
//!
//! This is not an [`Observer`](crate::event::Observer), because events are emitted after the fact: a span has to exist
//! while its work runs.

#[cfg_attr(feature = "tracing", path = "trace/spans.rs")]
#[cfg_attr(not(feature = "tracing"), path = "trace/noop.rs")]
mod chosen;

pub(crate) use self::chosen::{SpanNames, Trace, in_current_span};
