//! Phalanx without a backend: policies, the pipeline, the algorithms of every stage and the traits of the stores.
//!
//! ```text
//!   engine.run("vendor", "eu", || http.get(url))
//!     │
//!     ▼  engine      two names → one pipeline
//!     ▼  pipeline    1 gate      deadline
//!     │              2 admit     rate limit → breaker | throttle ──┐
//!     │              3 attempt   retry ⟲ timeout ⏱ the operation   ├─► Store
//!     │              4 settle    classify, then record ────────────┘
//!     │              5 answer    event · fallback · Result
//!     ▼
//!   Ok(T) | Err(Rejected(why)) | Err(Inner(e))
//! ```
//!
//! Most people want the `phalanx` crate, which adds stores and the front door. This one is for writing a store, or for
//! using an algorithm by itself: [`rate_limit::Bucket`], [`breaker::Breaker`], [`throttle::Throttle`],
//! [`retry::Backoff`] and the estimators are plain values that are given the time.

pub mod breaker;
pub mod budget;
pub mod call;
pub mod classify;
pub mod clock;
pub mod context;
pub mod decision;
pub mod engine;
pub mod error;
pub mod estimate;
pub mod event;
pub mod fallback;
pub mod guard;
pub mod key;
pub mod kind;
pub mod pipeline;
pub mod policy;
pub mod rate_limit;
pub mod rejection;
pub mod retry;
pub mod rng;
pub mod store;
pub mod table;
pub mod throttle;
pub mod timeout;
