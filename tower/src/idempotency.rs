//! `Idempotency-Key`: a write that is sent twice happens once, and is answered twice.
//!
//! ```text
//!   POST /pay  Idempotency-Key: k     claim(k) ─► mine ────► the handler, as a task of its own ─► complete(k, answer)
//!   POST /pay  Idempotency-Key: k     claim(k) ─► running ─► waits a little ─► the same answer, or 409
//!   POST /pay  Idempotency-Key: k     claim(k) ─► answered ► the same answer, Idempotency-Replayed: true
//!   POST /pay  … another body         claim(k) ─► another request ─► 409
//! ```
//!
//! What it promises, for POST, PUT, PATCH and DELETE with the header (and lets pass everything else):
//!
//! * **One effect.** The handler runs as a task of its own. A client that times out, or a proxy that hangs up, does not
//!   stop it half way: it runs on, its answer is kept, and the retry gets that. For the same reason the work is not under
//!   the client's deadline but under `finish_within` (60 s); the client is answered 504 at its own deadline as ever.
//! * **What is kept** are answers of the handler below 500. A 5xx, a rejection of a policy, and whatever says "not now" (401,
//!   407, 408, 423, 425, 429) give the key back, so that a retry may run: a handler that fails must have done
//!   nothing, or be able to do it again. A panic gives the key back too. Work that is cut off by `finish_within` leaves
//!   its claim to run out (`lease`), because nobody knows what it did.
//! * **An answer too large to keep** is given to its client with `Idempotency-Stored: false`, and that it was given is kept:
//!   a retry is told so with a 409 rather than run again.
//! * **A replica that dies** loses its claims after `lease` (30 s); until then retries wait or get 409.
//! * **Bounded**: keys to 255 visible characters, request bodies to 1 MiB, kept answers to 64 KiB, waiting duplicates to
//!   1,024 at a time, each for at most 5 s, and work to 1,024 at a time.
//! * **Fails closed**: without its store the layer rejects (503, `store_unavailable`), unless told to let pass.
//!
//! A key belongs to the caller's credentials: by default the `Authorization` header is part of it, so that nobody is shown
//! another's answer. Where tokens change between tries, or a tenant is known otherwise, say so with
//! [`IdempotencyLayer::scope`].
//!
//! | answer | status | `code` | `message_id` |
//! |---|---|---|---|
//! | no key, and one is required | 400 | `idempotency_key_missing` | `VALIDATION.idempotency_key_missing` |
//! | too long, repeated, or not visible ASCII | 400 | `idempotency_key_invalid` | `VALIDATION.idempotency_key_invalid` |
//! | the body could not be read | 400 | `idempotency_body_unreadable` | `VALIDATION.idempotency_body_unreadable` |
//! | the body is too large to be compared | 413 | `idempotency_body_too_large` | `VALIDATION.idempotency_body_too_large` |
//! | another request under the same key | 409 | `idempotency_mismatch` | `CONFLICT.idempotency_mismatch` |
//! | still being worked on | 409 | `idempotency_in_progress` | `CONFLICT.idempotency_in_progress` |
//! | answered, but the answer was not kept | 409 | `idempotency_answer_not_kept` | `CONFLICT.idempotency_answer_not_kept` |
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
//!     .layer(EdgeLayer::new()); // outside: its deadline is the client's, not the work's
//! # let _ = app;
//! ```

mod body;
mod counts;
mod kept;
mod layer;
mod memory;
mod problems;
#[cfg(feature = "redis")]
mod redis;
mod service;
mod store;
mod work;

use http::HeaderName;

pub use self::body::ReplayBody;
pub use self::counts::IdempotencyCounts;
pub use self::kept::Kept;
pub use self::layer::{IdempotencyLayer, OnUnavailable};
pub use self::memory::MemoryIdempotency;
#[cfg(feature = "redis")]
pub use self::redis::RedisIdempotency;
pub use self::service::IdempotencyService;
pub use self::store::{Claim, IdempotencyStore, Ticket, Unavailable};

/// EventKind a client calls its request by, so that a second one is known for the same.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// `true` on an answer that was given before.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// `false` on an answer that will not be given again.
pub const STORED: HeaderName = HeaderName::from_static("idempotency-stored");
