//! Plans in CSV: the fault plan of the resiliency playbook, as it is written there.
//!
//! ```text
//! case,dep,inject,window_s,expected
//! LAT-200,tax,+200ms@p95,600,"retry<=1, breaker maybe open"
//! OUTAGE-5xx,catalog,5xx,120,"open breaker, fast 503, recovery to closed"
//! OVERLOAD,*,rps x4,180,"shed 503<=2%, no OOM"
//! DEADLINE,*,deadline=2s,60,"hop timeouts<=remaining, 504 on exceed"
//! DUPLICATE,orders,lost answer@10%,60,"exactly once, retry<=1"
//! ```
//!
//! The columns may be in any order; all five are required, and no others are allowed.

use std::collections::BTreeMap;
use std::time::Duration;

use csv::{Position, ReaderBuilder, StringRecord, Trim};
use phalanx::config::Config;
use phalanx::internal::files::{Escaped, nearest};

use super::expectation::Expectation;
use super::reader::{MAX_BYTES, Mistakes, id_mistake, target, too_many_expected};
use super::{MAX_DURATION, MAX_EXPECTED, MAX_STEPS, Plan, PlanError, Step};

const COLUMNS: [&str; 5] = ["case", "dep", "inject", "window_s", "expected"];

/// The index of each column.
type Columns = BTreeMap<&'static str, usize>;

/// Reads a plan.
pub(super) fn read(name: &str, text: &str, policies: &Config) -> Result<Plan, PlanError> {
    let mut mistakes = Mistakes::of(name);
    if text.len() > MAX_BYTES {
        mistakes.note_file("is larger than 1 MiB");
        return Err(mistakes.into_error());
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut rows = ReaderBuilder::new().has_headers(false).flexible(true).trim(Trim::All).from_reader(text.as_bytes());
    let mut columns: Option<Columns> = None;
    let mut steps: Vec<Step> = Vec::new();
    let mut ids: BTreeMap<String, u64> = BTreeMap::new();
    let mut count = 0;
    for row in rows.records() {
        if mistakes.are_too_many() {
            break;
        }
        let row = match row {
            Ok(row) => row,
            Err(error) => {
                mistakes.note(error.position().map_or(1, Position::line), "", "is not a CSV row");
                break;
            }
        };
        let line = row.position().map_or(1, Position::line);
        let Some(columns) = &columns else {
            match header(&row, line, &mut mistakes) {
                Some(found) => columns = Some(found),
                None => return Err(mistakes.into_error()),
            }
            continue;
        };
        count += 1;
        if count > MAX_STEPS {
            mistakes.note(line, "", format!("a plan has at most {MAX_STEPS} steps"));
            break;
        }
        if row.len() != columns.len() {
            let reason = format!("has {} columns instead of {}", row.len(), columns.len());
            mistakes.note(line, "", reason);
            continue;
        }
        let cell = |column: &str| columns.get(column).and_then(|index| row.get(*index)).unwrap_or_default();
        if let Some(first) = ids.get(&cell("case").to_ascii_lowercase()) {
            mistakes.note(line, "case", format!("another step has this name, at line {first}"));
        } else {
            ids.insert(cell("case").to_ascii_lowercase(), line);
        }
        steps.extend(step(cell, line, policies, &mut mistakes, name));
    }
    if mistakes.is_empty() && steps.is_empty() {
        mistakes.note_file("has no steps");
    }
    if !mistakes.is_empty() {
        return Err(mistakes.into_error());
    }
    Ok(Plan { name: name.to_owned(), seed: 1, replicas: 1, steps })
}

fn header(row: &StringRecord, line: u64, mistakes: &mut Mistakes<'_>) -> Option<Columns> {
    let mut columns = Columns::new();
    let mut fine = true;
    for (index, name) in row.iter().enumerate() {
        if mistakes.are_too_many() {
            return None;
        }
        let Some(column) = COLUMNS.into_iter().find(|column| *column == name) else {
            let meant = nearest(name, COLUMNS).map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
            mistakes.note(line, "", format!("there is no column {}{meant}", Escaped(name)));
            fine = false;
            continue;
        };
        if columns.insert(column, index).is_some() {
            mistakes.note(line, "", format!("the column {column} appears twice"));
            fine = false;
        }
    }
    if fine && let Some(missing) = COLUMNS.into_iter().find(|column| !columns.contains_key(column)) {
        mistakes.note(line, "", format!("the column {missing} is missing"));
        fine = false;
    }
    fine.then_some(columns)
}

/// Reads one row; notes every mistake in it.
fn step<'c>(
    cell: impl Fn(&str) -> &'c str,
    line: u64,
    policies: &Config,
    mistakes: &mut Mistakes<'_>,
    name: &str,
) -> Option<Step> {
    let before = mistakes.count();
    let id = cell("case");
    if let Some(reason) = id_mistake(id) {
        mistakes.note(line, "case", reason);
    }
    let target = target(cell("dep"), policies).map_err(|reason| mistakes.note(line, "dep", reason)).ok();
    let fault = cell("inject").parse().map_err(|reason: String| mistakes.note(line, "inject", reason)).ok();
    let most = MAX_DURATION.as_secs();
    let window = cell("window_s").parse().ok().filter(|seconds| (1..=most).contains(seconds));
    if window.is_none() {
        mistakes.note(line, "window_s", format!("must be a whole number of seconds from 1 to {most}"));
    }
    let mut expected: Vec<Expectation> = Vec::new();
    for item in cell("expected").split(',') {
        match item.parse() {
            Ok(expectation) => expected.push(expectation),
            Err(_) if item.trim().is_empty() => {
                mistakes.note(line, "expected", "an expectation is empty");
            }
            Err(reason) => mistakes.note(line, "expected", reason),
        }
        if expected.len() > MAX_EXPECTED {
            mistakes.note(line, "expected", too_many_expected());
            break;
        }
        if mistakes.are_too_many() {
            break;
        }
    }
    for reason in fault.iter().flat_map(|fault| expected.iter().filter_map(|it| it.mismatch(fault))) {
        mistakes.note(line, "expected", reason);
    }
    if mistakes.count() > before {
        return None;
    }
    let mut step = Step::new(id, target?, fault?, Duration::from_secs(window?)).expected(expected);
    step.at = Some(format!("{name}:{line}"));
    Some(step)
}
