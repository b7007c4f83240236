//! gRPC over loopback: the layer on a tonic server and on a tonic channel.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers
#![cfg(feature = "tonic")]

mod support;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::{Buf, BufMut};
use http::uri::PathAndQuery;
use phalanx::*;
use phalanx_tower::ResilienceLayer;
use support::*;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tower::{Layer, Service};

/// A codec for plain text, which needs no protoc.
#[derive(Clone, Copy, Default)]
struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, item: String, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(item.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let text = from.copy_to_bytes(from.remaining());
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }
}

/// Greets by name; an empty name is invalid, and the name "error" is answered `unavailable`.
#[derive(Clone, Default)]
struct Greeter(Arc<AtomicUsize>);

impl NamedService for Greeter {
    const NAME: &'static str = "test.Greeter";
}

impl UnaryService<String> for Greeter {
    type Response = String;
    type Future = Ready<Result<Response<String>, Status>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        self.0.fetch_add(1, Relaxed);
        ready(match request.into_inner().as_str() {
            "error" => Err(Status::unavailable("backend is down")),
            "" => Err(Status::invalid_argument("a name, please")),
            name => Ok(Response::new(format!("hello {name}"))),
        })
    }
}

impl Service<http::Request<Body>> for Greeter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let greeter = self.clone();
        Box::pin(async move { Ok(tonic::server::Grpc::new(Text).unary(greeter, request).await) })
    }
}

/// Serves the greeter under a policy on loopback, and returns a channel to it.
async fn served(greeter: Greeter, policy: Policy) -> Channel {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let layer = ResilienceLayer::new(&module(policy), "p").unwrap().grpc();
    let layer = layer.map_rejection(|rejection| Status::unavailable(rejection.to_string()).into_http());
    let server = Server::builder().layer(layer).add_service(greeter);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    endpoint.connect_lazy()
}

async fn greet<S>(service: S, name: &str) -> Result<String, Status>
where
    S: tonic::client::GrpcService<Body>,
    S::ResponseBody: http_body::Body<Data = bytes::Bytes, Error: Into<tower::BoxError>> + Send + 'static,
{
    let mut client = tonic::client::Grpc::new(service);
    client.ready().await.map_err(|_| Status::unavailable("not ready"))?;
    let path = PathAndQuery::from_static("/test.Greeter/Greet");
    client.unary(Request::new(name.to_owned()), path, Text).await.map(Response::into_inner)
}

#[tokio::test]
async fn a_server_opens_its_breaker_on_an_error_status_and_rejects_as_a_grpc_status() {
    let greeter = Greeter::default();
    let channel = served(greeter.clone(), Policy::named("p").breaker(open_on_first_failure())).await;
    assert_eq!(greet(channel.clone(), "you").await.unwrap(), "hello you");
    assert_eq!(greet(channel.clone(), "").await.unwrap_err().code(), tonic::Code::InvalidArgument);
    assert_eq!(greet(channel.clone(), "error").await.unwrap_err().message(), "backend is down");
    let rejected = greet(channel, "you").await.unwrap_err();
    assert_eq!(rejected.code(), tonic::Code::Unavailable);
    assert!(rejected.message().starts_with("p: the circuit is open"), "{rejected}");
    assert_eq!(greeter.0.load(Relaxed), 3);
}

#[tokio::test]
async fn a_client_opens_its_breaker_on_an_error_status_and_sends_nothing() {
    let greeter = Greeter::default();
    let channel = served(greeter.clone(), Policy::named("p")).await;
    let module = module(Policy::named("client").breaker(open_on_first_failure()).timeout(5 * SECOND));
    let layered = ResilienceLayer::new(&module, "client").unwrap().grpc().layer(channel);
    assert_eq!(greet(layered.clone(), "you").await.unwrap(), "hello you");
    assert_eq!(greet(layered.clone(), "error").await.unwrap_err().message(), "backend is down");
    let rejected = greet(layered, "you").await.unwrap_err();
    assert!(rejected.message().contains("circuit is open"), "{rejected}");
    assert_eq!(greeter.0.load(Relaxed), 2);
}

#[tokio::test]
async fn a_retry_applies_to_the_clients_method() {
    let greeter = Greeter::default();
    let channel = served(greeter.clone(), Policy::named("p")).await;
    let module = module(Policy::named("client").retry(retry()));
    let error = module.run("client", (), || greet(channel.clone(), "error")).await.unwrap_err();
    assert_eq!(error.into_inner().unwrap().code(), tonic::Code::Unavailable);
    assert_eq!(greeter.0.load(Relaxed), 3);
}
