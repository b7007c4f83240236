//! Classification of gRPC statuses, with the server's push-back as `Retry-After`.

use std::time::Duration;

use tonic::{Code, Status};

use super::{Class, Classify, retry_after_seconds};
use crate::kind::Kind;

impl Classify for Status {
    fn classify(&self) -> Class {
        let kind = match self.code() {
            Code::Ok => return Class::SUCCESS,
            Code::Unavailable | Code::Unknown | Code::DataLoss | Code::Cancelled | Code::Internal => {
                Kind::Infrastructure
            }
            Code::DeadlineExceeded => Kind::Timeout,
            Code::ResourceExhausted => Kind::Throttled,
            Code::Aborted => Kind::Concurrency,
            Code::InvalidArgument | Code::OutOfRange => Kind::Validation,
            Code::FailedPrecondition => Kind::Precondition,
            Code::NotFound => Kind::NotFound,
            Code::AlreadyExists => Kind::Conflict,
            Code::Unauthenticated => Kind::Authentication,
            Code::PermissionDenied => Kind::Authorization,
            Code::Unimplemented => Kind::Configuration,
        };
        let text = |name| self.metadata().get(name).and_then(|v| v.to_str().ok());
        // gRPC's own header (proposal A6), in milliseconds, takes precedence over HTTP's.
        let pushback = text("grpc-retry-pushback-ms").and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
        Class { kind: Some(kind), retry_after: pushback.or_else(|| retry_after_seconds(text("retry-after"))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_push_back_of_an_unavailable_server_is_read() {
        let mut status = Status::unavailable("warming up");
        assert_eq!(status.classify(), Kind::Infrastructure.into());
        assert_eq!(Status::internal("reset").classify(), Kind::Infrastructure.into(), "as a 500 is");
        let wait = "250".parse().unwrap();
        status.metadata_mut().insert("grpc-retry-pushback-ms", wait);
        assert_eq!(status.classify().retry_after, Some(Duration::from_millis(250)));
    }
}
