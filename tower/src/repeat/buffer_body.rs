//! Buffering of HTTP request bodies: a small body of known size is read into memory and can be sent again; any other
//! body is sent once.
//!
//! * Known size (`Content-Length`, or a body in memory) up to the limit (64 KiB by default): read before the policy runs,
//!   within the task's deadline, so that a slow sender does not count against the service. Trailers are dropped.
//! * Larger, or of unknown size (a stream, `chunked`): not read, sent once, neither retried nor hedged. Waiting for the
//!   end of a stream could deadlock, if its sender waits for a response first.
//! * A body that breaks off while it is read: the request is rejected with `body_unreadable`, and nothing is sent.

use std::future::poll_fn;
use std::pin::pin;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::Request;
use http::request::Parts;
use http_body::Body;
use phalanx::{Context, Rejection, RejectionCode};

use super::{Prepared, Repeat};

/// The default limit of buffered bodies, in bytes.
pub(crate) const DEFAULT_BODY_LIMIT: u64 = 64 * 1024;

/// Repeats HTTP requests whose body has a known size within a limit.
#[derive(Clone, Copy, Debug)]
pub struct BufferBody<F = FromBytes> {
    pub(crate) limit: u64,
    pub(crate) rebuild: F,
}

/// Makes a body from buffered bytes.
pub trait RebuildBody<B>: Send + Sync + 'static {
    /// Returns a body of these bytes.
    fn rebuild(&self, bytes: Bytes) -> B;
}

/// Makes bodies that implement `From<Bytes>`: axum's, reqwest's, `Full<Bytes>`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FromBytes;

impl<B: From<Bytes>> RebuildBody<B> for FromBytes {
    fn rebuild(&self, bytes: Bytes) -> B {
        bytes.into()
    }
}

impl<B, F: Fn(Bytes) -> B + Send + Sync + 'static> RebuildBody<B> for F {
    fn rebuild(&self, bytes: Bytes) -> B {
        self(bytes)
    }
}

impl<B, F> Repeat<Request<B>> for BufferBody<F>
where
    B: Body + Send,
    B::Data: Send,
    B::Error: Send,
    F: RebuildBody<B>,
{
    type Template = (Parts, Bytes);

    async fn prepare(&self, request: Request<B>) -> Result<Prepared<Request<B>, Self::Template>, Rejection> {
        let Some(size) = request.body().size_hint().exact().filter(|size| *size <= self.limit) else {
            return Ok(Prepared::Once(request));
        };
        let (parts, body) = request.into_parts();
        let bytes = if size == 0 { Bytes::new() } else { self.read_within_deadline(body, size).await? };
        Ok(Prepared::Repeatable((parts, bytes)))
    }

    fn instantiate(&self, (parts, bytes): &Self::Template) -> Request<B> {
        Request::from_parts(parts.clone(), self.rebuild.rebuild(bytes.clone()))
    }
}

impl<F> BufferBody<F> {
    async fn read_within_deadline<B: Body>(&self, body: B, size: u64) -> Result<Bytes, Rejection> {
        let reading = read(body, size, self.limit);
        let bytes = match Context::current().deadline() {
            None => reading.await,
            Some(deadline) => match tokio::time::timeout_at(deadline, reading).await {
                Ok(bytes) => bytes,
                Err(_) => return Err(Rejection::new(RejectionCode::DeadlineExceeded)),
            },
        };
        bytes.ok_or(Rejection::new(RejectionCode::BodyUnreadable))
    }
}

/// Reads a body to its end. Returns none if it breaks off, or if it exceeds both its declared size and the limit.
async fn read<B: Body>(body: B, size: u64, limit: u64) -> Option<Bytes> {
    let mut body = pin!(body);
    let mut buffer = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let Ok(mut data) = frame.ok()?.into_data() else { continue };
        let length = data.remaining();
        if buffer.is_empty() && length as u64 == size {
            return Some(data.copy_to_bytes(length)); // the whole body in one frame: no copy if it is `Bytes`
        }
        if (buffer.len() + length) as u64 > limit {
            return None;
        }
        buffer.put(data);
    }
    Some(buffer.freeze())
}
