//! What happens past `max_routes`: an idle route is forgotten, a route with a drained bucket or an open circuit is not,
//! and routes for which there is no room share one state per policy.

mod support;

use std::time::Duration;

use phalanx::*;
use support::*;

const HOUR: Duration = Duration::from_secs(3_600);

async fn ok() -> Result<u32, Failure> {
    Ok(1)
}

fn once_an_hour() -> Policy {
    Policy::named("p").rate_limit(RateLimitSpec::new(1, HOUR))
}

/// Calls each of `routes` routes once per round; returns how many calls were admitted.
async fn admitted(module: &ResilienceModule, routes: u32, rounds: u32) -> u32 {
    let mut admitted = 0;
    for _ in 0..rounds {
        for route in 0..routes {
            admitted += u32::from(module.run("p", route.to_string().as_str(), ok).await.is_ok());
        }
    }
    admitted
}

#[tokio::test(start_paused = true)]
async fn fifty_routes_cycling_through_four_entries_do_not_get_past_their_limit() {
    let log = Log::default();
    let module = builder(once_an_hour()).max_routes(4).observer(log.clone()).build().unwrap();
    // One call for each of the four routes with an entry, and one for the state that the other 46 share.
    assert_eq!(admitted(&module, 50, 3).await, 5);
    assert_eq!((module.pipelines().len(), log.count("RoutesExhausted")), (5, 46 * 3));
}

#[tokio::test(start_paused = true)]
async fn a_route_whose_bucket_is_full_again_makes_room_for_another() {
    let module = builder(once_an_hour()).max_routes(4).build().unwrap();
    assert_eq!(admitted(&module, 50, 1).await, 5);
    tokio::time::advance(HOUR - SECOND).await;
    assert_eq!(code(module.run("p", "new", ok).await), RejectionCode::RateLimited, "no bucket is full yet");
    tokio::time::advance(SECOND).await;
    for route in ["a", "b", "c", "d"] {
        assert_eq!(module.run("p", route, ok).await, Ok(1), "{route}");
        assert_eq!(code(module.run("p", route, ok).await), RejectionCode::RateLimited, "{route} has its own bucket");
    }
}

#[tokio::test(start_paused = true)]
async fn policy_names_without_a_policy_share_one_state_past_the_bound() {
    let limited = Policy::named("default").rate_limit(RateLimitSpec::new(1, HOUR));
    let module = ResilienceModule::in_memory().default_policy(limited).max_routes(4).build().unwrap();
    let mut admitted = 0;
    for name in 0..200 {
        admitted += u32::from(module.run(&format!("caller {name}"), (), ok).await.is_ok());
    }
    assert_eq!((admitted, module.pipelines().len()), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn a_bucket_survives_while_its_policy_has_no_rate_limit() {
    let module = builder(once_an_hour()).max_routes(4).build().unwrap();
    assert_eq!(admitted(&module, 4, 1).await, 4);
    module.retune(Policy::named("p")).unwrap();
    assert_eq!(admitted(&module, 50, 3).await, 150, "no limit at all");
    module.retune(once_an_hour()).unwrap();
    assert_eq!(admitted(&module, 4, 1).await, 0, "the drained buckets are still there");
}
