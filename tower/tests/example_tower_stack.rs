//! Runs the example `tower_stack` and checks the result of each scenario.

#[allow(dead_code, unreachable_pub)] // its `main` is not called here
#[path = "../examples/tower_stack.rs"]
mod tower_stack;

#[tokio::test]
async fn the_stack_retries_failures_sheds_load_and_stops_calling_a_failing_vendor() {
    let mut lines = Vec::new();
    tower_stack::run(|line| lines.push(line)).await.unwrap();
    let expected = [
        "healthy, 1 call:          1 good,  0 bad,  0 rejected; the vendor saw 1",
        "two failures, 1 call:     1 good,  0 bad,  0 rejected; the vendor saw 3",
        "20 concurrent calls:      8 good,  0 bad, 12 rejected (Retry-After: 1); the vendor saw 8",
        "vendor down, 5 calls:     0 good,  0 bad,  5 rejected (Retry-After: 1); the vendor saw 0",
        "vendor recovered, 1 call: 1 good,  0 bad,  0 rejected; the vendor saw 1",
    ];
    assert_eq!(lines, expected);
}
