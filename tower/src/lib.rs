//! Policies on what people already have: tower services, axum routers, HTTP clients.
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
//!     .service(service_fn(async |words: String| Ok::<_, Infallible>(words.len())));
//! assert_eq!(service.oneshot("shoes".to_owned()).await?, 5);
//! # Ok(())
//! # }
//! ```
//!
//! [`ResilienceLayer`] is the way in; the modules hold what its type is made of, one choice each: which pipeline
//! ([`choose`]), how a request is sent again ([`repeat`]), what a result means ([`read`]), what becomes of a rejection
//! ([`reject`]). At the edge of a service stand `edge` (deadlines and criticality in, rejections out) and `idempotency`, each
//! behind its feature.

pub mod choose;
#[cfg(feature = "edge")]
pub mod edge;
#[cfg(feature = "idempotency")]
pub mod idempotency;
mod layer;
pub mod read;
pub mod reject;
pub mod repeat;
#[cfg(feature = "reqwest")]
pub mod reqwest;
mod service;

pub use self::layer::ResilienceLayer;
pub use self::reject::BoxError;
pub use self::service::{Resilience, ResponseFuture};
