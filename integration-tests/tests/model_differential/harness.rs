//! Plays one history over the model and over real servers, and compares what a client saw, step by step.

use std::fmt::Display;
use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_lua as lua;
use phalanx_store_redis::internal::{OpenConnection, OpenSubscription, call_at};
use phalanx_store_redis::transport::{Response, ScriptForm};
use phalanx_store_redis::{Failure, Invocation, RedisConnection};
use redis::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// How long a request is waited for before it counts as unanswered; a reply over loopback takes a thousandth of it.
const A_WHILE: Duration = Duration::from_millis(150);

/// The longest wait for a reply or a message that must come.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The virtual time of all scripts, unless a step sets another one.
pub(crate) const NOW: Time = Time::from_micros(1_700_000_000_000_000);

/// The channel of all pushes.
pub(crate) const CHANNEL: &str = "ph2:test:c";

/// A deployment of Redis that exists as a model and as real servers.
pub(crate) trait Deployment: Sized {
    /// Creates the model.
    fn model() -> Self;

    /// Starts the real servers.
    async fn start() -> Self;
}

/// Plays a history over both and returns what a client saw. Panics at the first step that differs.
pub(crate) fn compare<D: Deployment>(history: impl AsyncFn(&D, &mut Log)) -> Vec<String> {
    // The model is played in virtual time, so that it costs no waiting.
    let model = runtime(true).block_on(async {
        let (deployment, mut log) = (D::model(), Log::default());
        history(&deployment, &mut log).await;
        log.0
    });
    let real = runtime(false).block_on(async {
        let (deployment, mut log) = (D::start().await, Log::default());
        history(&deployment, &mut log).await;
        log.0
    });
    let same = model.iter().zip(&real).take_while(|(model, real)| model == real).count();
    assert!(
        model.len() == same && real.len() == same,
        "after these steps:\n  {}\n the model: {:?}\n real:      {:?}\n",
        real[..same].join("\n  "),
        model.get(same),
        real.get(same),
    );
    real
}

fn runtime(paused: bool) -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(paused).build().unwrap()
}

/// What a client saw, one line for each step.
#[derive(Default)]
pub(crate) struct Log(Vec<String>);

impl Log {
    /// Adds a line.
    pub(crate) fn note(&mut self, step: impl Display, seen: impl Display) {
        self.0.push(format!("{step}: {seen}"));
    }

    /// Opens a connection.
    pub(crate) async fn connect(&mut self, redis: &RedisConnection) -> Option<OpenConnection> {
        match OpenConnection::open(redis).await {
            Ok(connection) => {
                self.note("connect", "connected");
                Some(connection)
            }
            Err(failure) => {
                self.note("connect", text_of_failure(&failure));
                None
            }
        }
    }

    /// Tries to connect to a server that does not reply. The client and the store both give up after a second, and either
    /// of them can be the first.
    pub(crate) async fn connect_in_vain(&mut self, redis: &RedisConnection) {
        let connected = OpenConnection::open(redis).await;
        let given_up = matches!(connected, Err(Failure::Timeout | Failure::Unreachable("timeout")));
        self.note("connect", if given_up { "no reply".to_owned() } else { format!("{connected:?}") });
    }

    /// Opens a connection, which must succeed.
    pub(crate) async fn connected(&mut self, redis: &RedisConnection) -> OpenConnection {
        self.connect(redis).await.unwrap()
    }

    /// Runs scripts as a store does: by their digest, and by their source where the server does not have them.
    pub(crate) async fn run(&mut self, on: &OpenConnection, steps: &[Step]) {
        let calls: Vec<Invocation> = steps.iter().map(|step| step.call.clone()).collect();
        let seen = in_time(run(on, &calls)).await.unwrap_or_else(|| NOTHING.to_owned());
        self.note(names(steps), seen);
    }

    /// Sends scripts once, by their digest or by their source.
    pub(crate) async fn send(&mut self, on: &OpenConnection, form: ScriptForm, steps: &[Step]) {
        let calls: Vec<Invocation> = steps.iter().map(|step| step.call.clone().in_form(form)).collect();
        let seen = match in_time(on.send(&calls)).await {
            Some(Ok(responses)) => joined(responses.iter().map(text_of_response)),
            Some(Err(failure)) => text_of_failure(&failure),
            None => NOTHING.to_owned(),
        };
        self.note(format!("{} by {form:?}", names(steps)), seen);
    }

    /// Sends scripts and notes that no reply comes. The request stays under way.
    pub(crate) async fn send_unanswered(&mut self, on: &OpenConnection, steps: &[Step]) -> Pending {
        let (name, on) = (names(steps), on.clone());
        let calls: Vec<Invocation> = steps.iter().map(|step| step.call.clone()).collect();
        let mut task = tokio::spawn(async move { run(&on, &calls).await });
        let seen = timeout(A_WHILE, &mut task).await;
        self.note(&name, seen.map_or_else(|_| "no reply".to_owned(), Result::unwrap));
        Pending { name, task }
    }

    /// Runs a script that only reads until its reply does not contain `old` any more, and notes the last reply. For effects
    /// of another connection, which the server may read later than this one.
    pub(crate) async fn run_until_changed(&mut self, on: &OpenConnection, step: Step, old: &str) {
        let changed = async {
            loop {
                let mut attempt = Self::default();
                attempt.run(on, std::slice::from_ref(&step)).await;
                if !attempt.0[0].contains(old) {
                    return attempt.0.remove(0);
                }
                tokio::time::sleep(MS).await;
            }
        };
        let seen = in_time(changed).await;
        self.0.push(seen.unwrap_or_else(|| format!("{} is still {old}", step.name)));
    }

    /// Sends scripts, notes that no reply comes, and gives up, as a caller does at the end of its budget.
    pub(crate) async fn run_unanswered(&mut self, on: &OpenConnection, steps: &[Step]) {
        self.send_unanswered(on, steps).await.abandon();
    }

    /// Waits for the reply to an earlier request.
    pub(crate) async fn answered(&mut self, pending: Pending) {
        let seen = in_time(pending.task).await;
        self.note(format!("the reply to {}", pending.name), seen.map_or_else(|| NOTHING.to_owned(), Result::unwrap));
    }

    /// Subscribes to [`CHANNEL`].
    pub(crate) async fn subscribe(&mut self, redis: &RedisConnection) -> Option<OpenSubscription> {
        match OpenSubscription::open(redis, CHANNEL).await.unwrap() {
            Ok(subscription) => {
                self.note("subscribe", "subscribed");
                Some(subscription)
            }
            Err(failure) => {
                self.note("subscribe", text_of_failure(&failure));
                None
            }
        }
    }

    /// Subscribes to [`CHANNEL`], which must succeed.
    pub(crate) async fn subscribed(&mut self, redis: &RedisConnection) -> OpenSubscription {
        self.subscribe(redis).await.unwrap()
    }

    /// Receives this many messages, or the end of the subscription.
    pub(crate) async fn receive(&mut self, subscription: &mut OpenSubscription, count: usize) {
        for _ in 0..count {
            let message = in_time(subscription.next()).await.unwrap_or_else(|| Some(NOTHING.to_owned()));
            self.note("receive", message.as_deref().unwrap_or("the end"));
        }
    }

    /// Receives up to this message.
    pub(crate) async fn receive_until_last(&mut self, subscription: &mut OpenSubscription, last: &str) {
        loop {
            self.receive(subscription, 1).await;
            if self.0.last().is_some_and(|step| step.ends_with(last) || step.ends_with(NOTHING)) {
                return;
            }
        }
    }

    /// Receives until this message has arrived this often, and notes how often each arrived.
    pub(crate) async fn receive_until(&mut self, subscription: &mut OpenSubscription, last: &str, times: usize) {
        let mut messages = Vec::new();
        while messages.iter().filter(|message| *message == last).count() < times {
            match in_time(subscription.next()).await {
                Some(Some(message)) => messages.push(message),
                Some(None) | None => break,
            }
        }
        messages.sort_unstable();
        self.note("receive in any order", messages.join(", "));
    }

    /// Notes that no message is there.
    pub(crate) async fn receive_nothing(&mut self, subscription: &mut OpenSubscription) {
        let message = timeout(A_WHILE, subscription.next()).await;
        self.note("receive", message.map_or("nothing".to_owned(), |message| format!("{message:?}")));
    }

    /// Checks a subscription until it is made everywhere, and notes the last result.
    pub(crate) async fn check_until(&mut self, subscription: &mut OpenSubscription, is_made: impl AsyncFn() -> bool) {
        let made = async {
            while !(subscription.check_alive().await && is_made().await) {
                tokio::time::sleep(10 * MS).await;
            }
        };
        self.note("check the subscription", in_time(made).await.map_or(NOTHING, |()| "made everywhere"));
    }

    /// Checks a subscription, as a store does every second.
    pub(crate) async fn check(&mut self, subscription: &mut OpenSubscription) {
        let alive = subscription.check_alive().await;
        self.note("check the subscription", if alive { "alive" } else { "not alive" });
    }
}

/// A request that was sent.
pub(crate) struct Pending {
    name: String,
    task: JoinHandle<String>,
}

impl Pending {
    /// Stops waiting for the reply, as a caller does at the end of its budget.
    pub(crate) fn abandon(self) {
        self.task.abort();
    }
}

/// One script call of a history.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    name: String,
    call: Invocation,
}

/// Calls any script, `after` [`NOW`].
pub(crate) fn script(script: &'static lua::Script, after: Duration, keys: &[&str], args: &[impl AsRef<[u8]>]) -> Step {
    let args: Vec<&[u8]> = args.iter().map(AsRef::as_ref).collect();
    let name = format!("{} of {} after {after:?}", script.name, keys[0]);
    Step { name, call: call_at(script, keys, &args, NOW.after(after)) }
}

/// Ten permits, and one more every hour: units per microsecond, units per permit, units in all.
const RATE: [&str; 3] = ["1", "3600000000", "36000000000"];

/// The key of a bucket or a lock with this name. What follows a slash does not change its slot.
pub(crate) fn key(name: &str) -> String {
    let (tag, rest) = name.split_once('/').unwrap_or((name, ""));
    format!("ph2:{{{tag}}}{rest}")
}

/// Takes permits out of a bucket of ten.
pub(crate) fn take(name: &str, permits: u32) -> Step {
    let permits_text = permits.to_string();
    let args = [&RATE[..], &["0", "1", "1", &permits_text, "0"]].concat();
    Step { name: format!("take {permits} of {name}"), ..script(&lua::RATE_LIMIT_ACQUIRE, ZERO, &[&key(name)], &args) }
}

/// Reads the level of a bucket; writes nothing.
pub(crate) fn peek(name: &str) -> Step {
    Step { name: format!("peek {name}"), ..script(&lua::RATE_LIMIT_PEEK, ZERO, &[&key(name)], &RATE) }
}

/// Acquires a lock, which has two keys, for an hour.
pub(crate) fn lock(name: &str, owner: &str) -> Step {
    let (key, fence) = (key(name), format!("{}:f", key(name)));
    let step = script(&lua::LOCK_ACQUIRE, ZERO, &[&key, &fence], &[owner, "3600000000", "0"]);
    Step { name: format!("lock {name} for {owner}"), ..step }
}

/// Releases the first holder's lock, which pushes `lock` and its name.
pub(crate) fn release(name: &str, owner: &str) -> Step {
    let fence = NOW.as_micros().to_string();
    let step = script(&lua::LOCK_RELEASE, ZERO, &[&key(name)], &[owner, &fence, CHANNEL, name]);
    Step { name: format!("release {name} by {owner}"), ..step }
}

/// Pushes `lock` and this name: acquires and releases a lock that no other step uses.
pub(crate) fn push(name: &str) -> [Step; 2] {
    [lock(name, "me"), release(name, "me")]
}

pub(crate) const ZERO: Duration = Duration::ZERO;

/// What is noted if something that must come does not.
const NOTHING: &str = "nothing";

/// Waits, but not forever.
async fn in_time<T>(awaited: impl Future<Output = T>) -> Option<T> {
    timeout(WAIT_TIMEOUT, awaited).await.ok()
}

async fn run(on: &OpenConnection, calls: &[Invocation]) -> String {
    match on.run(calls).await {
        Ok(replies) => joined(replies.iter().map(|reply| match reply {
            Ok(value) => text_of_value(value),
            Err(failure) => text_of_failure(failure),
        })),
        Err(failure) => text_of_failure(&failure),
    }
}

fn names(steps: &[Step]) -> String {
    steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>().join(" and ")
}

fn joined(replies: impl Iterator<Item = String>) -> String {
    replies.collect::<Vec<_>>().join(" and ")
}

fn text_of_response(response: &Response) -> String {
    match response {
        Response::Reply(Ok(value)) => text_of_value(value),
        Response::Reply(Err(failure)) => text_of_failure(failure),
        Response::UnknownScript => "unknown script".to_owned(),
    }
}

fn text_of_failure(failure: &Failure) -> String {
    match failure {
        Failure::Call(error) => format!("failed: {error}"),
        failure => format!("failed: {}", failure.label()),
    }
}

fn text_of_value(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => bytes.escape_ascii().to_string(),
        Value::Array(values) => format!("[{}]", values.iter().map(text_of_value).collect::<Vec<_>>().join(", ")),
        other => format!("{other:?}"),
    }
}
