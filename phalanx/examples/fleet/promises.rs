//! The promises of a fleet in numbers: what was promised, what was seen, and whether it was kept.

use std::time::Duration;

use phalanx::RateLimitSpec;

use crate::evidence::{Away, Evidence};
use crate::faults::Fault;
use crate::ledger::{Ledger, Pages};
use crate::paint::{Ink, Line};
use crate::policy::ONE_PROBE;
use crate::story::{Act, Story};
use crate::table::millis;

/// A trip is known to all after a push; if the push is lost, after the next regular round (250 ms) and a little.
const TRIP: Duration = Duration::from_millis(300);
/// Redis decides again so soon after it is back.
const RECOVERY: Duration = Duration::from_millis(2_500);
/// The whole of a declared rate is handed out: this much of it, under steady demand.
const LEAST: f64 = 0.95;

/// One promise and how it went; not judged if the story gave no occasion.
struct Promise {
    name: &'static str,
    kept: Option<bool>,
    seen: String,
}

/// The judgement, as lines, and whether every promise was kept.
pub(crate) fn judge(ledger: &Ledger, pages: &Pages) -> (Vec<Line>, bool) {
    let (story, evidence) = (ledger.story(), &pages.evidence);
    let Some(limit) = &ledger.policy().rate_limit else { return (Vec::new(), true) };
    let promises = [
        steady(limit, evidence, &story),
        whole(limit, evidence, &story),
        trips(evidence),
        probes(evidence, &story),
        outages(evidence, &story),
        alone(evidence),
        waits(evidence),
    ];
    let kept = promises.iter().all(|promise| promise.kept != Some(false));
    (promises.iter().map(Promise::line).collect(), kept)
}

impl Promise {
    fn line(&self) -> Line {
        let (ink, word) = match self.kept {
            Some(true) => (Ink::Green, "kept"),
            Some(false) => (Ink::Red, "BROKEN"),
            None => (Ink::Dim, "-"),
        };
        Line::new()
            .with(Ink::Plain, format!("  {:<9} ", self.name))
            .with(ink, format!("{word:>7}   "))
            .with(Ink::Dim, self.seen.as_str())
    }
}

/// The declared rate is the fleet's: no more than that in any stretch from the beginning, and all of it, as long as all
/// is well.
fn steady(limit: &RateLimitSpec, evidence: &Evidence, story: &Story) -> Promise {
    let fault = evidence.faults.first().map(|(at, _)| *at);
    let alone = evidence.outages.iter().filter_map(|outages| outages.first()).map(|away| away.from);
    let opened = evidence.openings().map(|opening| opening.first);
    let trouble = fault.into_iter().chain(alone).chain(opened).min().unwrap_or(Duration::MAX);
    let until = story.end_of(Act::Healthy).min(trouble).min(story.now());
    let (rate, burst) = rate_and_burst(limit);
    let bound = |at: Duration| burst + rate * at.as_secs_f64();
    let stamps = || evidence.admitted.iter().take_while(|at| **at <= until);
    let over = stamps().enumerate().any(|(before, at)| (before + 1) as f64 > bound(*at));
    let (admitted, most) = (stamps().count(), bound(until));
    let percent = admitted as f64 * 100.0 / most;
    let enough = percent >= LEAST * 100.0 || until < Duration::from_secs(2);
    let seconds = until.as_secs_f64();
    let seen = format!(
        "{admitted} calls in the first {seconds:.1} s: {percent:.0} % of {burst:.0} + {rate:.0}/s x {seconds:.1} s"
    );
    Promise { name: "rate", kept: Some(!over && enough), seen }
}

/// Over the whole story, with what each replica may take by itself while Redis is away, and one burst for every Redis
/// that came back empty.
fn whole(limit: &RateLimitSpec, evidence: &Evidence, story: &Story) -> Promise {
    let (rate, burst) = rate_and_burst(limit);
    let length = story.now().min(story.length());
    let share = 1.0 / evidence.outages.len().max(1) as f64;
    let outages = evidence.outages.iter().flatten();
    let alone: f64 = outages
        .map(|away| away.until.unwrap_or(length).saturating_sub(away.from).as_secs_f64())
        .map(|seconds| share * (burst + rate * seconds))
        .sum();
    let restarts = evidence.faults.iter().filter(|(_, fault)| *fault == Fault::RestartRedis).count() as f64;
    let most = burst + rate * length.as_secs_f64() + alone + burst * restarts;
    let admitted = evidence.admitted.len();
    let mut seen = format!("{admitted} calls, at most {most:.0}");
    if alone > 0.0 || restarts > 0.0 {
        seen += &format!(" ({alone:.0} of them for replicas alone, {:.0} for lost state)", burst * restarts);
    }
    Promise { name: "in all", kept: Some(admitted as f64 <= most), seen }
}

/// One replica's trip stops all of them.
fn trips(evidence: &Evidence) -> Promise {
    let name = "trip";
    let spreads: Vec<_> = evidence.openings().map(|opening| opening.spread(evidence)).collect();
    let Some(first) = evidence.openings().next() else {
        return Promise { name, kept: None, seen: "the fleet's circuit never opened".into() };
    };
    let Some(worst) = spreads.iter().copied().collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max()) else {
        let never = spreads.iter().filter(|spread| spread.is_none()).count();
        return Promise { name, kept: Some(false), seen: format!("{never} openings did not come to all replicas") };
    };
    let (who, soon) = (first.by + 1, first.spread(evidence).map_or_else(String::new, exact));
    let (count, worst_after, most) = (spreads.len(), exact(worst), millis(TRIP));
    let seen = format!(
        "replica {who}'s was known to all after {soon}; the slowest of {count} after {worst_after} (at most {most})"
    );
    Promise { name, kept: Some(worst <= TRIP), seen }
}

/// One probe at a time in all processes together, and a failed one ends the trial.
fn probes(evidence: &Evidence, story: &Story) -> Promise {
    let (name, quota) = ("probes", ONE_PROBE.0 as usize);
    let mut breaks = evidence.openings().map(|opening| opening.first).peekable();
    let mut counts = Vec::new();
    while let Some(from) = breaks.next() {
        let to = breaks.peek().copied().unwrap_or(Duration::MAX);
        counts.push(evidence.probes.iter().filter(|(began, _)| (from..to).contains(began)).count());
    }
    if counts.iter().sum::<usize>() == 0 {
        return Promise { name, kept: None, seen: "the fleet never had to try the upstream out".into() };
    }
    let at_once = |at: Duration| evidence.probes.iter().filter(|(from, to)| (*from..*to).contains(&at)).count();
    let most = evidence.probes.iter().map(|(from, _)| at_once(*from)).max().unwrap_or(0);
    let list: Vec<_> = counts.iter().map(usize::to_string).collect();
    let vain = evidence.probes.iter().filter(|(from, _)| story.act_at(*from) == Act::Failing).count();
    let seen = format!(
        "{} per break, {most} at a time (at most {quota}); {vain} in vain, {} must succeed to close",
        list.join(", "),
        ONE_PROBE.1,
    );
    Promise { name, kept: Some(most <= quota), seen }
}

/// Each replica tells each outage that was made once, and has Redis back soon after it is back. What a busy machine
/// makes of late answers is said, not judged.
fn outages(evidence: &Evidence, story: &Story) -> Promise {
    let name = "outages";
    let at = |wanted: fn(Fault) -> bool| evidence.faults.iter().find(|(_, fault)| wanted(*fault)).map(|(at, _)| *at);
    let survivors: Vec<_> = evidence.survivors().map(|replica| &evidence.outages[replica]).collect();
    let all: usize = survivors.iter().map(|outages| outages.len()).sum();
    let Some(begun) = at(Fault::begins_outage) else {
        return Promise { name, kept: None, seen: format!("none made, {all} told by the replicas") };
    };
    let ended = at(Fault::ends_outage).unwrap_or(story.length());
    let made = |away: &&Away| away.from < ended && away.until.is_none_or(|until| until > begun);
    let told: Vec<_> = survivors.iter().map(|outages| outages.iter().filter(made).count()).collect();
    let list: Vec<_> = told.iter().map(usize::to_string).collect();
    let mut kept = told.iter().all(|told| *told == 1);
    let mut seen = format!("1 made, told {} times", list.join(" + "));
    if ended + RECOVERY < story.now().min(story.length()) {
        let back = survivors.iter().map(|outages| outages.iter().rfind(made).and_then(|away| away.until));
        let after = back.map(|back| back.map_or(Duration::MAX, |back| back.saturating_sub(ended))).max();
        let after = after.unwrap_or_default();
        kept &= after <= RECOVERY;
        seen += &format!(", over {} after Redis was back (at most {})", millis(after), millis(RECOVERY));
    }
    let more = all - told.iter().sum::<usize>();
    if more > 0 {
        seen += &format!("; {more} more (busy machine)");
    }
    Promise { name, kept: Some(kept), seen }
}

/// Who decides while Redis is away. Nothing to judge: it is said.
fn alone(evidence: &Evidence) -> Promise {
    let decided: u64 = evidence.outages.iter().flatten().map(|away| away.decided).sum();
    let late: usize = evidence.late.iter().map(Vec::len).sum();
    let seen = format!("{decided} decisions in outages, {late} calls because one answer was late");
    Promise { name: "alone", kept: None, seen }
}

/// Nobody waits long for Redis, whatever it does. Not judged: on a busy machine this is the machine.
fn waits(evidence: &Evidence) -> Promise {
    let rejections = &evidence.rejections;
    let seen = format!(
        "99 of 100 rejections within {}, the slowest after {}",
        exact(rejections.p99()),
        exact(rejections.slowest)
    );
    Promise { name: "waits", kept: None, seen }
}

fn rate_and_burst(limit: &RateLimitSpec) -> (f64, f64) {
    (limit.permits as f64 / limit.per.as_secs_f64(), limit.burst.unwrap_or(limit.permits) as f64)
}

/// Milliseconds with a digit behind the point: here it counts.
fn exact(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1_000.0)
}
