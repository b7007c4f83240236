//! How the evidence of several replicas is weighed, at its edges: a stored breaker, the lines of its replicas, and what the
//! next replica that comes makes of them.

use std::time::Duration;

use phalanx_core::breaker::{BreakerSpec, Override};
use phalanx_core::clock::Time;
use phalanx_lua::{BREAKER_ABSTAIN, BREAKER_SYNC};
use phalanx_testkit::lua_server::{LuaServer, Stored};

use crate::breaker_client::*;
use crate::harness::*;

const SUCCESS: u8 = 0;
const FAILURE: u8 = 2;
const SLOW_FAILURE: u8 = 3;
const CLOSED: i64 = 1;
const OPEN: i64 = 2;

/// The initial time of a server.
const NOW: u64 = 1_700_000_000_000_000;
/// How long the replicas have to answer; not what a script assumes without it.
const ANSWER_TIME: u64 = 60_000;
/// A line that is older is heard only as an answer.
const RECENT: u64 = 50_000;

/// What a replica knows, in the order of its line: owner, number, call, at, calls, failures, slow calls, failures in a row.
type Line = [u64; 8];

/// What the script made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// It tripped.
    Opened,
    /// It asked the replicas, who have this long to answer.
    Asked(i64),
    /// It waits for answers for this long.
    Waits(i64),
    /// The breaker stays closed, and no call is open.
    Nothing,
    /// The same, and this replica is over the threshold while the fleet is not.
    Odd,
}

/// A stored breaker, closed.
#[derive(Clone, Debug)]
struct Scene {
    spec: BreakerSpec,
    live: u64,
    since: u64,
    /// Calls, failures and slow calls in the present slice.
    counts: [u64; 3],
    /// Failures in a row, the last of them now.
    streak: u64,
    /// The last call for evidence, how many were asked if it is open, and until when they have time.
    call: [u64; 3],
    lines: Vec<Line>,
    /// The replica that comes: its window, the call that it answers, and its runs of (kind, calls).
    window: &'static str,
    answers: u64,
    runs: Vec<(u8, u64)>,
}

/// Half of at least ten calls.
fn half() -> BreakerSpec {
    BreakerSpec::failure_ratio(0.5).min_throughput(10)
}

/// A fleet of three; the replica that comes has ten failures, which are news.
fn scene(spec: BreakerSpec) -> Scene {
    Scene {
        spec,
        live: 3,
        since: NOW - 60_000_000,
        counts: [0; 3],
        streak: 0,
        call: [0; 3],
        lines: Vec::new(),
        window: "10 10 0 10",
        answers: 0,
        runs: vec![(FAILURE, 10)],
    }
}

/// The line of a replica that has told its window just now.
fn told(owner: u64, window: [u64; 4]) -> Line {
    told_at(owner, NOW - 1, window)
}

fn told_at(owner: u64, at: u64, [calls, failures, slow, streak]: [u64; 4]) -> Line {
    [owner, 1, 0, at, calls, failures, slow, streak]
}

/// The line of a replica that has answered the call.
fn answered(owner: u64, call: u64, window: [u64; 4]) -> Line {
    let [owner, number, _, at, calls, failures, slow, streak] = told(owner, window);
    [owner, number, call, at, calls, failures, slow, streak]
}

/// Lines of replicas from this number on.
fn each(owners: std::ops::Range<u64>, line: impl Fn(u64) -> Line) -> Vec<Line> {
    owners.map(line).collect()
}

impl Scene {
    fn put(&self, server: &LuaServer) {
        let Self { since, counts: [calls, failures, slow], streak, call: [call, asked, until], .. } = self;
        let (slice, zeros) = (NOW / 1_000_000, " 0".repeat(27));
        let in_a_row = if *streak > 0 { NOW } else { 0 };
        let text = format!(
            "2 {NOW} 1 1 {since} {since} 0 {streak} 0 0 0 1 -1 0 0\nw 1000000 {slice} {calls} {failures} {slow}{zeros}\n\
             e {in_a_row} {in_a_row} 0 {call} {asked} {until}"
        );
        server.put(KEY, Stored::Text(text.into_bytes()));
        let line = |line: &Line| line.map(|number| number.to_string()).join(" ");
        let lines: Vec<_> = self.lines.iter().map(line).collect();
        server.put(EVIDENCE, Stored::Text(lines.join("\n").into_bytes()));
    }

    /// Replica 1 comes.
    fn play(&self, server: &LuaServer) -> Made {
        self.put(server);
        self.come(server)
    }

    fn come(&self, server: &LuaServer) -> Made {
        let circuit = Circuit { spec: self.spec.clone(), ..steady(0) };
        let mut args = args![self.live, ANSWER_TIME, self.answers, self.window, self.runs.len()];
        args.extend(self.runs.iter().flat_map(|(kind, calls)| args![2, 1, kind, calls, 0, 0]));
        let (state, tail) = circuit.ask_as(server, 1, &BREAKER_SYNC, &args);
        match (state.phase, &tail[1..]) {
            (OPEN, [-1, 0, 0]) => Made::Opened,
            (CLOSED, [left, 1, 0]) => Made::Asked(*left),
            (CLOSED, [-1, 0, 0]) => Made::Nothing,
            (CLOSED, [-1, 0, 1]) => Made::Odd,
            (CLOSED, [left, 0, 0]) if *left >= 0 => Made::Waits(*left),
            other => panic!("{other:?}"),
        }
    }
}

/// Plays the scene on a server of its own.
fn made(scene: &Scene) -> Made {
    let server = fresh_server();
    server.take_published();
    scene.play(server)
}

const ASKED: Made = Made::Asked(ANSWER_TIME as i64);

/// The line that the replica that came has left; none if it has left none.
fn line_left(server: &LuaServer) -> Option<String> {
    let text = String::from_utf8(server.get(EVIDENCE)?).unwrap();
    text.lines().find(|line| line.starts_with("1 ")).map(str::to_owned)
}

#[test]
fn many_replicas_are_not_asked_in_close_succession_and_few_are() {
    let cases = [
        (8, 0, true),
        (9, 44_999, false),
        (9, 45_000, true),
        (50, 249_999, false),
        (50, 250_000, true),
        (51, 249_999, false),
        (51, 250_000, true),
        (1_000, 250_000, true),
    ];
    for (live, ago, asks) in cases {
        let scene = Scene { live, call: [NOW - ago, 0, 0], ..scene(half()) };
        assert_eq!(made(&scene), if asks { ASKED } else { Made::Nothing }, "{live} replicas, {ago} µs later");
    }
    for (call, expected) in [(0, ASKED), (1, Made::Nothing)] {
        let server = fresh_server();
        Scene { live: 9, since: 0, call: [call, 0, 0], ..scene(half()) }.put(server);
        let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
        let text = text.replace(&format!("2 {NOW} "), "2 100 ").replace("w 1000000 1700000000", "w 1000000 0");
        server.put(KEY, Stored::Text(text.into_bytes()));
        server.clock().set(Time::from_micros(100));
        assert_eq!(Scene { live: 9, ..scene(half()) }.come(server), expected, "after call {call}");
    }
}

/// One failure has nothing between: it trips whatever was asked lately.
#[test]
fn a_breaker_that_trips_on_one_failure_asks_nobody() {
    let spec = BreakerSpec::consecutive_failures(1);
    for (live, call) in [(3, 0), (9, NOW), (50, NOW), (65, NOW)] {
        let one =
            Scene { live, call: [call, 0, 0], window: "1 1 0 1", runs: vec![(FAILURE, 1)], ..scene(spec.clone()) };
        assert_eq!(made(&one), Made::Opened, "{live} replicas");
    }
    let slow =
        BreakerSpec { consecutive_failures: Some(1), ..BreakerSpec::slow_call_ratio(0.5, SLOW).min_throughput(10) };
    let slow = Scene { window: "10 0 10 0", runs: vec![(1, 10)], ..scene(slow) };
    assert_eq!(made(&slow), ASKED, "slow calls are not failures in a row");
}

#[test]
fn the_replica_says_how_long_the_others_have_up_to_ten_seconds() {
    let server = LuaServer::new();
    for (answer_time, left) in [(0, 50_000), (1, 1), (10_000_000, 10_000_000), (10_000_001, 50_000), (u64::MAX, 50_000)]
    {
        let scene = scene(half());
        scene.put(&server);
        let circuit = Circuit { spec: scene.spec.clone(), ..steady(0) };
        let args = args![3, answer_time, 0, scene.window, 1, 2, 1, FAILURE, 10, 0, 0];
        assert_eq!(circuit.ask_as(&server, 1, &BREAKER_SYNC, &args).1, [0, left, 1, 0], "{answer_time}");
    }
}

#[test]
fn a_call_whose_replica_did_not_come_back_is_over_a_second_after_its_time() {
    for (asked, in_time) in [(3, Made::Odd), (1, Made::Opened)] {
        for (until, expected) in [(NOW - 1_000_000, in_time), (NOW - 1_000_001, ASKED)] {
            let scene = Scene { call: [NOW - 1_100_000, asked, until], ..scene(half()) };
            assert_eq!(made(&scene), expected, "{asked} asked, open until {until}");
        }
    }
    let poll =
        Scene { call: [NOW - 1_100_000, 3, NOW - 1_000_001], runs: Vec::new(), ..scene(half().quorum_share(0.5)) };
    assert_eq!(made(&poll), Made::Odd, "without news it asks nobody");
}

#[test]
fn a_call_is_open_until_all_have_answered_or_its_time_is_over() {
    let call = NOW - 10;
    let healthy = |owner| answered(owner, call, [10, 0, 0, 0]);
    let sick = |owner| answered(owner, call, [10, 10, 0, 10]);
    let cases = [
        (NOW + 1, vec![sick(2)], Made::Waits(1)),
        (NOW, vec![sick(2)], Made::Opened),
        (NOW + 1, vec![sick(2), sick(3)], Made::Opened),
        (NOW + 1, vec![healthy(2), healthy(3)], Made::Nothing),
        (NOW + 1, vec![sick(2), told(3, [10, 10, 0, 10])], Made::Waits(1)),
    ];
    for (until, lines, expected) in cases {
        let scene = Scene { call: [call, 3, until], lines: lines.clone(), runs: Vec::new(), ..scene(half()) };
        assert_eq!(made(&scene), expected, "{lines:?} until {until}");
    }
}

/// Of few replicas every request answers; of many, those that were drawn and say so.
#[test]
fn of_more_than_sixty_four_replicas_only_those_that_answer_leave_a_line() {
    let call = NOW - 10;
    let cases = [
        (64, 0, 0, 0, true),
        (65, 0, 0, 0, false),
        (65, call, 0, call, false),
        (64, call, 64, 0, true),
        (65, call, 64, call, true),
        (65, call, 64, call - 1, false),
        (65, call, 64, 0, false),
        (65, call, 1, call, true),
    ];
    for (live, call, asked, answers, leaves) in cases {
        let runs = vec![(SUCCESS, 1)];
        let scene = Scene { live, call: [call, asked, NOW + 5], answers, window: "1 0 0 0", runs, ..scene(half()) };
        let server = fresh_server();
        scene.play(server);
        let line = line_left(server);
        assert_eq!(line.is_some(), leaves, "{live} live, {asked} asked");
        let answered = if asked > 0 && (live == 64 || answers == call) { call } else { 0 };
        assert_eq!(line, leaves.then(|| format!("1 2 {answered} {NOW} 1 0 0 0")), "{live} live, {asked} asked");
    }
}

/// A poll of a fleet without a quorum and without an open call has nothing to tell.
#[test]
fn a_poll_leaves_a_line_only_if_a_call_is_open_or_a_quorum_is_counted() {
    let zero = BreakerSpec { quorum_share: Some(0.0), ..half() };
    let cases = [
        (half(), 0, false),
        (half(), 1, true),
        (half(), 3, true),
        (zero, 0, false),
        (half().quorum_share(0.1), 0, true),
        (half().quorum_share(1.0), 0, true),
        (half().quorum_replicas(1), 0, true),
    ];
    for (spec, asked, leaves) in cases {
        let scene = Scene { live: 5, call: [NOW - 10, asked, NOW + 5], runs: Vec::new(), ..scene(spec.clone()) };
        let server = fresh_server();
        scene.play(server);
        assert_eq!(line_left(server).is_some(), leaves, "{asked} asked, {spec:?}");
    }
}

#[test]
fn a_window_that_is_cut_short_or_is_no_number_counts_nothing() {
    for (window, line) in [("5 2", "5 2 0 0"), ("", "0 0 0 0"), ("5 x 1 y", "5 0 1 0"), ("4 3 2 1 9", "4 3 2 1")] {
        let scene = Scene { window, runs: vec![(SUCCESS, 1)], ..scene(half()) };
        let server = fresh_server();
        scene.play(server);
        assert_eq!(line_left(server), Some(format!("1 2 0 {NOW} {line}")), "{window:?}");
    }
}

#[test]
fn a_replica_that_is_alone_weighs_nothing_unless_a_call_is_open() {
    let alone = Scene { live: 1, runs: Vec::new(), ..scene(half().quorum_share(0.5)) };
    assert_eq!(made(&alone), Made::Nothing, "it is not odd");
    for (asked, expected) in [(1, Made::Opened), (2, Made::Opened), (3, Made::Odd)] {
        let asking = Scene { call: [NOW - 10, asked, NOW], ..alone.clone() };
        assert_eq!(made(&asking), expected, "it closes the call of {asked}");
    }
    let lines = vec![told(2, [10, 10, 0, 10]), told(3, [10, 10, 0, 10])];
    assert_eq!(made(&Scene { live: 2, lines, ..alone }), Made::Odd, "one of several, by a window that is no news");
}

/// Lines that are neither answers nor fresh, or that are from before the breaker closed, are not heard.
#[test]
fn a_line_is_heard_if_it_answers_the_open_call_or_is_fresh() {
    let sick = [10, 10, 0, 10];
    let call = NOW - 100_000;
    let old = |owner| told_at(owner, NOW - RECENT, sick);
    let fresh = |owner| told_at(owner, NOW - RECENT + 1, sick);
    let former = |owner| [owner, 1, call, NOW - RECENT, 10, 10, 0, 10];
    assert_eq!(made(&Scene { lines: each(2..4, fresh), ..scene(half()) }), Made::Opened);
    assert_eq!(made(&Scene { lines: vec![fresh(2), old(3)], ..scene(half()) }), ASKED);
    let closed = Scene { call: [call, 0, 0], ..scene(half()) };
    assert_eq!(made(&Scene { lines: each(2..4, former), ..closed }), ASKED, "answers to a call that is closed");
    let open = Scene { call: [call, 3, NOW], window: "0 0 0 0", runs: Vec::new(), ..scene(half()) };
    assert_eq!(made(&Scene { lines: each(2..4, former), ..open.clone() }), Made::Opened, "old answers to an open call");
    assert_eq!(made(&Scene { lines: each(2..4, old), ..open.clone() }), Made::Nothing);
    for (since, expected) in [(NOW - 1, Made::Opened), (NOW, Made::Nothing)] {
        let lines = each(2..4, |owner| answered(owner, call, sick));
        assert_eq!(made(&Scene { since, lines, ..open.clone() }), expected, "closed since {since}");
    }
    // Of many replicas only answers are heard.
    let many = Scene { live: 65, call: [call, 1, NOW], runs: Vec::new(), ..scene(half()) };
    assert_eq!(made(&Scene { lines: each(2..60, fresh), ..many.clone() }), Made::Nothing);
    assert_eq!(made(&Scene { answers: call, ..many.clone() }), Made::Opened);
    let waiting = Scene { call: [call, 1, NOW + 5], ..many };
    assert_eq!(made(&waiting), Made::Waits(5), "this replica was not drawn");
    assert_eq!(made(&Scene { lines: vec![answered(2, call, sick)], ..waiting }), Made::Opened, "another one was");
}

#[test]
fn a_fleet_is_asked_when_its_failures_would_reach_the_threshold_with_the_rest_of_the_throughput() {
    let cases = [
        ([0, 0, 0], (FAILURE, 4), Made::Nothing),
        ([0, 0, 0], (FAILURE, 5), ASKED),
        ([12, 0, 0], (FAILURE, 8), Made::Nothing),
        ([8, 0, 0], (FAILURE, 8), ASKED),
    ];
    for (counts, run, expected) in cases {
        let scene = Scene { counts, runs: vec![run], window: "9 4 0 4", ..scene(half()) };
        assert_eq!(made(&scene), expected, "{run:?} after {counts:?}");
    }
    let slow = BreakerSpec::slow_call_ratio(0.5, SLOW).min_throughput(10);
    for (calls, expected) in [(4, Made::Nothing), (5, ASKED)] {
        let runs = vec![(SLOW_FAILURE, calls)];
        assert_eq!(made(&Scene { runs, window: "4 0 4 0", ..scene(slow.clone()) }), expected, "{calls} slow calls");
    }
    let quorum = Scene { runs: vec![(FAILURE, 4)], ..scene(half().quorum_share(0.5)) };
    assert_eq!(made(&quorum), ASKED, "with a quorum also when this replica is over it");
    assert_eq!(made(&Scene { window: "9 9 0 9", ..quorum }), Made::Nothing);
}

/// One that does not answer counts as the mean of the others, without failures.
#[test]
fn those_that_do_not_answer_count_as_calls_without_failures() {
    let call = NOW - 10;
    let cases: [(u64, u32, [u64; 4], &str, Made); 10] = [
        // Asked, least calls, the answer of replica 2, the window of replica 1.
        (4, 10, [10, 10, 0, 10], "10 10 0 10", Made::Opened),
        (5, 10, [10, 10, 0, 10], "10 10 0 10", Made::Odd),
        (2, 10, [10, 5, 0, 5], "10 5 0 5", Made::Opened),
        (2, 10, [10, 5, 0, 5], "10 4 0 4", Made::Nothing),
        (2, 20, [10, 10, 0, 10], "10 10 0 10", Made::Opened),
        (2, 21, [10, 10, 0, 10], "10 10 0 10", Made::Nothing),
        (1, 20, [10, 10, 0, 10], "10 10 0 10", Made::Opened),
        (1, 21, [10, 10, 0, 10], "10 10 0 10", Made::Nothing),
        (2, 1, [0, 0, 0, 0], "1 1 0 1", Made::Opened),
        (2, 1, [0, 0, 0, 0], "0 0 0 0", Made::Nothing),
    ];
    for (asked, least, answer, window, expected) in cases {
        let lines = vec![answered(2, call, answer)];
        let spec = half().min_throughput(least);
        let scene = Scene { live: asked, call: [call, asked, NOW], lines, window, runs: Vec::new(), ..scene(spec) };
        assert_eq!(made(&scene), expected, "{asked} asked, {answer:?} and {window}, at least {least}");
    }
    // One line stands for the two others that were asked.
    for (window, expected) in [("30 45 0 0", Made::Opened), ("30 44 0 0", Made::Odd)] {
        let scene = Scene { live: 3, call: [call, 3, NOW], window, runs: Vec::new(), ..scene(half()) };
        assert_eq!(made(&scene), expected, "{window}");
    }
    let slow = BreakerSpec::slow_call_ratio(0.5, SLOW).min_throughput(10);
    for (slow_calls, expected) in [(5, Made::Opened), (4, Made::Nothing)] {
        let lines = vec![answered(2, call, [10, 0, slow_calls, 0])];
        let scene =
            Scene { live: 2, call: [call, 2, NOW], lines, window: "10 0 5 0", runs: Vec::new(), ..scene(slow.clone()) };
        assert_eq!(made(&scene), expected, "{slow_calls} slow calls");
    }
}

#[test]
fn a_sample_stands_for_all_when_their_calls_are_counted() {
    let call = NOW - 10;
    // A hundred replicas, of whom ten were asked: each call stands for ten.
    for (least, expected) in [(100, Made::Opened), (101, Made::Nothing)] {
        let spec = half().min_throughput(least);
        let lines = each(2..11, |owner| answered(owner, call, [1, 1, 0, 1]));
        let scene = Scene {
            live: 100,
            call: [call, 10, NOW],
            answers: call,
            lines,
            window: "1 1 0 1",
            runs: Vec::new(),
            ..scene(spec)
        };
        assert_eq!(made(&scene), expected, "at least {least}");
    }
}

#[test]
fn failures_in_a_row_are_known_from_the_answers_of_half_of_the_replicas() {
    let call = NOW - 10;
    let spec = BreakerSpec::consecutive_failures(3);
    for (asked, others, expected) in
        [(2, 0, Made::Opened), (3, 0, Made::Nothing), (4, 1, Made::Opened), (5, 1, Made::Nothing)]
    {
        let lines = each(2..2 + others, |owner| answered(owner, call, [1, 0, 0, 0]));
        let scene = Scene {
            live: 5,
            streak: 3,
            call: [call, asked, NOW],
            lines,
            window: "1 0 0 0",
            runs: Vec::new(),
            ..scene(spec.clone())
        };
        assert_eq!(made(&scene), expected, "{asked} asked, {others} others answered");
    }
    let fresh = Scene { live: 2, lines: vec![told(2, [1, 0, 0, 0])], runs: vec![(FAILURE, 3)], ..scene(spec) };
    assert_eq!(made(&fresh), ASKED, "a window is no answer");
    let one = BreakerSpec::consecutive_failures(1);
    let scene = |streak| Scene {
        live: 5,
        streak,
        call: [call, 5, NOW],
        window: "1 0 0 0",
        runs: Vec::new(),
        ..scene(one.clone())
    };
    assert_eq!([made(&scene(1)), made(&scene(0))], [Made::Opened, Made::Nothing]);
}

/// The windows that were heard lately tell the ratios; failures in a row are known only from answers.
#[test]
fn a_fleet_that_was_heard_lately_is_asked_only_about_failures_in_a_row() {
    let healthy = |owner| told(owner, [50, 0, 0, 0]);
    let ratio = Scene { lines: each(2..4, healthy), ..scene(half()) };
    assert_eq!(made(&ratio), Made::Nothing, "all were heard, and they are healthy");
    assert_eq!(made(&Scene { lines: vec![healthy(2)], ..ratio.clone() }), ASKED, "one was not heard");
    let both = half().or_consecutive_failures(11);
    assert_eq!(made(&Scene { spec: both.clone(), ..ratio.clone() }), Made::Nothing, "ten in a row");
    let in_a_row = Scene { spec: both, runs: vec![(FAILURE, 11)], ..ratio.clone() };
    assert_eq!(made(&in_a_row), ASKED, "eleven in a row");
    // The next bad news may ask at once after answers that were not enough to tell.
    let call = NOW - 10;
    for (least, next) in [(50, Made::Nothing), (51, ASKED)] {
        let server = fresh_server();
        let scene = Scene {
            live: 50,
            call: [call, 50, NOW],
            streak: 1,
            window: "1 0 0 0",
            runs: Vec::new(),
            ..scene(half().min_throughput(least))
        };
        assert_eq!(scene.play(server), Made::Nothing);
        let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
        let kept = if next == ASKED { 0 } else { call };
        assert_eq!(text.lines().last(), Some(&*format!("e {NOW} {NOW} 0 {kept} 0 {NOW}")), "at least {least}");
        let news = Scene { window: "61 60 0 60", runs: vec![(FAILURE, 60)], ..scene };
        assert_eq!(news.come(server), next, "at least {least}");
    }
}

#[test]
fn a_breaker_that_is_not_closed_or_is_overridden_weighs_nothing() {
    let server = fresh_server();
    let call = [NOW - 10, 3, NOW - 5];
    for (overridden, expected) in
        OVERRIDES.into_iter().zip([Made::Opened, Made::Opened, Made::Waits(0), Made::Waits(0), Made::Opened])
    {
        server.flush();
        let lines = each(2..4, |owner| answered(owner, call[0], [10, 10, 0, 10]));
        let scene = Scene { call, lines, runs: Vec::new(), ..scene(half()) };
        scene.put(server);
        Circuit { spec: scene.spec.clone(), ..steady(0) }.force(server, overridden);
        assert_eq!(scene.come(server), expected, "{overridden:?}");
    }
    let circuit = Circuit { spec: half(), ..steady(0) };
    server.flush();
    circuit.sync(server, &[(1, FAILURE, 10, 0)]);
    assert_eq!(scene(half()).come(server), Made::Opened);
    assert_eq!(circuit.inspect(server).0.epoch, 2, "it does not trip again");
    assert_eq!(circuit.force(server, Some(Override::Open)).epoch, 2);
}

#[test]
fn a_quorum_counts_the_replicas_that_had_calls_in_the_window() {
    let share = |share| half().quorum_share(share).min_throughput(1);
    let sick = [10, 10, 0, 10];
    let (healthy, unused) = ([10, 0, 0, 0], [0, 0, 0, 0]);
    let window = 10_000_000;
    let closed = NOW - 20_000_000;
    let cases = [
        // The others, the share: whether ten failures of this one trip.
        (vec![told(2, sick), told(3, healthy)], 0.5, true),
        (vec![told(2, healthy), told(3, unused)], 0.5, true),
        (vec![told(2, healthy), told(3, unused)], 0.51, false),
        (vec![told(2, unused), told(3, unused)], 1.0, true),
        (vec![told(2, [1, 0, 0, 0]), told(3, unused)], 0.51, false),
        (vec![told_at(2, NOW - window, healthy), told(3, unused)], 0.51, true),
        (vec![told_at(2, NOW - window + 1, healthy), told(3, unused)], 0.51, false),
        (vec![told_at(2, closed - 1, healthy), told(3, unused)], 0.51, true),
        (vec![told_at(2, closed, healthy), told(3, unused)], 0.51, false),
    ];
    for (lines, least, trips) in cases {
        // The open call is over; what they know of failures is more than enough. A window of 30 s reaches before `closed`.
        let spec = if lines[0][3] < NOW - window { share(least).window(30 * SECOND) } else { share(least) };
        let counts = if spec.sampling_window == 30 * SECOND { [0; 3] } else { [30, 30, 0] };
        let scene = Scene {
            since: closed,
            counts,
            call: [NOW - 10, 1, NOW],
            lines: lines.clone(),
            runs: Vec::new(),
            ..scene(spec.clone())
        };
        let made = made(&scene);
        assert_eq!(made == Made::Opened, trips, "{made:?}: {lines:?}, {least}");
    }
}

#[test]
fn a_quorum_of_replicas_counts_for_how_many_a_sample_stands() {
    let call = NOW - 10;
    let cases = [
        // Live, asked, sick and healthy among those that answered (with this one, which is sick), and the quorum.
        (3, 3, 1, 2, 2, Made::Odd),
        (3, 3, 2, 1, 2, Made::Opened),
        (3, 3, 1, 0, 3, Made::Opened),
        (3, 3, 2, 1, 3, Made::Odd),
        (128, 64, 2, 0, 5, Made::Opened),
        (128, 64, 2, 1, 4, Made::Opened),
        (128, 64, 2, 1, 5, Made::Odd),
        (128, 64, 1, 3, 3, Made::Odd),
    ];
    for (live, asked, sick, healthy, quorum, expected) in cases {
        let spec = BreakerSpec::failure_ratio(0.001).min_throughput(1).quorum_replicas(quorum);
        let mut lines = each(2..1 + sick, |owner| answered(owner, call, [10, 10, 0, 10]));
        lines.extend(each(1 + sick..1 + sick + healthy, |owner| answered(owner, call, [10, 0, 0, 0])));
        let scene = Scene { live, call: [call, asked, NOW], answers: call, lines, runs: Vec::new(), ..scene(spec) };
        assert_eq!(made(&scene), expected, "{sick} sick and {healthy} healthy of {asked} of {live}, {quorum} needed");
    }
    // A share that is no share is none; the number counts.
    let spec = BreakerSpec { quorum_share: Some(0.0), ..half().quorum_replicas(2) };
    let scene = Scene { live: 2, call: [call, 2, NOW], runs: Vec::new(), ..scene(spec) };
    let healthy = Scene { lines: vec![answered(2, call, [1, 0, 0, 0])], ..scene.clone() };
    assert_eq!(made(&healthy), Made::Odd);
    let sick = Scene { lines: vec![answered(2, call, [10, 10, 0, 10])], ..scene };
    assert_eq!(made(&sick), Made::Opened);
}

#[test]
fn replicas_with_few_calls_each_need_their_part_of_the_throughput_rounded_up() {
    let call = NOW - 10;
    let cases = [
        // Live, asked, least calls of all, the calls of each of three: whether they are over the threshold.
        (3, 3, 9, 3, true),
        (3, 3, 10, 3, false),
        (3, 3, 10, 4, true),
        (3, 3, 1, 1, true),
        (128, 64, 18, 3, true),
        (128, 64, 19, 3, false),
    ];
    for (live, asked, least, calls, over) in cases {
        // The fleet as a whole has enough: one replica that had its calls before the window of this spec.
        let spec = BreakerSpec::failure_ratio(0.01).min_throughput(least).quorum_replicas(3);
        let mut lines = each(2..4, |owner| answered(owner, call, [calls, calls, 0, 0]));
        lines.push([9, 1, call, NOW - 10_000_000, 100, 100, 0, 0]);
        let window: &'static str = ["", "1 1 0 0", "", "3 3 0 0", "4 4 0 0"][calls as usize];
        let scene =
            Scene { live, call: [call, asked, NOW], answers: call, lines, window, runs: Vec::new(), ..scene(spec) };
        assert_eq!(
            made(&scene),
            if over { Made::Opened } else { Made::Nothing },
            "{calls} each of {least}, {live} live"
        );
    }
}

/// Over the threshold without the fleet: because the others are not, or because too few of them were heard.
#[test]
fn a_replica_is_odd_if_too_few_others_were_heard_to_say_that_the_fleet_is_not() {
    let call = NOW - 10;
    for (others, expected) in [(0, Made::Odd), (1, Made::Nothing)] {
        let lines = each(2..2 + others, |owner| answered(owner, call, [50, 0, 0, 0]));
        for asked in [3, 4] {
            let scene =
                Scene { live: 4, call: [call, asked, NOW], lines: lines.clone(), runs: Vec::new(), ..scene(half()) };
            let expected = if others == 1 && asked == 4 { Made::Nothing } else { expected };
            assert_eq!(made(&scene), expected, "{others} others of {asked}");
        }
    }
    let news =
        Scene { runs: vec![(FAILURE, 1)], counts: [100, 0, 0], live: 50, call: [NOW - 10, 0, 0], ..scene(half()) };
    assert_eq!(made(&Scene { window: "10 4 0 4", ..news.clone() }), Made::Nothing, "under the threshold itself");
    assert_eq!(made(&Scene { live: 8, ..news.clone() }), Made::Nothing, "no failures of the fleet");
    let quorum = Scene { spec: half().quorum_share(0.5), ..news };
    assert_eq!(made(&quorum), Made::Odd, "the others were asked just before");
    assert_eq!(made(&Scene { call: [0; 3], ..quorum.clone() }), ASKED, "over the threshold itself");
    assert_eq!(made(&Scene { runs: Vec::new(), ..quorum.clone() }), Made::Odd, "without news it asks nobody");
    assert_eq!(made(&Scene { runs: Vec::new(), window: "10 4 0 4", ..quorum }), Made::Nothing);
}

#[test]
fn a_call_is_published_and_answered_by_the_replica_that_makes_it() {
    let server = fresh_server();
    assert_eq!(scene(half()).play(server), ASKED);
    assert_eq!(line_left(server), Some(format!("1 2 {NOW} {NOW} 10 10 0 10")));
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    assert!(text.ends_with(&format!("\ne {NOW} {NOW} 0 {NOW} 3 {}", NOW + ANSWER_TIME)), "{text}");
    let (_, message) = server.take_published().pop().unwrap();
    assert_eq!(String::from_utf8(message).unwrap(), format!("ask id7@1 0 {NOW} {NOW} 3"));
    assert_eq!(server.pttl(EVIDENCE), Some(600_000));
    server.clock().advance(Duration::from_micros(ANSWER_TIME));
    assert_eq!(Scene { runs: Vec::new(), ..scene(half()) }.come(server), Made::Odd, "two of three say nothing");
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    assert!(text.ends_with(&format!("\ne {NOW} {NOW} 0 {NOW} 0 {}", NOW + ANSWER_TIME)), "the call is closed: {text}");
}

/// Failures in a row, while the replicas are asked about them: a success that may lie between two of them means that they
/// were not in a row, one after them ends them, and one before them is none of them.
#[test]
fn a_success_is_before_between_or_after_failures_in_a_row() {
    let call = NOW - 10;
    let cases = [
        // Failures in a row, the age of a success, how long before it the first of its run was: the row, and if it is over.
        (3, 0, 0, (3, NOW, 1)),
        (3, 0, 1, (0, 0, 0)),
        (2, 0, 1, (0, 0, 0)),
        (1, 0, 1, (1, NOW, 1)),
        (3, 1, 0, (3, NOW, 0)),
        (3, 1, 1, (3, NOW, 0)),
    ];
    for (streak, age, span, (row, since, over)) in cases {
        let server = fresh_server();
        let until = NOW + 5;
        Scene { streak, call: [call, 3, until], ..scene(half()) }.put(server);
        let circuit = Circuit { spec: half(), ..steady(0) };
        let args = args![5, ANSWER_TIME, 0, "1 0 0 0", 1, 2, 1, SUCCESS, 1, age, span];
        circuit.ask_as(server, 1, &BREAKER_SYNC, &args);
        let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
        assert_eq!(text.split(' ').nth(7), Some(&*row.to_string()), "{text}");
        let line = text.lines().last().unwrap();
        assert_eq!(line, format!("e {since} {since} {over} {call} 3 {until}"), "{streak}, {age} µs ago, {span} long");
    }
}

#[test]
fn failures_in_a_row_that_are_over_trip_no_replica_that_is_alone() {
    let server = fresh_server();
    let spec = BreakerSpec { consecutive_failures: Some(3), ..half() };
    let scene = Scene { live: 1, streak: 3, call: [NOW - 10, 3, NOW + 5], runs: vec![(1, 1)], ..scene(spec) };
    assert_eq!(scene.play(server), Made::Waits(5));
}

#[test]
fn failures_in_a_row_begin_with_the_clock_at_the_earliest() {
    let server = fresh_server();
    server.clock().set(Time::from_micros(5));
    let circuit = Circuit { spec: half(), ..steady(0) };
    circuit.ask_as(server, 1, &BREAKER_SYNC, &args![3, ANSWER_TIME, 0, "10 10 0 10", 1, 2, 1, FAILURE, 10, 0, 7]);
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    assert_eq!(text.lines().last(), Some("e 0 5 0 5 3 60005"));
    assert_eq!(circuit.inspect(server).0.flags, 0);
}

#[test]
fn a_call_is_kept_also_if_it_is_of_the_first_microsecond() {
    let server = fresh_server();
    server.clock().set(Time::from_micros(1));
    let circuit = Circuit { spec: half(), ..steady(0) };
    circuit.ask_as(server, 1, &BREAKER_SYNC, &args![3, ANSWER_TIME, 0, "10 10 0 10", 1, 2, 1, FAILURE, 10, 0, 0]);
    circuit.reset(server);
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    assert_eq!(text.lines().last(), Some("e 0 0 0 1 0 60001"));
}

#[test]
fn a_change_of_phase_closes_an_open_call() {
    let server = fresh_server();
    assert_eq!(scene(half()).play(server), ASKED);
    Circuit { spec: half(), ..steady(0) }.reset(server);
    let text = String::from_utf8(server.get(KEY).unwrap()).unwrap();
    assert_eq!(text.lines().last(), Some(&*format!("e 0 0 0 {NOW} 0 {}", NOW + ANSWER_TIME)));
    let waits = Scene { runs: Vec::new(), ..scene(half()) };
    assert_eq!(waits.come(server), Made::Nothing);
}

/// The whole text of the evidence after replica 1 has come.
fn text_after(scene: &Scene, before: &str) -> String {
    let server = fresh_server();
    scene.put(server);
    server.put(EVIDENCE, Stored::Text(before.as_bytes().to_vec()));
    scene.come(server);
    String::from_utf8(server.get(EVIDENCE).unwrap()).unwrap()
}

#[test]
fn the_line_of_a_replica_moves_to_the_end_and_leaves_the_others_as_they_are() {
    let scene = Scene { runs: vec![(SUCCESS, 1)], window: "1 0 0 0", ..scene(half()) };
    let [two, one, three] = [2, 1, 3].map(|owner| format!("{owner} 1 0 5 1 0 0 0"));
    let new = format!("1 2 0 {NOW} 1 0 0 0");
    let cases = [
        (String::new(), new.clone()),
        (one.clone(), new.clone()),
        (format!("{two}\n{one}\n{three}"), format!("{two}\n{three}\n{new}")),
        (format!("{one}\n{two}\n{three}"), format!("{two}\n{three}\n{new}")),
        (format!("{two}\n{three}\n{one}"), format!("{two}\n{three}\n{new}")),
        (format!("{two}\n{three}"), format!("{two}\n{three}\n{new}")),
        (format!("1{one}\n{two}"), format!("1{one}\n{two}\n{new}")),
    ];
    for (before, after) in cases {
        assert_eq!(text_after(&scene, &before), after, "{before:?}");
    }
}

#[test]
fn the_lines_of_sixty_four_replicas_are_kept_and_the_oldest_goes() {
    let scene = Scene { runs: vec![(SUCCESS, 1)], window: "1 0 0 0", ..scene(half()) };
    let lines =
        |owners: std::ops::Range<u64>| owners.map(|owner| format!("{owner} 1 0 5 1 0 0 0\n")).collect::<String>();
    let new = format!("1 2 0 {NOW} 1 0 0 0");
    assert_eq!(text_after(&scene, lines(2..65).trim_end()), lines(2..65) + &new);
    assert_eq!(text_after(&scene, lines(2..66).trim_end()), lines(3..66) + &new);
    assert_eq!(text_after(&scene, lines(2..67).trim_end()), lines(4..67) + &new);
}

#[test]
fn evidence_is_believed_up_to_its_longest_line_its_longest_text_and_the_present() {
    let quiet = Scene { window: "5 4 3 2", runs: vec![(SUCCESS, 1)], ..scene(half()) };
    // Runs up to number 2 were counted, so this one is not counted again; it is if the line is not believed.
    let line = |at: u64, length: usize| {
        let line = format!("1 2 0 {at} 1 0 0 0");
        let more = length.saturating_sub(line.len());
        if more == 0 { line } else { format!("{line} {}", "7".repeat(more - 1)) }
    };
    let long = |length: usize| format!("{}\n{}", line(NOW, 0), "x".repeat(length - line(NOW, 0).len() - 1));
    let cases = [
        (line(NOW, 0), 0),
        (line(NOW + 1, 0), 1),
        (line(NOW, 255), 0),
        (line(NOW, 256), 1),
        (long(16_384), 0),
        (long(16_385), 1),
    ];
    for (text, counted) in cases {
        let server = fresh_server();
        quiet.put(server);
        server.put(EVIDENCE, Stored::Text(text.clone().into_bytes()));
        quiet.come(server);
        assert_eq!(Circuit { spec: half(), ..steady(0) }.inspect(server).1[0], counted, "{} bytes", text.len());
    }
}

#[test]
fn a_replica_that_abstains_leaves_a_line_without_calls() {
    let server = fresh_server();
    scene(half()).play(server);
    let call = server.run(&BREAKER_ABSTAIN, &[EVIDENCE.to_vec()], &args![7, NOW]).unwrap().ints();
    assert_eq!(call, [NOW as i64, 1]);
    let text = String::from_utf8(server.get(EVIDENCE).unwrap()).unwrap();
    assert_eq!(text.lines().last(), Some(&*format!("7 0 {NOW} {NOW} 0 0 0 0")));
}
