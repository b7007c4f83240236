//! Layer: a policy around any tower service. `tower_stack` is a larger example, with axum and an HTTP client.
//!
//! `cargo run --example layer` prints
//!
//! ```text
//! shoes: 3 results
//! hats: 3 results
//! boots: rejected (rate_limited), retry after 100 ms
//! 100 ms later
//! boots: 3 results
//! ```

use std::convert::Infallible;

use phalanx::{Error, Policy, RateLimitSpec, ResilienceModule};
use phalanx_tower::ResilienceLayer;
use tower::{ServiceBuilder, ServiceExt, service_fn};

// The clock of tokio is paused and jumps from timer to timer: no time passes while the example waits.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let search = Policy::named("search").rate_limit(RateLimitSpec::per_second(10).burst(2));
    let module = ResilienceModule::in_memory().policy(search).build()?;

    let service = ServiceBuilder::new()
        .layer(ResilienceLayer::new(&module, "search")?.route("eu")?.any_service())
        .service(service_fn(async |_product: String| Ok::<_, Infallible>(3)));

    let mut rejected = 0;
    for product in ["shoes", "hats", "boots", "boots"] {
        match service.clone().oneshot(product.to_owned()).await {
            Ok(results) => println!("{product}: {results} results"),
            Err(Error::Inner(never)) => match never {},
            Err(Error::Rejected(rejection)) => {
                rejected += 1;
                let wait = rejection.retry_after().unwrap_or_default();
                println!("{product}: rejected ({}), retry after {} ms", rejection.code(), wait.as_millis());
                tokio::time::sleep(wait).await;
                println!("100 ms later");
            }
        }
    }
    assert_eq!(rejected, 1);
    Ok(())
}
