//! The route: a guarded call to the upstream, and the HTTP responses of its rejections.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use phalanx::{Error, Rejection, ResilienceModule};

use crate::upstream::{BadGateway, Upstream};

#[derive(Clone)]
struct Quotes {
    module: ResilienceModule,
    upstream: Upstream,
}

pub(crate) fn routes(module: ResilienceModule, upstream: Upstream) -> Router {
    Router::new().route("/quote/{region}", get(quote)).with_state(Quotes { module, upstream })
}

/// A price from the upstream of the region. Each region has its own breaker.
async fn quote(State(Quotes { module, upstream }): State<Quotes>, Path(region): Path<String>) -> Response {
    match module.run("vendor", region.as_str(), || upstream.price()).await {
        Ok(price) => format!("{price}\n").into_response(),
        Err(Error::Rejected(rejection)) => rejected(&module, &rejection),
        Err(Error::Inner(BadGateway)) => (StatusCode::BAD_GATEWAY, "the upstream failed\n").into_response(),
    }
}

/// A rejection as a response: its status, and `Retry-After` in whole seconds.
fn rejected(module: &ResilienceModule, rejection: &Rejection) -> Response {
    let status = StatusCode::from_u16(module.status(rejection)).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let mut headers = HeaderMap::new();
    if let Some(wait) = rejection.retry_after() {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    (status, headers, format!("{}\n", rejection.code())).into_response()
}
