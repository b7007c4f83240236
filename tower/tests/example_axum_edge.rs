//! Runs the example `axum_edge` and checks its output.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

#[path = "../examples/axum_edge.rs"]
mod axum_edge;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_shows_every_answer_it_announces() {
    let mut out = Vec::new();
    axum_edge::run(&mut out).await.unwrap();
    let out = String::from_utf8(out).unwrap();
    println!("{out}");
    let statuses: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix("< ")?.get(..3)).collect();
    let statuses: Vec<u16> = statuses.into_iter().filter_map(|status| status.parse().ok()).collect();
    assert_eq!(statuses, [200, 200, 504, 504, 429, 200, 200, 429, 201, 201, 409, 200]);
    for shown in [
        "< x-deadline-remaining: ",
        "< x-degraded: fallback; age=0",
        "\"message_id\":\"DEPENDENCY.timeout\"",
        "\"code\":\"bulkhead_full\"",
        "< retry-after: 1\n",
        "< ratelimit: \"search\";r=0;t=30",
        "< ratelimit-policy: \"search\";q=2;w=60",
        "< idempotency-replayed: true",
        "\"code\":\"idempotency_mismatch\"",
        "malformed: 1",
        "expired: 1",
        "upgrades_rejected: 1",
    ] {
        assert!(out.contains(shown), "{shown:?} is not in:\n{out}");
    }
    assert_eq!(out.matches("\"number\":1").count(), 2, "one order, answered twice");
}
