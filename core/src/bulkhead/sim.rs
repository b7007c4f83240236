//! A simulated fleet with one bottleneck: `c` servers with one queue, and replicas that keep as many calls in flight as
//! their limit allows (closed loop), or as many as they want.
//!
//! With `n` calls in flight the latency is `service × max(1, n / c)`, so the result that a controller should reach is
//! known. Time is virtual, noise is seeded, and there is one event for each completion.

mod aimd;
mod gradient;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::limit::Completion;
use crate::clock::Time;
use crate::kind::Outcome;
use crate::rng::Rng;

/// The limit under test, of one replica.
pub(super) trait Controller {
    fn limit(&self) -> u32;
    fn observe(&mut self, done: &Completion);
    /// Every 200 ms.
    fn tick(&mut self, _now: Time) {}
}

/// How service times scatter around their mean.
#[derive(Clone, Copy)]
pub(super) enum Noise {
    /// Evenly, by at most this share.
    Uniform(f64),
    /// Exponentially.
    Exponential,
}

struct Replica<C> {
    controller: C,
    in_use: u32,
    /// Calls that it would have in flight without a limit.
    demand: u32,
    /// Slot-microseconds since the last `reset`.
    used: u64,
    changed: u64,
    done: u64,
    waited: f64,
}

/// The replicas and the servers that they share.
pub(super) struct Fleet<C> {
    replicas: Vec<Replica<C>>,
    /// When each server is free again.
    servers: BinaryHeap<Reverse<u64>>,
    /// Future completions: the time, the replica, and the start of the call.
    calls: BinaryHeap<Reverse<(u64, usize, u64)>>,
    service: Duration,
    noise: Noise,
    rng: Rng,
    now: u64,
    since: u64,
}

/// Measurements over a period.
#[derive(Debug)]
pub(super) struct Seen {
    /// Calls in flight, on average, for each replica.
    pub(super) shares: Vec<f64>,
    /// Calls in flight in the whole fleet, on average.
    pub(super) in_flight: f64,
    /// Completions a second.
    pub(super) throughput: f64,
    /// The mean latency in units of the mean service time.
    pub(super) latency: f64,
}

impl Seen {
    /// Jain's fairness index (Jain, Chiu and Hawe, 1984): 1 if all have the same, 1/n if one has everything.
    pub(super) fn jain(&self) -> f64 {
        let sum: f64 = self.shares.iter().sum();
        let squares: f64 = self.shares.iter().map(|share| share * share).sum();
        sum * sum / (self.shares.len() as f64 * squares)
    }
}

const TICK: u64 = 200_000;

impl<C: Controller> Fleet<C> {
    pub(super) fn new(servers: usize, service: Duration, noise: Noise, seed: u64) -> Self {
        Self {
            replicas: Vec::new(),
            servers: (0..servers).map(|_| Reverse(0)).collect(),
            calls: BinaryHeap::new(),
            service,
            noise,
            rng: Rng::seeded(seed),
            now: 0,
            since: 0,
        }
    }

    /// Adds a replica with unlimited demand.
    pub(super) fn join(&mut self, controller: C) {
        let changed = self.now;
        self.replicas.push(Replica { controller, in_use: 0, demand: u32::MAX, used: 0, changed, done: 0, waited: 0.0 });
        self.fill(self.replicas.len() - 1);
    }

    pub(super) fn controller(&mut self, index: usize) -> &mut C {
        &mut self.replicas[index].controller
    }

    pub(super) fn set_demand(&mut self, index: usize, calls: u32) {
        self.replicas[index].demand = calls;
        self.fill(index);
    }

    pub(super) fn set_service(&mut self, service: Duration) {
        self.service = service;
    }

    /// Changes the number of servers; those that are free first are removed.
    pub(super) fn set_servers(&mut self, servers: usize) {
        while self.servers.len() > servers {
            self.servers.pop();
        }
        while self.servers.len() < servers {
            self.servers.push(Reverse(self.now));
        }
    }

    /// Advances the time and returns the measurements.
    pub(super) fn run(&mut self, time: Duration) -> Seen {
        let until = self.now + time.as_micros() as u64;
        self.reset();
        while let Some(Reverse((at, index, begun))) = self.calls.peek().copied() {
            // Controllers tick at whole multiples.
            let tick = (self.now / TICK + 1) * TICK;
            if tick.min(at) > until {
                break;
            }
            if tick <= at {
                self.now = tick;
                for index in 0..self.replicas.len() {
                    self.replicas[index].controller.tick(Time::from_micros(tick));
                    self.fill(index);
                }
                continue;
            }
            self.calls.pop();
            self.now = at;
            self.complete(index, begun);
        }
        self.now = until;
        self.seen()
    }

    fn complete(&mut self, index: usize, begun: u64) {
        let now = self.now;
        let replica = &mut self.replicas[index];
        let latency = now - begun;
        let done = Completion {
            now: Time::from_micros(now),
            latency: Duration::from_micros(latency),
            outcome: Outcome::Success,
            in_use: replica.in_use,
        };
        replica.controller.observe(&done);
        replica.count(now);
        replica.in_use -= 1;
        replica.done += 1;
        replica.waited += latency as f64;
        self.fill(index);
    }

    /// Starts calls until the limit or the demand is reached.
    fn fill(&mut self, index: usize) {
        let now = self.now;
        while self.replicas[index].in_use < self.replicas[index].controller.limit().min(self.replicas[index].demand) {
            let scatter = match self.noise {
                Noise::Uniform(share) => 1.0 + share * (2.0 * self.rng.unit() - 1.0),
                Noise::Exponential => -(1.0 - self.rng.unit()).ln(),
            };
            let work = self.service.mul_f64(scatter).as_micros() as u64;
            let Some(Reverse(free)) = self.servers.pop() else { return };
            let ends = free.max(now) + work.max(1);
            self.servers.push(Reverse(ends));
            self.calls.push(Reverse((ends, index, now)));
            let replica = &mut self.replicas[index];
            replica.count(now);
            replica.in_use += 1;
        }
    }

    fn reset(&mut self) {
        self.since = self.now;
        for replica in &mut self.replicas {
            (replica.used, replica.changed, replica.done, replica.waited) = (0, self.now, 0, 0.0);
        }
    }

    fn seen(&mut self) -> Seen {
        let (now, micros) = (self.now, (self.now - self.since) as f64);
        self.replicas.iter_mut().for_each(|replica| replica.count(now));
        let shares: Vec<f64> = self.replicas.iter().map(|replica| replica.used as f64 / micros).collect();
        let done: u64 = self.replicas.iter().map(|replica| replica.done).sum();
        let waited: f64 = self.replicas.iter().map(|replica| replica.waited).sum();
        Seen {
            in_flight: shares.iter().sum(),
            throughput: done as f64 * 1e6 / micros,
            latency: waited / done as f64 / self.service.as_micros() as f64,
            shares,
        }
    }
}

impl<C> Replica<C> {
    fn count(&mut self, now: u64) {
        self.used += u64::from(self.in_use) * (now - self.changed);
        self.changed = now;
    }
}
