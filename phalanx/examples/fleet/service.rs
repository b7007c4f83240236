//! The upstream as a service on a socket, and the way there: a line asks, a line answers.
//!
//! A request is `first` or `again`, the answer `ok` or `bad`. Connections are kept and used again; one whose caller
//! went away is dropped with what it had asked for.

use std::error::Error;
use std::io::{self, Write};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use phalanx::store::Rng;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::interval;

use crate::args::Service;
use crate::replica::Dependency;
use crate::stop::stopped;
use crate::story::Story;
use crate::upstream::{BadGateway, Upstream};

/// Who is told of every request when it arrives, and whether it is the first of its call.
pub(crate) type Arrived = Arc<dyn Fn(bool) + Send + Sync>;

/// Answers until nobody listens any more.
pub(crate) async fn serve(listener: TcpListener, upstream: Arc<Upstream>, arrived: Arrived) -> io::Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        let (upstream, arrived) = (upstream.clone(), arrived.clone());
        // A caller that breaks the connection is its own affair.
        tokio::spawn(async move { answer_all(socket, &upstream, &arrived).await.ok() });
    }
}

async fn answer_all(socket: TcpStream, upstream: &Upstream, arrived: &Arrived) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let (reader, mut writer) = socket.into_split();
    let mut requests = BufReader::new(reader).lines();
    while let Some(request) = requests.next_line().await? {
        arrived(request == "first");
        let answer: &[u8] = if upstream.serve().await.is_ok() { b"ok\n" } else { b"bad\n" };
        writer.write_all(answer).await?;
    }
    Ok(())
}

/// The upstream, somewhere else.
pub(crate) struct Remote {
    address: String,
    idle: Mutex<Vec<BufReader<TcpStream>>>,
}

impl Remote {
    pub(crate) const fn at(address: String) -> Self {
        Self { address, idle: Mutex::new(Vec::new()) }
    }

    async fn ask(&self, first: bool) -> io::Result<bool> {
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match kept {
            Some(connection) => connection,
            None => BufReader::new(TcpStream::connect(&self.address).await?),
        };
        connection.get_ref().set_nodelay(true)?;
        connection.get_mut().write_all(if first { b"first\n" } else { b"again\n" }).await?;
        let mut answer = String::new();
        connection.read_line(&mut answer).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(answer == "ok\n")
    }
}

impl Dependency for Remote {
    async fn answer(&self, first: bool) -> Result<(), BadGateway> {
        if self.ask(first).await.unwrap_or(false) { Ok(()) } else { Err(BadGateway) }
    }
}

/// The upstream as a process: a line a second says what it is and what it gets.
pub(crate) async fn run(args: Service) -> Result<(), Box<dyn Error>> {
    let story = Story::endless(args.scale.length());
    let upstream = Arc::new(Upstream::new(story, Rng::seeded(args.scale.seed)));
    let requests = Arc::new(AtomicU64::new(0));
    let count = requests.clone();
    let arrived = Arc::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let listener = TcpListener::bind(&args.listen).await?;
    tokio::spawn(serve(listener, upstream, arrived));
    let mut seconds = interval(Duration::from_secs(1));
    let mut stop = pin!(stopped());
    loop {
        tokio::select! {
            over = &mut stop => return Ok(over?),
            _ = seconds.tick() => {}
        }
        let (act, requests) = (story.act().name(), requests.swap(0, Ordering::Relaxed));
        writeln!(io::stdout(), "upstream  {:6.1}s  {act:9}  {requests:3} requests/s", story.now().as_secs_f64())?;
    }
}
