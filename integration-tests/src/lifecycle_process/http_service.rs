//! The HTTP service role: its only route makes a slow call with a nested call at its end. The process can also make calls
//! itself.

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

use super::{Fleet, ProcessEvent, module, policy, report};

#[derive(Clone)]
struct Work {
    module: ResilienceModule,
    call: Duration,
}

pub(super) async fn serve(fleet: Option<Fleet>, callers: usize, call: Duration, drain_timeout: Duration) {
    let module = match &fleet {
        Some(fleet) => module(fleet),
        None => ResilienceModule::in_memory().policy(policy()).build().expect("a valid module"),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("a local address").port();
    let work = Work { module: module.clone(), call };
    let app = Router::new().route("/work", get(route)).with_state(work.clone());
    let runtime = Runtime::builder()
        .module(module)
        .drain_timeout(drain_timeout)
        .step(Step::background("http", move |context, stop| http(listener, app, context, stop)))
        .step(Step::new("report").on_start(move || {
            for _ in 0..callers {
                tokio::spawn(route(State(work.clone())));
            }
            report(ProcessEvent::Listening(port));
            std::future::ready(Ok::<(), Infallible>(()))
        }))
        .build()
        .expect("a valid runtime");
    let ended = runtime.run_until_signal().await.expect("the runtime starts");
    assert_eq!(ended.failures, []);
    let drained = ended.drained;
    let (in_flight, leftovers) = (drained.in_flight, drained.leftovers);
    report(ProcessEvent::Drained { in_flight, leftovers, elapsed: ended.elapsed });
    // Exit without waiting for detached tasks, so that the parent measures the drain only.
    std::process::exit(0);
}

async fn http(listener: TcpListener, app: Router, context: StepContext, stop: StopSignal) -> std::io::Result<()> {
    let app = app.merge(health_routes(context.runtime()));
    axum::serve(listener, app).with_graceful_shutdown(stop.wait()).await
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
        // A nested call of an admitted call passes the gate even while it drains.
        module.run("work", "inner", async || Ok::<(), Broken>(())).await.map_err(|_| Broken)
    };
    match module.run("work", (), operation).await {
        Ok(()) => "done".into_response(),
        Err(Error::Rejected(rejection)) => {
            let status = StatusCode::from_u16(module.status(&rejection)).expect("a valid status");
            let wait = rejection.retry_after().map_or(0, |wait| wait.as_secs());
            (status, [(header::RETRY_AFTER, wait.to_string())], rejection.code().to_string()).into_response()
        }
        Err(Error::Inner(Broken)) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
