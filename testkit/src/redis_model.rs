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
    /// Former masters that still reply to their subscribers: nodes and generations.
    isolated: Vec<(usize, u64)>,
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
    form: ScriptForm,
    reply: oneshot::Sender<Replies>,
}

/// What a request returns.
pub(crate) type Replies = Result<Vec<Response>, Failure>;

struct Subscriber {
    link: usize,
    /// The generation of each node when it subscribed.
    generations: Vec<u64>,
    channel: String,
    messages: mpsc::UnboundedSender<String>,
    last_push: Option<Instant>,
    /// Its server is a former master: it receives nothing.
    isolated: bool,
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
                isolated: Vec::new(),
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

    /// Changes the model, and wakes the delivery if that made something due.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state.lock());
        self.scheduled.notify_one();
        changed
    }

    /// Publishes a message, as a foreign client could.
    pub(crate) fn publish(self: &Arc<Self>, channel: &str, message: &str) {
        self.change(|state| state.publish(channel.as_bytes(), message.as_bytes()));
        self.deliver_in_background();
    }

    /// Sends a request. The reply resolves when it arrives, and never if it is lost.
    fn send(
        self: &Arc<Self>,
        link: usize,
        node: usize,
        generation: u64,
        calls: Vec<Call>,
        form: ScriptForm,
    ) -> oneshot::Receiver<Replies> {
        let (reply, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        let request = Request { link, node, generation, calls, form, reply };
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
        let runs = request.calls.iter().filter(|call| request.form == ScriptForm::Source || node.knows(call));
        let scripts: Vec<&str> = runs.map(|call| call.name).collect();
        self.targeted.of_request(&scripts)
    }

    /// Delivers everything that is due, and returns when the next is.
    fn deliver_due(&mut self) -> Option<Instant> {
        let now = Instant::now();
        while let Some(event) = self.schedule.pop_due(now) {
            match event {
                Event::Arrive(request) => self.arrive(request),
                Event::Reply(reply, replies) => drop(reply.send(replies)),
                Event::Push { subscriber, message } => self.push_now(subscriber, message),
            }
        }
        self.schedule.next()
    }

    /// A request reaches its node.
    fn arrive(&mut self, request: Request) {
        let node = &mut self.nodes[request.node];
        if node.generation != request.generation || node.availability == Availability::Stopped {
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
        for call in &request.calls {
            // A slot may have moved while the request was under way: the client is redirected.
            let owner = call.keys.first().map_or(request.node, |key| self.node_of(key));
            if owner != request.node {
                self.effects.redirects += 1;
                if self.nodes[owner].availability != Availability::Up {
                    responses.push(Response::Reply(Err(Failure::Call("TRYAGAIN".to_owned()))));
                    continue;
                }
            }
            self.effects.scripts += 1;
            self.sources_sent += u64::from(request.form == ScriptForm::Source);
            let observer = self.observer.as_deref();
            let response =
                self.nodes[owner].execute(call, request.form, request.link, micros, observer, &mut published);
            if matches!(response, Response::Reply(_)) {
                *self.script_runs.entry(call.name).or_default() += 1;
                ran.push(call.name);
            }
            responses.push(response);
        }
        self.nodes[request.node].work(Instant::now(), request.calls.len());
        for (channel, message) in published {
            self.publish(&channel, &message);
        }
        if self.targeted.of_reply(&ran).is_some() {
            return self.nodes[request.node].lost.push(request.reply);
        }
        self.reply(request.link, request.node, request.reply, responses);
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
            self.schedule.add(now + delay, Event::Reply(reply, Ok(responses)));
        }
    }

    fn publish(&mut self, channel: &[u8], message: &[u8]) {
        let now = Instant::now();
        let message = String::from_utf8_lossy(message).into_owned();
        for index in 0..self.subscribers.len() {
            let subscriber = &self.subscribers[index];
            if subscriber.channel.as_bytes() != channel || subscriber.isolated {
                continue;
            }
            self.effects.pushes += 1;
            if self.network.lose_pushes || self.links[subscriber.link].partitioned {
                self.effects.lost_pushes += 1;
                continue;
            }
            let mut at = now + self.one_way();
            if !self.network.push_delay.is_zero() {
                self.effects.late_pushes += 1;
                at += self.network.push_delay;
            }
            let subscriber = &mut self.subscribers[index];
            at = at.max(subscriber.last_push.unwrap_or(now));
            subscriber.last_push = Some(at);
            let copies = if self.network.double_pushes { 2 } else { 1 };
            self.effects.double_pushes += copies - 1;
            for _ in 0..copies {
                let event = Event::Push { subscriber: subscriber.messages.clone(), message: message.clone() };
                self.schedule.add(at, event);
            }
        }
    }

    fn push_now(&mut self, subscriber: mpsc::UnboundedSender<String>, message: String) {
        drop(subscriber.send(message)); // the subscription may have ended
    }

    /// Ends all connections to a node: requests under way fail, and subscriptions end.
    pub(crate) fn break_connections(&mut self, node: usize) {
        self.nodes[node].generation += 1;
        for request in std::mem::take(&mut self.nodes[node].backlog) {
            drop(request.reply.send(Err(Failure::Connection)));
        }
        for reply in std::mem::take(&mut self.nodes[node].lost) {
            drop(reply.send(Err(Failure::Connection)));
        }
        // Replies under way are lost too, but their requests were executed.
        for reply in self.schedule.take_replies() {
            drop(reply.send(Err(Failure::Connection)));
        }
        let generations: Vec<u64> = self.nodes.iter().map(|node| node.generation).collect();
        // In a Cluster a subscription is held at every master, and ends with the last of them.
        self.subscribers
            .retain(|subscriber| subscriber.generations.iter().zip(&generations).any(|(then, now)| then == now));
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
        self.isolated.push((node, self.nodes[node].generation));
        let mut kept = std::mem::take(&mut self.subscribers);
        kept.iter_mut().for_each(|subscriber| subscriber.isolated = true);
        self.fail_over(node, lost, 0);
        self.subscribers = kept;
    }

    /// Whether a subscription that was made under these generations is still connected to a server that replies.
    fn is_subscribed(&self, generations: &[u64]) -> bool {
        let replies = |(node, then): (usize, &u64)| {
            self.nodes[node].generation == *then || self.isolated.contains(&(node, *then))
        };
        generations.iter().enumerate().any(replies)
    }

    /// Ends all subscriptions, and leaves other connections alone.
    pub(crate) fn break_subscriptions(&mut self) {
        self.subscribers.clear();
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

    /// Moves slots to another master, with their keys.
    pub(crate) fn move_slots(&mut self, slots: std::ops::Range<u16>, to: usize) {
        for from in 0..self.nodes.len() {
            if from == to {
                continue;
            }
            let mut target = std::mem::take(&mut self.nodes[to].keyspace);
            let owner = &self.slots;
            let moved = |key: &[u8]| {
                let slot = slot_of(key);
                slots.contains(&slot) && usize::from(owner[usize::from(slot)]) == from
            };
            self.nodes[from].keyspace.move_keys(&mut target, moved);
            self.nodes[to].keyspace = target;
        }
        for slot in slots {
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
