//! One connection through the proxy, from accept to close, under whatever rules are in force at the moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Pace, Shared};

/// Bytes and the moment from which they may be handed on.
type Parcel = (Instant, Vec<u8>);

/// Carries a connection until one side ends it or the rules cut it.
pub(super) async fn carry(shared: Arc<Shared>, number: u64, mut client: TcpStream) {
    let mut rules = shared.rules.subscribe();
    let wire = Wire { shared: &shared, number };
    tokio::select! {
        _ = rules.wait_for(|rules| number < rules.cut_below) => { let _ = client.set_zero_linger(); }
        _ = wire.join(&mut client) => {}
    }
    drop(client);
    shared.open.send_if_modified(|open| open.remove(&number));
}

#[derive(Clone, Copy)]
struct Wire<'a> {
    shared: &'a Shared,
    number: u64,
}

/// The client of a black hole has gone: nobody is left to be deceived.
struct Gone;

impl Wire<'_> {
    async fn join(self, client: &mut TcpStream) {
        if self.is_hole() {
            // Not even the server hears of it.
            return self.swallow(client).await;
        }
        let target = self.shared.rules.borrow().target.clone();
        let Ok(mut server) = TcpStream::connect(target).await else {
            let _ = client.set_zero_linger();
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true), server.set_zero_linger());
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let requests = async {
            self.pump(from_client, to_server, Way::Request).await;
            if self.is_hole() { Err(Gone) } else { Ok(()) }
        };
        let replies = async {
            self.pump(from_server, to_client, Way::Reply).await;
            Ok(())
        };
        let _ = tokio::try_join!(requests, replies);
    }

    /// Reading and writing apart, so that what is on its way does not hold up what comes after it.
    async fn pump(self, from: ReadHalf<'_>, to: WriteHalf<'_>, way: Way) {
        let (sender, queue) = channel(64);
        tokio::join!(self.read(from, sender, way), self.write(to, queue, way));
    }

    async fn read(self, mut from: ReadHalf<'_>, parcels: Sender<Parcel>, way: Way) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + way.delay(self.shared);
            if parcels.send((due, buffer[..count].to_vec())).await.is_err() {
                return;
            }
        }
    }

    async fn write(self, mut to: WriteHalf<'_>, mut parcels: Receiver<Parcel>, way: Way) {
        while let Some((due, bytes)) = parcels.recv().await {
            sleep_until(due).await;
            if self.hand_on(&mut to, &bytes, way).await.is_err() {
                return;
            }
        }
        // A black hole swallows the end of the stream too.
        if !self.is_hole() {
            let _ = to.shutdown().await;
        }
    }

    async fn hand_on(self, to: &mut WriteHalf<'_>, mut bytes: &[u8], way: Way) -> std::io::Result<()> {
        while !bytes.is_empty() {
            if self.is_hole() {
                count(&self.shared.swallowed, bytes.len());
                return Ok(());
            }
            // Looked up for every piece: a fault that ends lets the rest through at once.
            let pace = way.pace(self.shared);
            let (piece, rest) = bytes.split_at(pace.map_or(bytes.len(), |pace| pace.piece.min(bytes.len())));
            to.write_all(piece).await?;
            count(way.counter(self.shared), piece.len());
            bytes = rest;
            if let Some(Pace { pause, .. }) = pace {
                sleep(pause).await;
            }
        }
        Ok(())
    }

    async fn swallow(self, client: &mut TcpStream) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(bytes @ 1..) = client.read(&mut buffer).await {
            count(&self.shared.swallowed, bytes);
        }
    }

    fn is_hole(self) -> bool {
        self.shared.is_hole(self.number)
    }
}

#[derive(Clone, Copy)]
enum Way {
    Request,
    Reply,
}

impl Way {
    fn delay(self, shared: &Shared) -> Duration {
        match self {
            Self::Request => Duration::ZERO,
            Self::Reply => shared.rules.borrow().delay,
        }
    }

    fn pace(self, shared: &Shared) -> Option<Pace> {
        match self {
            Self::Request => None,
            Self::Reply => shared.rules.borrow().pace,
        }
    }

    fn counter(self, shared: &Shared) -> &AtomicU64 {
        match self {
            Self::Request => &shared.to_server,
            Self::Reply => &shared.to_client,
        }
    }
}

fn count(counter: &AtomicU64, bytes: usize) {
    counter.fetch_add(bytes as u64, Ordering::Relaxed);
}
