//! How a request is sent more than once. Asked only when the policy retries or hedges; without either, requests are
//! moved and never copied.

mod body;

use std::convert::Infallible;
use std::future::{Future, ready};

use phalanx::Rejection;

pub(crate) use self::body::BODY_LIMIT;
pub use self::body::{Buffered, FromBytes, RebuildBody};

/// Keeps a request so that copies of it can be sent.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot send a `{R}` more than once",
    note = "an HTTP body must be made `From<Bytes>`, or by a function given to `rebuild_body`",
    note = "for requests that are not HTTP: `any_service()`, which clones them",
    note = "for requests that nobody can repeat: `once()`, which neither retries nor hedges"
)]
pub trait Repeat<R>: Send + Sync + 'static {
    /// What copies are made of.
    type Kept: Send;

    /// Makes the request repeatable, or says that it is not.
    ///
    /// # Errors
    /// Where that took reading it, and it could not be read.
    fn keep(&self, request: R) -> impl Future<Output = Result<Held<R, Self::Kept>, Rejection>> + Send;

    /// A copy to be sent.
    fn copy(&self, kept: &Self::Kept) -> R;
}

/// A request before its first attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held<R, K> {
    /// To be sent once: neither retried nor hedged, whatever the policy says.
    Once(R),
    /// To be sent as often as the policy likes.
    Often(K),
}

/// Nothing is sent twice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Once;

impl<R: Send> Repeat<R> for Once {
    type Kept = Infallible;

    fn keep(&self, request: R) -> impl Future<Output = Result<Held<R, Infallible>, Rejection>> + Send {
        ready(Ok(Held::Once(request)))
    }

    fn copy(&self, kept: &Infallible) -> R {
        match *kept {}
    }
}

/// Requests are cloned.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cloned;

impl<R: Clone + Send> Repeat<R> for Cloned {
    type Kept = R;

    fn keep(&self, request: R) -> impl Future<Output = Result<Held<R, R>, Rejection>> + Send {
        ready(Ok(Held::Often(request)))
    }

    fn copy(&self, kept: &R) -> R {
        kept.clone()
    }
}
