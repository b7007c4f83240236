//! The body of an answer that was looked at before it was sent on.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

/// A body: whole, or what was read of it already with the rest behind.
pub struct ReplayBody<R: Body>(Inner<R>);

enum Inner<R: Body> {
    Whole(Option<Bytes>),
    Rest { first: Option<Bytes>, next: Option<Result<Frame<Bytes>, R::Error>>, rest: Pin<Box<R>> },
}

impl<R: Body<Data = Bytes>> ReplayBody<R> {
    /// As it comes.
    pub(crate) fn passing(rest: R) -> Self {
        Self(Inner::Rest { first: None, next: None, rest: Box::pin(rest) })
    }

    /// Reads a body to its end, if that comes before `most` bytes: then it is whole, and given beside.
    pub(crate) async fn read(body: R, most: usize) -> (Self, Option<Bytes>) {
        let mut rest = Box::pin(body);
        let mut first = BytesMut::new();
        loop {
            let next = match rest.frame().await {
                None => {
                    let whole = first.freeze();
                    return (whole.clone().into(), Some(whole));
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if first.len() + data.len() <= most => {
                        first.extend_from_slice(&data);
                        continue;
                    }
                    Ok(data) => Ok(Frame::data(data)),
                    Err(trailers) => Ok(trailers),
                },
                Some(Err(error)) => Err(error),
            };
            return (Self(Inner::Rest { first: Some(first.freeze()), next: Some(next), rest }), None);
        }
    }
}

impl<R: Body> From<Bytes> for ReplayBody<R> {
    fn from(bytes: Bytes) -> Self {
        Self(Inner::Whole(Some(bytes)))
    }
}

/// Nothing is pinned in place: the rest is in a box.
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
            Inner::Whole(bytes) => Poll::Ready(nonempty(bytes).map(Ok)),
            Inner::Rest { first, next, rest } => match nonempty(first).map(Ok).or_else(|| next.take()) {
                Some(frame) => Poll::Ready(Some(frame)),
                None => rest.as_mut().poll_frame(cx),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Inner::Rest { first, next, rest } => {
                first.as_ref().is_none_or(Bytes::is_empty) && next.is_none() && rest.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Inner::Rest { first: None, next: None, rest } => rest.size_hint(),
            Inner::Rest { .. } => SizeHint::default(),
        }
    }
}

impl<R: Body> std::fmt::Debug for ReplayBody<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Inner::Whole(_) => "ReplayBody(whole)",
            Inner::Rest { .. } => "ReplayBody(streaming)",
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
    async fn a_body_up_to_the_limit_is_kept_whole_and_a_longer_one_goes_on_unchanged() {
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
