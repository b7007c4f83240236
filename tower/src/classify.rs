//! Classification of results beyond `Classify`: by a closure, by one kind for all errors, by gRPC status.

use phalanx::internal::core::classify::Classifier;
use phalanx::{Class, Classify, Kind};

/// Classifies the whole result with a closure.
#[derive(Clone, Copy, Debug)]
pub struct ByClosure<F>(pub(crate) F);

impl<T, E, F: Fn(&Result<T, E>) -> Class> Classifier<T, E> for ByClosure<F> {
    #[inline]
    fn class(&self, result: &Result<T, E>) -> Class {
        (self.0)(result)
    }
}

/// Classifies responses by `Classify` and every error as one kind, for clients whose errors do not implement `Classify`.
#[derive(Clone, Copy, Debug)]
pub struct ErrorsAs(pub(crate) Kind);

impl<T: Classify, E> Classifier<T, E> for ErrorsAs {
    #[inline]
    fn class(&self, result: &Result<T, E>) -> Class {
        match result {
            Ok(response) => response.classify(),
            Err(_) => self.0.into(),
        }
    }
}

/// Classifies responses by the `grpc-status` in their headers (present if the call failed before its first message),
/// else by their HTTP status. Every error of the service is `infrastructure`: the connection to the peer failed.
#[cfg(feature = "tonic")]
#[derive(Clone, Copy, Debug, Default)]
pub struct ByGrpcStatus;

#[cfg(feature = "tonic")]
impl<B, E> Classifier<http::Response<B>, E> for ByGrpcStatus {
    fn class(&self, result: &Result<http::Response<B>, E>) -> Class {
        match result {
            Ok(response) if response.headers().contains_key(tonic::Status::GRPC_STATUS) => {
                tonic::Status::from_header_map(response.headers()).map_or(Class::SUCCESS, |status| status.classify())
            }
            Ok(response) => response.classify(),
            Err(_) => Kind::Infrastructure.into(),
        }
    }
}
