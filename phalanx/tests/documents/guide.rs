//! `docs/*.md` and the README: every block of TOML is a valid configuration file, every key that the guides name exists, and
//! the sums of the tuning guide are right.

use std::collections::BTreeSet;
use std::time::Duration;

use phalanx::config::Config;
use phalanx::{Policy, RejectionCode};

use crate::check::complaints;
use crate::{docs, read, toml_as_json};

fn blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() == "```toml" {
            let block: Vec<_> = lines.by_ref().take_while(|line| line.trim() != "```").collect();
            blocks.push(block.join("\n"));
        }
    }
    blocks
}

fn guide() -> String {
    read(docs().join("tuning.md"))
}

fn policy(name: &str) -> Policy {
    let configs = blocks(&guide()).into_iter().map(|block| Config::from_toml(&block).unwrap());
    let mut policies = configs.flat_map(|config| config.policies().to_vec());
    policies.find(|policy| policy.name == name).unwrap_or_else(|| panic!("no policy {name}"))
}

#[test]
fn every_toml_block_in_the_pages_is_a_valid_file() {
    let mut read_so_far = 0;
    let documents = std::fs::read_dir(docs()).unwrap().map(|entry| entry.unwrap().path());
    let markdown = documents.filter(|path| path.extension().is_some_and(|it| it == "md"));
    for path in markdown.chain([docs().join("../README.md")]) {
        // Dependencies are Cargo's; `front_page.rs` compiles them.
        for block in blocks(&read(&path)).into_iter().filter(|block| !block.starts_with("[dependencies]")) {
            let document = toml_as_json(&block);
            assert_eq!(complaints(&phalanx::config::schema(), &document), [""; 0], "{}\n{block}", path.display());
            Config::from_toml(&block).unwrap_or_else(|error| panic!("{}: {error}\n{block}", path.display()));
            read_so_far += 1;
        }
    }
    assert!(read_so_far >= 7, "{read_so_far}");
}

/// attempts × timeout + (attempts − 1) × longest wait.
fn worst_case(policy: &Policy) -> Duration {
    let (attempts, wait) = policy.retry.map_or((1, Duration::ZERO), |it| (it.max_attempts, it.backoff.max));
    policy.timeout.unwrap() * attempts + wait * (attempts - 1)
}

#[test]
fn the_time_budget_of_the_guide_adds_up() {
    let guide = guide();
    let hops = ["auth", "catalog", "tax"].map(policy);
    for hop in &hops {
        let (attempts, wait) = hop.retry.map_or((1, None), |it| (it.max_attempts, Some(it.backoff.max)));
        let wait = wait.map_or("–".to_owned(), |wait| format!("{} ms", wait.as_millis()));
        let (limit, worst) = (hop.timeout.unwrap().as_millis(), worst_case(hop).as_millis());
        let row = format!("| {} | {attempts} | {limit} ms | {wait} | {worst} ms |", hop.name);
        assert!(guide.contains(&row), "{row}");
        assert_eq!(hop.deadline.unwrap().safety_margin, Duration::from_millis(100), "{}", hop.name);
    }
    let all: Duration = hops.iter().map(worst_case).sum();
    assert_eq!(all, Duration::from_millis(1_200));
    assert!(guide.contains("| all | | | | 1,200 ms |"));
    assert_eq!(2_000 - 500 - 200 - 100, all.as_millis(), "deadline, application, network, margin");
}

#[test]
fn the_calculations_of_the_guide_are_right() {
    let guide = guide();
    let states =
        |words: &str| assert!(guide.split_whitespace().collect::<Vec<_>>().join(" ").contains(words), "{words}");

    let budget = policy("vendor").retry.unwrap().budget.unwrap();
    let retries = budget.ratio * 1_000.0 + 10.0 * f64::from(budget.min_per_second);
    states(&format!("{retries:.0} for 1,000 calls"));
    states(&format!("sees {:.2} times the load", 1.0 + retries / 1_000.0));
    states(&format!("3 × 3 × 3 = {}", 3_u32.pow(3)));
    states(&format!("1.1 × 1.1 × 1.1 = {:.3}", 1.1_f64.powi(3)));

    // At least half of n fail though one in 20 does: the tail of a binomial.
    let choose = |n: u32, k: u32| (0..k).map(|i| f64::from(n - i) / f64::from(i + 1)).product::<f64>();
    let by_chance = |n: u32| {
        let exactly = |k: u32| choose(n, k) * 0.05_f64.powi(k as i32) * 0.95_f64.powi((n - k) as i32);
        (n.div_ceil(2)..=n).map(exactly).sum::<f64>()
    };
    assert_eq!(by_chance(20).log10().round(), -8.0);
    assert_eq!(by_chance(5).log10().round(), -3.0);
    states("once in 10⁸ windows; with 5 calls, once in a thousand");
    let breaker = policy("ledger").breaker.unwrap();
    assert_eq!(4.0 * breaker.sampling_window.as_secs_f64(), 40.0);
    assert!(breaker.min_throughput <= 40 / 2);

    let bulkhead = policy("catalog-search").bulkhead.unwrap();
    assert_eq!(bulkhead.max_concurrency, (60.0_f64 * 0.25 * 1.5).ceil() as u32);
    states(&format!("with 20 replicas {} at a time", 20 * bulkhead.max_concurrency));
    let wait = f64::from(bulkhead.max_queue) / f64::from(bulkhead.max_concurrency) * 0.25;
    states(&format!("{} ÷ {} × 0.25 s = {wait} s", bulkhead.max_queue, bulkhead.max_concurrency));
    assert_eq!(bulkhead.queue_timeout, Some(Duration::from_secs_f64(wait)));

    let hedge = policy("lookup").hedge.unwrap();
    let hedges = hedge.budget.ratio * 200.0 + f64::from(hedge.budget.min_per_second);
    states(&format!("at most {hedges:.0} a second, {:.1} % more load", hedges / 2.0));

    let limit = policy("geocoding").rate_limit.unwrap();
    assert_eq!((limit.permits, limit.max_wait.unwrap().as_secs_f64() * limit.permits as f64), (50 - 50 / 10, 9.0));

    states("840 a second, whatever the number of breakers");
    assert_eq!(20.0 * (2.0 + 10.0 / 0.25), 840.0);
}

#[test]
fn the_metrics_that_the_guide_names_exist() {
    let (guide, telemetry) = (guide(), read(docs().join("telemetry.md")));
    let named: Vec<_> = guide.split('`').filter(|name| name.starts_with("phalanx.")).collect();
    assert!(named.len() >= 8, "{named:?}");
    let missing: Vec<_> = named.into_iter().filter(|name| !telemetry.contains(&format!("`{name}`"))).collect();
    assert_eq!(missing, [""; 0]);
}

/// Options of the program and fields that the guides name beside configuration keys.
const NOT_KEYS: [&str; 8] = [
    "best_effort",
    "data_age",
    "forced_open",
    "in_flight",
    "lever_pulled",
    "store_budget",
    "sync_interval",
    "with_redis",
];

/// Every `key = value` and every `key_with_underscores` in the running text of the runbook and the tuning guide.
#[test]
fn every_key_that_runbook_and_tuning_guide_name_exists() {
    let schema = phalanx::config::schema();
    let keys: BTreeSet<String> =
        crate::walk::keys(&schema).into_keys().map(|path| path.rsplit('.').next().unwrap().to_owned()).collect();
    let telemetry = read(docs().join("telemetry.md"));
    let elsewhere = |name: &str| {
        NOT_KEYS.contains(&name)
            || RejectionCode::ALL.iter().any(|code| code.name() == name)
            || telemetry.contains(&format!("`{name}`"))
    };
    let mut checked = 0;
    for page in ["runbook.md", "tuning.md"] {
        let text = read(docs().join(page));
        let outside_blocks: String = text.split("```").step_by(2).collect();
        for span in outside_blocks.split('`').skip(1).step_by(2) {
            let (name, assigned) = span.split_once(" = ").map_or((span, false), |(name, _)| (name, true));
            let name = name.rsplit('.').next().unwrap();
            let is_name = name.contains(|it: char| it.is_ascii_lowercase())
                && name.chars().all(|it| it.is_ascii_lowercase() || it == '_');
            if !is_name || !(assigned || name.contains('_')) || span.starts_with("phalanx") {
                continue;
            }
            assert!(keys.contains(name) || (!assigned && elsewhere(name)), "{page}: `{span}` is no key of a file");
            checked += 1;
        }
    }
    assert!(checked >= 60, "{checked}");
}
