//! The dispatcher over servers that never reply, or reply late.

use super::*;
use crate::invocation::TimeSource;

const MS: Duration = Duration::from_millis(1);
const BUDGET: Duration = Duration::from_millis(20);

/// A server that replies to every call after this time; never if `None`.
#[derive(Debug)]
struct Server(Option<Duration>);

impl Wire for Server {
    fn send(
        &self,
        calls: Vec<Invocation>,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<ScriptResult>, Failure>> + Send + '_>> {
        Box::pin(async move {
            match self.0 {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
            Ok(calls.iter().map(|call| Ok(replies_of(call))).collect())
        })
    }
}

fn replies_of(call: &Invocation) -> Value {
    let reply = Value::Array(vec![Value::Int(1)]);
    if call.cells() == 1 { reply } else { Value::Array(vec![reply; call.cells()]) }
}

fn dispatcher(replies_after: Option<Duration>) -> Arc<Dispatcher> {
    let server = Arc::new(Server(replies_after));
    Arc::new(Dispatcher::new(server, BUDGET, Arc::default(), Arc::default(), Observers::default(), true))
}

fn call() -> Invocation {
    Invocation::new(&phalanx_lua::PROBE, TimeSource::Server, 0, &["k"])
}

/// A cell whose caller has been waiting since `opened`, and the reply it got, with the time.
struct Cell {
    opened: Instant,
    reply: Mutex<Option<(ScriptResult, Instant)>>,
}

impl Cell {
    fn since(opened: Instant) -> Arc<Self> {
        Arc::new(Self { opened, reply: Mutex::new(None) })
    }

    fn reply(&self) -> (ScriptResult, Instant) {
        self.reply.lock().clone().expect("completed")
    }
}

impl BatchSource for Cell {
    fn fill(self: Arc<Self>, outgoing: &mut Outgoing) {
        let opened = self.opened;
        outgoing.add_waiting(opened, call(), move |reply| *self.reply.lock() = Some((reply, Instant::now())));
    }
}

#[tokio::test(start_paused = true)]
async fn three_budgets_of_silence_trip_the_latch() {
    let dispatcher = dispatcher(None);
    for _ in 0..3 {
        assert!(!dispatcher.latch.is_down());
        assert_eq!(dispatcher.call(call()).await, Err(Failure::Timeout));
    }
    assert!(dispatcher.latch.is_down());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waited_in_the_queue_fails_at_its_own_deadline_and_is_no_evidence_of_silence() {
    let dispatcher = dispatcher(Some(12 * MS));
    let start = Instant::now();
    tokio::time::sleep(10 * MS).await;
    let (old, new) = (Cell::since(start), Cell::since(Instant::now()));
    for cell in [&old, &new] {
        dispatcher.enqueue(cell.clone(), Urgency::Caller);
    }
    tokio::time::sleep(BUDGET).await;
    let (reply, at) = old.reply();
    assert_eq!(reply, Err(Failure::Timeout));
    assert!(at <= start + BUDGET, "after {:?}", at - start);
    assert!(new.reply().0.is_ok(), "the late one does not discard the other");
    assert!(!dispatcher.latch.is_down());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_with_less_time_left_than_a_round_trip_takes() {
    let dispatcher = dispatcher(Some(8 * MS));
    for _ in 0..3 {
        assert!(dispatcher.call(call()).await.is_ok());
    }
    let start = Instant::now();
    tokio::time::sleep(13 * MS).await;
    let cell = Cell::since(start);
    dispatcher.enqueue(cell.clone(), Urgency::Caller);
    tokio::time::sleep(MS).await;
    assert_eq!(cell.reply().0, Err(Failure::NotSent));
}

#[tokio::test(start_paused = true)]
async fn at_a_distance_every_caller_gets_its_reply_after_one_round_trip() {
    let dispatcher = dispatcher(Some(10 * MS));
    for _ in 0..3 {
        assert!(dispatcher.call(call()).await.is_ok());
    }
    let mut cells = Vec::new();
    for _ in 0..200 {
        let cell = Cell::since(Instant::now());
        dispatcher.enqueue(cell.clone(), Urgency::Caller);
        cells.push(cell);
        tokio::time::sleep(MS).await;
    }
    tokio::time::sleep(BUDGET).await;
    let slowest = cells.iter().map(|cell| cell.reply().1 - cell.opened).max().unwrap();
    assert!(cells.iter().all(|cell| cell.reply().0.is_ok()));
    assert!(slowest <= 13 * MS, "{slowest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_redis_that_is_fifteen_milliseconds_away_has_two_round_trips_of_time() {
    let dispatcher = dispatcher(Some(15 * MS));
    assert_eq!(dispatcher.budget(), BUDGET);
    for _ in 0..3 {
        assert!(dispatcher.call(call()).await.is_ok());
    }
    assert_eq!(dispatcher.budget(), 30 * MS);
}

#[tokio::test(start_paused = true)]
async fn callers_do_not_wait_behind_background_work() {
    let dispatcher = dispatcher(Some(5 * MS));
    let background: Vec<_> = (0..500).map(|_| Cell::since(Instant::now())).collect();
    for cell in &background {
        dispatcher.enqueue(cell.clone(), Urgency::Background);
    }
    for _ in 0..20 {
        let caller = Cell::since(Instant::now());
        dispatcher.enqueue(caller.clone(), Urgency::Caller);
        tokio::time::sleep(7 * MS).await;
        let (reply, at) = caller.reply();
        assert!(reply.is_ok() && at - caller.opened <= 6 * MS, "after {:?}", at - caller.opened);
    }
    dispatcher.until_idle().await;
    assert!(background.iter().all(|cell| cell.reply().0.is_ok()));
}
