//! The dispatcher over servers that never reply, or reply late.

use super::*;
use crate::invocation::TimeSource;

const MS: Duration = Duration::from_millis(1);
const BUDGET: Duration = Duration::from_millis(20);

/// A server that replies to every call after this time; never if `None`.
#[derive(Debug)]
struct Server(Option<Duration>);

impl Wire for Server {
    fn send<'a>(&'a self, calls: &'a [Invocation]) -> Boxed<'a, Result<Vec<Response>, Failure>> {
        Box::pin(async move {
            match self.0 {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
            Ok(calls.iter().map(|call| Response::Reply(Ok(replies_of(call)))).collect())
        })
    }
}

/// A server that has all scripts but [`phalanx_lua::PROBE`], which it replies to like this when it is sent by source. It
/// replies after this time.
#[derive(Debug)]
struct WithoutProbe(Duration, fn() -> Option<ScriptResult>);

impl Wire for WithoutProbe {
    fn send<'a>(&'a self, calls: &'a [Invocation]) -> Boxed<'a, Result<Vec<Response>, Failure>> {
        Box::pin(async move {
            tokio::time::sleep(self.0).await;
            let mut responses = Vec::new();
            for call in calls {
                responses.push(match (call.script().name, call.form()) {
                    ("probe", ScriptForm::Digest) => Response::UnknownScript,
                    ("probe", ScriptForm::Source) => match (self.1)() {
                        Some(reply) => Response::Reply(reply),
                        None => std::future::pending().await,
                    },
                    _ => Response::Reply(Ok(replies_of(call))),
                });
            }
            Ok(responses)
        })
    }
}

fn replies_of(call: &Invocation) -> Value {
    let reply = Value::Array(vec![Value::Int(1)]);
    if call.cells() == 1 { reply } else { Value::Array(vec![reply; call.cells()]) }
}

fn dispatcher(replies_after: Option<Duration>) -> Arc<Dispatcher> {
    dispatcher_of(Server(replies_after))
}

fn dispatcher_of(server: impl Wire) -> Arc<Dispatcher> {
    let server = Arc::new(server);
    Arc::new(Dispatcher::new(server, BUDGET, Arc::default(), Arc::default(), Observers::default(), true))
}

fn call() -> Invocation {
    call_of(&phalanx_lua::PROBE)
}

fn call_of(script: &'static phalanx_lua::Script) -> Invocation {
    Invocation::new(script, TimeSource::Server, 0, ["k"].into_iter())
}

/// A cell whose caller has been waiting since `opened`, and the reply it got, with the time.
struct Cell {
    opened: Instant,
    script: &'static phalanx_lua::Script,
    reply: Mutex<Option<(ScriptResult, Instant)>>,
}

impl Cell {
    fn since(opened: Instant) -> Arc<Self> {
        Self::of(opened, &phalanx_lua::PROBE)
    }

    fn of(opened: Instant, script: &'static phalanx_lua::Script) -> Arc<Self> {
        Arc::new(Self { opened, script, reply: Mutex::new(None) })
    }

    fn reply(&self) -> (ScriptResult, Instant) {
        self.reply.lock().clone().expect("completed")
    }
}

impl BatchSource for Cell {
    fn fill(self: Arc<Self>, outgoing: &mut Outgoing) {
        let opened = self.opened;
        let call = call_of(self.script);
        outgoing.add_waiting(opened, call, move |reply| *self.reply.lock() = Some((reply, Instant::now())));
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
async fn a_call_with_a_longer_budget_is_one_timeout() {
    let dispatcher = dispatcher(None);
    for _ in 0..5 {
        let start = Instant::now();
        assert_eq!(dispatcher.call_within(call(), 25 * BUDGET).await, Err(Failure::Timeout));
        assert!((24 * BUDGET..=25 * BUDGET).contains(&start.elapsed()));
        assert!(!dispatcher.latch.is_down());
        dispatcher.latch.record_success(); // another call was answered
    }
    for down in [false, true] {
        assert_eq!(dispatcher.call_within(call(), 25 * BUDGET).await, Err(Failure::Timeout));
        assert_eq!(dispatcher.latch.is_down(), down, "two calls without a reply in between are silence");
    }
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

/// Sends a call of a script that the server has and one of a script that it does not have in one round trip, and returns
/// what their callers get, with the times that they waited.
async fn known_and_unknown(dispatcher: &Arc<Dispatcher>) -> [(ScriptResult, Duration); 2] {
    let start = Instant::now();
    let cells = [Cell::of(start, &phalanx_lua::RATE_LIMIT_PEEK), Cell::since(start)];
    let trip = dispatcher.try_inline().unwrap();
    let mut outgoing = Outgoing::default();
    cells.iter().for_each(|cell| cell.clone().fill(&mut outgoing));
    let mut request = trip.send(outgoing);
    std::future::poll_fn(|cx| request.poll(cx)).await;
    cells.map(|cell| {
        let (reply, at) = cell.reply();
        (reply, at - start)
    })
}

#[tokio::test(start_paused = true)]
async fn a_reply_does_not_wait_for_a_script_that_has_to_be_loaded() {
    let dispatcher = dispatcher_of(WithoutProbe(5 * MS, || Some(Ok(Value::Nil))));
    let [known, unknown] = known_and_unknown(&dispatcher).await;
    assert_eq!((known.0.is_ok(), known.1), (true, 5 * MS));
    assert_eq!((unknown.0.is_ok(), unknown.1), (true, 10 * MS));
    assert_eq!(dispatcher.median_round_trip(), 5 * MS, "each attempt is a round trip");
}

#[tokio::test(start_paused = true)]
async fn a_script_whose_second_attempt_gets_no_reply_fails_at_its_deadline_and_is_one_timeout() {
    let dispatcher = dispatcher_of(WithoutProbe(5 * MS, || None));
    for _ in 0..10 {
        let [known, unknown] = known_and_unknown(&dispatcher).await;
        assert_eq!((known.0.is_ok(), known.1), (true, 5 * MS));
        assert_eq!(unknown.0, Err(Failure::Timeout));
        assert!((BUDGET - 2 * MS..=BUDGET).contains(&unknown.1), "after {:?}", unknown.1);
        assert!(!dispatcher.latch.is_down(), "the other script was replied to");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_call_of_a_script_that_has_to_be_loaded_waits_no_longer_than_any_other() {
    let dispatcher = dispatcher_of(WithoutProbe(15 * MS, || None));
    for _ in 0..10 {
        let start = Instant::now();
        assert_eq!(dispatcher.call(call()).await, Err(Failure::Timeout));
        assert!(start.elapsed() <= dispatcher.budget(), "{:?}", start.elapsed());
    }
    let start = Instant::now();
    assert_eq!(dispatcher.health_check(call()).await, Err(Failure::Timeout));
    assert!(start.elapsed() < 3 * dispatcher.budget());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_every_source_does_not_serve() {
    let dispatcher = dispatcher_of(WithoutProbe(MS, || Some(Err(Failure::Call("ERR compile".to_owned())))));
    for sent in 0..20 {
        assert!(!dispatcher.latch.is_down(), "after {sent} calls");
        assert_eq!(dispatcher.call(call()).await, Err(Failure::Call("ERR compile".to_owned())));
    }
    assert!(dispatcher.latch.is_down(), "that it has none of the scripts is no success");
}
