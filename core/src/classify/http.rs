//! Classification of HTTP statuses (RFC 9110).

use http::{Response, StatusCode, header::RETRY_AFTER};

use super::{Class, Classify, retry_after_seconds};
use crate::kind::Kind;

impl Classify for StatusCode {
    fn classify(&self) -> Class {
        let kind = match self.as_u16() {
            0..400 => return Class::SUCCESS,
            400 | 405 | 406 | 411 | 413..=417 | 422 | 431 => Kind::Validation,
            401 | 407 => Kind::Authentication,
            403 | 451 => Kind::Authorization,
            404 | 410 => Kind::NotFound,
            409 => Kind::Conflict,
            412 | 428 => Kind::Precondition,
            429 => Kind::Throttled,
            // The peer timed out waiting for the request, or did not want to risk a replay: sending it again helps.
            408 | 425 => Kind::Infrastructure,
            423 => Kind::Concurrency,
            501 | 505 => Kind::Configuration,
            500.. => Kind::Infrastructure,
            _ => Kind::Domain,
        };
        kind.into()
    }
}

/// By the status, with the response's `Retry-After` in seconds.
impl<B> Classify for Response<B> {
    fn classify(&self) -> Class {
        let mut class = self.status().classify();
        if class.kind.is_some() {
            let header = self.headers().get(RETRY_AFTER);
            class.retry_after = retry_after_seconds(header.and_then(|v| v.to_str().ok()));
        }
        class
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_status_from_400_on_is_a_failure_and_no_lower_one() {
        for status in 100..1000 {
            let class = StatusCode::from_u16(status).unwrap().classify();
            assert_eq!(class.kind.is_none(), status < 400, "{status}");
        }
    }

    #[test]
    fn unavailable_is_infrastructure_too_many_requests_throttled_and_not_found_an_answer() {
        assert_eq!(StatusCode::SERVICE_UNAVAILABLE.classify().kind, Some(Kind::Infrastructure));
        assert_eq!(StatusCode::TOO_MANY_REQUESTS.classify().kind, Some(Kind::Throttled));
        assert_eq!(StatusCode::NOT_FOUND.classify().kind, Some(Kind::NotFound));
    }

    #[test]
    fn the_retry_after_of_a_response_is_read() {
        let response = Response::builder().status(503).header(RETRY_AFTER, "3").body(()).unwrap();
        assert_eq!(response.classify().retry_after, Some(Duration::from_secs(3)));
    }
}
