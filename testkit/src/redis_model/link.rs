//! The end of the network that a store holds: connects, sends and subscribes.

use std::sync::Arc;
use std::time::Duration;

use phalanx_lua::Script;
use phalanx_store_redis::transport::{
    Boxed, Response, ShardSurvey, Transport, TransportConnection, TransportSubscription,
};
use phalanx_store_redis::{Failure, Invocation};
use tokio::sync::mpsc;

use super::{Call, Reach, RedisModel, Replies};

/// How often a client that waits for a server tries again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(10);

/// The network of one replica.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    model: Arc<RedisModel>,
    number: usize,
    identity_seed: Option<u64>,
    /// Used instead of the shipped scripts of the same name.
    scripts: &'static [Script],
    pushes: bool,
}

impl Link {
    pub(super) fn new(model: Arc<RedisModel>, number: usize, identity_seed: Option<u64>) -> Self {
        Self { model, number, identity_seed, scripts: &[], pushes: true }
    }

    /// Returns its number in the model.
    pub(crate) const fn number(&self) -> usize {
        self.number
    }

    /// Runs these scripts instead of the shipped ones of the same name.
    #[must_use]
    pub(crate) const fn with_scripts(mut self, scripts: &'static [Script]) -> Self {
        self.scripts = scripts;
        self
    }

    /// Cannot subscribe, like a pool.
    #[must_use]
    pub(crate) const fn without_pushes(mut self) -> Self {
        self.pushes = false;
        self
    }

    /// Waits for one round trip to a node; an error if it is refused.
    async fn hello(&self) -> Result<(), Failure> {
        loop {
            let (reach, trip) = self.model.change(|state| {
                // In a Cluster any master will do.
                let reach = (0..state.nodes.len()).map(|node| state.reaches(self.number, node));
                let best = reach.min_by_key(|reach| match reach {
                    Reach::Yes => 0,
                    Reach::Refused => 1,
                    Reach::Silent => 2,
                });
                (best.unwrap_or(Reach::Refused), 2 * state.one_way())
            });
            match reach {
                Reach::Refused => return Err(Failure::Unreachable("refused")),
                Reach::Yes => {
                    tokio::time::sleep(trip).await;
                    return Ok(());
                }
                Reach::Silent => tokio::time::sleep(RECONNECT_INTERVAL).await,
            }
        }
    }
}

impl Transport for Link {
    fn is_cluster(&self) -> bool {
        self.model.state.lock().nodes.len() > 1
    }

    fn connect(&self) -> Boxed<'_, Result<Arc<dyn TransportConnection>, Failure>> {
        Box::pin(async {
            self.hello().await?;
            let generations = self.model.change(|state| {
                state.links[self.number].connects += 1;
                state.nodes.iter().map(|node| node.generation).collect()
            });
            let connection = LinkConnection { link: self.clone(), generations: parking_lot::Mutex::new(generations) };
            Ok(Arc::new(connection) as Arc<dyn TransportConnection>)
        })
    }

    fn subscribe<'a>(&'a self, channel: &'a str) -> Boxed<'a, Option<Result<TransportSubscription, Failure>>> {
        Box::pin(async move {
            if !self.pushes {
                return None;
            }
            if let Err(failure) = self.hello().await {
                return Some(Err(failure));
            }
            if self.model.state.lock().nodes.iter().any(|node| node.channels_denied) {
                return Some(Err(Failure::Rejecting("NOPERM")));
            }
            let (sender, messages) = mpsc::unbounded_channel();
            let subscription = self.model.change(|state| state.subscribe(self.number, channel, sender));
            let link = self.clone();
            let check_alive = move || {
                let link = link.clone();
                Box::pin(async move {
                    let alive = |link: &Self| link.model.state.lock().is_subscribed(subscription);
                    let replies = alive(&link) && link.hello().await.is_ok() && alive(&link);
                    link.model.change(|state| state.renew_subscription(subscription));
                    replies
                }) as Boxed<'static, bool>
            };
            Some(Ok(TransportSubscription { messages, check_alive: Box::new(check_alive) }))
        })
    }

    fn identity_seed(&self) -> Option<u64> {
        self.identity_seed
    }
}

/// An open connection: to the server, or to every master of a Cluster.
#[derive(Debug)]
struct LinkConnection {
    link: Link,
    /// The generation of each node when it was connected. A Cluster client reconnects to a node by itself.
    generations: parking_lot::Mutex<Vec<u64>>,
}

impl LinkConnection {
    /// Returns the node of each call, and the generation under which it is reached.
    fn route(&self, calls: &[Call]) -> Vec<(usize, u64)> {
        let state = self.link.model.state.lock();
        let mut generations = self.generations.lock();
        let cluster = state.nodes.len() > 1;
        let route = |call: &Call| {
            let node = call.keys.first().map_or(0, |key| state.node_of(key));
            if cluster && state.reaches(self.link.number, node) == Reach::Yes {
                generations[node] = state.nodes[node].generation;
            }
            (node, generations[node])
        };
        calls.iter().map(route).collect()
    }

    /// Sends calls to one node and waits for the replies.
    async fn request(&self, route: (usize, u64), calls: Vec<Call>) -> Replies {
        // The sender is kept until the reply arrives or the connection breaks.
        self.link.model.send(self.link.number, route.0, route.1, calls).await.unwrap_or(Err(Failure::Connection))
    }

    /// Sends a call to the master of its key, as the connection to a Cluster does. It waits until it is connected to that
    /// master, and sends nothing twice: a call whose connection breaks fails.
    async fn request_in_cluster(&self, call: Call) -> Response {
        let route = loop {
            let route = self.route(std::slice::from_ref(&call))[0];
            if self.link.model.state.lock().is_connected(route.0, route.1) {
                break route;
            }
            tokio::time::sleep(RECONNECT_INTERVAL).await;
        };
        match self.request(route, vec![call]).await {
            Ok(mut responses) => responses.pop().unwrap_or(Response::Reply(Err(Failure::Connection))),
            Err(failure) => Response::Reply(Err(failure)),
        }
    }
}

impl TransportConnection for LinkConnection {
    fn send<'a>(&'a self, calls: &'a [Invocation]) -> Boxed<'a, Result<Vec<Response>, Failure>> {
        Box::pin(async move {
            let calls: Vec<Call> = calls.iter().map(|call| Call::of(call, self.link.scripts)).collect();
            if self.link.is_cluster() {
                let sent = calls.into_iter().map(|call| self.request_in_cluster(call));
                return Ok(futures_util::future::join_all(sent).await);
            }
            let Some(route) = self.route(&calls).first().copied() else { return Ok(Vec::new()) };
            self.request(route, calls).await
        })
    }

    fn shards(&self) -> Boxed<'_, Option<ShardSurvey>> {
        Box::pin(std::future::ready(self.link.model.state.lock().survey()))
    }
}
