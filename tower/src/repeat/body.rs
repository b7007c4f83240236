//! The body rule: what is small and of known size is read into memory and can be sent again; everything else is sent
//! once.
//!
//! * Known size (`Content-Length`, or a body in memory) up to the limit (64 KiB unless told otherwise): read before the
//!   policy is asked, within the task's deadline, so that a slow sender is never blamed on the service. Trailers of such
//!   a body are not sent on.
//! * Larger, or of unknown size (a stream, `chunked`): not touched, sent once, neither retried nor hedged. To wait for
//!   the end of a stream could be to wait for an answer to what it says.
//! * A body that breaks off while it is read is rejected with `body_unreadable`: nothing is sent.

use std::future::poll_fn;
use std::pin::pin;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::Request;
use http::request::Parts;
use http_body::Body;
use phalanx::{Context, Rejection, RejectionCode};

use super::{Held, Repeat};

/// The largest body that is buffered, unless told otherwise.
pub(crate) const BODY_LIMIT: u64 = 64 * 1024;

/// HTTP requests, repeated where their body is of known size and within a limit.
#[derive(Clone, Copy, Debug)]
pub struct Buffered<F = FromBytes> {
    pub(crate) limit: u64,
    pub(crate) rebuild: F,
}

/// Makes a body again of what was read of it.
pub trait RebuildBody<B>: Send + Sync + 'static {
    /// A body of these bytes.
    fn rebuild(&self, bytes: Bytes) -> B;
}

/// For bodies that are `From<Bytes>`: axum's, reqwest's, `Full<Bytes>`.
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

impl<B, F> Repeat<Request<B>> for Buffered<F>
where
    B: Body + Send,
    B::Data: Send,
    B::Error: Send,
    F: RebuildBody<B>,
{
    type Kept = (Parts, Bytes);

    async fn keep(&self, request: Request<B>) -> Result<Held<Request<B>, Self::Kept>, Rejection> {
        let Some(size) = request.body().size_hint().exact().filter(|size| *size <= self.limit) else {
            return Ok(Held::Once(request));
        };
        let (parts, body) = request.into_parts();
        let bytes = if size == 0 { Bytes::new() } else { self.read(body, size).await? };
        Ok(Held::Often((parts, bytes)))
    }

    fn copy(&self, (parts, bytes): &Self::Kept) -> Request<B> {
        Request::from_parts(parts.clone(), self.rebuild.rebuild(bytes.clone()))
    }
}

impl<F> Buffered<F> {
    async fn read<B: Body>(&self, body: B, size: u64) -> Result<Bytes, Rejection> {
        let reading = read(body, size, self.limit);
        let read = match Context::current().deadline() {
            None => reading.await,
            Some(deadline) => match tokio::time::timeout_at(deadline, reading).await {
                Ok(read) => read,
                Err(_) => return Err(Rejection::new(RejectionCode::DeadlineExceeded)),
            },
        };
        read.ok_or(Rejection::new(RejectionCode::BodyUnreadable))
    }
}

/// All of a body; none if it breaks off, or is longer than it said and than anybody would keep.
async fn read<B: Body>(body: B, size: u64, limit: u64) -> Option<Bytes> {
    let mut body = pin!(body);
    let mut read = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let Ok(mut data) = frame.ok()?.into_data() else { continue };
        let length = data.remaining();
        if read.is_empty() && length as u64 == size {
            return Some(data.copy_to_bytes(length)); // all of it at once: no copy where it is `Bytes` already
        }
        if (read.len() + length) as u64 > limit {
            return None;
        }
        read.put(data);
    }
    Some(read.freeze())
}
