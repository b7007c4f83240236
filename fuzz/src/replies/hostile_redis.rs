//! A server whose replies, pushes and topology are the bytes of an input.

use std::sync::{Arc, Mutex, PoisonError};

use phalanx_core::key::StateKey;
use phalanx_store_redis::internal::FleetKeys;
use phalanx_store_redis::transport::{
    Boxed, Response, ScriptForm, ShardSurvey, Transport, TransportConnection, TransportSubscription,
};
use phalanx_store_redis::{Failure, Invocation, RedisOptions};
use redis::Value;
use tokio::sync::mpsc;

use crate::input::{Input, Recipe, SERVER_NOW};

/// Bytes that many connections read from.
#[derive(Clone, Debug)]
struct Source(Arc<Mutex<(Vec<u8>, usize)>>);

impl Source {
    /// Reads a part of the input.
    fn read<T>(&self, read: impl FnOnce(&mut Input<'_>) -> T) -> T {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (bytes, position) = &mut *guard;
        let mut input = Input::new(&bytes[*position..]);
        let result = read(&mut input);
        *position = bytes.len() - input.rest().len();
        result
    }
}

/// A server, or a Cluster.
#[derive(Debug)]
pub(super) struct HostileRedis {
    cluster: bool,
    /// The breaker that most pushes are about.
    breaker: String,
    connection: HostileConnection,
}

impl HostileRedis {
    /// Creates a server that answers connections, subscriptions and heartbeats with the bytes of `background`, and the
    /// scripts of callers with those of `replies`.
    pub(super) fn new(background: &[u8], replies: &[u8]) -> Self {
        let source = |bytes: &[u8]| Source(Arc::new(Mutex::new((bytes.to_vec(), 0))));
        let connection = HostileConnection { background: source(background), replies: source(replies) };
        let keys = FleetKeys::new(&RedisOptions::default()).all(&StateKey::new("policy", "route"), "");
        let key = keys.into_iter().find_map(|(purpose, key)| (purpose == "breaker").then_some(key.text));
        let breaker = key.as_deref().and_then(|key| key.rsplit([':', '}']).nth(1)).expect("a hash").to_owned();
        Self { cluster: connection.background.read(|input| input.byte() == 255), breaker, connection }
    }
}

impl Transport for HostileRedis {
    fn is_cluster(&self) -> bool {
        self.cluster
    }

    fn connect(&self) -> Boxed<'_, Result<Arc<dyn TransportConnection>, Failure>> {
        Box::pin(async {
            match self.connection.background.read(|input| input.byte()) {
                255 => Err(Failure::Connection),
                254 => Err(Failure::Rejecting("NOAUTH")),
                _ => Ok(Arc::new(self.connection.clone()) as Arc<dyn TransportConnection>),
            }
        })
    }

    fn subscribe<'a>(&'a self, _: &'a str) -> Boxed<'a, Option<Result<TransportSubscription, Failure>>> {
        Box::pin(async {
            let (sender, messages) = mpsc::unbounded_channel();
            let background = &self.connection.background;
            for _ in 0..background.read(|input| input.below(6)) {
                let _ = sender.send(background.read(|input| push(input, &self.breaker)));
            }
            // The channel stays open as long as the subscription is checked.
            let check_alive = Box::new(move || {
                let open = !sender.is_closed();
                Box::pin(async move { open }) as Boxed<'static, bool>
            });
            Some(Ok(TransportSubscription { messages, check_alive }))
        })
    }

    fn identity_seed(&self) -> Option<u64> {
        Some(7)
    }
}

#[derive(Clone, Debug)]
struct HostileConnection {
    background: Source,
    replies: Source,
}

impl TransportConnection for HostileConnection {
    fn send<'a>(&'a self, calls: &'a [Invocation]) -> Boxed<'a, Result<Vec<Response>, Failure>> {
        let source = |call: &Invocation| match call.script().name {
            "probe" | "membership_heartbeat" | "membership_leave" => &self.background,
            _ => &self.replies,
        };
        Box::pin(async move { calls.iter().map(|call| source(call).read(|input| respond(input, call))).collect() })
    }

    fn shards(&self) -> Boxed<'_, Option<ShardSurvey>> {
        Box::pin(async {
            self.background.read(|input| {
                let slot = |input: &mut Input<'_>| input.number() as u16 % 16_384;
                let shards = (0..input.below(4)).map(|_| vec![(slot(input), slot(input))]).collect();
                Some((shards, (0..input.below(3)).map(|_| input.below(256)).collect()))
            })
        })
    }
}

/// The response to one call: in most cases a list of numbers, as long as that of the script.
fn respond(input: &mut Input<'_>, call: &Invocation) -> Result<Response, Failure> {
    let reply = match input.byte() {
        0..=191 => numbers(input, call),
        192..=223 => value(input, 0),
        224..=231 if call.form() == ScriptForm::Digest => return Ok(Response::UnknownScript),
        232..=239 => return Ok(Response::Reply(Err(Failure::Call(input.text(20))))),
        240..=243 => return Ok(Response::Reply(Err(Failure::Rejecting("READONLY")))),
        244..=247 => return Err(Failure::Connection),
        248..=251 => return Err(Failure::Timeout),
        _ => Value::Nil,
    };
    Ok(Response::Reply(Ok(reply)))
}

/// Numbers that a script may return, each with a chance to be another.
fn numbers(input: &mut Input<'_>, call: &Invocation) -> Value {
    let name = call.script().name;
    let breaker = [Some(SERVER_NOW), Some(1), Some(1), Some(0), Some(0), Some(0), Some(0), Some(0), Some(0)];
    let (expected, more) = match name {
        name if name.starts_with("breaker") => (&breaker[..], 5),
        "rate_limit_acquire" => (&[Some(SERVER_NOW), Some(300_000), Some(0), Some(1)][..], 4),
        _ => (&[Some(SERVER_NOW), Some(1), Some(1)][..], 2),
    };
    let expected = expected.iter().copied().chain(std::iter::repeat_n(None, more));
    let number = |expected: Option<i64>| match (input.byte(), expected) {
        (0..=127, Some(number)) => number,
        _ => input.number(),
    };
    let mut parts: Vec<Value> = expected.map(number).map(Value::Int).collect();
    match name {
        "digest_read" | "digest_flush" => {
            let slices = (0..input.below(6)).flat_map(|_| {
                let slice = (SERVER_NOW / 2_000_000).wrapping_sub(input.number());
                let flush = Value::BulkString(input.bytes(2).to_vec());
                [Value::Int(slice), flush, Value::BulkString(input.bytes(6_700).to_vec())]
            });
            parts.splice(2.., slices);
        }
        "membership_heartbeat" | "idempotency_claim" => {
            parts.truncate(2 + usize::from(name == "idempotency_claim"));
            parts.push(Value::BulkString(input.bytes(200).to_vec()));
            parts.push(Value::Int(input.number()));
        }
        _ => parts.truncate(parts.len() - input.below(more + 1)),
    }
    Value::Array(parts)
}

/// Any value.
pub(super) fn value(input: &mut Input<'_>, depth: usize) -> Value {
    match input.below(14) {
        0..=4 => Value::Int(input.number()),
        5 => Value::Nil,
        6 => Value::BulkString(input.bytes(300).to_vec()),
        7 => Value::SimpleString(input.text(40)),
        8 => Value::Okay,
        9 => Value::Double(f64::from_bits(input.raw())),
        10 => Value::Boolean(input.flag()),
        _ if depth > 4 => Value::Nil,
        11 => Value::Map((0..input.below(4)).map(|_| (value(input, depth + 1), value(input, depth + 1))).collect()),
        _ => Value::Array((0..input.below(20)).map(|_| value(input, depth + 1)).collect()),
    }
}

/// The replies of some masters to `CLUSTER SLOTS`: ranges with their masters.
pub(super) fn survey(input: &mut Input<'_>) -> Value {
    let port = |input: &mut Input<'_>| Value::Int(7_000 + input.below(8) as i64);
    let host = || Value::BulkString(b"10.0.0.1".to_vec());
    let range = |input: &mut Input<'_>| {
        let master = Value::Array(vec![host(), port(input)]);
        Value::Array(vec![Value::Int(input.number()), Value::Int(input.number()), master])
    };
    let reply = |input: &mut Input<'_>| Value::Array((0..input.below(200)).map(|_| range(input)).collect());
    let address =
        |input: &mut Input<'_>| Value::BulkString(format!("10.0.0.1:{}", 7_000 + input.below(8)).into_bytes());
    Value::Map((0..input.below(4)).map(|_| (address(input), reply(input))).collect())
}

/// A push: in most cases with the form of a breaker's.
fn push(input: &mut Input<'_>, breaker: &str) -> String {
    match input.below(8) {
        0 => input.text(200),
        1 => format!("lock {}", input.text(40)),
        _ => {
            let good = [SERVER_NOW, 2, 5, 1_000_000, 0, 0, 1, 1, 1_000_000, 4, 4, 0];
            let numbers = good.map(|good| if input.byte() < 128 { good } else { input.number() }.to_string());
            let entry = match input.below(4) {
                0 => input.text(40),
                1 => "0 0 0 -1 - -".to_owned(),
                _ => format!("{} 1 7 {} ops -", SERVER_NOW + input.number() % 1_000, input.number()),
            };
            format!("{breaker}@{} {} {entry}", input.number(), numbers.join(" "))
        }
    }
}

/// A reply of these numbers.
pub(super) fn reply(numbers: &[i64]) -> Vec<u8> {
    let start = Recipe::of(&[192, 12, numbers.len() as u8]);
    numbers.iter().fold(start, |recipe, number| recipe.bytes(&[0]).number(*number)).done()
}

pub(super) fn topology_seed() -> Vec<u8> {
    let start = Recipe::of(&[15, 1, 1, 0, 2]);
    start.bytes(&[0]).numbers(&[0, 65_535]).bytes(&[1]).numbers(&[0, 65_535]).done()
}
