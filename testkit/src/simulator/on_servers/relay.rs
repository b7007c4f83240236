//! The network of one replica: relays whole messages to the server, hears every reply, and plays the faults of a network.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::{monotonic_micros, resp};
use crate::redis_model::{Effects, Network};
use crate::server::port::Port;

/// What happens to messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    /// The server.
    pub(super) target: String,
    /// Connections are refused.
    pub(super) refused: bool,
    /// Nothing passes until this ends.
    pub(super) partitioned: bool,
    /// Connections that were accepted before this number are cut.
    pub(super) cut_below: u64,
    /// Every reply takes longer.
    pub(super) delay: Duration,
    pub(super) network: Network,
}

/// A script and its reply, as the relay has seen them.
pub(super) struct Exchange {
    sent: u64,
    /// When it was received, and the reply; not if it was not received.
    reply: Option<(u64, Value)>,
}

impl Exchange {
    pub(super) fn bounds(&self) -> Bounds {
        Bounds { sent: self.sent, received: self.reply.as_ref().map_or(u64::MAX, |(at, _)| *at) }
    }

    pub(super) fn reply(self) -> Option<Value> {
        self.reply.map(|(_, reply)| reply)
    }
}

/// When the request of a script was sent and its reply received, in microseconds of the monotonic clock. The script ran
/// between them, whatever the server's clock told: the two clocks drift apart while a machine's clock is being set.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    sent: u64,
    received: u64,
}

impl Bounds {
    pub(super) fn since(self, began: u64) -> Self {
        Self { sent: self.sent.saturating_sub(began), received: self.received.saturating_sub(began) }
    }

    pub(super) fn contain(self, told: u64) -> u64 {
        told.clamp(self.sent, self.received.max(self.sent))
    }
}

/// The relay of one replica.
pub(super) struct Relay {
    port: Port,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    rules: watch::Sender<Rules>,
    /// The scripts of each connection, in the order of sending, by the port it has at the server's side.
    heard: Mutex<HashMap<u16, Vec<Exchange>>>,
    effects: Mutex<Effects>,
    accepted: Mutex<u64>,
    /// Scripts and replies so far, over all connections.
    sent: Mutex<u64>,
    replied: Mutex<u64>,
}

impl Relay {
    pub(super) async fn start(target: &str) -> std::io::Result<Self> {
        let port = Port::reserve();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).await?;
        let shared = Arc::new(Shared {
            rules: watch::Sender::new(Rules { target: target.to_owned(), ..Rules::default() }),
            heard: Mutex::default(),
            effects: Mutex::default(),
            accepted: Mutex::default(),
            sent: Mutex::default(),
            replied: Mutex::default(),
        });
        let relayed = shared.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = {
                    let mut accepted = relayed.accepted.lock();
                    *accepted += 1;
                    *accepted
                };
                tokio::spawn(relayed.clone().relay(client, number));
            }
        });
        Ok(Self { port, shared, accepting })
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port.number())
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Rules)) {
        self.shared.rules.send_modify(change);
    }

    /// Cuts the open connections.
    pub(super) fn cut(&self) {
        let accepted = *self.shared.accepted.lock();
        self.change(|rules| rules.cut_below = accepted + 1);
    }

    /// The scripts of each connection, by its port at the server's side.
    pub(super) fn take_heard(&self) -> HashMap<u16, Vec<Exchange>> {
        std::mem::take(&mut self.shared.heard.lock())
    }

    pub(super) fn effects(&self) -> Effects {
        *self.shared.effects.lock()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
        self.change(|rules| rules.cut_below = u64::MAX);
    }
}

/// A request whose reply is expected: the number of the script on its connection, if it is one.
type Expected = Option<usize>;

impl Shared {
    async fn relay(self: Arc<Self>, client: TcpStream, number: u64) {
        let mut rules = self.rules.subscribe();
        let refused = rules.borrow().refused;
        if refused {
            return drop(client.set_zero_linger());
        }
        let target = rules.borrow().target.clone();
        let Ok(server) = TcpStream::connect(&target).await else {
            return drop(client.set_zero_linger());
        };
        drop((client.set_nodelay(true), server.set_nodelay(true)));
        let Ok(address) = server.local_addr() else { return };
        self.heard.lock().insert(address.port(), Vec::new());
        let expected: Mutex<VecDeque<Expected>> = Mutex::default();
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (queue, due) = mpsc::unbounded_channel();
        tokio::select! {
            _ = rules.wait_for(|rules| number < rules.cut_below) => {}
            () = self.requests(from_client, to_server, address.port(), &expected) => {}
            () = self.replies(from_server, queue, address.port(), &expected) => {}
            () = write_when_due(due, to_client) => {}
        }
    }

    /// Waits while nothing passes.
    async fn passable(&self) {
        drop(self.rules.subscribe().wait_for(|rules| !rules.partitioned).await);
    }

    async fn requests(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        port: u16,
        expected: &Mutex<VecDeque<Expected>>,
    ) {
        let mut buffer = Vec::new();
        while let Ok(1..) = from.read_buf(&mut buffer).await {
            for frame in resp::take_frames(&mut buffer) {
                let words = resp::words(&frame);
                let is = |name: &[u8]| words.first().is_some_and(|word| word.eq_ignore_ascii_case(name));
                let script = (is(b"EVALSHA") || is(b"EVAL")).then(|| {
                    let mut heard = self.heard.lock();
                    let replies = heard.entry(port).or_default();
                    replies.push(Exchange { sent: monotonic_micros(), reply: None });
                    replies.len() - 1
                });
                if script.is_some()
                    && let Some(by) = self.late_request()
                {
                    sleep(by).await;
                }
                self.passable().await;
                expected.lock().push_back(script);
                if to.write_all(&frame).await.is_err() {
                    return;
                }
            }
        }
    }

    /// How much later this script is executed.
    fn late_request(&self) -> Option<Duration> {
        let (every, by) = self.rules.borrow().network.late_requests?;
        let mut sent = self.sent.lock();
        *sent += 1;
        sent.is_multiple_of(every).then(|| {
            self.effects.lock().late_requests += 1;
            by
        })
    }

    async fn replies(
        &self,
        mut from: OwnedReadHalf,
        queue: mpsc::UnboundedSender<(Instant, Vec<u8>)>,
        port: u16,
        expected: &Mutex<VecDeque<Expected>>,
    ) {
        let mut buffer = Vec::new();
        let mut last = Instant::now();
        while let Ok(1..) = from.read_buf(&mut buffer).await {
            for frame in resp::take_frames(&mut buffer) {
                let (mut delay, mut copies) = (Duration::ZERO, 1);
                if resp::is_push(&frame) {
                    let network = self.rules.borrow().network.clone();
                    let mut effects = self.effects.lock();
                    effects.pushes += 1;
                    effects.lost_pushes += u64::from(network.lose_pushes);
                    effects.late_pushes += u64::from(!network.push_delay.is_zero());
                    effects.double_pushes += u64::from(network.double_pushes);
                    delay += network.push_delay;
                    copies = if network.lose_pushes { 0 } else { 1 + usize::from(network.double_pushes) };
                } else if let Some(script) = expected.lock().pop_front().flatten() {
                    let reply = redis::parse_redis_value(&frame).ok();
                    if let Some(place) = self.heard.lock().entry(port).or_default().get_mut(script) {
                        place.reply = reply.map(|reply| (monotonic_micros(), reply));
                    }
                    match self.reply_fault() {
                        Some(ReplyFault::Lost) => return, // on a stream, no later reply can pass it
                        Some(ReplyFault::Late(by)) => delay += by,
                        None => {}
                    }
                    delay += self.rules.borrow().delay;
                }
                self.passable().await;
                last = last.max(Instant::now() + delay);
                for _ in 0..copies {
                    drop(queue.send((last, frame.clone())));
                }
            }
        }
        sleep_until(last).await; // what was received before the end of the connection is delivered
    }

    fn reply_fault(&self) -> Option<ReplyFault> {
        let network = self.rules.borrow().network.clone();
        if network.late_replies.is_none() && network.lost_replies.is_none() {
            return None;
        }
        let number = {
            let mut replied = self.replied.lock();
            *replied += 1;
            *replied
        };
        let mut effects = self.effects.lock();
        match (network.lost_replies, network.late_replies) {
            (Some(every), _) if number.is_multiple_of(every) => {
                effects.lost_replies += 1;
                Some(ReplyFault::Lost)
            }
            (_, Some((every, by))) if number.is_multiple_of(every) => {
                effects.late_replies += 1;
                Some(ReplyFault::Late(by))
            }
            _ => None,
        }
    }
}

enum ReplyFault {
    Lost,
    Late(Duration),
}

async fn write_when_due(mut queue: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>, mut to: OwnedWriteHalf) {
    while let Some((due, bytes)) = queue.recv().await {
        sleep_until(due).await;
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
    // The server's side has ended: `replies` ends the connection.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_ran_between_its_request_and_its_reply_whatever_the_clock_of_the_server_told() {
        let ran_at = |exchange: &Exchange, told| exchange.bounds().since(500).contain(told);
        let answered = Exchange { sent: 1_500, reply: Some((1_900, Value::Okay)) };
        assert_eq!([700, 1_100, 9_000].map(|told| ran_at(&answered, told)), [1_000, 1_100, 1_400]);
        let unanswered = Exchange { sent: 1_500, reply: None };
        assert_eq!([700, 9_000].map(|told| ran_at(&unanswered, told)), [1_000, 9_000]);
    }
}
