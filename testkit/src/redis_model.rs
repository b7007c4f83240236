//! A Redis in this process: the shipped scripts over a keyspace, reached over a network that delays and loses.
//!
//! ```text
//!   store  ──send──►  link (one per replica) ──arrive──►  node: keyspace, clock, loaded scripts
//!     ▲                     │                               │ execute: Lua
//!     └──────reply──────────┴──────────────◄────────────────┘ published messages ──► subscribers
//! ```
//!
//! A request is executed when it arrives, whether or not its sender still waits: a timed-out command runs later, as on a
//! real server. Requests and replies of one connection keep their order. Everything random comes from one seed, and all
//! times are tokio's, so that a paused runtime plays an outage of minutes in milliseconds.
//!
//! [`crate::FaultyRedis`] is the handle for users, `crate::simulator` the other user.

mod link;
mod node;
mod schedule;
mod targeted;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::rng::Rng;
use phalanx_store_redis::Failure;
use phalanx_store_redis::transport::{Response, ScriptForm, ShardSurvey};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

pub(crate) use self::link::Link;
pub(crate) use self::node::{Availability, ScriptRun, value};
use self::node::{Call, Node};
#[cfg(all(feature = "servers", feature = "simulator"))]
pub(crate) use self::node::{cells_of, reported};
use self::schedule::{Event, Schedule};
pub(crate) use self::targeted::TargetedFault;
use self::targeted::TargetedFaults;

/// Hash slots of a Cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The server's clock at the start of a model, in microseconds: as large and uneven as a real one.
const CLOCK_ORIGIN: u64 = 1_700_000_003_456_789;

/// A server, or the masters of a Cluster.
pub(crate) struct RedisModel {
    state: Mutex<State>,
    /// Wakes the task that delivers what is due.
    scheduled: Arc<Notify>,
}

pub(crate) struct State {
    started: Option<Instant>,
    pub(crate) nodes: Vec<Node>,
    /// The node of each slot; empty without a Cluster.
    slots: Vec<u8>,
    pub(crate) links: Vec<LinkState>,
    subscribers: Vec<Subscriber>,
    schedule: Schedule,
    delivering: bool,
    rng: Rng,
    pub(crate) network: Network,
    observer: Option<ScriptObserver>,
    /// How often each fault of [`Network`] had an effect.
    pub(crate) effects: Effects,
    /// Faults of single requests that have not happened yet.
    pub(crate) targeted: TargetedFaults,
    /// How often each script was executed.
    pub(crate) script_runs: BTreeMap<&'static str, u64>,
    /// How many scripts were sent by their source.
    pub(crate) sources_sent: u64,
    /// Slots that are being moved, and the masters that receive them.
    migrating: BTreeMap<u16, usize>,
    /// Former masters that have become replicas of the node that took their place.
    demoted: Vec<Demoted>,
    /// Subscriptions made so far.
    subscriptions: u64,
}

/// Is called after every script.
pub(crate) type ScriptObserver = Arc<dyn Fn(&ScriptRun<'_>) + Send + Sync>;

/// What happens to messages on their way. All off by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Network {
    /// The one-way delay: at least, and how much more at random.
    pub(crate) latency: Duration,
    pub(crate) jitter: Duration,
    /// Every n-th reply takes this much longer.
    pub(crate) late_replies: Option<(u64, Duration)>,
    /// Every n-th reply is lost; its request was executed.
    pub(crate) lost_replies: Option<u64>,
    /// Every n-th request arrives this much later, after its sender gave up.
    pub(crate) late_requests: Option<(u64, Duration)>,
    /// Pushed messages are lost.
    pub(crate) lose_pushes: bool,
    /// Pushed messages take this much longer.
    pub(crate) push_delay: Duration,
    /// Pushed messages arrive twice.
    pub(crate) double_pushes: bool,
}

/// How often a fault had an effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    pub(crate) late_replies: u64,
    pub(crate) lost_replies: u64,
    pub(crate) late_requests: u64,
    pub(crate) lost_pushes: u64,
    pub(crate) late_pushes: u64,
    pub(crate) double_pushes: u64,
    /// Requests executed after their sender had stopped waiting.
    pub(crate) executed_late: u64,
    pub(crate) redirects: u64,
    pub(crate) scripts: u64,
    pub(crate) pushes: u64,
}

impl Effects {
    /// Adds those of another network.
    #[cfg(all(feature = "servers", feature = "simulator"))]
    pub(crate) const fn add(&mut self, other: Self) {
        self.late_replies += other.late_replies;
        self.lost_replies += other.lost_replies;
        self.late_requests += other.late_requests;
        self.lost_pushes += other.lost_pushes;
        self.late_pushes += other.late_pushes;
        self.double_pushes += other.double_pushes;
        self.executed_late += other.executed_late;
        self.redirects += other.redirects;
        self.scripts += other.scripts;
        self.pushes += other.pushes;
    }
}

/// The network of one replica.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    pub(crate) partitioned: bool,
    /// Requests sent while partitioned: they arrive when the partition heals.
    held: Vec<Request>,
    /// The arrival of the last request and of the last reply: later ones do not overtake.
    last_arrival: Option<Instant>,
    last_reply: Option<Instant>,
    sent: u64,
    replied: u64,
    /// Connections opened so far.
    pub(crate) connects: u64,
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Request {
    link: usize,
    node: usize,
    generation: u64,
    calls: Vec<Call>,
    reply: oneshot::Sender<Replies>,
}

/// What a request returns.
pub(crate) type Replies = Result<Vec<Response>, Failure>;

struct Subscriber {
    number: u64,
    link: usize,
    /// The generation of each node when it subscribed there; none if it did not. In a Cluster it is subscribed at every
    /// master, and receives every message from each of them.
    generations: Vec<Option<u64>>,
    channel: String,
    messages: mpsc::UnboundedSender<String>,
    /// The arrival of the last message from each node: later ones do not overtake.
    last_push: Vec<Option<Instant>>,
    /// Its server is a former master: it receives nothing.
    isolated: bool,
}

/// A former master that replicates the node that took its place: its connections stay, and it rejects writes.
#[derive(Debug)]
struct Demoted {
    node: usize,
    generation: u64,
    loaded: HashSet<usize>,
}

impl RedisModel {
    /// Creates a server, or a Cluster of several masters with equal shares of the slots.
    pub(crate) fn new(masters: usize, seed: u64) -> Arc<Self> {
        let count = masters.max(1);
        let slots = if count == 1 { Vec::new() } else { equal_shares(count) };
        Arc::new(Self {
            state: Mutex::new(State {
                started: None,
                nodes: (0..count).map(|_| Node::default()).collect(),
                slots,
                links: Vec::new(),
                subscribers: Vec::new(),
                schedule: Schedule::default(),
                delivering: false,
                rng: Rng::seeded(seed),
                network: Network::default(),
                observer: None,
                effects: Effects::default(),
                targeted: TargetedFaults::default(),
                script_runs: BTreeMap::new(),
                sources_sent: 0,
                migrating: BTreeMap::new(),
                demoted: Vec::new(),
                subscriptions: 0,
            }),
            scheduled: Arc::default(),
        })
    }

    /// Adds the network of another replica.
    pub(crate) fn add_link(self: &Arc<Self>, identity_seed: Option<u64>) -> Link {
        let mut state = self.state.lock();
        state.links.push(LinkState::default());
        Link::new(self.clone(), state.links.len() - 1, identity_seed)
    }

    /// Calls `observer` after every script.
    pub(crate) fn observe(&self, observer: ScriptObserver) {
        self.state.lock().observer = Some(observer);
    }

    /// Changes the model, and wakes or starts the delivery if that made something due.
    pub(crate) fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let changed = change(&mut state);
        let pending = !state.schedule.is_empty();
        drop(state);
        if pending && tokio::runtime::Handle::try_current().is_ok() {
            self.deliver_in_background();
        } else {
            self.scheduled.notify_one();
        }
        changed
    }

    /// Publishes a message, as a foreign client could.
    pub(crate) fn publish(self: &Arc<Self>, channel: &str, message: &str) {
        self.change(|state| state.publish(channel.as_bytes(), message.as_bytes()));
    }

    /// Sends a request. The reply resolves when it arrives, and never if it is lost.
    fn send(
        self: &Arc<Self>,
        link: usize,
        node: usize,
        generation: u64,
        calls: Vec<Call>,
    ) -> oneshot::Receiver<Replies> {
        let (reply, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        let request = Request { link, node, generation, calls, reply };
        state.dispatch(request);
        let pending = !state.schedule.is_empty();
        drop(state);
        if pending {
            self.deliver_in_background();
        }
        receiver
    }

    /// Starts the task that delivers scheduled messages, or wakes it.
    fn deliver_in_background(self: &Arc<Self>) {
        if std::mem::replace(&mut self.state.lock().delivering, true) {
            return self.scheduled.notify_one();
        }
        let (model, scheduled) = (Arc::downgrade(self), self.scheduled.clone());
        let running = Delivering(model.clone());
        tokio::spawn(async move {
            let _running = running;
            loop {
                let Some(model) = model.upgrade() else { return };
                let next = model.state.lock().deliver_due();
                drop(model);
                match next {
                    None => scheduled.notified().await,
                    Some(next) => tokio::select! {
                        biased;
                        () = scheduled.notified() => {}
                        () = tokio::time::sleep_until(next) => {}
                    },
                }
            }
        });
    }
}

/// Exists as long as the delivery task, which ends with its runtime.
struct Delivering(std::sync::Weak<RedisModel>);

impl Drop for Delivering {
    fn drop(&mut self) {
        if let Some(model) = self.0.upgrade() {
            model.state.lock().delivering = false;
        }
    }
}

impl State {
    /// The microseconds of the model's life, before the offset of a node.
    fn micros(&mut self) -> u64 {
        let now = Instant::now();
        let started = *self.started.get_or_insert(now);
        CLOCK_ORIGIN + now.duration_since(started).as_micros() as u64
    }

    /// Returns the server's time of a node, in microseconds.
    pub(crate) fn node_now(&mut self, node: usize) -> u64 {
        let micros = self.micros();
        self.nodes[node].now(micros)
    }

    fn one_way(&self) -> Duration {
        let Network { latency, jitter, .. } = self.network;
        if jitter.is_zero() {
            return latency;
        }
        // Timers have millisecond resolution.
        latency + Duration::from_millis(self.rng.next() % (jitter.as_millis() as u64 + 1))
    }

    /// Returns the node that owns a key.
    fn node_of(&self, key: &[u8]) -> usize {
        if self.slots.is_empty() {
            return 0;
        }
        usize::from(self.slots[usize::from(slot_of(key))])
    }

    /// Puts a request on its way.
    fn dispatch(&mut self, request: Request) {
        let now = Instant::now();
        let mut delay = self.one_way();
        let late = self.network.late_requests;
        let link = &mut self.links[request.link];
        if link.partitioned {
            return link.held.push(request);
        }
        match self.targeted_fault_of(&request) {
            Some(TargetedFault::LoseRequest) => return self.nodes[request.node].lost.push(request.reply),
            // It does not hold up the requests behind it, like those late by `Network`.
            Some(TargetedFault::DelayRequest(by)) => {
                return self.schedule.add(now + delay + by, Event::Arrive(request));
            }
            Some(TargetedFault::LoseReply) | None => {}
        }
        let link = &mut self.links[request.link];
        link.sent += 1;
        if let Some((n, by)) = late
            && link.sent.is_multiple_of(n)
        {
            self.effects.late_requests += 1;
            // It does not hold up the requests behind it: another connection was opened meanwhile.
            return self.schedule.add(now + delay + by, Event::Arrive(request));
        }
        if let Some(last) = link.last_arrival {
            delay = delay.max(last.saturating_duration_since(now));
        }
        link.last_arrival = Some(now + delay);
        if delay.is_zero() {
            self.arrive(request);
        } else {
            self.schedule.add(now + delay, Event::Arrive(request));
        }
    }

    /// Takes the targeted fault of a request. A script that its node does not know would not run, so it does not count.
    fn targeted_fault_of(&mut self, request: &Request) -> Option<TargetedFault> {
        if self.targeted.len() == 0 {
            return None;
        }
        let node = &self.nodes[request.node];
        let runs = request.calls.iter().filter(|call| call.form == ScriptForm::Source || node.knows(call));
        let scripts: Vec<&str> = runs.map(|call| call.name).collect();
        self.targeted.of_request(&scripts)
    }

    /// Delivers everything that is due, and returns when the next is.
    fn deliver_due(&mut self) -> Option<Instant> {
        let now = Instant::now();
        while let Some(event) = self.schedule.pop_due(now) {
            match event {
                Event::Arrive(request) => self.arrive(request),
                Event::Reply { reply, replies, .. } => drop(reply.send(replies)),
                Event::Push { subscriber, message } => self.push_now(subscriber, message),
            }
        }
        self.schedule.next()
    }

    /// A request reaches its node.
    fn arrive(&mut self, request: Request) {
        let connected = self.is_connected(request.node, request.generation);
        let node = &mut self.nodes[request.node];
        if !connected || node.availability == Availability::Stopped {
            return drop(request.reply.send(Err(Failure::Connection)));
        }
        if node.availability == Availability::Hung {
            return node.backlog.push_back(request);
        }
        self.execute(request);
    }

    fn execute(&mut self, request: Request) {
        let micros = self.micros();
        if request.reply.is_closed() {
            self.effects.executed_late += 1;
        }
        let mut responses = Vec::with_capacity(request.calls.len());
        let (mut published, mut ran) = (Vec::new(), Vec::new());
        let mut answered = true;
        for call in &request.calls {
            let Some(node) = self.serving_node(&request, call, micros) else {
                answered = false;
                continue;
            };
            self.effects.scripts += 1;
            self.sources_sent += u64::from(call.form == ScriptForm::Source);
            let former = if node == request.node { self.former_master(node, request.generation) } else { None };
            self.swap_with_former(node, former);
            let observer = self.observer.as_deref();
            let response = self.nodes[node].execute(call, request.link, micros, observer, &mut published);
            self.swap_with_former(node, former);
            if matches!(response, Response::Reply(_)) {
                *self.script_runs.entry(call.name).or_default() += u64::from(call.cells);
                ran.push(call.name);
            }
            answered &= !(self.is_cluster() && is_retried_by_cluster_clients(&response));
            responses.push(response);
        }
        let cells = request.calls.iter().fold(0_u32, |sum, call| sum.saturating_add(call.cells));
        self.nodes[request.node].work(Instant::now(), cells);
        for (channel, message) in published {
            self.publish(&channel, &message);
        }
        if self.targeted.of_reply(&ran).is_some() || !answered {
            return self.nodes[request.node].lost.push(request.reply);
        }
        self.reply(request.link, request.node, request.reply, responses);
    }

    /// Returns the node that runs a call which has arrived. The client is redirected if the slot has moved meanwhile, and
    /// while it moves: a key that its old master does not have belongs to the new one. Keys of which neither master has
    /// all cannot be served (`TRYAGAIN`); the Cluster client waits before it tries again, longer than for any reply.
    fn serving_node(&mut self, request: &Request, call: &Call, micros: u64) -> Option<usize> {
        let Some(key) = call.keys.first().filter(|_| self.is_cluster()) else { return Some(request.node) };
        let (slot, count) = (slot_of(key), call.keys.len());
        let owner = usize::from(self.slots[usize::from(slot)]);
        let node = match self.migrating.get(&slot) {
            None => owner,
            Some(&target) => match self.nodes[owner].count_keys(micros, &call.keys) {
                here if here == count => owner,
                0 if count == 1 || self.nodes[target].count_keys(micros, &call.keys) == count => target,
                _ => return None,
            },
        };
        if node != request.node {
            self.effects.redirects += 1;
        }
        (node == request.node || self.nodes[node].availability == Availability::Up).then_some(node)
    }

    const fn is_cluster(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Whether a connection to a node that was opened under this generation is still open.
    fn is_connected(&self, node: usize, generation: u64) -> bool {
        self.nodes[node].generation == generation || self.former_master(node, generation).is_some()
    }

    /// Returns the former master that a connection of this generation leads to.
    fn former_master(&self, node: usize, generation: u64) -> Option<usize> {
        self.demoted.iter().position(|former| former.node == node && former.generation == generation)
    }

    /// Lets a former master run a script instead of the node that it replicates, or ends that. It has the same keys, its
    /// own scripts, and rejects writes.
    fn swap_with_former(&mut self, node: usize, former: Option<usize>) {
        if let Some(former) = former {
            let node = &mut self.nodes[node];
            std::mem::swap(&mut node.loaded, &mut self.demoted[former].loaded);
            node.read_only = !node.read_only;
        }
    }

    fn reply(&mut self, link: usize, node: usize, reply: oneshot::Sender<Replies>, responses: Vec<Response>) {
        let now = Instant::now();
        let mut delay = self.one_way() + self.nodes[node].delay + self.nodes[node].busy_for(now);
        let Network { late_replies, lost_replies, .. } = self.network;
        let link = &mut self.links[link];
        link.replied += 1;
        if lost_replies.is_some_and(|n| link.replied.is_multiple_of(n)) || link.partitioned {
            self.effects.lost_replies += 1;
            self.nodes[node].lost.push(reply);
            return;
        }
        if let Some((n, by)) = late_replies
            && link.replied.is_multiple_of(n)
        {
            self.effects.late_replies += 1;
            delay += by;
        }
        if let Some(last) = link.last_reply {
            delay = delay.max(last.saturating_duration_since(now));
        }
        link.last_reply = Some(now + delay);
        if delay.is_zero() {
            drop(reply.send(Ok(responses)));
        } else {
            self.schedule.add(now + delay, Event::Reply { node, reply, replies: Ok(responses) });
        }
    }

    fn publish(&mut self, channel: &[u8], message: &[u8]) {
        // The clients skip what is not text.
        let Ok(message) = std::str::from_utf8(message) else { return };
        for index in 0..self.subscribers.len() {
            let subscriber = &self.subscribers[index];
            let ended = subscriber.isolated || subscriber.messages.is_closed();
            if subscriber.channel.as_bytes() != channel || ended {
                continue;
            }
            let (number, mut receives) = (subscriber.number, false);
            for node in 0..self.nodes.len() {
                let generation = self.subscribers[index].generations[node];
                if !generation.is_some_and(|generation| self.is_connected(node, generation)) {
                    continue;
                }
                receives = true;
                if self.nodes[node].availability == Availability::Hung {
                    self.nodes[node].held_pushes.push((number, message.to_owned()));
                } else {
                    self.push(index, node, message);
                }
            }
            self.effects.pushes += u64::from(receives);
        }
    }

    /// Sends a message from a node to a subscriber.
    fn push(&mut self, index: usize, node: usize, message: &str) {
        let now = Instant::now();
        let subscriber = &self.subscribers[index];
        if self.network.lose_pushes || self.links[subscriber.link].partitioned {
            self.effects.lost_pushes += 1;
            return;
        }
        let mut at = now + self.one_way();
        if !self.network.push_delay.is_zero() {
            self.effects.late_pushes += 1;
            at += self.network.push_delay;
        }
        let subscriber = &mut self.subscribers[index];
        at = at.max(subscriber.last_push[node].unwrap_or(now));
        subscriber.last_push[node] = Some(at);
        let copies = if self.network.double_pushes { 2 } else { 1 };
        self.effects.double_pushes += copies - 1;
        for _ in 0..copies {
            let event = Event::Push { subscriber: subscriber.messages.clone(), message: message.to_owned() };
            self.schedule.add(at, event);
        }
    }

    fn push_now(&mut self, subscriber: mpsc::UnboundedSender<String>, message: String) {
        drop(subscriber.send(message)); // the subscription may have ended
    }

    /// Ends all connections to a node: requests under way fail, and subscriptions end.
    pub(crate) fn break_connections(&mut self, node: usize) {
        self.nodes[node].generation += 1;
        self.nodes[node].held_pushes.clear();
        self.demoted.retain(|former| former.node != node);
        for request in std::mem::take(&mut self.nodes[node].backlog) {
            drop(request.reply.send(Err(Failure::Connection)));
        }
        for reply in std::mem::take(&mut self.nodes[node].lost) {
            drop(reply.send(Err(Failure::Connection)));
        }
        // Replies under way are lost too, but their requests were executed.
        for reply in self.schedule.take_replies(node) {
            drop(reply.send(Err(Failure::Connection)));
        }
        // A Cluster client subscribes again at a master that has returned; the subscription of any other client ends.
        let mut subscribers = std::mem::take(&mut self.subscribers);
        let is_open = |generation: &Option<u64>| generation.is_some_and(|then| self.is_connected(0, then));
        subscribers.retain(|subscriber| match self.is_cluster() {
            true => !subscriber.isolated,
            false => subscriber.generations.iter().any(is_open),
        });
        self.subscribers = subscribers;
    }

    /// Stops a node: connections break, and new ones are refused.
    pub(crate) fn stop(&mut self, node: usize) {
        self.nodes[node].availability = Availability::Stopped;
        self.break_connections(node);
    }

    /// Starts a stopped node with the data it had.
    pub(crate) fn start(&mut self, node: usize) {
        self.nodes[node].availability = Availability::Up;
        self.nodes[node].loaded = HashSet::new();
    }

    /// Removes all keys of a node.
    pub(crate) fn flush(&mut self, node: usize) {
        let micros = self.micros();
        self.nodes[node].flush(micros);
    }

    /// Lets a node hang: connections stay open and nothing is answered.
    pub(crate) fn hang(&mut self, node: usize) {
        if self.nodes[node].availability == Availability::Up {
            self.nodes[node].availability = Availability::Hung;
        }
    }

    /// Ends a hang. What arrived meanwhile is executed now.
    pub(crate) fn resume(&mut self, node: usize) {
        if self.nodes[node].availability == Availability::Hung {
            self.nodes[node].availability = Availability::Up;
            for request in std::mem::take(&mut self.nodes[node].backlog) {
                self.execute(request);
            }
            for (number, message) in std::mem::take(&mut self.nodes[node].held_pushes) {
                if let Some(index) = self.subscribers.iter().position(|subscriber| subscriber.number == number) {
                    self.push(index, node, &message);
                }
            }
        }
    }

    /// Replaces a node by its replica, which had not received the writes of the last `lost`, and whose clock is `skew`
    /// microseconds ahead.
    pub(crate) fn fail_over(&mut self, node: usize, lost: Duration, skew: i64) {
        self.stop(node);
        let micros = self.micros();
        self.nodes[node].go_back(micros, lost);
        self.nodes[node].step_clock(skew);
        self.start(node);
    }

    /// Replaces a node as [`Self::fail_over`] does, while subscriptions stay connected to the former master: it replies
    /// to their pings, and nothing is published there any more.
    pub(crate) fn fail_over_isolated(&mut self, node: usize, lost: Duration) {
        let mut kept = std::mem::take(&mut self.subscribers);
        kept.iter_mut().for_each(|subscriber| subscriber.isolated = true);
        self.fail_over(node, lost, 0);
        self.subscribers = kept;
    }

    /// Replaces a node by its replica, which has received everything, and makes the node a replica of that one. Its
    /// connections stay open: it serves reads, rejects writes, and passes on what is published.
    pub(crate) fn switch_over(&mut self, node: usize) {
        let (generation, loaded) = (self.nodes[node].generation, std::mem::take(&mut self.nodes[node].loaded));
        self.demoted.push(Demoted { node, generation, loaded });
        self.nodes[node].generation += 1;
    }

    /// Subscribes a link at every node that it reaches.
    fn subscribe(&mut self, link: usize, channel: &str, messages: mpsc::UnboundedSender<String>) -> u64 {
        self.subscribers.retain(|subscriber| !subscriber.messages.is_closed());
        self.subscriptions += 1;
        let (number, nodes) = (self.subscriptions, self.nodes.len());
        self.subscribers.push(Subscriber {
            number,
            link,
            generations: vec![None; nodes],
            channel: channel.to_owned(),
            messages,
            last_push: vec![None; nodes],
            isolated: false,
        });
        self.renew_subscription(number);
        number
    }

    /// Subscribes at the nodes where a subscription was not made yet, or where its connection broke. Nothing but the first
    /// time without a Cluster, where a broken connection ends the subscription.
    fn renew_subscription(&mut self, number: u64) {
        let Some(index) = self.subscribers.iter().position(|subscriber| subscriber.number == number) else { return };
        for node in 0..self.nodes.len() {
            let (link, then) = (self.subscribers[index].link, self.subscribers[index].generations[node]);
            let is_open = then.is_some_and(|then| self.is_connected(node, then));
            let renewed = then.is_none() || self.is_cluster();
            if !is_open && renewed && self.reaches(link, node) == Reach::Yes {
                self.subscribers[index].generations[node] = Some(self.nodes[node].generation);
            }
        }
    }

    /// Whether a subscription has not ended.
    fn is_subscribed(&self, number: u64) -> bool {
        self.subscribers.iter().any(|subscriber| subscriber.number == number)
    }

    /// Ends all subscriptions, and leaves other connections alone. A Cluster client subscribes again.
    pub(crate) fn break_subscriptions(&mut self) {
        if self.is_cluster() {
            self.subscribers.iter_mut().for_each(|subscriber| subscriber.generations.fill(None));
        } else {
            self.subscribers.clear();
        }
    }

    /// Cuts a replica off, or heals the partition: what it sent meanwhile arrives late.
    pub(crate) fn partition(&mut self, link: usize, cut: bool) {
        self.links[link].partitioned = cut;
        if !cut {
            for request in std::mem::take(&mut self.links[link].held) {
                self.dispatch(request);
            }
        }
    }

    /// Begins to move slots to another master. Their keys stay until they are moved.
    pub(crate) fn begin_moving_slots(&mut self, slots: std::ops::Range<u16>, to: usize) {
        for slot in slots {
            if self.slots.get(usize::from(slot)).is_some_and(|owner| usize::from(*owner) != to) {
                self.migrating.insert(slot, to);
            }
        }
    }

    /// Moves one key of a slot that is being moved.
    pub(crate) fn move_key(&mut self, key: &[u8]) {
        if let Some(&to) = self.migrating.get(&slot_of(key)) {
            let from = self.node_of(key);
            self.move_keys(from, to, |candidate| candidate == key);
        }
    }

    /// Moves the keys that are left of slots that are being moved, and assigns the slots.
    pub(crate) fn finish_moving_slots(&mut self, slots: std::ops::Range<u16>) {
        for slot in slots {
            if let Some(&to) = self.migrating.get(&slot) {
                self.move_slots(slot..slot + 1, to);
            }
        }
    }

    fn move_keys(&mut self, from: usize, to: usize, moved: impl Fn(&[u8]) -> bool) {
        let micros = self.micros();
        for node in [from, to] {
            let now = self.nodes[node].now(micros);
            self.nodes[node].keyspace.set_time(now);
        }
        let mut target = std::mem::take(&mut self.nodes[to].keyspace);
        self.nodes[from].keyspace.move_keys(&mut target, moved);
        self.nodes[to].keyspace = target;
    }

    /// Moves slots to another master, with their keys.
    pub(crate) fn move_slots(&mut self, slots: std::ops::Range<u16>, to: usize) {
        for from in 0..self.nodes.len() {
            if from == to {
                continue;
            }
            let owner = self.slots.clone();
            let moved = |key: &[u8]| {
                let slot = slot_of(key);
                slots.contains(&slot) && usize::from(owner[usize::from(slot)]) == from
            };
            self.move_keys(from, to, moved);
        }
        for slot in slots {
            self.migrating.remove(&slot);
            if let Some(owner) = self.slots.get_mut(usize::from(slot)) {
                *owner = to as u8;
            }
        }
    }

    /// The slot ranges of every master in the order of their first slot, and those that are stopped.
    fn survey(&self) -> Option<ShardSurvey> {
        if self.slots.is_empty() {
            return None;
        }
        let mut ranges: Vec<(usize, Vec<(u16, u16)>)> = Vec::new();
        for (slot, owner) in self.slots.iter().enumerate() {
            let (slot, owner) = (slot as u16, usize::from(*owner));
            let index = ranges.iter().position(|(node, _)| *node == owner).unwrap_or_else(|| {
                ranges.push((owner, Vec::new()));
                ranges.len() - 1
            });
            match ranges[index].1.last_mut() {
                Some((_, last)) if *last + 1 == slot => *last = slot,
                _ => ranges[index].1.push((slot, slot)),
            }
        }
        let unreachable =
            ranges.iter().enumerate().filter(|(_, (node, _))| self.nodes[*node].availability != Availability::Up);
        let unreachable = unreachable.map(|(number, _)| number).collect();
        Some((ranges.into_iter().map(|(_, slots)| slots).collect(), unreachable))
    }

    /// Whether a message from this link reaches this node at the moment.
    fn reaches(&self, link: usize, node: usize) -> Reach {
        match (self.links[link].partitioned, self.nodes[node].availability) {
            (true, _) | (_, Availability::Hung) => Reach::Silent,
            (_, Availability::Stopped) => Reach::Refused,
            (_, Availability::Up) => Reach::Yes,
        }
    }
}

/// What happens to a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Yes,
    Refused,
    Silent,
}

/// Whether a Cluster client waits and tries again after this error. It waits longer than for any reply.
fn is_retried_by_cluster_clients(response: &Response) -> bool {
    matches!(response, Response::Reply(Err(Failure::Rejecting("LOADING" | "MASTERDOWN" | "CLUSTERDOWN"))))
}

/// The slot of a key: CRC16 (XMODEM) of its hash tag, or of the whole key without one.
fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let length = key[open + 1..].iter().position(|byte| *byte == b'}').filter(|length| *length > 0)?;
        Some(&key[open + 1..open + 1 + length])
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    });
    crc % SLOTS
}

fn equal_shares(masters: usize) -> Vec<u8> {
    (0..usize::from(SLOTS)).map(|slot| (slot * masters / usize::from(SLOTS)) as u8).collect()
}

impl fmt::Debug for RedisModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisModel").finish_non_exhaustive()
    }
}
