//! Readiness and liveness for workers without an HTTP server, over a real socket.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

use std::future::pending;
use std::net::SocketAddr;

use phalanx_lifecycle::{Runtime, health};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Returns the status line and the body.
async fn send(address: SocketAddr, request: &[u8]) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

async fn get(address: SocketAddr, path: &str) -> (String, String) {
    send(address, format!("GET {path} HTTP/1.1\r\nhost: worker\r\n\r\n").as_bytes()).await
}

#[tokio::test]
async fn a_worker_is_unavailable_then_ready_then_draining_and_live_throughout() {
    let runtime = Runtime::builder().build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(health::serve(runtime.clone(), listener));
    let unavailable =
        ("HTTP/1.1 503 Service Unavailable".to_owned(), r#"{"status":"unavailable","in_flight":0}"#.to_owned());
    assert_eq!(get(address, "/readyz").await, unavailable);

    runtime.start().await.unwrap();
    let ready = ("HTTP/1.1 200 OK".to_owned(), r#"{"status":"ready","in_flight":0}"#.to_owned());
    assert_eq!(get(address, "/readyz?verbose").await, ready);

    let gate = runtime.gate().clone();
    let work = tokio::spawn(async move { gate.run(pending::<()>()).await });
    while runtime.readiness().in_flight == 0 {
        tokio::task::yield_now().await;
    }
    let shutdown = tokio::spawn({
        let runtime = runtime.clone();
        async move { runtime.shutdown().await }
    });
    while !runtime.is_draining() {
        tokio::task::yield_now().await;
    }
    let (status, body) = get(address, "/readyz").await;
    assert_eq!((&*status, &*body), ("HTTP/1.1 503 Service Unavailable", r#"{"status":"draining","in_flight":1}"#));
    assert_eq!(get(address, "/livez").await.0, "HTTP/1.1 200 OK");

    work.abort();
    assert!(shutdown.await.unwrap().is_clean());
    serving.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "the listener is closed after the shutdown");
}

#[tokio::test]
async fn other_requests_are_answered_with_404_or_405() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(health::serve(Runtime::builder().build().unwrap(), listener));
    assert_eq!(get(address, "/").await.0, "HTTP/1.1 404 Not Found");
    assert_eq!(send(address, b"POST /readyz HTTP/1.1\r\n\r\n").await.0, "HTTP/1.1 405 Method Not Allowed");
    assert_eq!(send(address, &[0; 1_024]).await.0, "HTTP/1.1 405 Method Not Allowed");
}
