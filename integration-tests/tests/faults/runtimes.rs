//! More than one runtime, and runtimes that end.

use std::sync::Arc;
use std::time::Duration;

use phalanx::{Kind, Policy, RateLimitSpec, ResilienceModule, Source};
use phalanx_integration_tests::replica::Setup;
use phalanx_testkit::server::Redis;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Barrier;

use crate::harness::MS;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Builds a module outside a runtime: its connection belongs to the first runtime that makes a call.
async fn module() -> ResilienceModule {
    let url = Redis::shared().await;
    let built = std::thread::spawn(move || {
        let policy = Policy::named("limited").rate_limit(RateLimitSpec::per_second(1_000_000));
        Setup::new(url).policy(policy).generous_budget().module().build().unwrap()
    });
    built.join().unwrap()
}

/// Makes calls and returns the sources of their decisions.
async fn sources(module: &ResilienceModule, calls: usize) -> Vec<Source> {
    let mut sources = Vec::new();
    for _ in 0..calls {
        let (answer, decision) = module.call("limited", "r").run_recorded(|| async { Ok::<_, Kind>(()) }).await;
        answer.unwrap();
        sources.push(decision.source);
    }
    sources
}

#[tokio::test]
async fn two_runtimes_share_one_module() {
    let (module, both) = (module().await, Arc::new(Barrier::new(2)));
    let threads = [(); 2].map(|()| {
        let (module, both) = (module.clone(), both.clone());
        std::thread::spawn(move || {
            runtime().block_on(async {
                let sources = sources(&module, 200).await;
                both.wait().await; // no runtime ends while the other is used
                sources
            })
        })
    });
    for thread in threads {
        assert_eq!(thread.join().unwrap(), [Source::Fleet; 200]);
    }
}

#[tokio::test]
async fn a_module_whose_first_runtime_ended_works_on_the_next() {
    let module = module().await;
    for _ in 0..3 {
        let module = module.clone();
        let thread =
            std::thread::spawn(move || {
                let runtime = runtime();
                let sources = runtime.block_on(sources(&module, 20));
                // A call is in flight when the runtime ends.
                drop(runtime.block_on(async {
                    tokio::time::timeout(Duration::from_micros(10), self::sources(&module, 1)).await
                }));
                sources
            });
        // Only calls in flight may be degraded; none hangs.
        let sources = thread.join().unwrap();
        assert_eq!(sources, [Source::Fleet; 20]);
    }
    assert_eq!(sources(&module, 20).await, [Source::Fleet; 20]);
}

#[tokio::test]
async fn a_module_may_be_built_and_dropped_outside_a_runtime() {
    let module = module().await;
    assert_eq!(sources(&module, 5).await, [Source::Fleet; 5]);
    // Dropped on a thread without a runtime too.
    std::thread::spawn(move || drop(module)).join().unwrap();
    tokio::time::sleep(MS).await;
}
