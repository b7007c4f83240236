//! Scripted operations: a dependency whose answers, latencies, hangs and panics a test writes down in advance.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx::Kind;
use tokio::time::{Instant, sleep};

/// An operation that answers by a script, one step for each call of it. Clones share the script and the counters.
///
/// Steps are added in the order in which they are played; [`taking`](Self::taking) sets the latency of the steps added
/// last. The methods that begin with `then_` end the script: all further calls get that answer. A call beyond the end of a
/// script without such an end panics, so that a test does not pass by an answer it did not ask for.
///
/// Under `#[tokio::test(start_paused = true)]` latencies and hangs cost no time.
///
/// # Examples
///
/// Two failures, then success: the retries of a policy, with their delays.
///
/// ```
/// use std::time::Duration;
///
/// use phalanx::policy::Jitter;
/// use phalanx::{Backoff, Policy, ResilienceModule, RetrySpec};
/// use phalanx_testkit::Scripted;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let ms = Duration::from_millis;
/// let retry = RetrySpec::attempts(3).backoff(Backoff::exponential(ms(100)).jitter(Jitter::None));
/// let module = ResilienceModule::in_memory().policy(Policy::named("prices").retry(retry)).build()?;
///
/// let shop = Scripted::new().fail(2).taking(ms(10)).then_ok(42);
/// assert_eq!(module.run("prices", "shoes", || shop.call()).await, Ok(42));
/// assert_eq!(shop.started_at(), [ms(0), ms(110), ms(320)]);
/// # Ok(())
/// # }
/// ```
///
/// With an error type of the service's own:
///
/// ```
/// use std::io::ErrorKind;
/// use phalanx_testkit::Scripted;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let file = Scripted::failing_with(ErrorKind::ConnectionReset).fail(1).then_ok("content");
/// assert_eq!(file.call().await, Err(ErrorKind::ConnectionReset));
/// assert_eq!(file.call().await, Ok("content"));
/// assert_eq!(file.calls(), 2);
/// # }
/// ```
pub struct Scripted<T, E = Kind>(Arc<Shared<T, E>>);

struct Shared<T, E> {
    /// The error of `fail`.
    error: E,
    created: Instant,
    state: Mutex<State<T, E>>,
}

struct State<T, E> {
    steps: VecDeque<Step<T, E>>,
    /// The answer of every call after the steps.
    rest: Option<Step<T, E>>,
    /// The number of steps at the end of the script that `taking` applies to; zero once there is a rest.
    added: usize,
    started_at: Vec<Duration>,
    in_flight: usize,
    max_in_flight: usize,
    finished: usize,
    dropped: usize,
}

#[derive(Clone)]
struct Step<T, E> {
    latency: Duration,
    answer: Answer<T, E>,
}

#[derive(Clone)]
enum Answer<T, E> {
    Return(Result<T, E>),
    Hang,
    Panic(String),
}

impl<T: Clone> Scripted<T> {
    /// Creates an empty script whose failures are [`Kind::Infrastructure`].
    #[allow(clippy::new_without_default)] // an empty script answers nothing, so it is no useful default
    pub fn new() -> Self {
        Self::failing_with(Kind::Infrastructure)
    }
}

impl<T: Clone, E: Clone> Scripted<T, E> {
    /// Creates an empty script whose failures are this error.
    pub fn failing_with(error: E) -> Self {
        let state = State {
            steps: VecDeque::new(),
            rest: None,
            added: 0,
            started_at: Vec::new(),
            in_flight: 0,
            max_in_flight: 0,
            finished: 0,
            dropped: 0,
        };
        Self(Arc::new(Shared { error, created: Instant::now(), state: Mutex::new(state) }))
    }

    /// Adds one call that returns a value.
    #[must_use]
    pub fn ok(self, value: T) -> Self {
        self.add(1, Answer::Return(Ok(value)))
    }

    /// Adds this many calls that fail with the error of the script.
    #[must_use]
    pub fn fail(self, calls: usize) -> Self {
        let error = self.0.error.clone();
        self.fail_with(calls, error)
    }

    /// Adds this many calls that fail with this error.
    #[must_use]
    pub fn fail_with(self, calls: usize, error: E) -> Self {
        self.add(calls, Answer::Return(Err(error)))
    }

    /// Adds one call for each of these results.
    ///
    /// # Examples
    /// ```
    /// use phalanx::Kind;
    /// use phalanx_testkit::Scripted;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let shop = Scripted::new().results([Ok(1), Err(Kind::Throttled), Ok(2)]);
    /// assert_eq!((shop.call().await, shop.call().await), (Ok(1), Err(Kind::Throttled)));
    /// assert_eq!(shop.calls_left(), Some(1));
    /// # }
    /// ```
    #[must_use]
    pub fn results(self, results: impl IntoIterator<Item = Result<T, E>>) -> Self {
        self.add_all(results.into_iter().map(Answer::Return))
    }

    /// Adds this many calls that never return.
    #[must_use]
    pub fn hang(self, calls: usize) -> Self {
        self.add(calls, Answer::Hang)
    }

    /// Adds one call that panics with this message.
    #[must_use]
    pub fn panic(self, message: impl Into<String>) -> Self {
        self.add(1, Answer::Panic(message.into()))
    }

    /// Sets the latency of the steps that were added last: the time from the call to its answer.
    #[must_use]
    pub fn taking(self, latency: Duration) -> Self {
        let mut state = self.0.state.lock();
        let (added, steps) = (state.added, state.steps.len());
        state.steps.range_mut(steps - added..).for_each(|step| step.latency = latency);
        match &mut state.rest {
            Some(rest) => rest.latency = latency,
            None => assert!(added > 0, "`taking` sets the latency of the steps before it, and there is none"),
        }
        drop(state);
        self
    }

    /// Ends the script: all further calls return this value.
    #[must_use]
    pub fn then_ok(self, value: T) -> Self {
        self.end(Answer::Return(Ok(value)))
    }

    /// Ends the script: all further calls fail with the error of the script.
    #[must_use]
    pub fn then_fail(self) -> Self {
        let error = self.0.error.clone();
        self.end(Answer::Return(Err(error)))
    }

    /// Ends the script: all further calls never return.
    #[must_use]
    pub fn then_hang(self) -> Self {
        self.end(Answer::Hang)
    }

    fn add(self, calls: usize, answer: Answer<T, E>) -> Self {
        self.add_all(std::iter::repeat_n(answer, calls))
    }

    fn add_all(self, answers: impl Iterator<Item = Answer<T, E>>) -> Self {
        let mut state = self.0.state.lock();
        assert!(state.rest.is_none(), "the script has ended: add steps before `then_ok`, `then_fail` or `then_hang`");
        let steps = state.steps.len();
        state.steps.extend(answers.map(|answer| Step { latency: Duration::ZERO, answer }));
        state.added = state.steps.len() - steps;
        drop(state);
        self
    }

    fn end(self, answer: Answer<T, E>) -> Self {
        let mut state = self.0.state.lock();
        state.rest = Some(Step { latency: Duration::ZERO, answer });
        state.added = 0;
        drop(state);
        self
    }

    /// Starts the next call of the script. Use it as the operation of a module: `|| shop.call()`.
    ///
    /// # Panics
    /// Panics if the script has no further step and no end. The future panics where the script does.
    pub fn call(&self) -> impl Future<Output = Result<T, E>> + use<T, E> {
        let running = Running(self.0.clone());
        let step = running.start();
        async move {
            if !step.latency.is_zero() {
                sleep(step.latency).await;
            }
            match step.answer {
                Answer::Hang => pending().await,
                Answer::Panic(message) => panic!("{message}"),
                Answer::Return(result) => {
                    running.finish();
                    result
                }
            }
        }
    }

    /// Returns the number of calls that were started.
    pub fn calls(&self) -> usize {
        self.0.state.lock().started_at.len()
    }

    /// Returns the number of steps that were not played yet; none if the script has an end that repeats.
    pub fn calls_left(&self) -> Option<usize> {
        let state = self.0.state.lock();
        state.rest.is_none().then_some(state.steps.len())
    }

    /// Returns when each call was started, since the script was created.
    pub fn started_at(&self) -> Vec<Duration> {
        self.0.state.lock().started_at.clone()
    }

    /// Returns the number of calls under way.
    pub fn in_flight(&self) -> usize {
        self.0.state.lock().in_flight
    }

    /// Returns the most calls that were under way at the same time.
    pub fn max_in_flight(&self) -> usize {
        self.0.state.lock().max_in_flight
    }

    /// Returns the number of calls that returned a result.
    pub fn finished(&self) -> usize {
        self.0.state.lock().finished
    }

    /// Returns the number of calls that were dropped before they returned: timeouts, hedges that lost, callers that left;
    /// and calls that panicked.
    pub fn dropped(&self) -> usize {
        self.0.state.lock().dropped
    }
}

/// A call under way. Dropped with its future.
struct Running<T, E>(Arc<Shared<T, E>>);

impl<T: Clone, E: Clone> Running<T, E> {
    fn start(&self) -> Step<T, E> {
        let mut state = self.0.state.lock();
        let calls = state.started_at.len();
        let step = state.steps.pop_front().or_else(|| state.rest.clone());
        state.started_at.push(self.0.created.elapsed());
        state.in_flight += 1;
        state.max_in_flight = state.max_in_flight.max(state.in_flight);
        drop(state);
        step.unwrap_or_else(|| {
            panic!("call {} of a script of {calls}: end it with `then_ok`, `then_fail` or `then_hang`", calls + 1)
        })
    }

    fn finish(&self) {
        self.0.state.lock().finished += 1;
    }
}

impl<T, E> Drop for Running<T, E> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.in_flight -= 1;
        state.dropped = state.started_at.len() - state.in_flight - state.finished;
    }
}

impl<T, E> Clone for Scripted<T, E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T, E> fmt::Debug for Scripted<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        f.debug_struct("Scripted")
            .field("calls", &state.started_at.len())
            .field("steps_left", &state.steps.len())
            .field("in_flight", &state.in_flight)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn steps_are_played_in_order_and_the_end_repeats() {
        let script = Scripted::new().ok(1).fail(2).fail_with(1, Kind::Throttled).then_ok(9);
        let mut answers = Vec::new();
        for _ in 0..6 {
            answers.push(script.call().await);
        }
        let failed = Err(Kind::Infrastructure);
        assert_eq!(answers, [Ok(1), failed, failed, Err(Kind::Throttled), Ok(9), Ok(9)]);
        assert_eq!((script.calls(), script.finished(), script.calls_left()), (6, 6, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_latency_is_that_of_the_steps_added_last() {
        let script =
            Scripted::new().fail(1).fail(2).taking(5 * MS).results([Ok(1), Ok(2)]).taking(MS).then_ok(3).taking(7 * MS);
        let mut took = Vec::new();
        for _ in 0..6 {
            let start = Instant::now();
            let _ = script.call().await;
            took.push(start.elapsed().as_millis());
        }
        assert_eq!(took, [0, 5, 5, 1, 1, 7]);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_in_flight_and_dropped_calls_are_counted() {
        let script = Scripted::new().hang(2).then_ok(());
        let (one, two) = (script.call(), script.call());
        assert_eq!((script.in_flight(), script.max_in_flight()), (2, 2));
        assert!(tokio::time::timeout(MS, one).await.is_err());
        drop(two);
        script.call().await.unwrap();
        assert_eq!((script.in_flight(), script.max_in_flight()), (0, 2));
        assert_eq!((script.calls(), script.finished(), script.dropped()), (3, 1, 2));
    }

    #[tokio::test]
    async fn a_panic_has_its_message_and_ends_the_call() {
        let script = Scripted::<()>::new().panic("out of paper");
        let panicked = std::panic::AssertUnwindSafe(script.call()).catch_unwind().await.unwrap_err();
        assert_eq!(panicked.downcast_ref::<String>().unwrap(), "out of paper");
        assert_eq!((script.in_flight(), script.dropped()), (0, 1));
    }

    #[test]
    #[should_panic(expected = "call 2 of a script of 1")]
    fn a_call_beyond_the_script_panics() {
        let script = Scripted::<()>::new().fail(1);
        drop(script.call());
        drop(script.call());
    }

    #[test]
    #[should_panic(expected = "the script has ended")]
    fn a_step_after_the_end_panics() {
        let _ = Scripted::new().then_ok(()).fail(1);
    }
}
