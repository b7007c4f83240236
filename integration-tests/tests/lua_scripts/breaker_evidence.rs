//! Evidence of several replicas: outcomes that count once, calls for evidence, silence, and quorums.

use std::time::Duration;

use phalanx_core::breaker::BreakerSpec;
use phalanx_core::clock::Time;
use phalanx_lua::{BREAKER_ABSTAIN, BREAKER_SYNC, LOG_HEADS, LOG_READ};
use phalanx_testkit::lua_server::{LuaServer, Reply, Stored};

use crate::breaker_client::*;
use crate::harness::*;

const SUCCESS: u8 = 0;
const FAILURE: u8 = 2;
const CLOSED: i64 = 1;
const OPEN: i64 = 2;
/// How long the replicas have to answer, in microseconds.
const ANSWER_TIME: u64 = 50_000;

/// What a replica reads in a reply.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    phase: i64,
    /// The time left to answer a call for evidence.
    left: i64,
    opened_call: bool,
    odd: bool,
}

/// A fleet of this many live replicas, all of which use one breaker.
struct Fleet {
    server: LuaServer,
    circuit: Circuit,
    live: u64,
}

impl Fleet {
    fn new(spec: BreakerSpec, live: u64) -> Self {
        let circuit = Circuit { spec, ..steady(0) };
        Self { server: LuaServer::new(), circuit, live }
    }

    /// A replica sends runs of (kind, calls) under a number, with its own window.
    fn send(&self, replica: u64, number: u64, window: &str, runs: &[(u8, u64)]) -> Told {
        self.answer(replica, number, 0, window, runs)
    }

    /// The same in answer to a call.
    fn answer(&self, replica: u64, number: u64, call: u64, window: &str, runs: &[(u8, u64)]) -> Told {
        let mut args = args![self.live, ANSWER_TIME, call, window, runs.len()];
        args.extend(runs.iter().flat_map(|(kind, calls)| args![number, 1, kind, calls, 0, 0]));
        let (state, tail) = self.circuit.ask_as(&self.server, replica, &BREAKER_SYNC, &args);
        let [_, left, opened, odd] = tail[..] else { panic!("{tail:?}") };
        Told { phase: state.phase, left, opened_call: opened == 1, odd: odd == 1 }
    }

    /// A replica sends its first outcomes, all that it has seen.
    fn report(&self, replica: u64, successes: u64, failures: u64) -> Told {
        let window = format!("{} {failures} 0 {failures}", successes + failures);
        let runs: Vec<(u8, u64)> =
            [(SUCCESS, successes), (FAILURE, failures)].into_iter().filter(|run| run.1 > 0).collect();
        self.send(replica, replica, &window, &runs)
    }

    /// A replica that has nothing to send comes back.
    fn look(&self, replica: u64, window: &str) -> Told {
        self.send(replica, 0, window, &[])
    }

    fn abstain(&self, replica: u64, call: u64) -> i64 {
        let args = args![replica, call];
        self.server.run(&BREAKER_ABSTAIN, &[EVIDENCE.to_vec()], &args).unwrap().ints()[1]
    }

    /// The number of the last call for evidence, in the messages that were not read before; none if there is none.
    fn call(&self) -> Option<u64> {
        let messages = self.server.take_published();
        let mut asks = messages.iter().filter_map(|(_, text)| std::str::from_utf8(text).unwrap().strip_prefix("ask "));
        asks.next_back().map(|ask| ask.split(' ').nth(3).unwrap().parse().unwrap())
    }

    fn counts(&self) -> Vec<i64> {
        self.circuit.inspect(&self.server).1
    }
}

fn ratio() -> BreakerSpec {
    BreakerSpec::failure_ratio(0.5).min_throughput(10)
}

#[test]
fn outcomes_that_are_sent_again_count_once() {
    let fleet = Fleet::new(ratio().min_throughput(1_000), 3);
    for _ in 0..3 {
        fleet.send(1, 7, "3 2 0 2", &[(SUCCESS, 1), (FAILURE, 2)]);
    }
    assert_eq!(fleet.counts()[..2], [3, 2]);
    fleet.send(1, 6, "3 2 0 2", &[(FAILURE, 5)]);
    assert_eq!(fleet.counts()[..2], [3, 2], "an earlier request that was executed late");
    fleet.send(2, 6, "1 1 0 1", &[(FAILURE, 1)]);
    fleet.send(1, 8, "4 3 0 3", &[(FAILURE, 1)]);
    assert_eq!(fleet.counts()[..2], [5, 4], "another replica has numbers of its own");
}

#[test]
fn a_replica_that_is_alone_decides_at_once() {
    let fleet = Fleet::new(ratio(), 1);
    assert_eq!(fleet.report(1, 0, 10).phase, OPEN);
    assert_eq!(fleet.call(), None);
}

#[test]
fn one_sick_replica_of_ten_asks_the_others_and_does_not_trip() {
    let fleet = Fleet::new(ratio(), 10);
    let told = fleet.report(1, 0, 20);
    assert_eq!(told, Told { phase: CLOSED, left: 50_000, opened_call: true, odd: false });
    assert!(fleet.call().is_some());
    for replica in 2..10 {
        assert!(fleet.report(replica, 20, 0).left > 0, "one is still missing");
    }
    assert_eq!(fleet.report(10, 20, 0), Told { phase: CLOSED, left: -1, opened_call: false, odd: false });
    assert_eq!(fleet.counts()[..2], [200, 20]);
}

#[test]
fn a_dependency_that_fails_everywhere_trips_with_the_last_answer() {
    let fleet = Fleet::new(ratio(), 3);
    assert!(fleet.report(1, 5, 10).opened_call);
    assert_eq!(fleet.report(2, 5, 10).phase, CLOSED);
    assert_eq!(fleet.report(3, 5, 10).phase, OPEN);
}

#[test]
fn silence_does_not_trip() {
    let fleet = Fleet::new(ratio(), 60);
    for replica in 1..=6 {
        fleet.report(replica, 0, 10);
    }
    fleet.server.clock().advance(Duration::from_micros(ANSWER_TIME));
    let told = fleet.look(1, "10 10 0 10");
    assert_eq!((told.phase, told.left), (CLOSED, -1), "the 54 others count as calls without failures");
    let majority = Fleet::new(ratio(), 60);
    for replica in 1..=40 {
        majority.report(replica, 0, 10);
    }
    assert_eq!(majority.look(40, "10 10 0 10").phase, CLOSED, "they still have time");
    majority.server.clock().advance(Duration::from_micros(ANSWER_TIME));
    assert_eq!(majority.look(1, "10 10 0 10").phase, OPEN);
}

#[test]
fn a_replica_that_has_not_used_the_breaker_abstains() {
    let fleet = Fleet::new(ratio(), 3);
    assert_eq!(fleet.abstain(2, 7), 0, "no call is open");
    assert!(fleet.report(1, 0, 20).opened_call);
    let call = fleet.call().unwrap();
    fleet.server.clock().advance(Duration::from_micros(1));
    assert_eq!((fleet.abstain(2, call), fleet.abstain(3, call)), (1, 1));
    assert_eq!(fleet.look(1, "20 20 0 20").phase, OPEN, "no other replica has calls");
}

#[test]
fn failures_in_a_row_are_those_without_a_success_of_any_replica_between_them() {
    let spec = BreakerSpec::consecutive_failures(3);
    let fleet = Fleet::new(spec.clone(), 2);
    let sent = |number: u64, kind: u8, calls: u64, age: u64, span: u64| {
        let mut args = args![2, ANSWER_TIME, 0, "0 0 0 0", 1];
        args.extend(args![number, 1, kind, calls, age, span]);
        fleet.circuit.ask_as(&fleet.server, number % 2, &BREAKER_SYNC, &args).0.phase
    };
    fleet.server.clock().advance(SECOND);
    assert_eq!(sent(11, FAILURE, 3, 0, 20_000), CLOSED);
    assert_eq!(sent(12, SUCCESS, 1, 10_000, 0), CLOSED, "it was between the first and the last");
    assert_eq!(fleet.counts()[3], 0);
    fleet.server.clock().advance(SECOND);
    assert_eq!(sent(13, FAILURE, 3, 0, 20_000), CLOSED);
    assert_eq!(sent(14, SUCCESS, 1, 500_000, 0), OPEN, "it was before the first");

    let single = Fleet::new(BreakerSpec::consecutive_failures(1), 5);
    assert_eq!(single.report(1, 0, 1).phase, OPEN, "nothing lies between one failure");
}

#[test]
fn a_call_that_showed_the_others_healthy_is_not_repeated_at_once() {
    let fleet = Fleet::new(ratio(), 40);
    assert!(fleet.report(1, 0, 20).opened_call);
    for replica in 2..=40 {
        fleet.report(replica, 1, 0);
    }
    assert_eq!(fleet.counts()[..2], [59, 20]);
    fleet.server.clock().advance(Duration::from_millis(60));
    let again = fleet.send(1, 9, "50 50 0 50", &[(FAILURE, 30)]);
    assert_eq!((again.phase, again.opened_call), (CLOSED, false), "56 % by what was known 60 ms ago");
    fleet.server.clock().advance(Duration::from_millis(200));
    assert!(fleet.send(1, 10, "51 51 0 51", &[(FAILURE, 1)]).opened_call);
}

#[test]
fn a_quorum_opens_for_the_fleet_and_below_it_a_replica_is_odd() {
    for (spec, sick, phase) in [
        (ratio().quorum_share(0.5), 2, CLOSED),
        (ratio().quorum_share(0.5), 3, OPEN),
        (BreakerSpec::failure_ratio(0.2).min_throughput(10).quorum_replicas(2), 1, CLOSED),
        (BreakerSpec::failure_ratio(0.2).min_throughput(10).quorum_replicas(2), 2, OPEN),
    ] {
        let fleet = Fleet::new(spec.clone(), 5);
        let told: Vec<Told> = (1..=5)
            .map(|replica| if replica <= sick { fleet.report(replica, 0, 40) } else { fleet.report(replica, 20, 0) })
            .collect();
        assert!(told[0].opened_call);
        let first = fleet.look(1, "40 40 0 40");
        assert_eq!(first.phase, phase, "{sick} of five, {spec:?}");
        let again = fleet.send(1, 99, "41 41 0 41", &[(FAILURE, 1)]);
        assert_eq!(again.odd, phase == CLOSED, "{sick} of five, {spec:?}");
        let healthy = fleet.look(5, "20 0 0 0");
        assert!(!healthy.odd);
    }
}

#[test]
fn with_a_quorum_replicas_with_few_calls_each_need_their_part_of_the_throughput() {
    let fleet = Fleet::new(BreakerSpec::failure_ratio(0.5).min_throughput(100).quorum_share(0.5), 20);
    let phases: Vec<i64> = (1..=20).map(|replica| fleet.report(replica, 0, 10).phase).collect();
    assert_eq!(phases.last(), Some(&OPEN), "{phases:?}");
}

/// A sample of 64 answers for a fleet of a thousand, of which this share fails.
fn large_fleet(fails: impl Fn(u64) -> bool) -> i64 {
    let fleet = Fleet::new(ratio(), 1_000);
    let window = |replica| if fails(replica) { "20 20 0 20" } else { "20 0 0 0" };
    // Those whose calls fail send that by themselves, many more than the sample.
    let failing: Vec<u64> = (0..1_000).filter(|replica| fails(*replica)).collect();
    for replica in &failing {
        fleet.send(*replica, 1, window(*replica), &[(FAILURE, 20)]);
    }
    let call = fleet.call().unwrap();
    for replica in (0..1_000).step_by(17) {
        fleet.answer(replica, 2, call, window(replica), &[(SUCCESS, 1)]);
    }
    fleet.server.clock().advance(Duration::from_micros(ANSWER_TIME));
    fleet.look(failing[0], "20 20 0 20").phase
}

#[test]
fn a_sample_answers_for_many_replicas() {
    assert_eq!(large_fleet(|replica| replica % 3 > 0), OPEN, "two thirds fail");
    assert_eq!(large_fleet(|replica| replica % 10 == 0), CLOSED, "a tenth fails, and sends a hundred lines");
}

#[test]
fn foreign_evidence_is_ignored_and_fields_of_a_later_release_are_kept() {
    let fleet = Fleet::new(ratio().min_throughput(1_000), 3);
    let later = "9 5 0 1700000000000000 3 2 0 2 77 78";
    let foreign = format!("no evidence\n7 1 2\n{later}\n8 1 0 99999999999999999 1 1 1 1");
    fleet.server.put(EVIDENCE, Stored::Text(foreign.into_bytes()));
    fleet.send(1, 7, "1 1 0 1", &[(FAILURE, 1)]);
    let text = String::from_utf8(fleet.server.get(EVIDENCE).unwrap()).unwrap();
    assert!(text.lines().any(|line| line == later), "{text}");
    assert_eq!(text.lines().last(), Some("1 7 0 1700000000000000 1 1 0 1"));
    assert!(fleet.server.pttl(EVIDENCE).is_some());
    fleet.send(9, 6, "4 3 0 3", &[(FAILURE, 1)]);
    let text = String::from_utf8(fleet.server.get(EVIDENCE).unwrap()).unwrap();
    assert_eq!(text.lines().last(), Some("9 6 0 1700000000000000 4 3 0 3 77 78"), "what is behind its fields is kept");
    fleet.server.put(EVIDENCE, Stored::Foreign);
    fleet.send(1, 8, "2 2 0 2", &[(FAILURE, 1)]);
    assert_eq!(fleet.counts()[1], 3);
}

#[test]
fn evidence_stays_within_five_kilobytes_however_many_replicas_come_and_go() {
    let fleet = Fleet::new(ratio().min_throughput(1_000_000), 50);
    for replica in 0..1_000 {
        fleet.send(9_007_199_254_739_000 + replica, 1, "100000 100000 0 100000", &[(FAILURE, 1)]);
    }
    let size = fleet.server.get(EVIDENCE).unwrap().len();
    assert!((1_000..=5_120).contains(&size), "{size} bytes");
}

/// The lines of the log that a replica reads.
fn log_since(server: &LuaServer, known: u64) -> (i64, String) {
    let reply = server.run(&LOG_READ, &[LOG.to_vec()], &args![known]).unwrap();
    let text = match reply.parts().get(2) {
        Some(Reply::Bytes(text)) => String::from_utf8(text.clone()).unwrap(),
        _ => String::new(),
    };
    let Reply::Int(last) = reply.parts()[1] else { panic!("{reply:?}") };
    (last, text)
}

#[test]
fn every_change_has_a_number_that_grows_over_clock_steps_and_losses() {
    let server = LuaServer::new();
    let circuit = steady(0);
    let last = || {
        let heads = server.run(&LOG_HEADS, &vec![LOG.to_vec(); 3], &[]).unwrap().ints();
        assert_eq!(heads.len(), 4);
        heads[1]
    };
    assert_eq!(last(), 0);
    circuit.reset(&server);
    let first = last();
    assert_eq!(first, now(&server).as_micros() as i64);
    circuit.reset(&server);
    assert_eq!(last(), first + 1, "in one microsecond");
    server.put(LOG, Stored::Foreign);
    assert_eq!(last(), 0);
    server.clock().advance(SECOND);
    circuit.reset(&server);
    assert!(last() > first + 1);
    let (head, text) = log_since(&server, first as u64);
    assert_eq!((head, text), (last(), format!("{:016} id7 0\n", last())));
    assert_eq!(log_since(&server, last() as u64).1, "");
}

#[test]
fn the_log_keeps_the_latest_changes_in_four_kilobytes() {
    let server = LuaServer::new();
    let circuit = steady(0);
    for _ in 0..1_000 {
        circuit.reset(&server);
        server.take_published();
    }
    let text = String::from_utf8(server.get(LOG).unwrap()).unwrap();
    assert!((4_000..=4_096).contains(&text.len()) && text.ends_with('\n'), "{} bytes", text.len());
    let numbers: Vec<u64> = text.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a > b), "the latest first");
    assert!(server.pttl(LOG).is_some());
}

#[test]
fn a_success_ends_failures_in_a_row_also_while_the_replicas_are_asked_about_them() {
    let fleet = Fleet::new(BreakerSpec::consecutive_failures(3), 3);
    assert!(fleet.report(1, 0, 3).opened_call);
    assert_eq!(fleet.counts()[3], 3);
    fleet.server.clock().advance(Duration::from_micros(1));
    assert!(fleet.report(2, 1, 0).left > 0, "one is still missing");
    assert_eq!(fleet.counts()[3], 0);
    assert!(fleet.send(1, 9, "4 4 0 1", &[(FAILURE, 1)]).left > 0);
    assert_eq!(fleet.counts()[3], 1, "a failure after it is the first of the next row");
}

#[test]
fn the_log_holds_4_096_bytes_and_only_whole_changes_beyond() {
    let server = LuaServer::new();
    let circuit = steady(0);
    let new = "1700000000000000 id7 0\n";
    let lines = "1600000000000000 id7 0\n".repeat(178);
    let after = |before: &str| {
        server.put(LOG, Stored::Text(before.as_bytes().to_vec()));
        circuit.reset(&server);
        String::from_utf8(server.get(LOG).unwrap()).unwrap()
    };
    let room = 4_096 - new.len();
    assert_eq!(after(&"x".repeat(room)), format!("{new}{}", "x".repeat(room)));
    assert_eq!(after(&"x".repeat(room + 1)), new, "the last change is cut short, so it goes");
    let kept = format!("{new}{}", &lines[..177 * 23]);
    assert_eq!(after(&format!("{lines}y\n")), kept, "a log of 4,096 bytes");
    assert_eq!(after(&format!("{lines}yy\n")), new, "a longer one is foreign");
    assert_eq!(server.pttl(LOG), Some(86_400_000));
}

#[test]
fn a_change_names_the_one_before_it_and_a_number_that_cannot_grow_is_forgotten() {
    let server = LuaServer::new();
    let circuit = steady(0);
    let change = |now: u64, log: Option<&str>| {
        server.flush();
        server.clock().set(Time::from_micros(now));
        if let Some(log) = log {
            server.put(LOG, Stored::Text(log.as_bytes().to_vec()));
        }
        circuit.reset(&server);
        let (_, message) = server.take_published().pop().unwrap();
        let message = String::from_utf8(message).unwrap();
        let numbers: Vec<u64> = message.split(' ').skip(1).take(2).map(|word| word.parse().unwrap()).collect();
        (numbers, String::from_utf8(server.get(LOG).unwrap()).unwrap().lines().count())
    };
    let (now, last) = (1_700_000_000_000_000, 1 << 52);
    assert_eq!(change(0, None), (vec![0, 1], 1));
    assert_eq!(change(now, None), (vec![0, now], 1));
    assert_eq!(change(now, Some("0000000000000007 id7 0\n")), (vec![7, now], 2));
    assert_eq!(change(now, Some("4503599627370495 id7 0\n")), (vec![last - 1, last], 2));
    assert_eq!(change(now, Some("4503599627370496 id7 0\n")), (vec![0, now], 1));
}

/// A script that publishes twice, an entry that it adopted and a call for evidence, says once that it could not.
#[test]
fn changes_that_may_not_be_published_are_flagged_once() {
    let fleet = Fleet::new(ratio(), 3);
    let claim = Claim { entry: "7 4 42 -1 - -", ..NO_CLAIM };
    let circuit = Circuit { claim, ..fleet.circuit.clone() };
    for denied in [true, false] {
        fleet.server.flush();
        fleet.server.deny_channels(denied);
        let args = args![3, ANSWER_TIME, 0, "10 10 0 10", 1, 9, 1, FAILURE, 10, 0, 0];
        let (state, tail) = circuit.ask_as(&fleet.server, 1, &BREAKER_SYNC, &args);
        assert_eq!(tail[2], 1, "it asked");
        assert_eq!(state.flags, if denied { 8 + 16 } else { 8 });
        assert_eq!(fleet.server.take_published().len(), if denied { 0 } else { 2 });
    }
}
