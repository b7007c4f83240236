//! Runs the examples and compares their exported metrics with the queries of the dashboard and the alerts.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use phalanx_testkit::server::port::Port;
use phalanx_testkit::server::{ChildProcess, RedisProcess};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::metrics_page::MetricsPage;
use crate::promql::Selector;
use crate::{alerts, dashboard, files};

/// The first line may take this long, because the example may have to be built first.
const BUILD_TIMEOUT: Duration = Duration::from_secs(900);
/// Many times the length of the example's scenario, because the other example may be building at the same time.
const WAIT_TIMEOUT: Duration = Duration::from_secs(180);
const SCRAPE_INTERVAL: Duration = Duration::from_millis(100);

/// Starts an example of this workspace, with all features, so that the build of `make test` is reused. `env` execs Cargo
/// and Cargo execs the example, so that killing the process kills the example itself.
fn example(name: &str, arguments: &[&str]) -> ChildProcess {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // Variables that Cargo sets for this test would make Cargo rebuild crates that read them.
    let inherited = std::env::vars().map(|(name, _)| name);
    let inherited =
        inherited.filter(|name| ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| name.starts_with(start)));
    let mut all: Vec<String> = inherited.map(|name| format!("--unset={name}")).collect();
    all.extend([cargo, "run".to_owned(), format!("--manifest-path={}", files::path("Cargo.toml").display())]);
    all.extend(["--quiet", "--locked", "--all-features", "--example", name, "--"].map(str::to_owned));
    all.extend(arguments.iter().map(|&argument| argument.to_owned()));
    ChildProcess::start("env", &all.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the response of `GET /metrics`.
async fn scrape(address: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.to_lowercase().contains("content-type: text/plain"), "{head}");
    assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
    Ok(body.to_owned())
}

fn all_queries() -> Vec<(String, Selector)> {
    [dashboard::queries(), alerts::queries()].concat()
}

fn missing(page: &MetricsPage, queries: &[(String, Selector)]) -> BTreeSet<String> {
    let missing = |(place, selector): &(String, Selector)| {
        page.missing(selector).into_iter().map(move |what| format!("{place}: {what}")).collect::<Vec<_>>()
    };
    queries.iter().flat_map(missing).collect()
}

/// A file of levers, removed on drop.
struct Levers(PathBuf);

impl Levers {
    fn new() -> Self {
        let levers = Self(std::env::temp_dir().join(format!("phalanx-levers-{}.toml", std::process::id())));
        levers.write("[levers.reviews]\nretries = false\n");
        levers
    }

    /// Replaces the file atomically.
    fn write(&self, text: &str) {
        let beside = self.0.with_extension("new");
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(&beside, &self.0).unwrap();
    }
}

impl Drop for Levers {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs the scenario one or more times, with a Redis that hangs for a while and valid and invalid changes of the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_of_the_dashboard_and_the_alerts_matches_an_exported_series() {
    let (redis, levers, queries) = (RedisProcess::start().await, Levers::new(), all_queries());
    assert!(queries.len() > 60, "{} queries", queries.len());
    let config = levers.0.to_str().unwrap();
    let shop =
        example("observe", &["--listen", "127.0.0.1:0", "--phase", "1", "--redis", &redis.url(), "--config", config]);
    let first = shop.recv_line(BUILD_TIMEOUT).await.expect("a first line");
    let address = first.strip_prefix("metrics: http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{first:?}"));

    let (mut page, began, mut round) = (MetricsPage::default(), Instant::now(), 0_u32);
    while !missing(&page, &queries).is_empty() {
        let missing = missing(&page, &queries);
        assert!(began.elapsed() < WAIT_TIMEOUT, "after {WAIT_TIMEOUT:?} still:\n{missing:#?}");
        page.add(&scrape(address).await.unwrap()).unwrap();
        // Repeated every two seconds, so that it does not matter which of them is slow.
        match round % 20 {
            5 => levers.write(&format!("[levers.reviews]\nretries = {}\n", round % 40 == 5)),
            10 => levers.write("[levers.reviews]\nretires = true\n"),
            12 => redis.stop(),
            18 => redis.resume(),
            _ => sleep(SCRAPE_INTERVAL).await,
        }
        round += 1;
    }

    // The other direction: every exported metric is on a panel.
    let asked: BTreeSet<_> = dashboard::queries().into_iter().map(|(_, selector)| family(&selector.metric)).collect();
    let exported = page.metrics().map(family).filter(|name| name.starts_with("phalanx_"));
    let unseen: BTreeSet<_> = exported.filter(|name| !asked.contains(name)).collect();
    assert!(unseen.is_empty(), "exported but on no panel: {unseen:?}");
}

/// Returns the name without the suffix of a histogram.
fn family(metric: &str) -> String {
    let parts = ["_bucket", "_sum", "_count"].iter().find_map(|part| metric.strip_suffix(part));
    parts.unwrap_or(metric).to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_the_fleet_example_serves_metrics_at_the_configured_address() {
    let (redis, port) = (RedisProcess::start().await, Port::reserve());
    let address = format!("127.0.0.1:{}", port.number());
    let redis = redis.url();
    let replica = example("fleet", &["replica", "--redis", &redis, "--replicas", "1", "--metrics", &address]);
    replica.recv_line(BUILD_TIMEOUT).await.expect("a first line");
    let (mut page, began) = (MetricsPage::default(), Instant::now());
    while ["phalanx_executions_total", "phalanx_replicas"].iter().any(|name| page.metrics().all(|it| it != *name)) {
        assert!(began.elapsed() < WAIT_TIMEOUT, "{:?}", page.metrics().collect::<Vec<_>>());
        page.add(&scrape(&address).await.unwrap()).unwrap();
        sleep(SCRAPE_INTERVAL).await;
    }
    assert_eq!(page.values("phalanx_executions_total", "phalanx_policy"), BTreeSet::from(["payments"]));
}
