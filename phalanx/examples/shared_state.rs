//! Shared state: two replicas with one rate limit and one breaker. Here they are two modules over one store in memory;
//! with `REDIS_URL` set they share a Redis, as the processes of a fleet do. `fleet` is the larger demo.
//!
//! `cargo run --example shared_state` prints
//!
//! ```text
//! the limit is 3 calls an hour for both replicas together
//! replica 1: admitted
//! replica 2: admitted
//! replica 1: admitted
//! replica 2: rejected (rate_limited)
//! replica 1 sees 2 failures and opens the breaker
//! replica 2: rejected (circuit_open)
//! ```

use std::time::Duration;

use phalanx::store::MemoryStore;
use phalanx::{BreakerSpec, Clock, Error, Kind, ModuleBuilder, Policy, RateLimitSpec, ResilienceModule};

/// Two builders whose modules share their state.
fn replicas() -> Result<[ModuleBuilder; 2], redis::RedisError> {
    if let Ok(url) = std::env::var("REDIS_URL") {
        let client = redis::Client::open(url)?;
        // The environment is part of every key: modules with the same one are a fleet.
        let replica =
            || ResilienceModule::with_redis(client.clone()).environment(format!("pid-{}", std::process::id()));
        return Ok([replica(), replica()]);
    }
    let store = MemoryStore::new(Clock::default());
    Ok([ResilienceModule::in_store(store.clone()), ResilienceModule::in_store(store)])
}

async fn call(replica: &ResilienceModule, policy: &str, answer: Result<(), Kind>) -> String {
    match replica.run(policy, "stripe", || async move { answer }).await {
        Ok(()) => "admitted".to_owned(),
        Err(Error::Rejected(rejection)) => format!("rejected ({})", rejection.code()),
        Err(Error::Inner(kind)) => format!("failed ({kind})"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limited = Policy::named("limited").rate_limit(RateLimitSpec::new(3, Duration::from_secs(3_600)));
    let guarded = Policy::named("guarded").breaker(BreakerSpec::consecutive_failures(2));
    let [one, two] = replicas()?.map(|builder| builder.policies([limited.clone(), guarded.clone()]).build());
    let (one, two) = (one?, two?);

    println!("the limit is 3 calls an hour for both replicas together");
    for (number, replica) in [(1, &one), (2, &two), (1, &one), (2, &two)] {
        println!("replica {number}: {}", call(replica, "limited", Ok(())).await);
    }
    println!("replica 1 sees 2 failures and opens the breaker");
    for _ in 0..2 {
        assert_eq!(call(&one, "guarded", Err(Kind::Infrastructure)).await, "failed (infrastructure)");
    }
    tokio::time::sleep(Duration::from_millis(300)).await; // Redis pushes the change; a lost push is made up for within 250 ms
    println!("replica 2: {}", call(&two, "guarded", Ok(())).await);
    Ok(())
}
