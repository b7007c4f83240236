//! What results mean, beyond what `phalanx::internal::core::call` has: a closure, foreign errors, gRPC.

use phalanx::internal::core::classify::Classifier;
use phalanx::{Class, Classify, Kind};

/// A closure over the whole result.
#[derive(Clone, Copy, Debug)]
pub struct Reading<F>(pub(crate) F);

impl<T, E, F: Fn(&Result<T, E>) -> Class> Classifier<T, E> for Reading<F> {
    #[inline]
    fn class(&self, result: &Result<T, E>) -> Class {
        (self.0)(result)
    }
}

/// Answers say what they are, any error is of one kind: for clients whose errors do not implement `Classify`.
#[derive(Clone, Copy, Debug)]
pub struct ErrorsAs(pub(crate) Kind);

impl<T: Classify, E> Classifier<T, E> for ErrorsAs {
    #[inline]
    fn class(&self, result: &Result<T, E>) -> Class {
        match result {
            Ok(answer) => answer.classify(),
            Err(_) => self.0.into(),
        }
    }
}

/// Answers by their `grpc-status`, as far as it stands in the headers (an error that was known before the first
/// message), else by their HTTP status. Any error of the service is `infrastructure`: the way to the peer is broken.
#[cfg(feature = "tonic")]
#[derive(Clone, Copy, Debug, Default)]
pub struct ByGrpcStatus;

#[cfg(feature = "tonic")]
impl<B, E> Classifier<http::Response<B>, E> for ByGrpcStatus {
    fn class(&self, result: &Result<http::Response<B>, E>) -> Class {
        match result {
            Ok(answer) if answer.headers().contains_key(tonic::Status::GRPC_STATUS) => {
                tonic::Status::from_header_map(answer.headers()).map_or(Class::SUCCESS, |status| status.classify())
            }
            Ok(answer) => answer.classify(),
            Err(_) => Kind::Infrastructure.into(),
        }
    }
}
