//! [`FaultyRedis`]: a Redis in this process that fails on command.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use phalanx_store_redis::RedisConnection;

use crate::redis_model::{Effects, Link, RedisModel, TargetedFault};

/// A Redis in this process that fails on command, for tests of outages and recoveries without a server.
///
/// It runs the shipped Lua scripts behind the store's own connection code: connecting, health checks, pushes, timeouts
/// and the latch are those of production. With `#[tokio::test(start_paused = true)]` an outage of minutes takes
/// milliseconds. Every connection made from it is another replica. Clones are the same server.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use phalanx::store::StoreMode;
/// use phalanx::{Kind, Policy, RateLimitSpec, ResilienceModule};
/// use phalanx_testkit::FaultyRedis;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = FaultyRedis::new();
/// let module = ResilienceModule::with_redis(&redis)
///     .policy(Policy::named("vendor").rate_limit(RateLimitSpec::per_second(10)))
///     .build()?;
/// let call = || module.run("vendor", "eu", || async { Ok::<_, Kind>(()) });
///
/// redis.stop();
/// for _ in 0..5 {
///     call().await.ok(); // decided in this process
/// }
/// assert_eq!(module.store_mode(), Some(StoreMode::Degraded));
///
/// redis.start();
/// tokio::time::sleep(Duration::from_secs(3)).await;
/// assert_eq!(module.store_mode(), Some(StoreMode::Shared));
/// assert!(call().await.is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FaultyRedis {
    model: Arc<RedisModel>,
    /// The seed of the ids of the next replica.
    replicas: Arc<AtomicU64>,
}

impl Default for FaultyRedis {
    fn default() -> Self {
        Self::new()
    }
}

impl FaultyRedis {
    /// Creates an empty server without faults.
    pub fn new() -> Self {
        Self::of(1)
    }

    /// Creates a Cluster of empty masters with equal shares of the slots. At least two.
    pub fn cluster(masters: usize) -> Self {
        Self::of(masters.max(2))
    }

    fn of(masters: usize) -> Self {
        Self { model: RedisModel::new(masters, 0), replicas: Arc::new(AtomicU64::new(1)) }
    }

    /// Stops the server: connections break, and new ones are refused. The data stays.
    pub fn stop(&self) {
        self.every_node(|state, node| state.stop(node));
    }

    /// Starts a stopped server with the data it had.
    pub fn start(&self) {
        self.every_node(|state, node| state.start(node));
    }

    /// Restarts the server without data: connections break, keys and scripts are gone.
    pub fn restart_empty(&self) {
        self.every_node(|state, node| {
            state.stop(node);
            state.nodes[node].lose_data();
            state.start(node);
        });
    }

    /// Restarts the server with the data it had this long ago, at most a minute: a snapshot was loaded.
    pub fn restart_with_data_of(&self, ago: Duration) {
        self.every_node(|state, node| state.fail_over(node, ago, 0));
    }

    /// Replaces the server by its replica, which had not received the writes of the last `lost` (at most a minute).
    pub fn fail_over(&self, lost: Duration) {
        self.every_node(|state, node| state.fail_over(node, lost, 0));
    }

    /// Replaces the server by its replica, as [`Self::fail_over`] does, while subscriptions stay connected to the old one,
    /// which replies to their pings and publishes nothing any more.
    pub fn fail_over_isolated(&self, lost: Duration) {
        self.every_node(|state, node| state.fail_over_isolated(node, lost));
    }

    /// Replaces the server by its replica, which has received everything, and makes it a replica of that one, as `REPLICAOF`
    /// does: connections stay open, reads are served and writes rejected (`READONLY`), subscribers still receive what is
    /// published. New connections reach the other one.
    pub fn switch_over(&self) {
        self.every_node(|state, node| state.switch_over(node));
    }

    /// Lets the server hang: connections stay open, and nothing is answered. Requests queue.
    pub fn hang(&self) {
        self.every_node(|state, node| state.hang(node));
    }

    /// Ends a hang. What queued is executed now, although its senders have given up.
    pub fn resume(&self) {
        self.every_node(|state, node| state.resume(node));
    }

    /// Breaks all connections, as `CLIENT KILL` does.
    pub fn break_connections(&self) {
        self.every_node(|state, node| state.break_connections(node));
    }

    /// Ends all subscriptions, as `CLIENT KILL TYPE pubsub` does. Other connections stay.
    pub fn break_subscriptions(&self) {
        self.model.change(crate::redis_model::State::break_subscriptions);
    }

    /// Delays every message by this time in each direction; zero ends it.
    pub fn set_latency(&self, one_way: Duration) {
        self.model.change(|state| state.network.latency = one_way);
    }

    /// Delays every n-th reply by this time; `None` ends it.
    pub fn delay_replies(&self, every_nth: Option<(u64, Duration)>) {
        self.model.change(|state| state.network.late_replies = every_nth.filter(|(n, _)| *n > 0));
    }

    /// Loses every n-th reply: its request is executed. `None` ends it.
    pub fn lose_replies(&self, every_nth: Option<u64>) {
        self.model.change(|state| state.network.lost_replies = every_nth.filter(|n| *n > 0));
    }

    /// Delays every n-th request by this time: it is executed after its sender has given up. `None` ends it.
    pub fn delay_requests(&self, every_nth: Option<(u64, Duration)>) {
        self.model.change(|state| state.network.late_requests = every_nth.filter(|(n, _)| *n > 0));
    }

    /// Loses the n-th request, from 1, that carries this script: it is never executed, and its sender times out.
    ///
    /// The name is that of the file without its ending, such as `breaker_settle`. A request whose script the server does
    /// not know yet does not count.
    pub fn lose_request(&self, script: &str, nth: u64) {
        self.model.change(|state| state.targeted.add(script, nth, TargetedFault::LoseRequest));
    }

    /// Delays the n-th request, from 1, that carries this script; those behind it overtake.
    pub fn delay_request(&self, script: &str, nth: u64, by: Duration) {
        self.model.change(|state| state.targeted.add(script, nth, TargetedFault::DelayRequest(by)));
    }

    /// Loses the reply to the n-th request, from 1, in which this script is executed.
    pub fn lose_reply(&self, script: &str, nth: u64) {
        self.model.change(|state| state.targeted.add(script, nth, TargetedFault::LoseReply));
    }

    /// Returns how many faults of [`Self::lose_request`], [`Self::delay_request`] and [`Self::lose_reply`] have not
    /// happened yet.
    pub fn pending_faults(&self) -> usize {
        self.model.change(|state| state.targeted.len())
    }

    /// Lets every script take this time, one after the other; zero ends it. Timers have a resolution of 1 ms, but the
    /// sum is exact.
    pub fn set_script_time(&self, time: Duration) {
        self.every_node(|state, node| state.nodes[node].script_time = time);
    }

    /// Denies all channels, as an ACL without channels does: `PUBLISH` and `SUBSCRIBE` fail, and subscriptions end. Or
    /// allows them again.
    pub fn deny_channels(&self, deny: bool) {
        self.every_node(|state, node| state.nodes[node].channels_denied = deny);
        if deny {
            self.break_subscriptions();
        }
    }

    /// Publishes a message, as a foreign client could.
    pub fn publish(&self, channel: &str, message: &str) {
        self.model.publish(channel, message);
    }

    /// Loses pushed messages, or no longer.
    pub fn lose_pushes(&self, lose: bool) {
        self.model.change(|state| state.network.lose_pushes = lose);
    }

    /// Delays pushed messages by this time; zero ends it.
    pub fn delay_pushes(&self, by: Duration) {
        self.model.change(|state| state.network.push_delay = by);
    }

    /// Returns this error to every script, such as `READONLY You can't write against a read only replica.`; `None` ends it.
    pub fn reply_with_error(&self, error: Option<&str>) {
        self.every_node(|state, node| {
            state.nodes[node].error = error.map(str::to_owned);
            state.nodes[node].error_spares_health_checks = false;
        });
    }

    /// Returns this error to every script but that of the health checks; `None` ends it.
    pub fn fail_scripts(&self, error: Option<&str>) {
        self.every_node(|state, node| {
            state.nodes[node].error = error.map(str::to_owned);
            state.nodes[node].error_spares_health_checks = true;
        });
    }

    /// Removes all keys.
    pub fn flush_all(&self) {
        self.every_node(|state, node| state.flush(node));
    }

    /// Forgets the loaded scripts.
    pub fn flush_scripts(&self) {
        self.every_node(|state, node| state.nodes[node].forget_scripts());
    }

    /// Moves the server's clock forward.
    pub fn step_clock_forward(&self, by: Duration) {
        self.every_node(|state, node| state.nodes[node].step_clock(by.as_micros() as i64));
    }

    /// Moves the server's clock back.
    pub fn step_clock_back(&self, by: Duration) {
        self.every_node(|state, node| state.nodes[node].step_clock(-(by.as_micros() as i64)));
    }

    /// Stops one master of a Cluster.
    pub fn stop_master(&self, master: usize) {
        self.model.change(|state| {
            if master < state.nodes.len() {
                state.stop(master);
            }
        });
    }

    /// Starts one master of a Cluster.
    pub fn start_master(&self, master: usize) {
        self.model.change(|state| {
            if master < state.nodes.len() {
                state.start(master);
            }
        });
    }

    /// Lets one master of a Cluster hang.
    pub fn hang_master(&self, master: usize) {
        self.model.change(|state| {
            if master < state.nodes.len() {
                state.hang(master);
            }
        });
    }

    /// Ends the hang of one master of a Cluster.
    pub fn resume_master(&self, master: usize) {
        self.model.change(|state| {
            if master < state.nodes.len() {
                state.resume(master);
            }
        });
    }

    /// Begins to move slots of a Cluster to another master, as `CLUSTER SETSLOT … MIGRATING` and `IMPORTING` do. Their keys
    /// stay until they are moved. Scripts are redirected for a key that is not there, and new keys are made by the other
    /// master; a script with two keys of which neither master has both gets no reply.
    pub fn begin_moving_slots(&self, slots: std::ops::Range<u16>, to: usize) {
        self.model.change(|state| {
            if to < state.nodes.len() {
                state.begin_moving_slots(slots, to);
            }
        });
    }

    /// Moves one key of a slot that is being moved, as `MIGRATE` does.
    pub fn move_key(&self, key: &str) {
        self.model.change(|state| state.move_key(key.as_bytes()));
    }

    /// Moves the keys that are left in slots that are being moved, and assigns the slots, as `CLUSTER SETSLOT … NODE` does.
    pub fn finish_moving_slots(&self, slots: std::ops::Range<u16>) {
        self.model.change(|state| state.finish_moving_slots(slots));
    }

    /// Moves slots of a Cluster, with their keys, to another master.
    pub fn move_slots(&self, slots: std::ops::Range<u16>, to: usize) {
        self.model.change(|state| {
            if to < state.nodes.len() {
                state.move_slots(slots, to);
            }
        });
    }

    /// Returns how many scripts have been executed.
    pub fn scripts(&self) -> u64 {
        self.effects().scripts
    }

    /// Returns on how many cells this script has been executed: one script can run on several.
    pub fn runs_of(&self, script: &str) -> u64 {
        self.model.change(|state| state.script_runs.get(script).copied().unwrap_or(0))
    }

    /// Returns how many scripts were sent by their source, because the server did not know them.
    pub fn sources_sent(&self) -> u64 {
        self.model.change(|state| state.sources_sent)
    }

    /// Returns how many messages were published to subscribers, each counted once for every subscriber.
    pub fn pushes(&self) -> u64 {
        self.effects().pushes
    }

    pub(crate) fn effects(&self) -> Effects {
        self.model.change(|state| state.effects)
    }

    /// Returns the number of keys.
    pub fn keys(&self) -> usize {
        self.model.change(|state| {
            let micros = state.node_now(0);
            state.nodes.iter_mut().map(|node| node.keys(micros).len()).sum()
        })
    }

    /// Returns the names of all keys, sorted.
    pub fn key_names(&self) -> Vec<String> {
        let keys = self.model.change(|state| {
            let micros = state.node_now(0);
            state.nodes.iter_mut().flat_map(|node| node.keys(micros)).collect::<Vec<_>>()
        });
        let mut names: Vec<_> = keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
        names.sort_unstable();
        names
    }

    /// Connects another replica that cannot subscribe, like one over a pool.
    pub fn connection_without_pushes(&self) -> RedisConnection {
        RedisConnection::over_transport(Arc::new(self.replica().without_pushes()))
    }

    fn every_node(&self, change: impl Fn(&mut crate::redis_model::State, usize)) {
        self.model.change(|state| (0..state.nodes.len()).for_each(|node| change(state, node)));
    }

    fn replica(&self) -> Link {
        self.model.add_link(Some(self.replicas.fetch_add(1, Ordering::Relaxed)))
    }
}

/// Connects another replica.
impl From<&FaultyRedis> for RedisConnection {
    fn from(redis: &FaultyRedis) -> Self {
        Self::over_transport(Arc::new(redis.replica()))
    }
}

/// Connects another replica.
impl From<FaultyRedis> for RedisConnection {
    fn from(redis: FaultyRedis) -> Self {
        Self::from(&redis)
    }
}

impl fmt::Debug for FaultyRedis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyRedis").finish_non_exhaustive()
    }
}
