//! How a request is sent more than once, for retries and hedges. Without either in the policy, requests are moved and
//! never copied.

mod buffer_body;

use std::convert::Infallible;
use std::future::{Future, ready};

use phalanx::Rejection;

pub(crate) use self::buffer_body::DEFAULT_BODY_LIMIT;
pub use self::buffer_body::{BufferBody, FromBytes, RebuildBody};

/// Turns a request into a template from which each attempt gets its own request.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot send a `{R}` more than once",
    note = "an HTTP body must implement `From<Bytes>`, or be made by a function given to `rebuild_body`",
    note = "for requests that are not HTTP: `any_service()`, which clones them",
    note = "for requests that cannot be repeated: `send_once()`, which neither retries nor hedges"
)]
pub trait Repeat<R>: Send + Sync + 'static {
    /// What the request of each attempt is made from.
    type Template: Send;

    /// Prepares a request for its attempts.
    ///
    /// # Errors
    /// Returns a rejection if the request had to be read and could not be.
    fn prepare(&self, request: R) -> impl Future<Output = Result<Prepared<R, Self::Template>, Rejection>> + Send;

    /// Makes the request of one attempt.
    fn instantiate(&self, template: &Self::Template) -> R;
}

/// A request before its first attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prepared<R, T> {
    /// Can be sent once: neither retried nor hedged, whatever the policy allows.
    Once(R),
    /// Can be sent as often as the policy allows.
    Repeatable(T),
}

/// Sends every request once.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendOnce;

impl<R: Send> Repeat<R> for SendOnce {
    type Template = Infallible;

    fn prepare(&self, request: R) -> impl Future<Output = Result<Prepared<R, Infallible>, Rejection>> + Send {
        ready(Ok(Prepared::Once(request)))
    }

    fn instantiate(&self, template: &Infallible) -> R {
        match *template {}
    }
}

/// Clones the request for each attempt.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneRequest;

impl<R: Clone + Send> Repeat<R> for CloneRequest {
    type Template = R;

    fn prepare(&self, request: R) -> impl Future<Output = Result<Prepared<R, R>, Rejection>> + Send {
        ready(Ok(Prepared::Repeatable(request)))
    }

    fn instantiate(&self, template: &R) -> R {
        template.clone()
    }
}
