//! The example runs to its end and shows what it says it shows.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

#[path = "../examples/axum_edge.rs"]
mod axum_edge;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_shows_every_answer_it_speaks_of() {
    let mut out = Vec::new();
    axum_edge::play(&mut out).await.unwrap();
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
        "garbled: 1",
        "expired: 1",
        "upgrades_rejected: 1",
    ] {
        assert!(out.contains(shown), "{shown:?} is not in:\n{out}");
    }
    assert_eq!(out.matches("\"number\":1").count(), 2, "one order, answered twice");
}
