//! A problem document (RFC 9457): what every rejection at the edge looks like.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

/// What a problem document says.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Problem {
    /// Where the kind of problem is explained.
    #[serde(rename = "type")]
    pub(crate) explained_at: String,
    pub(crate) title: &'static str,
    pub(crate) status: u16,
    /// The name in logs and metrics.
    pub(crate) code: &'static str,
    /// What clients tell their users by: an area and a reason.
    pub(crate) message_id: String,
    /// Whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after: Option<u64>,
}

impl Problem {
    /// The response, with its `Retry-After` if there is a time to come back.
    pub(crate) fn into_response<B: From<Bytes>>(self) -> Response<B> {
        let body = serde_json::to_vec(&self).unwrap_or_default(); // plain strings and numbers: nothing can fail
        let mut response = Response::new(B::from(Bytes::from(body)));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
