//! `/readyz` and `/livez` as routes of axum: `Router::new().merge(probe_routes(&runtime))`.

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::probes::LIVE;
use crate::runtime::Runtime;

/// `GET /readyz`: 200 `ready`, 503 `draining` or 503 `unavailable`, as JSON with details. `GET /livez`: 200 as long as
/// anything is answered at all.
pub fn probe_routes<S: Clone + Send + Sync + 'static>(runtime: &Runtime) -> Router<S> {
    let runtime = runtime.clone();
    let ready = move || {
        let readiness = runtime.readiness();
        std::future::ready(json(readiness.status.http(), readiness.to_json()))
    };
    Router::new().route("/readyz", get(ready)).route("/livez", get(async || json(200, LIVE.to_owned())))
}

fn json(status: u16, body: String) -> impl IntoResponse {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    (status, [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], body)
}
