//! Metrics of a replica over a real Redis: round trips, outages, live replicas, and circuits tripped by other replicas.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

use std::io;
use std::time::Duration;

use phalanx::telemetry::Metrics;
use phalanx::telemetry::prometheus::Page;
use phalanx::{BreakerSpec, Policy, RateLimitSpec, ResilienceModule};
use phalanx_testkit::server::{Proxy, Redis};
use tokio::time::{sleep, timeout};

const MS: Duration = Duration::from_millis(1);

/// A replica and its metrics page.
struct Replica {
    module: ResilienceModule,
    page: Page,
}

impl Replica {
    fn new(url: &str, environment: &str, budget: Duration) -> Self {
        let page = Page::new().unwrap();
        let breaker = BreakerSpec::consecutive_failures(1).break_for(Duration::from_secs(600));
        let module = ResilienceModule::with_redis(redis::Client::open(url).unwrap())
            .environment(format!("{environment}-{}", std::process::id()))
            .store_budget(budget)
            .policy(Policy::named("p").breaker(breaker))
            .policy(Policy::named("limited").rate_limit(RateLimitSpec::per_second(1).burst(10)))
            .metered_by(Metrics::of(page.meter()))
            .build()
            .unwrap();
        Self { module, page }
    }

    async fn call(&self, policy: &str, good: bool) -> bool {
        let answer =
            || async move { if good { Ok(()) } else { Err(io::Error::from(io::ErrorKind::ConnectionRefused)) } };
        self.module.run(policy, "r", answer).await.is_ok()
    }

    /// Returns the sum of the series of a metric that have all these labels; none if there is no such series.
    fn value(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let (_, text) = self.page.render();
        let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        let values: Vec<f64> = lines
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
            .collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    async fn until(&self, name: &str, labels: &[&str], holds: impl Fn(f64) -> bool) {
        let waiting = async {
            while !self.value(name, labels).is_some_and(&holds) {
                self.call("limited", true).await;
                sleep(5 * MS).await;
            }
        };
        let patient = timeout(Duration::from_secs(20), waiting).await;
        assert!(patient.is_ok(), "{name} {labels:?} is {:?}", self.value(name, labels));
    }
}

#[tokio::test]
async fn round_trips_outages_and_live_replicas_are_exported() {
    let proxy = Proxy::start(Redis::shared().await.trim_start_matches("redis://").trim_end_matches('/')).await;
    let replica = Replica::new(&proxy.url(), "metrics-store", 250 * MS);
    replica.until("phalanx_replicas", &[], |live| live == 1.0).await;
    replica.until("phalanx_store_duration_seconds_count", &[], |trips| trips >= 1.0).await;
    replica.until("phalanx_store_degraded", &[], |degraded| degraded == 0.0).await;
    // None, unless the machine was busy for longer than the budget.
    let outages = || replica.value("phalanx_store_outages_total", &[]).unwrap_or_default();
    let before = outages();

    proxy.reject_connections().await;
    proxy.reset_connections().await;
    replica.until("phalanx_store_degraded", &[], |degraded| degraded == 1.0).await;
    replica.until("phalanx_store_outages_total", &[], |outages| outages >= before + 1.0).await;
    assert!(replica.value("phalanx_store_errors_total", &["error_type="]).unwrap() >= 1.0);
    assert!(replica.call("p", true).await);
    assert!(replica.value("phalanx_executions_total", &["phalanx_source=\"degraded\""]).unwrap() >= 1.0);

    proxy.clear_faults().await;
    replica.until("phalanx_store_degraded", &[], |degraded| degraded == 0.0).await;
    assert!(outages() >= before + 1.0, "counters do not decrease");
}

#[tokio::test]
async fn a_replica_that_joins_while_a_circuit_is_open_exports_it_as_open() {
    let url = Redis::shared().await;
    let one = Replica::new(url, "metrics-join", 500 * MS);
    assert!(one.call("p", true).await);
    assert!(!one.call("p", false).await);
    one.until("phalanx_breaker_state", &["phalanx_policy=\"p\"", "phalanx_state=\"open\""], |open| open == 1.0).await;

    let two = Replica::new(url, "metrics-join", 500 * MS);
    assert!(!two.call("p", true).await, "it is open for the whole fleet");
    let state = |state: &str| two.value("phalanx_breaker_state", &[&format!("phalanx_state=\"{state}\"")]);
    assert_eq!(["closed", "open", "half_open"].map(state), [Some(0.0), Some(1.0), Some(0.0)]);
    assert_eq!(two.value("phalanx_breaker_transitions_total", &[]), None, "it received no transition");
    assert_eq!(two.value("phalanx_rejections_total", &["phalanx_code=\"circuit_open\""]), Some(1.0));
}

#[tokio::test]
async fn a_bucket_exports_the_level_of_its_last_reply() {
    let url = Redis::shared().await;
    let one = Replica::new(url, "metrics-bucket", 500 * MS);
    assert!(one.call("limited", true).await);
    let left = one.value("phalanx_rate_limit_remaining", &["phalanx_policy=\"limited\""]);
    assert_eq!(left, Some(9.0));
}
