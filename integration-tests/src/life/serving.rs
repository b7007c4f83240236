//! A service whose only route makes a call that takes a while, and another one inside it at the end. It can also have
//! callers of its own.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use phalanx::lifecycle::{Runtime, Step, StepContext, StopSignal, health_routes};
use phalanx::{Class, Classify, Error, Kind, ResilienceModule};
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::{Fleet, Said, module, policy, say};

#[derive(Clone)]
struct Work {
    module: ResilienceModule,
    call: Duration,
}

pub(super) async fn serve(fleet: Option<Fleet>, callers: usize, call: Duration, drain_timeout: Duration) {
    let module = match &fleet {
        Some(fleet) => module(fleet),
        None => ResilienceModule::in_memory().policy(policy()).build().expect("a module in order"),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let work = Work { module: module.clone(), call };
    let app = Router::new().route("/work", get(route)).with_state(work.clone());
    let runtime = Runtime::builder()
        .module(module)
        .drain_timeout(drain_timeout)
        .step(Step::background("http", move |scene, stopping| http(listener, app, scene, stopping)))
        .step(Step::new("told").on_start(move || {
            for _ in 0..callers {
                tokio::spawn(route(State(work.clone())));
            }
            say(Said::Listening(port));
            std::future::ready(Ok::<(), Infallible>(()))
        }))
        .build()
        .expect("a runtime in order");
    let ended = runtime.run_until_signal().await.expect("a start");
    assert_eq!(ended.failures, []);
    let drained = ended.drained;
    let (in_flight, leftovers) = (drained.in_flight, drained.leftovers);
    say(Said::Ended { in_flight, leftovers, elapsed: ended.elapsed });
    // At once, as a process does that has nothing left to do.
    std::process::exit(0);
}

async fn http(listener: TcpListener, app: Router, scene: StepContext, stopping: StopSignal) -> std::io::Result<()> {
    let app = app.merge(health_routes(scene.runtime()));
    axum::serve(listener, app).with_graceful_shutdown(stopping.wait()).await
}

#[derive(Debug)]
struct Broken;

impl Classify for Broken {
    fn classify(&self) -> Class {
        Kind::Infrastructure.into()
    }
}

async fn route(State(Work { module, call }): State<Work>) -> Response {
    let operation = async || {
        sleep(call).await;
        // A call inside one that was let in is let in too, whatever the gate does by now.
        module.run("work", "inner", async || Ok::<(), Broken>(())).await.map_err(|_| Broken)
    };
    match module.run("work", (), operation).await {
        Ok(()) => "done".into_response(),
        Err(Error::Rejected(why)) => {
            let status = StatusCode::from_u16(module.status(&why)).expect("a status");
            let wait = why.retry_after().map_or(0, |wait| wait.as_secs());
            (status, [(header::RETRY_AFTER, wait.to_string())], why.code().to_string()).into_response()
        }
        Err(Error::Inner(Broken)) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
