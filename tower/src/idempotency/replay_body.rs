//! [`ReplayBody`]: a response body that may have been read ahead, to decide whether it can be stored.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

/// A response body: buffered as a whole, or a prefix that was read ahead followed by the rest of the stream.
pub struct ReplayBody<R: Body>(Inner<R>);

enum Inner<R: Body> {
    Buffered(Option<Bytes>),
    Streaming { prefix: Option<Bytes>, next: Option<Result<Frame<Bytes>, R::Error>>, rest: Pin<Box<R>> },
}

impl<R: Body<Data = Bytes>> ReplayBody<R> {
    /// Passes a body through without reading it.
    pub(crate) fn streaming(body: R) -> Self {
        Self(Inner::Streaming { prefix: None, next: None, rest: Box::pin(body) })
    }

    /// Reads a body of at most `max_bytes` to its end, and returns its bytes too. A longer body stays a stream.
    pub(crate) async fn read(body: R, max_bytes: usize) -> (Self, Option<Bytes>) {
        let mut rest = Box::pin(body);
        let mut prefix = BytesMut::new();
        loop {
            let next = match rest.frame().await {
                None => {
                    let whole = prefix.freeze();
                    return (whole.clone().into(), Some(whole));
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if prefix.len() + data.len() <= max_bytes => {
                        prefix.extend_from_slice(&data);
                        continue;
                    }
                    Ok(data) => Ok(Frame::data(data)),
                    Err(trailers) => Ok(trailers),
                },
                Some(Err(error)) => Err(error),
            };
            return (Self(Inner::Streaming { prefix: Some(prefix.freeze()), next: Some(next), rest }), None);
        }
    }
}

impl<R: Body> From<Bytes> for ReplayBody<R> {
    fn from(bytes: Bytes) -> Self {
        Self(Inner::Buffered(Some(bytes)))
    }
}

/// The stream is boxed, so the body itself can move.
impl<R: Body> Unpin for ReplayBody<R> {}

impl<R: Body<Data = Bytes>> Body for ReplayBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let nonempty = |bytes: &mut Option<Bytes>| bytes.take().filter(|bytes| !bytes.is_empty()).map(Frame::data);
        match &mut self.0 {
            Inner::Buffered(bytes) => Poll::Ready(nonempty(bytes).map(Ok)),
            Inner::Streaming { prefix, next, rest } => match nonempty(prefix).map(Ok).or_else(|| next.take()) {
                Some(frame) => Poll::Ready(Some(frame)),
                None => rest.as_mut().poll_frame(cx),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Buffered(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Inner::Streaming { prefix, next, rest } => {
                prefix.as_ref().is_none_or(Bytes::is_empty) && next.is_none() && rest.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Buffered(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Inner::Streaming { prefix: None, next: None, rest } => rest.size_hint(),
            Inner::Streaming { .. } => SizeHint::default(),
        }
    }
}

impl<R: Body> std::fmt::Debug for ReplayBody<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Inner::Buffered(_) => "ReplayBody(buffered)",
            Inner::Streaming { .. } => "ReplayBody(streaming)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{Full, StreamBody};
    use std::convert::Infallible;

    fn frames(sizes: &[usize]) -> impl Body<Data = Bytes, Error = Infallible> + use<> {
        let frames: Vec<_> = sizes.iter().map(|size| Ok(Frame::data(Bytes::from(vec![7; *size])))).collect();
        StreamBody::new(futures_util::stream::iter(frames))
    }

    #[tokio::test]
    async fn a_body_within_the_limit_is_buffered_and_a_longer_one_streams_unchanged() {
        let (body, whole) = ReplayBody::read(frames(&[4, 6]), 10).await;
        assert_eq!((whole.map(|whole| whole.len()), body.size_hint().exact()), (Some(10), Some(10)));
        let (body, whole) = ReplayBody::read(frames(&[4, 6, 5]), 9).await;
        assert_eq!(whole, None);
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), 15);
    }

    #[tokio::test]
    async fn an_empty_body_is_at_its_end() {
        let (body, whole) = ReplayBody::read(Full::<Bytes>::default(), 9).await;
        assert!(body.is_end_stream() && whole.is_some_and(|whole| whole.is_empty()));
    }
}
