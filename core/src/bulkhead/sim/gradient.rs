//! Gradient2 on a queue with a known knee, under unlimited load.
//!
//! With `c` servers, calls beyond `c` in flight only wait. The knee that the limit can find is where the latency is
//! `rtt_tolerance` times the latency without a queue: 1.5 c, plus a few slots of headroom. The limit must therefore be
//! within 1.1 c and 2 c (in whole slots: 2 on one server), the throughput that of the servers minus the cost of dips, and
//! the latency at most twice the lowest.

use super::*;
use crate::bulkhead::gradient::Gradient;
use crate::bulkhead::spec::GradientSpec;

const SERVICE: Duration = Duration::from_millis(10);
const MEASURED: Duration = Duration::from_secs(10);

struct Rig {
    gradient: Gradient,
    spec: GradientSpec,
    max: u32,
}

impl Controller for Rig {
    fn limit(&self) -> u32 {
        self.gradient.limit()
    }

    fn observe(&mut self, done: &Completion) {
        self.gradient.observe(done, &self.spec, self.max);
    }
}

fn fleet(max: u32, servers: usize, noise: Noise, seed: u64) -> Fleet<Rig> {
    let spec = GradientSpec::default();
    let mut fleet = Fleet::new(servers, SERVICE, noise, seed);
    fleet.join(Rig { gradient: Gradient::new(&spec, max), spec, max });
    fleet
}

/// Measures for a while: throughput and calls in flight as shares of what the servers can do without a queue.
fn measure(fleet: &mut Fleet<Rig>, servers: usize) -> (f64, f64, f64) {
    let seen = fleet.run(MEASURED);
    let servers = servers as f64;
    (seen.in_flight / servers, seen.throughput * fleet.service.as_secs_f64() / servers, seen.latency)
}

#[track_caller]
fn assert_at_knee(what: &str, fleet: &mut Fleet<Rig>, servers: usize) {
    let max = fleet.controller(0).max;
    // Half of three slots is one: there a dip costs half of the throughput of two servers.
    let least_throughput = match fleet.noise {
        Noise::Uniform(_) if max > 4 => 0.94,
        Noise::Uniform(_) => 0.9,
        // The mean of ten calls is off by a third, and the limit tends to be lower.
        Noise::Exponential => 0.85,
    };
    let (in_flight, throughput, latency) = measure(fleet, servers);
    let measured =
        format!("{what}, {servers} servers: {in_flight:.2} in flight, throughput {throughput:.3}, {latency:.2}");
    assert!((1.1..2.0).contains(&in_flight), "{measured}");
    assert!(throughput >= least_throughput && latency < 2.0, "{measured}");
}

#[test]
fn it_finds_the_knee_with_limits_of_4_40_and_400() {
    for (max, servers) in [(4, 1), (4, 2), (4, 3), (40, 4), (40, 20), (400, 5), (400, 20)] {
        let mut fleet = fleet(max, servers, Noise::Uniform(0.2), 1);
        fleet.run(Duration::from_secs(20));
        assert_at_knee(&format!("at most {max}"), &mut fleet, servers);
    }
}

#[test]
fn it_finds_the_knee_of_a_large_dependency() {
    let mut fleet = fleet(400, 100, Noise::Uniform(0.2), 1);
    fleet.run(Duration::from_secs(5));
    assert_at_knee("at most 400", &mut fleet, 100);
}

#[test]
fn it_finds_the_knee_with_exponential_service_times() {
    for (max, servers) in [(4, 2), (40, 10), (400, 40)] {
        let mut fleet = fleet(max, servers, Noise::Exponential, 1);
        fleet.run(Duration::from_secs(20));
        assert_at_knee(&format!("at most {max}"), &mut fleet, servers);
    }
}

#[test]
fn it_shrinks_when_capacity_is_halved_and_grows_when_it_is_back() {
    for (max, servers) in [(4, 2), (40, 20), (400, 10)] {
        let mut fleet = fleet(max, servers, Noise::Uniform(0.2), 1);
        fleet.run(Duration::from_secs(10));
        assert_at_knee("before", &mut fleet, servers);
        fleet.set_servers(servers / 2);
        fleet.run(Duration::from_secs(10));
        assert_at_knee("halved", &mut fleet, servers / 2);
        fleet.set_servers(servers);
        fleet.run(Duration::from_secs(10));
        assert_at_knee("back", &mut fleet, servers);
    }
}

#[test]
fn its_baseline_follows_a_dependency_that_becomes_slow_and_fast_again() {
    for (max, servers) in [(4, 2), (40, 20), (400, 10)] {
        let mut fleet = fleet(max, servers, Noise::Uniform(0.2), 1);
        for (what, service) in [("quick", SERVICE), ("slow", SERVICE * 3), ("quick again", SERVICE)] {
            fleet.set_service(service);
            fleet.run(Duration::from_secs(20));
            assert_at_knee(what, &mut fleet, servers);
            let baseline = fleet.controller(0).gradient.baseline().unwrap();
            let off = baseline.as_secs_f64() / service.as_secs_f64();
            assert!((0.8..1.25).contains(&off), "{what}: {baseline:?} for {service:?}");
        }
    }
}

#[test]
fn a_service_that_uses_part_of_its_limit_is_never_held_back() {
    // Demand 15 of 20 with 40 servers: nothing queues, so there is no reason to reject calls.
    let mut fleet = fleet(20, 40, Noise::Exponential, 1);
    fleet.set_demand(0, 15);
    fleet.run(Duration::from_secs(1));
    let seen = fleet.run(Duration::from_secs(10));
    assert!(seen.in_flight > 14.9, "{}", seen.in_flight);
}

#[test]
fn lasting_load_does_not_move_the_knee() {
    let mut fleet = fleet(40, 10, Noise::Uniform(0.2), 1);
    fleet.run(Duration::from_secs(90));
    assert_at_knee("after a while", &mut fleet, 10);
}

#[test]
fn a_larger_tolerance_allows_a_longer_queue_and_no_more() {
    for tolerance in [2.0, 3.0] {
        let mut fleet = fleet(200, 10, Noise::Uniform(0.2), 1);
        fleet.controller(0).spec.rtt_tolerance = tolerance;
        fleet.run(Duration::from_secs(30));
        let (in_flight, throughput, _) = measure(&mut fleet, 10);
        assert!((0.8..1.25).contains(&(in_flight / tolerance)), "{in_flight} for {tolerance}");
        assert!(throughput > 0.94, "{throughput} for {tolerance}");
    }
}
