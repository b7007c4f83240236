//! The example runs to its end and shows what it says it shows; the README's code is the example's.

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

#[test]
fn the_readmes_code_is_the_examples() {
    let lines = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let example = lines(include_str!("../examples/axum_edge.rs"));
    let readme = include_str!("../../README.md");
    let part = |heading: &str| {
        let text = readme.split_once(heading).unwrap().1;
        let end = ["\n### ", "\n## "].iter().filter_map(|next| text.find(next)).min().unwrap_or(text.len());
        text[..end].to_owned()
    };
    for heading in ["\n### Axum\n", "\n### Idempotency\n"] {
        let part = part(heading);
        let blocks: Vec<&str> = part.split("```rust,ignore\n").skip(1).collect();
        assert!(!blocks.is_empty(), "{heading}");
        for block in blocks {
            let code = lines(block.split("```").next().unwrap_or_default());
            let found = example.windows(code.len()).any(|window| window == code);
            assert!(found, "not in examples/axum_edge.rs:\n{}", code.join("\n"));
        }
    }
}
