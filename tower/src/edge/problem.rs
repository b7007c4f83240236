//! Problem documents (RFC 9457), the body of every rejection at the edge.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

/// A problem document.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Problem {
    /// The URI of the documentation of the problem type.
    #[serde(rename = "type")]
    pub(crate) type_uri: String,
    pub(crate) title: &'static str,
    pub(crate) status: u16,
    /// The code in logs and metrics.
    pub(crate) code: &'static str,
    /// Selects the message that a client shows to its users: an area and a reason.
    pub(crate) message_id: String,
    /// In whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after: Option<u64>,
}

impl Problem {
    /// Returns the document as a response, with `Retry-After` if it has one.
    pub(crate) fn into_response<B: From<Bytes>>(self) -> Response<B> {
        let body = serde_json::to_vec(&self).unwrap_or_default(); // strings and numbers only: cannot fail
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
