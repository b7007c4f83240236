//! The `Idempotency-Key` header: a write that is sent twice happens once and is answered twice.
//!
//! ```text
//!   POST /pay  Idempotency-Key: k     claim(k) ─► claimed ──► the handler, in its own task ─► complete(k, answer)
//!   POST /pay  Idempotency-Key: k     claim(k) ─► running ──► waits up to `wait` ─► the same answer, or 409
//!   POST /pay  Idempotency-Key: k     claim(k) ─► answered ─► the same answer, Idempotency-Replayed: true
//!   POST /pay  … another body         claim(k) ─► mismatch ─► 409
//! ```
//!
//! The layer applies to POST, PUT, PATCH and DELETE requests with the header. All other requests pass unchanged.
//!
//! * **One effect.** The handler runs in its own task. A client that times out or disconnects does not cancel it: it runs
//!   to its end, its answer is stored, and the retry gets that answer. For the same reason the handler's deadline is
//!   `finish_within` (60 s) and not the client's. The client is still answered 504 at its own deadline.
//! * **If the store is away when the handler ends**, the answer is offered at least every second until the store has it,
//!   for as long as the `lease` and at least for two minutes; meanwhile this replica answers retries itself. Claims are
//!   renewed every 10 s, so with the default lease the key stays claimed through an outage of two minutes, and no replica
//!   runs the handler again.
//! * **A handler that has lost its claim is cancelled** at its next await: the store has lost the claim and another request
//!   holds the key. A claim that was lost and is free is taken again. The client gets a 409, and its retry the answer of
//!   the other request. What the handler had done by then stays.
//! * **Stored answers** have a status below 500. A 5xx, a rejection of a policy, and the temporary statuses 401, 407, 408,
//!   423, 425 and 429 release the key, so that a retry runs the handler again. A handler that fails must therefore have no
//!   effect, or one that can be repeated. A panic releases the key too. If `finish_within` cancels the handler, its effect
//!   is unknown, so the claim stays until its `lease` ends.
//! * **An answer that is too large to store** is sent with `Idempotency-Stored: false`. A retry does not run the handler
//!   again and gets a 409.
//! * **If a replica crashes**, its claims end after `lease` (150 s). Until then retries wait or get a 409.
//! * **Duplicates wait for a push** of the answer, and poll every second in case it was lost. A store without pushes is
//!   polled up to four times a second.
//! * **Limits**: keys of 255 visible characters, request bodies of 1 MiB, stored answers of 64 KiB, 1,024 waiting duplicates
//!   of at most 5 s each, and 1,024 running handlers.
//! * **Fails closed**: if the store is unavailable, requests are rejected with 503 `store_unavailable`, unless
//!   [`OnUnavailable::Pass`] is configured.
//!
//! A key belongs to the caller's credentials: by default the `Authorization` and `Cookie` headers are part of it, so that
//! no caller sees the answer of another. If tokens or cookies change between retries, or the tenant is known otherwise, use
//! [`IdempotencyLayer::scope`]. `Set-Cookie` is not stored: a replayed answer sets no cookies, unless
//! [`IdempotencyLayer::store_cookies`] is configured.
//!
//! | problem | status | `code` | `message_id` |
//! |---|---|---|---|
//! | the key is required and missing | 400 | `idempotency_key_missing` | `VALIDATION.idempotency_key_missing` |
//! | the key is too long, repeated, or not visible ASCII | 400 | `idempotency_key_invalid` | `VALIDATION.idempotency_key_invalid` |
//! | the body could not be read | 400 | `idempotency_body_unreadable` | `VALIDATION.idempotency_body_unreadable` |
//! | the body is too large to be compared | 413 | `idempotency_body_too_large` | `VALIDATION.idempotency_body_too_large` |
//! | another request has the same key | 409 | `idempotency_mismatch` | `CONFLICT.idempotency_mismatch` |
//! | the first request is still running | 409 | `idempotency_in_progress` | `CONFLICT.idempotency_in_progress` |
//! | answered, but the answer was not stored | 409 | `idempotency_answer_not_stored` | `CONFLICT.idempotency_answer_not_stored` |
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::{Router, routing::post};
//! use phalanx_tower::edge::EdgeLayer;
//! use phalanx_tower::idempotency::{IdempotencyLayer, MemoryIdempotency};
//!
//! let idempotency = IdempotencyLayer::new(MemoryIdempotency::new()).required(true);
//! let app: Router = Router::new()
//!     .route("/payments", post(async || "paid"))
//!     .layer(idempotency)
//!     .layer(EdgeLayer::new()); // outermost: it binds the client's deadline
//! # let _ = app;
//! ```

mod counts;
mod detached;
mod layer;
mod memory;
mod problem;
#[cfg(feature = "redis")]
mod redis;
mod replay_body;
mod service;
mod store;
mod stored_answer;
mod unstored;

use http::HeaderName;

pub use self::counts::IdempotencyCounts;
pub use self::layer::{IdempotencyLayer, OnUnavailable};
pub use self::memory::MemoryIdempotency;
#[cfg(feature = "redis")]
pub use self::redis::RedisIdempotency;
pub use self::replay_body::ReplayBody;
pub use self::service::IdempotencyService;
pub use self::store::{Claim, ClaimReply, IdempotencyStore, Unavailable};
pub use self::stored_answer::StoredAnswer;

/// The client's name for a request. A second request of the same name is a duplicate.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// `true` on an answer that was sent before.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// `false` on an answer that was not stored.
pub const STORED: HeaderName = HeaderName::from_static("idempotency-stored");
