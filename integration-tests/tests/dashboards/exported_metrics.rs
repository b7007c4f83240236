//! The examples as they run: what they export is what the dashboard and the alerts ask for.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use phalanx_integration_tests::server::port::Port;
use phalanx_integration_tests::server::{ChildProcess, RedisProcess};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::metrics_page::MetricsPage;
use crate::promql::Selector;
use crate::{alerts, dashboard, files};

/// Starting it may mean building it first.
const BUILDING: Duration = Duration::from_secs(900);
/// Many times the length of the story, from the first line on: the other example may be built meanwhile.
const WAIT_TIMEOUT: Duration = Duration::from_secs(180);
const LOOKS: Duration = Duration::from_millis(100);

/// An example of this workspace. All features and all packages, so that what `make test` has built is not built again;
/// `env` becomes Cargo and Cargo the example, so that what is killed is the example itself.
fn example(name: &str, arguments: &[&str]) -> ChildProcess {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // What Cargo tells this test about its package would make Cargo build what asks for it anew.
    let told = std::env::vars().map(|(name, _)| name);
    let told = told.filter(|name| ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| name.starts_with(start)));
    let mut all: Vec<String> = told.map(|name| format!("--unset={name}")).collect();
    all.extend([cargo, "run".to_owned(), format!("--manifest-path={}", files::path("Cargo.toml").display())]);
    all.extend(["--quiet", "--locked", "--all-features", "--example", name, "--"].map(str::to_owned));
    all.extend(arguments.iter().map(|&argument| argument.to_owned()));
    ChildProcess::start("env", &all.iter().map(String::as_str).collect::<Vec<_>>())
}

/// What `GET /metrics` answers.
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

fn lacks(page: &MetricsPage, queries: &[(String, Selector)]) -> BTreeSet<String> {
    let lacks = |(place, selector): &(String, Selector)| {
        page.lacks(selector).into_iter().map(move |what| format!("{place}: {what}")).collect::<Vec<_>>()
    };
    queries.iter().flat_map(lacks).collect()
}

/// A file of levers, gone with the test.
struct Levers(PathBuf);

impl Levers {
    fn new() -> Self {
        let levers = Self(std::env::temp_dir().join(format!("phalanx-levers-{}.toml", std::process::id())));
        levers.write("[levers.reviews]\nretries = false\n");
        levers
    }

    /// Beside it and then in its place, as it should be done.
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

/// The story once or more often, a Redis that hangs for a while, a file that is changed well and badly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_of_the_dashboard_and_the_alerts_matches_an_exported_series() {
    let (redis, levers, queries) = (RedisProcess::start().await, Levers::new(), all_queries());
    assert!(queries.len() > 60, "{} queries", queries.len());
    let config = levers.0.to_str().unwrap();
    let shop =
        example("observe", &["--listen", "127.0.0.1:0", "--phase", "1", "--redis", &redis.url(), "--config", config]);
    let first = shop.recv_line(BUILDING).await.expect("a first line");
    let address = first.strip_prefix("metrics: http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{first:?}"));

    let (mut page, began, mut round) = (MetricsPage::default(), Instant::now(), 0_u32);
    while !lacks(&page, &queries).is_empty() {
        let lacks = lacks(&page, &queries);
        assert!(began.elapsed() < WAIT_TIMEOUT, "after {WAIT_TIMEOUT:?} still:\n{lacks:#?}");
        page.add(&scrape(address).await.unwrap()).unwrap();
        // Once in each second or two, so that it does not matter which of them is slow today.
        match round % 20 {
            5 => levers.write(&format!("[levers.reviews]\nretries = {}\n", round % 40 == 5)),
            10 => levers.write("[levers.reviews]\nretires = true\n"),
            12 => redis.stop(),
            18 => redis.resume(),
            _ => sleep(LOOKS).await,
        }
        round += 1;
    }

    // And the other way round: nothing is exported that nobody can see.
    let asked: BTreeSet<_> = dashboard::queries().into_iter().map(|(_, selector)| family(&selector.metric)).collect();
    let exported = page.metrics().map(family).filter(|name| name.starts_with("phalanx_"));
    let unseen: BTreeSet<_> = exported.filter(|name| !asked.contains(name)).collect();
    assert!(unseen.is_empty(), "exported, and on no panel: {unseen:?}");
}

/// The name without what a histogram adds to it.
fn family(metric: &str) -> String {
    let parts = ["_bucket", "_sum", "_count"].iter().find_map(|part| metric.strip_suffix(part));
    parts.unwrap_or(metric).to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_the_fleet_example_serves_its_metrics_where_it_is_told_to() {
    let (redis, port) = (RedisProcess::start().await, Port::reserve());
    let address = format!("127.0.0.1:{}", port.number());
    let redis = redis.url();
    let replica = example("fleet", &["replica", "--redis", &redis, "--replicas", "1", "--metrics", &address]);
    replica.recv_line(BUILDING).await.expect("a first line");
    let (mut page, began) = (MetricsPage::default(), Instant::now());
    while ["phalanx_executions_total", "phalanx_replicas"].iter().any(|name| page.metrics().all(|it| it != *name)) {
        assert!(began.elapsed() < WAIT_TIMEOUT, "{:?}", page.metrics().collect::<Vec<_>>());
        page.add(&scrape(&address).await.unwrap()).unwrap();
        sleep(LOOKS).await;
    }
    assert_eq!(page.values("phalanx_executions_total", "phalanx_policy"), BTreeSet::from(["payments"]));
}
