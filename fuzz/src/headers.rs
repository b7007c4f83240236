//! Headers from peers that are not trusted: deadline, criticality and trace parent of a request, `Retry-After` of a
//! response. A request never gets more time or a higher criticality than the server allows, and every malformed value is
//! counted.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use phalanx::{Context, Criticality};
use phalanx_core::classify::Classify;
use phalanx_tower::edge::{self, EdgeLayer};
use tower::{Layer, ServiceExt, service_fn};

use crate::block_on;
use crate::input::{Input, Recipe, random};

const MAX_DEADLINE: Duration = Duration::from_secs(5);

fn names() -> [HeaderName; 8] {
    [
        edge::REQUEST_TIMEOUT,
        edge::REQUEST_DEADLINE,
        edge::GRPC_TIMEOUT,
        edge::CRITICALITY,
        edge::DEADLINE_REMAINING,
        http::header::CONTENT_TYPE,
        http::header::RETRY_AFTER,
        HeaderName::from_static("traceparent"),
    ]
}

/// Runs one input: a wall clock, a trusted peer or not, and headers of any values.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let wall_clock = SystemTime::UNIX_EPOCH + Duration::from_secs(input.raw() >> 24);
    let trusted = input.flag();
    let mut headers = HeaderMap::new();
    for _ in 0..12 {
        let name = input.pick(&names());
        if let Ok(value) = HeaderValue::from_bytes(input.bytes(64)) {
            headers.append(name, value);
        }
    }
    retry_after(&headers);
    block_on(request(headers, wall_clock, trusted));
}

/// The response of a dependency.
fn retry_after(headers: &HeaderMap) {
    for status in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS, StatusCode::OK] {
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = headers.clone();
        if let Some(wait) = response.classify().retry_after {
            assert!(wait <= Duration::from_secs(9_999_999_999) && wait.subsec_nanos() == 0, "{wait:?}");
        }
    }
}

/// A request at the edge of a service.
async fn request(headers: HeaderMap, wall_clock: SystemTime, trusted: bool) {
    let handler = service_fn(async |request: Request<()>| {
        // A handler may copy its headers to an outbound request.
        let mut outbound = request.headers().clone();
        edge::forward(&mut outbound);
        edge::forward_grpc(&mut outbound);
        let (context, now) = (Context::current(), tokio::time::Instant::now());
        let sent = |name: &HeaderName| outbound.get(name).and_then(|value| value.to_str().ok()?.parse::<u128>().ok());
        let remaining = context.remaining().expect("a deadline");
        assert!(remaining <= MAX_DEADLINE, "{remaining:?}");
        assert!(sent(&edge::REQUEST_TIMEOUT).is_some_and(|millis| millis <= remaining.as_millis()), "{outbound:?}");
        assert!(context.deadline().is_some_and(|deadline| deadline <= now + MAX_DEADLINE));
        Ok::<_, Infallible>(Response::new(Bytes::from(format!("{:?}", context.criticality()))))
    });
    let edge = EdgeLayer::new().max_deadline(MAX_DEADLINE).wall_clock(move || wall_clock).trust(move |_| trusted);
    let values: usize = names()[..4].iter().map(|name| headers.get_all(name).iter().count()).sum();
    let mut request = Request::new(());
    *request.headers_mut() = headers;
    let response = edge.layer(handler).oneshot(request).await.unwrap_or_else(|never| match never {});
    let granted = [Criticality::BestEffort, Criticality::Degraded, Criticality::Normal, Criticality::Critical]
        .into_iter()
        .find(|criticality| response.body() == &format!("{criticality:?}"));
    assert!(granted.is_none_or(|granted| trusted || granted <= Criticality::Normal), "{granted:?}");
    let counts = edge.counts();
    assert!(counts.malformed + counts.skewed <= values as u64, "{counts:?} of {values}");
    assert!(granted.is_some() || counts.expired == 1, "answered by the edge: {response:?}");
}

/// Returns the inputs that the corpus starts with.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let seed = |name: &str, headers: &[(u8, &str)]| {
        let start = Recipe::of(&(1_000_000_000_u64 << 24).to_le_bytes()).bytes(&[1]);
        let recipe = headers.iter().fold(start, |recipe, (header, value)| recipe.bytes(&[*header]).text(value));
        (name.to_owned(), recipe.done())
    };
    let mut seeds = vec![
        seed("timeout", &[(0, "1500"), (0, "9999999999"), (0, "0")]),
        seed("timeout-malformed", &[(0, ""), (0, "-1"), (0, "1e3"), (0, "12345678901"), (0, " 5")]),
        seed("grpc", &[(2, "99999999H"), (2, "5u"), (2, "S"), (5, "application/grpc+proto")]),
        seed("grpc-expired", &[(2, "0n"), (5, "application/grpc")]),
        seed("deadline", &[(1, "2001-09-09T01:46:42.5Z"), (4, "1")]),
        seed("deadline-far", &[(1, "9999-12-31T23:59:59.999999999-23:59"), (1, "0000-01-01T00:00:00+23:59")]),
        seed("deadline-malformed", &[(1, "2001-13-09T01:46:40Z"), (1, "now"), (1, "2001-09-09T01:46:60Z")]),
        seed("skew", &[(0, "90000"), (1, "2001-09-09T01:46:42Z")]),
        seed("criticality", &[(3, "CRITICAL"), (3, "best-effort"), (3, "vital"), (3, "")]),
        seed("retry-after", &[(6, " 7 "), (6, "99999999999"), (6, "Wed, 21 Oct 2015 07:28:00 GMT")]),
        seed("retry-after-longest", &[(6, "9999999999")]),
        seed("trace-parent", &[(7, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]),
    ];
    seeds.extend(random(&[], 8, 120));
    seeds
}
