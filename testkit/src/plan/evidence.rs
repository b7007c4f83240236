//! Evidence: the verdicts of a played plan, with totals and a timeline, as text, Markdown and JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use phalanx::config::Config;
use serde::Serialize;

use super::judge::Trial;
use super::reader::span;
use super::recording::{CallRecord, PolicyRecord, Recording, quantile};
use super::traffic::window;
use super::{Step, svg};

/// The timeline of a step has at most this many slices of at least a second.
const MAX_SLICES: u64 = 200;

/// What a played plan showed.
///
/// # Examples
///
/// [`write_to`](Self::write_to) writes a report that needs nothing else: Markdown with a table of verdicts, JSON, and one
/// plot for each step.
///
/// ```
/// use phalanx::config::Config;
/// use phalanx_testkit::plan::{Plan, Player};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policies = Config::from_toml("[policies.tax]\nretry = { max_attempts = 2 }")?;
/// let plan = "case,dep,inject,window_s,expected\nERRORS,tax,5xx@30%,10,retry<=1\n";
/// let evidence = Player::new(policies.clone()).play(&Plan::from_csv("tax.csv", plan, &policies)?)?;
/// assert!(evidence.passed());
/// assert!(evidence.to_markdown().contains("| retry<=1 | tax | passed |"));
/// # let folder = std::env::temp_dir().join(format!("phalanx-plan-{}", std::process::id()));
/// evidence.write_to(&folder)?; // report.md, evidence.json, ERRORS.svg
/// assert!(folder.join("ERRORS.svg").exists());
/// # std::fs::remove_dir_all(folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Evidence {
    /// The name of the plan.
    pub plan: String,
    /// The seed it was played with.
    pub seed: u64,
    /// How many replicas made calls.
    pub replicas: u32,
    /// Whether every expectation was met.
    passed: bool,
    /// The steps, in the order of the plan.
    pub steps: Vec<StepEvidence>,
}

/// What one step showed.
#[derive(Clone, Debug, Serialize)]
pub struct StepEvidence {
    /// The name of the step.
    pub id: String,
    /// The target, as it is written in a plan.
    pub target: String,
    /// The fault, as it is written in a plan.
    pub fault: String,
    /// Seconds of healthy traffic before the fault.
    pub warmup_s: f64,
    /// Seconds of the fault.
    pub duration_s: f64,
    /// Seconds of healthy traffic after the fault.
    pub recovery_s: f64,
    /// One verdict for each expectation and policy.
    pub verdicts: Vec<Verdict>,
    /// Totals of each policy.
    pub policies: Vec<PolicyTotals>,
    /// The timeline, over all policies of the step.
    pub slices: Vec<Slice>,
}

/// Whether one expectation of one policy was met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The expectation, in the notation of the vocabulary.
    pub expectation: String,
    /// The policy.
    pub policy: String,
    /// Whether it was met.
    pub passed: bool,
    /// The measured figure.
    pub measured: String,
    /// Where the figure comes from.
    pub source: String,
}

/// The totals of one policy. Unless a field names another time, they are of calls that began during the fault.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyTotals {
    /// The name of the policy.
    pub policy: String,
    /// Calls.
    pub offered: u64,
    /// Calls that ran at least once.
    pub admitted: u64,
    /// Calls answered with success.
    pub served: u64,
    /// Calls answered with an error of the dependency.
    pub failed: u64,
    /// Calls that the policy rejected or cut off, by code.
    pub rejected: BTreeMap<&'static str, u64>,
    /// Attempts, hedges excluded.
    pub attempts: u64,
    /// Hedges.
    pub hedges: u64,
    /// Retries in the whole step.
    pub retries: u64,
    /// The shortest and the longest wait before a retry in the whole step, in milliseconds.
    pub retry_delay_ms: Option<(f64, f64)>,
    /// The latency of admitted calls: p50, p95 and p99, in milliseconds.
    pub latency_ms: Option<(f64, f64, f64)>,
    /// The most calls in flight, in the whole step.
    pub peak_in_flight: u32,
    /// The longest queue of the dependency, in the whole step.
    pub peak_queue: u32,
    /// Calls a second that the dependency completes without a fault.
    pub capacity: f64,
    /// Calls without an answer a minute after the end of the step.
    pub unanswered: u32,
    /// The phases of the breaker.
    pub phases: Phases,
}

/// The phases of a breaker over a step: the second at which each began. Closed before the first.
#[derive(Clone, Debug, Serialize)]
pub struct Phases(pub Vec<(f64, &'static str)>);

/// A slice of the timeline.
#[derive(Clone, Debug, Serialize)]
pub struct Slice {
    /// The second of the step at which it begins.
    pub at_s: f64,
    /// Its length in seconds.
    pub length_s: f64,
    /// Calls that began in it.
    pub offered: u64,
    /// Those that ran at least once.
    pub admitted: u64,
    /// Those answered with success.
    pub served: u64,
    /// Those answered with an error of the dependency.
    pub failed: u64,
    /// Those that a policy rejected or cut off, by code.
    pub rejected: BTreeMap<&'static str, u64>,
    /// The latency of admitted calls, in milliseconds; none without such calls.
    pub p50_ms: Option<f64>,
    /// As `p50_ms`.
    pub p95_ms: Option<f64>,
    /// As `p50_ms`.
    pub p99_ms: Option<f64>,
}

impl Evidence {
    pub(super) fn new(plan: String, seed: u64, replicas: u32, steps: Vec<StepEvidence>) -> Self {
        let passed = steps.iter().all(StepEvidence::passed);
        Self { plan, seed, replicas, passed, steps }
    }

    /// Returns whether every expectation was met.
    pub fn passed(&self) -> bool {
        self.steps.iter().all(StepEvidence::passed)
    }

    /// Returns the step of this name.
    pub fn step(&self, id: &str) -> Option<&StepEvidence> {
        self.steps.iter().find(|step| step.id == id)
    }

    /// Formats the verdicts as a table for a terminal.
    pub fn to_text(&self) -> String {
        let mut rows = vec![["step", "expected", "policy", "verdict", "measured", "source"].map(str::to_owned)];
        for step in &self.steps {
            for it in &step.verdicts {
                let id = printable(&step.id);
                rows.push([
                    id,
                    it.expectation.clone(),
                    printable(&it.policy),
                    it.word(),
                    it.measured.clone(),
                    it.source.clone(),
                ]);
            }
        }
        let widths: [usize; 6] =
            std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default());
        let mut text = String::new();
        for row in rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                let _ = write!(line, "{cell:<width$}  ");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        let _ = writeln!(text, "\n{}", self.summary());
        text
    }

    fn summary(&self) -> String {
        let verdicts = || self.steps.iter().flat_map(|step| &step.verdicts);
        let (met, all) = (verdicts().filter(|it| it.passed).count(), verdicts().count());
        let plural = if self.replicas == 1 { "" } else { "s" };
        format!("{met} of {all} expectations met; seed {}, {} replica{plural}", self.seed, self.replicas)
    }

    /// Formats the evidence as Markdown: verdicts, totals, and a plot for each step by its file name.
    pub fn to_markdown(&self) -> String {
        let mut text = format!("# Fault plan {}\n\n{}\n", markdown(&self.plan), self.summary());
        for step in &self.steps {
            step.write_markdown(&mut text);
        }
        text
    }

    /// Formats the evidence as JSON, timeline included.
    pub fn to_json(&self) -> String {
        // Cannot fail: there are only texts, finite numbers and maps with text keys.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Writes `report.md`, `evidence.json` and a plot for each step into a folder, which is created if it does not exist.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn write_to(&self, folder: impl AsRef<Path>) -> std::io::Result<()> {
        let folder = folder.as_ref();
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("report.md"), self.to_markdown())?;
        std::fs::write(folder.join("evidence.json"), self.to_json())?;
        for step in &self.steps {
            std::fs::write(folder.join(format!("{}.svg", step.id)), step.to_svg())?;
        }
        Ok(())
    }
}

impl Verdict {
    fn word(&self) -> String {
        if self.passed { "passed" } else { "FAILED" }.to_owned()
    }
}

impl StepEvidence {
    pub(super) fn of(step: &Step, replicas: u32, policies: &Config, recording: &Recording) -> Self {
        let mut verdicts = Vec::new();
        for expectation in &step.expected {
            for record in &recording.policies {
                let policies = policies.policies(); // sorted by name
                let found = policies.binary_search_by(|policy| policy.name.as_str().cmp(&record.name));
                let policy = found.ok().and_then(|index| policies.get(index));
                let judged =
                    Trial { step, replicas, policy, record, requests: &recording.requests }.judge(*expectation);
                verdicts.push(Verdict {
                    expectation: expectation.to_string(),
                    policy: record.name.clone(),
                    passed: judged.passed,
                    measured: judged.measured,
                    source: judged.source,
                });
            }
        }
        Self {
            id: step.id.clone(),
            target: step.target.to_string(),
            fault: step.fault.to_string(),
            warmup_s: step.workload.warmup.as_secs_f64(),
            duration_s: step.duration.as_secs_f64(),
            recovery_s: step.workload.recovery.as_secs_f64(),
            verdicts,
            policies: recording.policies.iter().map(|record| PolicyTotals::of(step, record)).collect(),
            slices: slices(step, recording),
        }
    }

    /// Returns whether every expectation of the step was met.
    pub fn passed(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.passed)
    }

    /// Returns the verdict on an expectation, in the notation of the vocabulary. Of several policies, the first that
    /// failed.
    pub fn verdict(&self, expectation: &str) -> Option<&Verdict> {
        let of = || self.verdicts.iter().filter(|verdict| verdict.expectation == expectation);
        of().find(|verdict| !verdict.passed).or_else(|| of().next())
    }

    /// Draws the timeline: calls, rejections by code, latency percentiles and breaker phases over time.
    ///
    /// The plot has no scripts and no foreign fonts. Lines differ in their dashes and markers as well as in colour.
    pub fn to_svg(&self) -> String {
        svg::draw(self)
    }

    fn write_markdown(&self, text: &mut String) {
        let seconds = |seconds: f64| span(Duration::from_secs_f64(seconds));
        let _ = write!(
            text,
            "\n## {}\n\n`{}` on `{}` for {}, after {} and before {} without it.\n\n",
            markdown(&self.id),
            code_span(&self.fault),
            code_span(&self.target),
            seconds(self.duration_s),
            seconds(self.warmup_s),
            seconds(self.recovery_s)
        );
        text.push_str("| expected | policy | verdict | measured | source |\n|---|---|---|---|---|\n");
        for it in &self.verdicts {
            let verdict = if it.passed { "passed" } else { "**failed**" };
            let (policy, measured, source) = (markdown(&it.policy), markdown(&it.measured), markdown(&it.source));
            let _ = writeln!(text, "| {} | {policy} | {verdict} | {measured} | {source} |", it.expectation);
        }
        text.push_str("\n| policy | calls | served | failed | rejected | attempts | p50, p95, p99 (ms) |\n");
        text.push_str("|---|---:|---:|---:|---|---:|---|\n");
        for it in &self.policies {
            let rejected: Vec<String> = it.rejected.iter().map(|(code, count)| format!("{code} {count}")).collect();
            let rejected = if rejected.is_empty() { "–".to_owned() } else { rejected.join(", ") };
            let latency = it.latency_ms.map_or("–".to_owned(), |(p50, p95, p99)| format!("{p50}, {p95}, {p99}"));
            let (policy, attempts) = (markdown(&it.policy), it.attempts);
            let _ = writeln!(
                text,
                "| {policy} | {} | {} | {} | {rejected} | {attempts} | {latency} |",
                it.offered, it.served, it.failed
            );
        }
        let _ = write!(text, "\n![{} over time]({}.svg)\n", self.id, self.id);
    }
}

impl PolicyTotals {
    fn of(step: &Step, record: &PolicyRecord) -> Self {
        let window = window(step);
        let counts = Counts::of(record.calls.iter().filter(|call| window.contains(&call.start)));
        let retries = record.retries;
        let delays = (millis(micros(retries.shortest)), millis(micros(retries.longest)));
        let [p50, p95, p99] = counts.percentiles();
        Self {
            policy: record.name.clone(),
            offered: counts.offered,
            admitted: counts.admitted,
            served: counts.served,
            failed: counts.failed,
            rejected: counts.rejected,
            attempts: counts.attempts,
            hedges: counts.hedges,
            retries: retries.count,
            retry_delay_ms: (retries.count > 0).then_some(delays),
            latency_ms: p50.and_then(|p50| Some((p50, p95?, p99?))),
            peak_in_flight: record.peak_in_flight,
            peak_queue: record.peak_queue,
            capacity: (record.capacity * 10.0).round() / 10.0,
            unanswered: record.unanswered,
            phases: Phases(record.transitions.iter().map(|(at, phase)| (*at as f64 / 1e6, phase.name())).collect()),
        }
    }
}

/// Calls counted by their answers.
#[derive(Default)]
struct Counts {
    offered: u64,
    admitted: u64,
    served: u64,
    failed: u64,
    rejected: BTreeMap<&'static str, u64>,
    attempts: u64,
    hedges: u64,
    /// The latencies of admitted calls, in microseconds.
    latencies: Vec<u64>,
}

impl Counts {
    fn of<'c>(calls: impl IntoIterator<Item = &'c CallRecord>) -> Self {
        let mut counts = Self::default();
        calls.into_iter().for_each(|call| counts.add(call));
        counts.latencies.sort_unstable();
        counts
    }

    fn add(&mut self, call: &CallRecord) {
        self.offered += 1;
        self.attempts += u64::from(call.attempts);
        self.hedges += u64::from(call.hedges);
        if call.admitted {
            self.admitted += 1;
            self.latencies.push(call.elapsed);
        }
        match call.code {
            Some(code) => *self.rejected.entry(code.name()).or_default() += 1,
            None if call.is_served() => self.served += 1,
            None => self.failed += 1,
        }
    }

    /// Returns p50, p95 and p99 in milliseconds; the latencies must be sorted.
    fn percentiles(&self) -> [Option<f64>; 3] {
        [0.5, 0.95, 0.99].map(|it| quantile(&self.latencies, it).map(millis))
    }
}

fn slices(step: &Step, recording: &Recording) -> Vec<Slice> {
    let total = micros(step.total()).max(1);
    // Whole seconds, so that the axis has round numbers.
    let length = total.div_ceil(MAX_SLICES).div_ceil(1_000_000).max(1) * 1_000_000;
    let mut counts: Vec<Counts> = (0..total.div_ceil(length)).map(|_| Counts::default()).collect();
    for call in recording.policies.iter().flat_map(|policy| &policy.calls) {
        let slice = usize::try_from(call.start / length).unwrap_or(usize::MAX);
        if let Some(counts) = counts.get_mut(slice) {
            counts.add(call);
        }
    }
    let slice = |(index, mut counts): (usize, Counts)| {
        counts.latencies.sort_unstable();
        let [p50_ms, p95_ms, p99_ms] = counts.percentiles();
        let at = index as u64 * length;
        Slice {
            at_s: at as f64 / 1e6,
            length_s: length.min(total - at) as f64 / 1e6,
            offered: counts.offered,
            admitted: counts.admitted,
            served: counts.served,
            failed: counts.failed,
            rejected: counts.rejected,
            p50_ms,
            p95_ms,
            p99_ms,
        }
    };
    counts.into_iter().enumerate().map(slice).collect()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn millis(micros: u64) -> f64 {
    (micros as f64 / 100.0).round() / 10.0
}

/// Formats a name from a file for one line of a terminal.
fn printable(name: &str) -> String {
    phalanx::internal::files::Escaped(name).to_string()
}

/// Formats a name from a file for a place between backticks.
fn code_span(text: &str) -> String {
    text.chars().map(|letter| if letter == '`' || letter.is_control() { ' ' } else { letter }).collect()
}

/// Formats a name from a file for a cell of a Markdown table.
fn markdown(text: &str) -> String {
    let mut safe = String::new();
    for letter in text.chars() {
        match letter {
            '<' => safe.push_str("&lt;"),
            '&' => safe.push_str("&amp;"),
            '|' | '*' | '_' | '[' | ']' | '\\' | '#' => {
                safe.push('\\');
                safe.push(letter);
            }
            letter if letter.is_control() => safe.push(' '),
            letter => safe.push(letter),
        }
    }
    safe
}
