//! The edge of a service: request headers become the task's [`Context`](phalanx::Context), and decisions of a policy become
//! response headers.
//!
//! ```text
//!   X-Request-Timeout: 800      ┌───────────┐  scope(deadline, criticality)  ┌─────────┐  forward(&mut headers)
//!   X-Criticality: degraded ───►│ EdgeLayer │───────────────────────────────►│ handler │─────────► next hop: 640
//!                               │           │◄───────────────────────────────│         │
//!   504 · 503 + Retry-After ◄───└───────────┘  RejectionResponse,            └─────────┘
//!                                              HandlerError, Degradable
//! ```
//!
//! * Request headers are untrusted input. They are parsed within bounds. They can shorten the server's deadline and not
//!   lengthen it, and lower the criticality and not raise it, unless the peer is trusted. Malformed values are ignored and
//!   counted.
//! * A request whose deadline has passed is answered 504 without calling the handler. A handler that does not finish in
//!   time is cancelled, and its request is answered 504 too.
//! * A rejection becomes a response with the status of its code (or the module's own status), a problem document (RFC
//!   9457) and, if a retry can succeed, a `Retry-After`.
//!
//! The layer uses `http` types and `tower` traits only. It works with axum, and with hyper and any body that implements
//! `From<Bytes>`. With the feature `axum`, handlers return [`RejectionResponse`], [`HandlerError`] and [`Degradable`]:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::extract::State;
//! use axum::http::StatusCode;
//! use axum::{Router, routing::get};
//! use phalanx::{BulkheadSpec, Policy, ResilienceModule};
//! use phalanx_tower::edge::{Degradable, EdgeLayer, HandlerError};
//! use std::time::Duration;
//!
//! # async fn fetch() -> Result<String, std::io::Error> { Ok("7.99".to_owned()) }
//! // The service decides how to answer the dependency's own errors.
//! fn bad_gateway(error: std::io::Error) -> (StatusCode, String) {
//!     (StatusCode::BAD_GATEWAY, error.to_string())
//! }
//!
//! type HandlerResult<T> = Result<T, HandlerError<(StatusCode, String)>>;
//!
//! async fn price(State(module): State<ResilienceModule>) -> HandlerResult<Degradable<String>> {
//!     let served = module.call("prices", ()).run_served(fetch).await;
//!     Ok(served.map_err(|error| HandlerError::map(error, bad_gateway))?.into())
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

mod counts;
mod criticality;
mod deadline;
mod degradable;
mod forward;
mod layer;
mod problem;
mod rejection_response;
mod service;
mod trace_parent;

use http::HeaderName;

pub use self::counts::EdgeCounts;
pub use self::degradable::{Degradable, set_degraded_header, set_rate_limit_headers};
pub use self::forward::{forward, forward_grpc};
pub use self::layer::EdgeLayer;
#[cfg(feature = "idempotency")]
pub(crate) use self::problem::Problem;
pub use self::rejection_response::{HandlerError, RejectionResponse};
pub use self::service::EdgeService;

/// The client's timeout, in whole milliseconds.
pub const REQUEST_TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout");
/// The client's deadline, in RFC 3339.
pub const REQUEST_DEADLINE: HeaderName = HeaderName::from_static("x-request-deadline");
/// The timeout of a gRPC client: digits and a unit.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// `best_effort`, `degraded`, `normal` or `critical`.
pub const CRITICALITY: HeaderName = HeaderName::from_static("x-criticality");
/// In a response, the milliseconds left of the deadline; in a request, with any value, asks for that header.
pub const DEADLINE_REMAINING: HeaderName = HeaderName::from_static("x-deadline-remaining");
/// Marks an answer that came from a fallback.
pub const DEGRADED: HeaderName = HeaderName::from_static("x-degraded");
/// The remaining permits of a rate limit (draft-ietf-httpapi-ratelimit-headers).
pub const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The quota and window of a rate limit.
pub const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
