//! [`StoredAnswer`]: status, headers and body of an answer, and its binary encoding.
//!
//! `1, status: u16, has body: u8, headers: u16, { name: u16, value: u32, name, value }…, body: u32, body`, big-endian. A
//! later release may append more, which is skipped. Bytes from a store are not trusted: `decode` returns none for anything
//! else.

use bytes::{Buf, BufMut, Bytes};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// An answer that can be sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAnswer {
    /// The status.
    pub status: StatusCode,
    /// The headers, without those of a single connection or moment.
    pub headers: HeaderMap,
    /// The body; none if it was too large to store.
    pub body: Option<Bytes>,
}

const VERSION: u8 = 1;

/// Headers of a single connection or moment, which are not stored.
const TRANSIENT_HEADERS: [HeaderName; 9] = [
    CONNECTION,
    CONTENT_LENGTH,
    DATE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

impl StoredAnswer {
    /// Without the cookies that the answer sets: they belong to the client that it was made for.
    pub(crate) fn without_cookies(mut self) -> Self {
        self.headers.remove(SET_COOKIE);
        self
    }

    pub(crate) fn new(status: StatusCode, headers: &HeaderMap, body: Option<Bytes>) -> Self {
        let mut headers = headers.clone();
        for name in &TRANSIENT_HEADERS {
            headers.remove(name);
        }
        Self { status, headers, body }
    }

    /// Returns its approximate size in memory, in bytes.
    pub fn size(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        headers + self.body.as_ref().map_or(0, Bytes::len) + 64
    }

    /// Encodes the answer.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size());
        bytes.put_u8(VERSION);
        bytes.put_u16(self.status.as_u16());
        bytes.put_u8(self.body.as_ref().is_some_and(|body| u32::try_from(body.len()).is_ok()).into());
        // Headers beyond these sizes exceed the limits of every server; they are left out.
        let fits = |(name, value): &(&HeaderName, &HeaderValue)| {
            u16::try_from(name.as_str().len()).is_ok() && u32::try_from(value.len()).is_ok()
        };
        let headers: Vec<_> = self.headers.iter().filter(fits).take(u16::MAX.into()).collect();
        bytes.put_u16(headers.len() as u16);
        for (name, value) in headers {
            bytes.put_u16(name.as_str().len() as u16);
            bytes.put_u32(value.len() as u32);
            bytes.put_slice(name.as_str().as_bytes());
            bytes.put_slice(value.as_bytes());
        }
        // A body that large exceeds every limit of a layer; it is left out.
        let body = self.body.as_deref().filter(|body| u32::try_from(body.len()).is_ok()).unwrap_or_default();
        bytes.put_u32(body.len() as u32);
        bytes.put_slice(body);
        bytes
    }

    /// Decodes an answer. Returns none if the bytes are not a valid encoding.
    pub fn decode(bytes: impl Into<Bytes>) -> Option<Self> {
        let mut bytes: Bytes = bytes.into();
        if bytes.try_get_u8().ok()? != VERSION {
            return None;
        }
        let status = StatusCode::from_u16(bytes.try_get_u16().ok()?).ok()?;
        let has_body = bytes.try_get_u8().ok()? == 1;
        let mut headers = HeaderMap::new();
        for _ in 0..bytes.try_get_u16().ok()? {
            let (name, value) = (bytes.try_get_u16().ok()?, bytes.try_get_u32().ok()?);
            let (name, value) = (usize::from(name), usize::try_from(value).ok()?);
            if bytes.remaining() < name.checked_add(value)? {
                return None;
            }
            let name = HeaderName::from_bytes(&bytes.split_to(name)).ok()?;
            let value = HeaderValue::from_maybe_shared(bytes.split_to(value)).ok()?;
            headers.try_append(name, value).ok()?;
        }
        let size = usize::try_from(bytes.try_get_u32().ok()?).ok()?;
        if bytes.remaining() < size {
            return None;
        }
        Some(Self { status, headers, body: has_body.then(|| bytes.split_to(size)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_of_a_single_connection_are_not_stored() {
        let mut headers = HeaderMap::new();
        for name in ["connection", "date", "content-length", "etag"] {
            headers.insert(name, HeaderValue::from_static("1"));
        }
        assert_eq!(StoredAnswer::new(StatusCode::OK, &headers, None).headers.keys().collect::<Vec<_>>(), ["etag"]);
    }

    #[test]
    fn what_a_later_release_has_appended_is_skipped() {
        let answer = StoredAnswer::new(StatusCode::OK, &HeaderMap::new(), Some(Bytes::from_static(b"hi")));
        let longer = [answer.encode(), b"more".to_vec()].concat();
        assert_eq!(StoredAnswer::decode(longer), Some(answer));
    }

    #[test]
    fn cookies_are_left_out() {
        let headers = ["a=1", "b=2"].map(|cookie| (SET_COOKIE, HeaderValue::from_static(cookie)));
        let answer = StoredAnswer::new(StatusCode::OK, &HeaderMap::from_iter(headers), None);
        assert!(answer.headers.contains_key(SET_COOKIE) && answer.without_cookies().headers.is_empty());
    }

    proptest! {
        #[test]
        fn an_encoded_answer_decodes_to_itself(
            status in 100_u16..1000, body in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..200)),
            headers in proptest::collection::vec(("[a-z][a-z0-9-]{0,20}", "[ -~]{0,40}"), 0..6),
        ) {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
            }
            let answer = StoredAnswer { status: StatusCode::from_u16(status).unwrap(), headers: map, body: body.map(Bytes::from) };
            prop_assert_eq!(StoredAnswer::decode(answer.encode()), Some(answer));
        }

        #[test]
        fn decoding_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100), cut in 0_usize..60) {
            let _ = StoredAnswer::decode(bytes);
            let answer = StoredAnswer::new(StatusCode::OK, &HeaderMap::from_iter([(DATE, HeaderValue::from_static("x"))]), None);
            let bytes = answer.encode();
            let _ = StoredAnswer::decode(bytes[..cut.min(bytes.len())].to_vec());
        }
    }
}
