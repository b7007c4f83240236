//! Classification of `reqwest` errors and responses.

use super::{Class, Classify};
use crate::kind::Kind;

impl Classify for reqwest::Error {
    fn classify(&self) -> Class {
        if let Some(status) = self.status() {
            status.classify()
        } else if self.is_builder() || self.is_redirect() {
            Kind::Configuration.into()
        } else if self.is_decode() {
            Kind::Internal.into()
        } else {
            // Connect, timeout, request, body: the dependency cannot be reached.
            Kind::Infrastructure.into()
        }
    }
}

impl Classify for reqwest::Response {
    fn classify(&self) -> Class {
        let mut class = self.status().classify();
        if class.kind.is_some() {
            let header = self.headers().get(http::header::RETRY_AFTER);
            class.retry_after = super::retry_after_seconds(header.and_then(|v| v.to_str().ok()));
        }
        class
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_classified_by_its_status() {
        let response: reqwest::Response =
            http::Response::builder().status(429).header("retry-after", "2").body("").unwrap().into();
        let class = response.classify();
        assert_eq!(class.kind, Some(Kind::Throttled));
        assert_eq!(class.retry_after, Some(std::time::Duration::from_secs(2)));
        let error = response.error_for_status().unwrap_err();
        assert_eq!(error.classify().kind, Some(Kind::Throttled));
    }
}
