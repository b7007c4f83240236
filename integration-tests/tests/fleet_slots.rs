//! `fleet_max_concurrency`, over a Redis in this process and in virtual time (docs/guarantees.md I-40).

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

mod support;

use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use phalanx::*;
use phalanx_testkit::FaultyRedis;
use support::*;
use tokio::task::JoinHandle;
use tokio::time::{advance, sleep};

/// The lease of a share, and a round of the background task.
const LEASE: Duration = Duration::from_secs(3);

fn capped(slots: u32) -> Policy {
    Policy::named("vendor").bulkhead(BulkheadSpec::fixed(slots).fleet_max_concurrency(slots))
}

/// The lapses that were counted.
#[derive(Clone, Default)]
struct Lapses(Arc<Mutex<Vec<u32>>>);

impl Lapses {
    fn read(&self) -> Vec<u32> {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Lapses {
    fn on_event(&self, event: &Event<'_>) {
        if let EventKind::FleetShareLapsed { calls } = event.kind {
            assert_eq!(event.key.map(ToString::to_string).as_deref(), Some("vendor/eu"));
            self.0.lock().unwrap().push(calls);
        }
    }
}

fn replica(redis: &FaultyRedis, policy: Policy, lapses: &Lapses) -> ResilienceModule {
    let module = ResilienceModule::with_redis(redis).service("shop").seed(7).observer(lapses.clone());
    module.policy(policy).build().unwrap()
}

/// Replicas that know each other.
async fn fleet(redis: &FaultyRedis, replicas: usize, policy: Policy) -> (Vec<ResilienceModule>, Lapses) {
    redis.set_latency(MS);
    let lapses = Lapses::default();
    let fleet: Vec<_> = (0..replicas).map(|_| replica(redis, policy.clone(), &lapses)).collect();
    for module in &fleet {
        module.redis_store().unwrap().join();
    }
    sleep(3 * SECOND).await;
    assert!(fleet.iter().all(|module| module.replicas() == Some(replicas as u32)));
    (fleet, lapses)
}

/// Calls in flight, until they are ended or this is dropped.
#[derive(Default)]
struct Calls(Vec<JoinHandle<Option<RejectionCode>>>);

impl Calls {
    /// Starts calls that do not end by themselves, and waits until they run or are rejected.
    async fn start(&mut self, module: &ResilienceModule, calls: usize) {
        for _ in 0..calls {
            let module = module.clone();
            self.0.push(tokio::spawn(async move {
                let answer = module.run("vendor", "eu", hang).await;
                answer.err().and_then(|error| error.rejection().map(|it| it.code()))
            }));
        }
        sleep(100 * MS).await;
        for rejected in self.0.extract_if(.., |call| call.is_finished()) {
            assert_eq!(rejected.await.unwrap(), Some(RejectionCode::FleetBulkheadFull));
        }
    }

    fn running(&self) -> usize {
        self.0.len()
    }

    async fn end(&mut self, calls: usize) {
        self.0.drain(..calls).for_each(|call| call.abort());
        sleep(MS).await;
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

async fn run(module: &ResilienceModule, calls: usize) {
    for _ in 0..calls {
        assert_eq!(module.run("vendor", "eu", ok).await, Ok(1));
    }
}

fn slot_keys(redis: &FaultyRedis) -> usize {
    redis.key_names().iter().filter(|key| key.contains(":c:")).count()
}

#[tokio::test(start_paused = true)]
async fn the_cap_holds_for_all_replicas_together() {
    let redis = FaultyRedis::new();
    let (fleet, lapses) = fleet(&redis, 3, capped(10)).await;
    let mut calls: [Calls; 3] = Default::default();
    for (calls, module) in calls.iter_mut().zip(&fleet) {
        calls.start(module, 6).await;
    }
    let running = || calls.iter().map(Calls::running).sum::<usize>();
    assert_eq!((calls[0].running(), running()), (6, 10), "one replica may use more than its part");
    sleep(10 * SECOND).await;
    assert_eq!(running(), 10, "calls are never cut off");
    assert!(lapses.read().is_empty());
}

#[tokio::test(start_paused = true)]
async fn calls_within_the_share_cost_no_round_trip() {
    let redis = FaultyRedis::new();
    let (fleet, _) = fleet(&redis, 1, capped(100)).await;
    let mut calls = Calls::default();
    calls.start(&fleet[0], 20).await;
    assert_eq!(calls.running(), 20);
    let before = redis.runs_of("slots_share");
    calls.end(10).await;
    for _ in 0..9 {
        run(&fleet[0], 100).await;
        sleep(50 * MS).await;
    }
    assert!(redis.runs_of("slots_share") - before <= 1, "one renewal a second");
}

#[tokio::test(start_paused = true)]
async fn a_policy_without_a_cap_of_the_fleet_sends_nothing() {
    let redis = FaultyRedis::new();
    let (fleet, _) = fleet(&redis, 1, Policy::named("vendor").bulkhead(BulkheadSpec::fixed(2))).await;
    run(&fleet[0], 10).await;
    assert_eq!((redis.runs_of("slots_share"), slot_keys(&redis)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_share_that_is_not_used_is_handed_back() {
    let redis = FaultyRedis::new();
    let (fleet, _) = fleet(&redis, 2, capped(10)).await;
    let mut calls: [Calls; 2] = Default::default();
    calls[0].start(&fleet[0], 10).await;
    calls[1].start(&fleet[1], 5).await;
    assert_eq!(calls[1].running(), 0);
    calls[0].end(10).await;
    sleep(4 * SECOND).await;
    assert_eq!(slot_keys(&redis), 0, "idle for long enough");
    calls[1].start(&fleet[1], 10).await;
    assert_eq!(calls[1].running(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_leaves_hands_its_share_back_at_once() {
    let redis = FaultyRedis::new();
    let (fleet, _) = fleet(&redis, 2, capped(10)).await;
    let mut calls: [Calls; 2] = Default::default();
    calls[0].start(&fleet[0], 10).await;
    calls[0].end(10).await;
    fleet[0].redis_store().unwrap().leave().await;
    calls[1].start(&fleet[1], 10).await;
    assert_eq!(calls[1].running(), 10);
}

#[tokio::test(start_paused = true)]
async fn the_share_of_a_replica_that_is_gone_returns_after_its_lease() {
    let redis = FaultyRedis::new();
    let (mut fleet, lapses) = fleet(&redis, 2, capped(10)).await;
    let mut calls: [Calls; 2] = Default::default();
    calls[0].start(&fleet[0], 10).await;
    calls[0].end(10).await;
    drop(fleet.remove(0));
    calls[1].start(&fleet[0], 10).await;
    assert_eq!(calls[1].running(), 0);
    sleep(LEASE).await;
    calls[1].start(&fleet[0], 10).await;
    assert_eq!((calls[1].running(), lapses.read()), (10, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_busy_replica_gives_way_to_one_that_has_nothing() {
    let redis = FaultyRedis::new();
    let (fleet, _) = fleet(&redis, 2, capped(10)).await;
    let mut calls: [Calls; 2] = Default::default();
    calls[0].start(&fleet[0], 10).await;
    let mut most = 0;
    for _ in 0..40 {
        // Both want ten; of the calls of the first one, one ends every 100 ms.
        calls[1].start(&fleet[1], 10 - calls[1].running()).await;
        calls[0].end(1.min(calls[0].running())).await;
        calls[0].start(&fleet[0], 10 - calls[0].running()).await;
        most = most.max(calls[0].running() + calls[1].running());
    }
    assert!(most <= 10, "{most} calls at once");
    assert!(calls[1].running() >= 4, "{} and {}", calls[0].running(), calls[1].running());
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_was_cut_off_past_its_lease_counts_its_calls_once() {
    let redis = FaultyRedis::new();
    let (fleet, lapses) = fleet(&redis, 2, capped(10)).await;
    let mut calls: [Calls; 2] = Default::default();
    calls[0].start(&fleet[0], 4).await;
    redis.stop();
    sleep(200 * MS).await;
    redis.start();
    sleep(3 * SECOND).await;
    assert!(lapses.read().is_empty(), "its lease was not over");
    redis.stop();
    sleep(2 * LEASE).await;
    redis.start();
    sleep(3 * SECOND).await;
    assert_eq!(lapses.read(), [4]);
    calls[1].start(&fleet[1], 10).await;
    assert_eq!(calls[1].running(), 6, "they are recorded again");
    sleep(5 * SECOND).await;
    assert_eq!(lapses.read(), [4]);
}

#[tokio::test(start_paused = true)]
async fn shares_are_recorded_again_after_a_loss_of_data() {
    let redis = FaultyRedis::new();
    let (fleet, _) = fleet(&redis, 2, capped(10)).await;
    let mut calls: [Calls; 2] = Default::default();
    calls[0].start(&fleet[0], 7).await;
    redis.flush_all();
    sleep(2 * SECOND).await;
    calls[1].start(&fleet[1], 10).await;
    assert_eq!(calls[1].running(), 3);
}

#[tokio::test(start_paused = true)]
async fn without_redis_a_replica_keeps_to_its_last_share_or_a_part_of_the_cap() {
    let redis = FaultyRedis::new();
    let (fleet, _) = fleet(&redis, 3, capped(12)).await;
    let mut calls: [Calls; 2] = Default::default();
    calls[0].start(&fleet[0], 7).await;
    redis.stop();
    sleep(5 * SECOND).await;
    calls[0].start(&fleet[0], 12).await;
    assert_eq!(calls[0].running(), 7, "its last share");
    calls[1].start(&fleet[1], 12).await;
    assert_eq!(calls[1].running(), 4, "a third of the cap");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_has_never_seen_redis_has_its_part_of_the_cap() {
    let redis = FaultyRedis::new();
    redis.stop();
    let module = ResilienceModule::with_redis(&redis).service("shop").expected_replicas(5).policy(capped(12));
    let module = module.build().unwrap();
    let mut calls = Calls::default();
    calls.start(&module, 12).await;
    assert_eq!(calls.running(), 2);
}

#[tokio::test(start_paused = true)]
async fn on_degraded_closed_admits_nothing_without_a_share() {
    let redis = FaultyRedis::new();
    let (fleet, _) = fleet(&redis, 1, capped(12).on_degraded(OnDegraded::Closed)).await;
    redis.stop();
    sleep(SECOND).await;
    let error = fleet[0].run("vendor", "eu", ok).await.unwrap_err();
    assert_eq!(error.rejection().unwrap().code(), RejectionCode::StoreUnavailable);
}

#[tokio::test(start_paused = true)]
async fn lost_and_late_replies_never_lead_to_more_than_the_cap() {
    let redis = FaultyRedis::new();
    let (fleet, _) = fleet(&redis, 2, capped(10)).await;
    let mut calls: [Calls; 2] = Default::default();
    for nth in [1, 2, 4] {
        redis.lose_reply("slots_share", nth);
    }
    for nth in [6, 8] {
        redis.delay_request("slots_share", nth, 300 * MS);
    }
    for round in 0..20 {
        for by in 0..2 {
            calls[by].start(&fleet[by], 3 + by).await;
            let running = calls[0].running() + calls[1].running();
            // A caller whose reply is lost goes by the last share, or by half of the cap.
            assert!(running <= 10, "round {round}: {running} calls");
            let ends = calls[by].running().min(2 + round % 3);
            calls[by].end(ends).await;
        }
    }
    assert_eq!(redis.pending_faults(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_at_any_poll_returns_its_slot() {
    let redis = FaultyRedis::new();
    let (fleet, _) = fleet(&redis, 2, capped(1)).await;
    let mut dropped_while_asking = 0;
    for polls in 1..12 {
        let mut call = Box::pin(fleet[0].run("vendor", "eu", hang));
        let mut ended = false;
        for _ in 0..polls {
            ended |= matches!(poll_once(call.as_mut()), Poll::Ready(_));
            assert!(!ended, "the only call");
            advance(MS).await;
            tokio::task::yield_now().await;
        }
        dropped_while_asking += usize::from(fleet[0].pipeline("vendor", "eu").unwrap().bulkhead().unwrap().in_use == 1);
        drop(call);
        // The other replica gets the slot once it is handed back.
        sleep(5 * SECOND).await;
        run(&fleet[1], 1).await;
        sleep(5 * SECOND).await;
    }
    assert!(dropped_while_asking > 5);
}
