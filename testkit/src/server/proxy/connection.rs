//! One connection through the proxy, from accept to close, under the current rules.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Pace, Shared};

/// Bytes and the time from which they may be forwarded.
type Chunk = (Instant, Vec<u8>);

/// Relays a connection until one side closes it or the rules reset it.
pub(super) async fn relay(shared: Arc<Shared>, number: u64, mut client: TcpStream) {
    let mut rules = shared.rules.subscribe();
    let connection = Connection { shared: &shared, number };
    tokio::select! {
        _ = rules.wait_for(|rules| number < rules.cut_below) => { let _ = client.set_zero_linger(); }
        _ = connection.join(&mut client) => {}
    }
    drop(client);
    shared.open.send_if_modified(|open| open.remove(&number));
}

#[derive(Clone, Copy)]
struct Connection<'a> {
    shared: &'a Shared,
    number: u64,
}

/// The client of a black hole has closed the connection.
struct ClientGone;

impl Connection<'_> {
    async fn join(self, client: &mut TcpStream) {
        if self.is_black_hole() {
            // The server is not contacted at all.
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
            self.pump(from_client, to_server, Direction::Request).await;
            if self.is_black_hole() { Err(ClientGone) } else { Ok(()) }
        };
        let replies = async {
            self.pump(from_server, to_client, Direction::Reply).await;
            Ok(())
        };
        let _ = tokio::try_join!(requests, replies);
    }

    /// Reads and writes concurrently, so that delayed bytes do not delay the reading of later ones.
    async fn pump(self, from: ReadHalf<'_>, to: WriteHalf<'_>, direction: Direction) {
        let (sender, queue) = channel(64);
        tokio::join!(self.read(from, sender, direction), self.write(to, queue, direction));
    }

    async fn read(self, mut from: ReadHalf<'_>, chunks: Sender<Chunk>, direction: Direction) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + direction.delay(self.shared);
            if chunks.send((due, buffer[..count].to_vec())).await.is_err() {
                return;
            }
        }
    }

    async fn write(self, mut to: WriteHalf<'_>, mut chunks: Receiver<Chunk>, direction: Direction) {
        while let Some((due, bytes)) = chunks.recv().await {
            sleep_until(due).await;
            if self.forward(&mut to, &bytes, direction).await.is_err() {
                return;
            }
        }
        // A black hole hides the end of the stream too.
        if !self.is_black_hole() {
            let _ = to.shutdown().await;
        }
    }

    async fn forward(self, to: &mut WriteHalf<'_>, mut bytes: &[u8], direction: Direction) -> std::io::Result<()> {
        while !bytes.is_empty() {
            if self.is_black_hole() {
                count(&self.shared.swallowed, bytes.len());
                return Ok(());
            }
            // Read for every piece, so that the end of a fault releases the rest at once.
            let pace = direction.pace(self.shared);
            let (piece, rest) = bytes.split_at(pace.map_or(bytes.len(), |pace| pace.piece.min(bytes.len())));
            to.write_all(piece).await?;
            count(direction.counter(self.shared), piece.len());
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

    fn is_black_hole(self) -> bool {
        self.shared.is_black_hole(self.number)
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Request,
    Reply,
}

impl Direction {
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
