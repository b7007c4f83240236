//! Serves `GET /metrics` over HTTP.

use std::future::ready;
use std::io;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use phalanx::telemetry::prometheus::{PATH, Page};
use tokio::net::TcpListener;

/// Serves the page for as long as the future is polled.
pub(crate) async fn serve(listener: TcpListener, page: Page) -> io::Result<()> {
    let answer = move || {
        let (content_type, text) = page.render();
        ready(([(CONTENT_TYPE, content_type)], text))
    };
    axum::serve(listener, Router::new().route(PATH, get(answer))).await
}
