//! Dependency budgets in CSV: one row per dependency, as a resilience review records them, becomes one policy.
//!
//! ```text
//! dep,role,max_attempts,per_attempt_timeout_ms,breaker_threshold_p95_ms,notes
//! catalog,important,2,150,250,backoff+jitter
//! tax,important,2,200,300,hedge_reads=true
//! ```
//!
//! | column | sets |
//! |---|---|
//! | `dep` | the policy's name |
//! | `per_attempt_timeout_ms` | `timeout` |
//! | `max_attempts` | above 1: `retry.max_attempts`, on `infrastructure` and `throttled`, with the backoff of the resiliency playbook: 100–200 ms, 200–400 ms, 400–800 ms … at most 2 s (`exponential` from 200 ms, `equal` jitter) |
//! | `breaker_threshold_p95_ms` | `breaker.latency_threshold` at a `latency_quantile` of 0.95 that lasts 5 s |
//! | `role` | the failure ratio that opens the breaker, and the break: `critical` 0.5, 5 s; `important` 0.5, 15 s; `optional` 0.25, 30 s |
//! | `notes` | `hedge_reads=true`: `idempotent`, and a `hedge` after the p95 of recent latencies (half of the timeout until it is known, the timeout at most); other notes are ignored |
//!
//! The columns may be in any order; all six are required, and no others are allowed. Other values keep their defaults.

use std::collections::BTreeMap;
use std::sync::Arc;

use csv::StringRecord;
use phalanx_core::policy::validate::Mistake;

use super::de::MAX_MISTAKES;
use super::document::MAX_POLICIES;
use super::suggest::nearest;
use super::tree::{Escaped, Node, Table, Value};
use crate::origin::Origin;

const COLUMNS: [&str; 6] =
    ["dep", "role", "max_attempts", "per_attempt_timeout_ms", "breaker_threshold_p95_ms", "notes"];
const MAX_MS: u64 = 24 * 3_600 * 1_000;

/// Parses a document.
pub(crate) fn parse(name: &Arc<str>, text: &str) -> Result<Node, Vec<Mistake>> {
    let at = |line: u64| Origin::File { name: name.clone(), line: usize::try_from(line).ok() };
    let mut reader =
        csv::ReaderBuilder::new().has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let mut policies = Table::new();
    let mut mistakes = Vec::new();
    let mut columns = None;
    for record in reader.records() {
        // Further rows cannot change the result: one policy too many is enough to reject the budget.
        if mistakes.len() >= MAX_MISTAKES || policies.len() > MAX_POLICIES {
            break;
        }
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                let line = error.position().map_or(1, csv::Position::line);
                mistakes.push(Mistake::new("", "is not a CSV row").located_at(at(line)));
                break;
            }
        };
        let at = at(record.position().map_or(1, csv::Position::line));
        let Some(columns) = &columns else {
            columns = Some(columns_of(&record, &at).map_err(|mistake| vec![mistake])?);
            continue;
        };
        let mut row = Row { columns, record: &record, at: &at, mistakes: &mut mistakes };
        let Some((dep, policy)) = row.policy() else { continue };
        if let Some(first) = policies.get(&dep) {
            let reason = format!("{} appears twice, first at {}", Escaped(&dep), first.at);
            mistakes.push(Mistake::new("dep", reason).located_at(&at));
        } else {
            policies.insert(dep, policy);
        }
    }
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let whole = at(1);
    let top = if policies.is_empty() {
        Table::new()
    } else {
        Table::from([("policies".to_owned(), Node::new(Value::Table(policies), whole.clone()))])
    };
    Ok(Node::new(Value::Table(top), whole))
}

/// The index of each column.
type Columns = BTreeMap<&'static str, usize>;

fn columns_of(header: &StringRecord, at: &Origin) -> Result<Columns, Mistake> {
    let wrong = |reason: String| Mistake::new("", reason).located_at(at);
    let mut columns = Columns::new();
    for (index, name) in header.iter().enumerate() {
        let Some(column) = COLUMNS.into_iter().find(|column| *column == name) else {
            let meant = nearest(name, COLUMNS).map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
            return Err(wrong(format!("there is no column {}{meant}", Escaped(name))));
        };
        if columns.insert(column, index).is_some() {
            return Err(wrong(format!("the column {column} appears twice")));
        }
    }
    match COLUMNS.into_iter().find(|column| !columns.contains_key(column)) {
        Some(missing) => Err(wrong(format!("the column {missing} is missing"))),
        None => Ok(columns),
    }
}

/// One row: the budget of one dependency.
struct Row<'a> {
    columns: &'a Columns,
    record: &'a StringRecord,
    at: &'a Origin,
    mistakes: &'a mut Vec<Mistake>,
}

impl Row<'_> {
    fn policy(&mut self) -> Option<(String, Node)> {
        if self.record.len() != self.columns.len() {
            let (found, expected) = (self.record.len(), self.columns.len());
            self.mistake("", format!("has {found} columns instead of {expected}"));
            return None;
        }
        let dep = self.cell("dep").to_owned();
        if dep.is_empty() {
            self.mistake("dep", "a dependency needs a name");
        }
        let role = self.role();
        let attempts = self.number("max_attempts", 1_000_000);
        let timeout = self.number("per_attempt_timeout_ms", MAX_MS);
        let slow = self.number("breaker_threshold_p95_ms", MAX_MS);
        let hedged = self.hedged();
        let (role, attempts, timeout, slow, hedged) = (role?, attempts?, timeout?, slow?, hedged?);
        let mut policy = vec![
            ("timeout", millis(timeout)),
            (
                "breaker",
                self.table([
                    ("failure_ratio", Value::Float(role.failure_ratio)),
                    ("break_duration", text(role.break_duration)),
                    ("latency_quantile", Value::Float(0.95)),
                    ("latency_threshold", millis(slow)),
                    ("latency_duration", text("5s")),
                ]),
            ),
        ];
        if attempts > 1 {
            let kinds = ["infrastructure", "throttled"].map(|kind| Node::new(text(kind), self.at.clone()));
            let backoff = [("curve", "exponential"), ("base", "200ms"), ("max", "2s"), ("jitter", "equal")];
            let backoff = self.table(backoff.map(|(field, value)| (field, text(value))));
            let attempts = Value::Integer(attempts.into());
            let retry = [("max_attempts", attempts), ("retry_on", Value::List(kinds.into())), ("backoff", backoff)];
            policy.push(("retry", self.table(retry)));
        }
        if hedged {
            let hedge = [
                ("delay", millis((timeout / 2).max(1))),
                ("adaptive_delay_quantile", Value::Float(0.95)),
                ("delay_max", millis(timeout)),
            ];
            policy.push(("hedge", self.table(hedge)));
            policy.push(("idempotent", Value::Bool(true)));
        }
        Some((dep, Node::new(self.table(policy), self.at.clone())))
    }

    fn cell(&self, column: &str) -> &str {
        self.columns.get(column).and_then(|index| self.record.get(*index)).unwrap_or_default()
    }

    fn mistake(&mut self, column: &str, reason: impl Into<String>) {
        self.mistakes.push(Mistake::new(column, reason).located_at(self.at));
    }

    fn number(&mut self, column: &'static str, max: u64) -> Option<u64> {
        let number = self.cell(column).parse().ok().filter(|number| (1..=max).contains(number));
        if number.is_none() {
            self.mistake(column, format!("must be a whole number from 1 to {max}"));
        }
        number
    }

    fn role(&mut self) -> Option<&'static Role> {
        let role = ROLES.iter().find(|role| role.name == self.cell("role"));
        if role.is_none() {
            let meant = nearest(self.cell("role"), ROLES.iter().map(|role| role.name));
            let meant = meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
            self.mistake("role", format!("must be critical, important or optional{meant}"));
        }
        role
    }

    fn hedged(&mut self) -> Option<bool> {
        let notes = self.cell("notes").split([';', ',', '+', ' ']);
        let hedges: Vec<_> = notes.filter_map(|note| note.trim().strip_prefix("hedge_reads=")).collect();
        match hedges.as_slice() {
            [] | ["false"] => Some(false),
            ["true"] => Some(true),
            _ => {
                self.mistake("notes", "hedge_reads must be true or false");
                None
            }
        }
    }

    fn table<'t>(&self, fields: impl IntoIterator<Item = (&'t str, Value)>) -> Value {
        let field = |(name, value): (&str, Value)| (name.to_owned(), Node::new(value, self.at.clone()));
        Value::Table(fields.into_iter().map(field).collect())
    }
}

struct Role {
    name: &'static str,
    failure_ratio: f64,
    break_duration: &'static str,
}

const ROLES: [Role; 3] = [
    Role { name: "critical", failure_ratio: 0.5, break_duration: "5s" },
    Role { name: "important", failure_ratio: 0.5, break_duration: "15s" },
    Role { name: "optional", failure_ratio: 0.25, break_duration: "30s" },
];

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn millis(millis: u64) -> Value {
    Value::Text(format!("{millis}ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_budget_is_read_no_further_than_its_first_mistakes() {
        let header = COLUMNS.join(",") + "\n";
        let parse = |rows: String| parse(&"csv".into(), &(header.clone() + &rows));
        let wrong = parse(",,,,,\n".repeat(170_000)).unwrap_err();
        assert!((MAX_MISTAKES..MAX_MISTAKES + COLUMNS.len()).contains(&wrong.len()), "{}", wrong.len());
        let many = parse((0..30_000).map(|row| format!("d{row},critical,1,1,1,\n")).collect()).unwrap();
        let policies = many.as_table().and_then(|top| top["policies"].as_table()).unwrap();
        assert_eq!(policies.len(), MAX_POLICIES + 1, "one more than allowed");
    }
}
