//! The upstream behind a socket, and its client: a line is a request, a line is an answer.
//!
//! A request is `first` or `again` (the first attempt of a call, or a later one), the answer `ok` or `bad`. Idle connections
//! are reused; the connection of a cancelled attempt is dropped with its request.

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

use crate::args::UpstreamArgs;
use crate::replica::Dependency;
use crate::scenario::Scenario;
use crate::stop::stopped;
use crate::upstream::{BadGateway, Upstream};

/// Called for every request when it arrives, with whether it is the first attempt of its call.
pub(crate) type OnRequest = Arc<dyn Fn(bool) + Send + Sync>;

/// Serves requests until the listener fails.
pub(crate) async fn serve(listener: TcpListener, upstream: Arc<Upstream>, on_request: OnRequest) -> io::Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        let (upstream, on_request) = (upstream.clone(), on_request.clone());
        // A caller may drop the connection; that is no error of the server.
        tokio::spawn(async move { answer_all(socket, &upstream, &on_request).await.ok() });
    }
}

async fn answer_all(socket: TcpStream, upstream: &Upstream, on_request: &OnRequest) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let (reader, mut writer) = socket.into_split();
    let mut requests = BufReader::new(reader).lines();
    while let Some(request) = requests.next_line().await? {
        on_request(request == "first");
        let answer: &[u8] = if upstream.serve().await.is_ok() { b"ok\n" } else { b"bad\n" };
        writer.write_all(answer).await?;
    }
    Ok(())
}

/// The client of an upstream in another process.
pub(crate) struct RemoteUpstream {
    address: String,
    idle: Mutex<Vec<BufReader<TcpStream>>>,
}

impl RemoteUpstream {
    pub(crate) const fn at(address: String) -> Self {
        Self { address, idle: Mutex::new(Vec::new()) }
    }

    async fn request(&self, first: bool) -> io::Result<bool> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
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

impl Dependency for RemoteUpstream {
    async fn answer(&self, first: bool) -> Result<(), BadGateway> {
        if self.request(first).await.unwrap_or(false) { Ok(()) } else { Err(BadGateway) }
    }
}

/// Runs the upstream as a process that prints its state and its requests once a second.
pub(crate) async fn run(args: UpstreamArgs) -> Result<(), Box<dyn Error>> {
    let scenario = Scenario::repeating(args.common.length());
    let upstream = Arc::new(Upstream::new(scenario, Rng::seeded(args.common.seed)));
    let requests = Arc::new(AtomicU64::new(0));
    let count = requests.clone();
    let on_request = Arc::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let listener = TcpListener::bind(&args.listen).await?;
    tokio::spawn(serve(listener, upstream, on_request));
    let mut seconds = interval(Duration::from_secs(1));
    let mut stop = pin!(stopped());
    loop {
        tokio::select! {
            over = &mut stop => return Ok(over?),
            _ = seconds.tick() => {}
        }
        let (state, requests) = (scenario.state().name(), requests.swap(0, Ordering::Relaxed));
        writeln!(io::stdout(), "upstream  {:6.1}s  {state:9}  {requests:3} requests/s", scenario.now().as_secs_f64())?;
    }
}
