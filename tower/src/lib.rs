//! Phalanx policies for tower services, axum routers, gRPC and HTTP clients.
//!
//! ```
//! use std::convert::Infallible;
//! use phalanx::{BulkheadSpec, Policy, RateLimitSpec, ResilienceModule};
//! use phalanx_tower::ResilienceLayer;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let search = Policy::named("search").rate_limit(RateLimitSpec::per_second(100)).bulkhead(BulkheadSpec::fixed(16));
//! let module = ResilienceModule::in_memory().policy(search).build()?;
//!
//! let service = ServiceBuilder::new()
//!     .layer(ResilienceLayer::new(&module, "search")?.route("eu")?.any_service())
//!     .service(service_fn(async |query: String| Ok::<_, Infallible>(query.len())));
//! assert_eq!(service.oneshot("shoes".to_owned()).await?, 5);
//! # Ok(())
//! # }
//! ```
//!
//! Start with [`ResilienceLayer`]. Its type has four parameters, one for each module: which pipeline a request goes through
//! ([`select`]), how a request is sent again ([`repeat`]), how a result is classified ([`classify`]), and what a rejection
//! becomes ([`reject`]).
//!
//! Behind features, for the edge of a service: `edge` (deadline and criticality from request headers, rejections as
//! responses), `idempotency` (the `Idempotency-Key` header) and `reqwest` (a client under a policy).

pub mod classify;
#[cfg(feature = "edge")]
pub mod edge;
#[cfg(feature = "idempotency")]
pub mod idempotency;
mod layer;
pub mod reject;
pub mod repeat;
#[cfg(feature = "reqwest")]
pub mod reqwest;
pub mod select;
mod service;

pub use self::layer::ResilienceLayer;
pub use self::reject::BoxError;
pub use self::service::{Resilience, ResponseFuture};

/// Compiles and runs the code of the README.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct ReadmeDocTests;
