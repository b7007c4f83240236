//! The example `tower_stack`, run as it is: each scene must end as its story says.

#[allow(dead_code, unreachable_pub)] // its `main` is for people
#[path = "../examples/tower_stack.rs"]
mod tower_stack;

#[tokio::test]
async fn the_stack_rides_out_hiccups_sheds_a_crowd_and_spares_a_dead_vendor() {
    let mut lines = Vec::new();
    tower_stack::story(|line| lines.push(line)).await.unwrap();
    let scenes = [
        "healthy, 1 call:          1 good,  0 bad,  0 rejected; the vendor saw 1",
        "two hiccups, 1 call:      1 good,  0 bad,  0 rejected; the vendor saw 3",
        "a crowd, 20 at once:      8 good,  0 bad, 12 rejected (Retry-After: 1); the vendor saw 8",
        "vendor down, 5 calls:     0 good,  0 bad,  5 rejected (Retry-After: 1); the vendor saw 0",
        "vendor is back, 1 call:   1 good,  0 bad,  0 rejected; the vendor saw 1",
    ];
    assert_eq!(lines, scenes);
}
