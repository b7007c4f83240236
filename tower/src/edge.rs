//! The edge of a service: what a request's headers ask for becomes the task's [`Context`](phalanx::Context), and what a
//! policy decides becomes headers again.
//!
//! ```text
//!   X-Request-Timeout: 800      ┌───────────┐  scope(deadline, criticality)  ┌─────────┐  forward(&mut headers)
//!   X-Criticality: degraded ───►│ EdgeLayer │───────────────────────────────►│ handler │─────────► next hop: 640
//!                               │           │◄───────────────────────────────│         │
//!   504 · 503 + Retry-After ◄───└───────────┘  RejectionResponse · HandlerError · Degradable     └─────────┘
//! ```
//!
//! What it promises:
//!
//! * a header is a hint from a stranger: it is read within bounds, may shorten what the server allows and never
//!   lengthen it, may lower a request's criticality and not raise it unless the peer is trusted; what makes no sense
//!   is ignored and counted;
//! * who has no time left is answered 504 without troubling the handler, and so is who waits for a handler that
//!   does not end;
//! * a rejection is one table's status (or the module's own), a problem document (RFC 9457) and, wherever coming back
//!   makes sense, a `Retry-After`.
//!
//! The layer speaks `http` types and `tower` traits only: it serves axum, and hyper with any body that can be made of
//! bytes. With the feature `axum`, [`RejectionResponse`], [`HandlerError`] and [`Degradable`] are what handlers return:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::extract::State;
//! use axum::http::StatusCode;
//! use axum::{Router, routing::get};
//! use phalanx::{BulkheadSpec, Policy, ResilienceModule};
//! use phalanx_tower::edge::{Answer, EdgeLayer, Failed};
//! use std::time::Duration;
//!
//! # async fn fetch() -> Result<String, std::io::Error> { Ok("7.99".to_owned()) }
//! // What becomes of the dependency's own errors is the service's business.
//! fn bad_gateway(error: std::io::Error) -> (StatusCode, String) {
//!     (StatusCode::BAD_GATEWAY, error.to_string())
//! }
//!
//! async fn price(State(module): State<ResilienceModule>) -> Result<Answer<String>, Failed<(StatusCode, String)>> {
//!     let served = module.call("prices", ()).run_served(fetch).await.map_err(|e| Failed::map(e, bad_gateway))?;
//!     Ok(served.into())
//! }
//!
//! # fn main() -> Result<(), phalanx::ConfigError> {
//! let module = ResilienceModule::in_memory()
//!     .policy(Policy::named("prices").bulkhead(BulkheadSpec::fixed(16)).timeout(Duration::from_millis(300)))
//!     .build()?;
//! let edge = EdgeLayer::new().max_deadline(Duration::from_secs(5)).module(&module);
//! let app: Router = Router::new().route("/price", get(price)).with_state(module).layer(edge);
//! # let _ = app;
//! # Ok(())
//! # }
//! ```

mod answer;
mod budget;
mod counts;
mod forward;
mod importance;
mod layer;
mod parent;
mod problem;
mod rejection_response;
mod service;

use http::HeaderName;

pub use self::answer::{Degradable, mark_degraded, mark_rate_limit};
pub use self::counts::EdgeCounts;
pub use self::forward::{forward, forward_grpc};
pub use self::layer::EdgeLayer;
#[cfg(feature = "idempotency")]
pub(crate) use self::problem::Problem;
pub use self::rejection_response::{HandlerError, RejectionResponse};
pub use self::service::EdgeService;

/// How long the client waits, in whole milliseconds.
pub const REQUEST_TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout");
/// Until when the client waits, in RFC 3339.
pub const REQUEST_DEADLINE: HeaderName = HeaderName::from_static("x-request-deadline");
/// How long a gRPC client waits: digits and a unit.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// `best_effort`, `degraded`, `normal` or `critical`.
pub const CRITICALITY: HeaderName = HeaderName::from_static("x-criticality");
/// In a response, the milliseconds that were left when it was ready; in a request, whatever its value, asks for that.
pub const DEADLINE_REMAINING: HeaderName = HeaderName::from_static("x-deadline-remaining");
/// Marks an answer that came from a fallback.
pub const DEGRADED: HeaderName = HeaderName::from_static("x-degraded");
/// EventKind is left of a rate limit (draft-ietf-httpapi-ratelimit-headers).
pub const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// EventKind the rate limit is.
pub const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
