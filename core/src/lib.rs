//! The core of Phalanx: policies, the pipeline, the algorithms of every stage and the traits of the stores.
//!
//! ```text
//!   engine.run("vendor", "eu", || http.get(url))
//!     │
//!     ▼  engine      two names → one pipeline
//!     ▼  pipeline    1 gate      drain · deadline
//!     │              2 admit     rate limit → bulkhead (queue) → breaker | throttle ──┐
//!     │              3 attempt   retry ⟲ hedge ⇉ timeout ⏱ the operation             ├─► Store
//!     │              4 settle    classify, then give everything back ────────────────┘
//!     │              5 answer    event · fallback · Result
//!     ▼
//!   Ok(T) | Err(Rejected(rejection)) | Err(Inner(e))
//! ```
//!
//! Most users want the `phalanx` crate, which adds the stores and `ResilienceModule`. Use this one to write a store, or to
//! use an algorithm by itself: [`rate_limit::Bucket`], [`bulkhead::Bulkhead`], [`breaker::Breaker`],
//! [`throttle::Throttle`], [`retry::Backoff`] and the estimators take the time as an argument.
//!
//! Each stage is a module with the same files: `spec.rs` holds the configuration, the module itself the state machine,
//! and `tests.rs` its guarantees. A small stage is one file.

pub mod breaker;
pub mod budget;
pub mod bulkhead;
pub mod call;
pub mod chaos;
pub mod classify;
pub mod clock;
pub mod context;
pub mod decision;
pub mod drain;
pub mod engine;
pub mod error;
pub mod estimate;
pub mod event;
pub mod fallback;
pub mod guard;
pub mod hedge;
pub mod key;
pub mod kind;
pub mod levers;
pub mod lock;
pub mod pipeline;
pub mod policy;
pub mod rate_limit;
pub mod rejection;
pub mod retry;
pub mod rng;
#[cfg(feature = "schema")]
pub mod schema;
pub mod slots;
pub mod store;
#[doc(hidden)] // shared with the stores and the metrics
pub mod striped;
#[doc(hidden)] // shared with the stores
pub mod sync;
pub mod table;
pub mod tally;
#[doc(hidden)] // shared with the stores, lifecycle and the simulator
pub mod task;
pub mod throttle;
pub mod timeout;
pub mod top_keys;
