//! The tests that `docs/testing.md` and the README of this crate show, run: each block is a module here, line by line.

mod retries {
    use std::time::Duration;

    use phalanx::policy::Jitter;
    use phalanx::{Backoff, Policy, ResilienceModule, RetrySpec};
    use phalanx_testkit::{AssertDecision, Scripted};

    #[tokio::test(start_paused = true)]
    async fn two_failures_are_retried_with_growing_delays() {
        let ms = Duration::from_millis;
        let retry = RetrySpec::attempts(3).backoff(Backoff::exponential(ms(100)).jitter(Jitter::None));
        let module = ResilienceModule::in_memory().policy(Policy::named("prices").retry(retry)).build().unwrap();

        let shop = Scripted::new().fail(2).taking(ms(10)).then_ok(42);
        let (price, record) = module.call("prices", "shoes").run_recorded(|| shop.call()).await;
        assert_eq!(price, Ok(42));
        record.assert_attempts(3);
        assert_eq!(shop.started_at(), [ms(0), ms(110), ms(320)]);
    }
}

mod breaker {
    use std::time::Duration;

    use phalanx::{BreakerSpec, Policy, RejectionCode, ResilienceModule};
    use phalanx_testkit::{Recorder, Scripted};

    #[tokio::test(start_paused = true)]
    async fn three_failures_open_the_circuit_and_a_probe_closes_it() {
        let recorder = Recorder::new();
        let breaker = BreakerSpec::consecutive_failures(3).break_for(Duration::from_secs(30));
        let policy = Policy::named("payments").breaker(breaker);
        let module = ResilienceModule::in_memory().policy(policy).observer(recorder.clone()).build().unwrap();

        let stripe = Scripted::new().fail(3).then_ok("paid");
        for _ in 0..4 {
            let _ = module.run("payments", "stripe", || stripe.call()).await;
        }
        recorder.assert_rejected(RejectionCode::CircuitOpen); // the fourth call
        assert_eq!(stripe.calls(), 3);

        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(module.run("payments", "stripe", || stripe.call()).await, Ok("paid"));
        recorder.assert_transitions(["closed -> open", "open -> half_open", "half_open -> closed"]);
    }
}

mod outage {
    use std::time::Duration;

    use phalanx::store::StoreMode;
    use phalanx::{Policy, RateLimitSpec, ResilienceModule};
    use phalanx_testkit::{FaultyRedis, Scripted};

    #[tokio::test(start_paused = true)]
    async fn calls_go_on_while_redis_is_down_and_the_fleet_decides_again_when_it_is_back() {
        let redis = FaultyRedis::new();
        let policy = Policy::named("vendor").rate_limit(RateLimitSpec::per_second(10));
        let module = ResilienceModule::with_redis(&redis).policy(policy).build().unwrap();
        let vendor = Scripted::new().then_ok("done");
        assert_eq!(module.run("vendor", "eu", || vendor.call()).await, Ok("done"));

        redis.stop();
        for _ in 0..3 {
            assert_eq!(module.run("vendor", "eu", || vendor.call()).await, Ok("done")); // decided in this process
        }
        assert_eq!(module.store_mode(), Some(StoreMode::Degraded));

        redis.start();
        tokio::time::sleep(Duration::from_secs(3)).await; // virtual
        assert_eq!(module.store_mode(), Some(StoreMode::Shared));
    }
}

mod own_store {
    use std::time::Duration;

    use phalanx::Source;
    use phalanx::store::{MemoryStore, Time};
    use phalanx_testkit::bed::{Bed, ORIGIN};
    use phalanx_testkit::{Clock, conformance_suite};

    struct MyBed {
        clock: Clock,
        store: MemoryStore, // yours
    }

    impl Bed for MyBed {
        type Store = MemoryStore;

        const SOURCE: Source = Source::Local;

        async fn new() -> Self {
            let clock = Clock::manual();
            clock.set(ORIGIN);
            Self { store: MemoryStore::new(clock.clone()), clock }
        }

        fn store(&self) -> MemoryStore {
            self.store.clone()
        }

        fn now(&self) -> Time {
            self.clock.now()
        }

        async fn advance(&self, by: Duration) {
            self.clock.advance(by);
        }
    }

    conformance_suite!(MyBed); // a store with locks implements `LockBed`, too: conformance_suite!(MyBed: lock);
}

mod chaos {
    use phalanx::policy::{ChaosSpec, LeverSpec};
    use phalanx::{EventKind, Policy, RejectionCode, ResilienceModule};
    use phalanx_testkit::{Recorder, Scripted};

    #[tokio::test]
    async fn callers_cope_with_a_search_that_fails() {
        let recorder = Recorder::new();
        let policy = Policy::named("search").chaos(ChaosSpec::default().errors(1.0));
        let module = ResilienceModule::in_memory().policy(policy).seed(7).observer(recorder.clone()).build().unwrap();
        let search = Scripted::new().then_ok("shoes");
        assert_eq!(module.run("search", "eu", || search.call()).await, Ok("shoes")); // the lever is off

        module.pull("search", LeverSpec::default().with_chaos().reason("game day")).unwrap();
        let answer = module.call("search", "eu").fallback_value("yesterday's shoes").run(|| search.call()).await;
        assert_eq!(answer, Ok("yesterday's shoes"));
        recorder.assert_rejected(RejectionCode::InjectedFault);
        recorder.assert_count(1, |event| matches!(event.kind, EventKind::FaultInjected(_)));
        module.release("search");
    }
}

/// Returns the lines without indentation, empty and hidden ones.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("# ")).collect()
}

#[test]
fn every_test_that_a_page_shows_is_one_of_these() {
    let here = lines(include_str!("testing_page.rs"));
    let mut shown = 0;
    for page in ["../docs/testing.md", "README.md"] {
        let page = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
        let blocks = page.split("```rust\n").skip(1).filter_map(|rest| rest.split("\n```").next());
        for block in blocks.filter(|block| block.contains("#[tokio::test") || block.contains("suite!")) {
            let block = lines(block);
            assert!(here.windows(block.len()).any(|part| part == block), "not here: {block:#?}");
            shown += 1;
        }
    }
    assert!(shown >= 5, "{shown}");
}
