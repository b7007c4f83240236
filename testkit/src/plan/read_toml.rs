//! Plans in TOML. Every value keeps the line it was read from, so that every mistake has its place.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use phalanx::config::Config;
use phalanx::internal::files::{Escaped, nearest, too_deep};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::{Fault, KINDS};
use super::reader::{self, MAX_BYTES, Mistakes, id_mistake};
use super::workload::{KEYS, Workload};
use super::{MAX_DURATION, MAX_EXPECTED, MAX_REPLICAS, MAX_STEPS, Plan, PlanError, Step};

const PLAN_KEYS: [&str; 5] = ["name", "seed", "replicas", "workload", "steps"];
const STEP_KEYS: [&str; 6] = ["id", "target", "fault", "duration", "workload", "expected"];
const FAULT_KEYS: [&str; 6] = ["kind", "add", "quantile", "share", "factor", "total"];

/// Reads a plan.
pub(super) fn read(name: &str, text: &str, policies: &Config) -> Result<Plan, PlanError> {
    // Some editors write a byte order mark. Without it, offsets and lines agree.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader::of(name, text, policies);
    match reader.plan(text) {
        Some(plan) if reader.mistakes.is_empty() => Ok(plan),
        _ => Err(reader.mistakes.into_error()),
    }
}

/// A value and its line.
struct Entry<'t> {
    line: u64,
    value: DeValue<'t>,
}

/// The known keys of a table.
struct Fields<'t> {
    path: &'static str,
    line: u64,
    entries: BTreeMap<&'static str, Entry<'t>>,
}

struct Reader<'a> {
    name: &'a str,
    /// The offsets at which the lines begin.
    starts: Vec<usize>,
    policies: &'a Config,
    mistakes: Mistakes<'a>,
}

impl<'a> Reader<'a> {
    fn of(name: &'a str, text: &str, policies: &'a Config) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(newline, _)| newline + 1)).collect();
        Self { name, starts, policies, mistakes: Mistakes::of(name) }
    }

    fn line(&self, span: Range<usize>) -> u64 {
        self.starts.partition_point(|start| *start <= span.start).max(1) as u64
    }

    fn plan(&mut self, text: &str) -> Option<Plan> {
        if text.len() > MAX_BYTES {
            self.mistakes.note_file("is larger than 1 MiB");
            return None;
        }
        if let Some(offset) = too_deep(text) {
            self.mistakes.note(self.line(offset..offset), "", "is nested too deeply");
            return None;
        }
        let (document, errors) = DeTable::parse_recoverable(text);
        let mut last = 0;
        for error in errors {
            let line = self.line(error.span().unwrap_or(0..0));
            // Further errors on the same line follow from the first one.
            if line != last && !self.mistakes.are_too_many() {
                self.mistakes.note(line, "", error.message());
            }
            last = line;
        }
        if !self.mistakes.is_empty() {
            return None;
        }
        let mut fields = self.fields("", 1, document.into_inner(), &PLAN_KEYS);
        let name = self.text(&mut fields, "name").map_or_else(|| self.name.to_owned(), |(_, name)| name);
        let seed = self.whole(&mut fields, "seed", 0, u64::MAX).unwrap_or(1);
        let replicas = self.whole(&mut fields, "replicas", 1, MAX_REPLICAS.into()).unwrap_or(1);
        let workload = self.workload(&mut fields, &Workload::default());
        let steps = self.steps(&mut fields, &workload);
        Some(Plan { name, seed, replicas: u32::try_from(replicas).unwrap_or(1), steps })
    }

    fn steps(&mut self, fields: &mut Fields<'_>, workload: &Workload) -> Vec<Step> {
        let Some(Entry { line, value }) = fields.entries.remove("steps") else {
            self.mistakes.note(fields.line, "steps", "a plan needs steps");
            return Vec::new();
        };
        let DeValue::Array(list) = value else {
            self.mistakes.note(line, "steps", "must be a list of tables: [[steps]]");
            return Vec::new();
        };
        if list.is_empty() || list.len() > MAX_STEPS {
            self.mistakes.note(line, "steps", format!("a plan has 1 to {MAX_STEPS} steps"));
            return Vec::new();
        }
        let mut steps = Vec::new();
        let mut ids: BTreeMap<String, u64> = BTreeMap::new();
        for item in list {
            if self.mistakes.are_too_many() {
                break;
            }
            let line = self.line(item.span());
            match item.into_inner() {
                DeValue::Table(table) => steps.extend(self.step(line, table, workload, &mut ids)),
                _ => self.mistakes.note(line, "steps", "must be a table"),
            }
        }
        steps
    }

    fn step(
        &mut self,
        line: u64,
        table: DeTable<'_>,
        workload: &Workload,
        ids: &mut BTreeMap<String, u64>,
    ) -> Option<Step> {
        let before = self.mistakes.count();
        let mut fields = self.fields("steps.", line, table, &STEP_KEYS);
        let id = self.required_text(&mut fields, "id").and_then(|(line, id)| {
            if let Some(reason) = id_mistake(&id) {
                self.mistakes.note(line, "steps.id", reason);
            }
            if let Some(first) = ids.get(&id.to_ascii_lowercase()) {
                self.mistakes.note(line, "steps.id", format!("another step has this name, at line {first}"));
                return None;
            }
            ids.insert(id.to_ascii_lowercase(), line);
            Some(id)
        });
        let target = self.required_text(&mut fields, "target").and_then(|(line, text)| {
            let target = reader::target(&text, self.policies);
            target.map_err(|reason| self.mistakes.note(line, "steps.target", reason)).ok()
        });
        let fault = self.fault(&mut fields);
        self.required(&mut fields, "duration");
        let duration = self.duration(&mut fields, "duration", Duration::from_nanos(1), MAX_DURATION);
        let workload = self.workload(&mut fields, workload);
        let mut expected = Vec::new();
        for (line, text) in self.texts(&mut fields, "expected") {
            match text.parse::<super::Expectation>() {
                Ok(expectation) => {
                    if let Some(reason) = fault.as_ref().and_then(|fault| expectation.mismatch(fault)) {
                        self.mistakes.note(line, "steps.expected", reason);
                    }
                    expected.push(expectation);
                }
                Err(reason) => self.mistakes.note(line, "steps.expected", reason),
            }
            if expected.len() > MAX_EXPECTED {
                self.mistakes.note(line, "steps.expected", reader::too_many_expected());
                return None;
            }
            if self.mistakes.are_too_many() {
                return None;
            }
        }
        if self.mistakes.count() > before {
            return None;
        }
        let mut step = Step::new(id?, target?, fault?, duration?).workload(workload).expected(expected);
        step.at = Some(format!("{}:{line}", self.name));
        Some(step)
    }

    /// Reads a fault: text in the notation of the playbook, or a table with a kind and its parameters.
    fn fault(&mut self, fields: &mut Fields<'_>) -> Option<Fault> {
        let Some(Entry { line, value }) = fields.entries.remove("fault") else {
            self.missing(fields, "fault");
            return None;
        };
        match value {
            DeValue::String(text) => {
                text.parse().map_err(|reason: String| self.mistakes.note(line, "steps.fault", reason)).ok()
            }
            DeValue::Table(table) => self.fault_table(line, table),
            _ => {
                self.mistakes.note(line, "steps.fault", "must be text such as \"5xx\", or a table with a kind");
                None
            }
        }
    }

    fn fault_table(&mut self, line: u64, table: DeTable<'_>) -> Option<Fault> {
        let before = self.mistakes.count();
        let mut fields = self.fields("steps.fault.", line, table, &FAULT_KEYS);
        let (kind_line, kind) = self.required_text(&mut fields, "kind")?;
        let hour = Duration::from_secs(3_600);
        let fault = match kind.as_str() {
            "latency" => {
                let quantile = self.number(&mut fields, "quantile").unwrap_or(0.0);
                self.required(&mut fields, "add");
                let add = self.duration(&mut fields, "add", Duration::from_nanos(1), hour);
                add.map(|add| Fault::Latency { add, quantile })
            }
            "errors" => Some(Fault::Errors { share: self.number(&mut fields, "share").unwrap_or(1.0) }),
            "overload" => {
                self.required(&mut fields, "factor");
                self.number(&mut fields, "factor").map(|factor| Fault::Overload { factor })
            }
            "deadline" => {
                self.required(&mut fields, "total");
                let total = self.duration(&mut fields, "total", Duration::from_nanos(1), hour);
                total.map(|total| Fault::Deadline { total })
            }
            "lost_answer" => Some(Fault::LostAnswer { share: self.number(&mut fields, "share").unwrap_or(0.1) }),
            _ => {
                let meant = nearest(&kind, KINDS).map(|meant| format!("did you mean {meant}?"));
                let meant = meant.unwrap_or_else(|| format!("there are {}", KINDS.join(", ")));
                self.mistakes.note(
                    kind_line,
                    "steps.fault.kind",
                    format!("there is no fault {}; {meant}", Escaped(&kind)),
                );
                return None;
            }
        };
        for (key, entry) in std::mem::take(&mut fields.entries) {
            self.mistakes.note(entry.line, &format!("steps.fault.{key}"), format!("the fault {kind} has no {key}"));
        }
        let fault = fault.filter(|_| self.mistakes.count() == before)?;
        if let Some(reason) = fault.mistake() {
            self.mistakes.note(line, "steps.fault", reason);
            return None;
        }
        Some(fault)
    }

    /// Reads the table `workload` over the values of an outer one.
    fn workload(&mut self, outer: &mut Fields<'_>, defaults: &Workload) -> Workload {
        let mut workload = defaults.clone();
        let Some(Entry { line, value }) = outer.entries.remove("workload") else { return workload };
        let DeValue::Table(table) = value else {
            self.mistakes.note(line, &format!("{}workload", outer.path), "must be a table");
            return workload;
        };
        let before = self.mistakes.count();
        let path = if outer.path.is_empty() { "workload." } else { "steps.workload." };
        let mut fields = self.fields(path, line, table, &KEYS);
        let lines: BTreeMap<&str, u64> = fields.entries.iter().map(|(key, entry)| (*key, entry.line)).collect();
        if let Some(rate) = self.number(&mut fields, "rate") {
            workload.rate = rate;
        }
        if let Some(capacity) = self.number(&mut fields, "capacity") {
            workload.capacity = Some(capacity);
        }
        if let Some(latency) = self.duration(&mut fields, "latency", Duration::ZERO, MAX_DURATION) {
            (workload.latency, workload.latency_p95) = (latency, latency.saturating_mul(2));
        }
        if let Some(p95) = self.duration(&mut fields, "latency_p95", Duration::ZERO, MAX_DURATION) {
            workload.latency_p95 = p95;
        }
        if let Some(warmup) = self.duration(&mut fields, "warmup", Duration::ZERO, MAX_DURATION) {
            workload.warmup = warmup;
        }
        if let Some(recovery) = self.duration(&mut fields, "recovery", Duration::ZERO, MAX_DURATION) {
            workload.recovery = recovery;
        }
        if let Some(most) = self.whole(&mut fields, "max_in_flight", 1, super::workload::MAX_IN_FLIGHT.into()) {
            workload.max_in_flight = u32::try_from(most).unwrap_or(u32::MAX);
        }
        if let Some(keys) = self.flag(&mut fields, "idempotency_keys") {
            workload.idempotency_keys = keys;
        }
        if let Some(propagate) = self.flag(&mut fields, "propagate_deadline") {
            workload.propagate_deadline = propagate;
        }
        if self.mistakes.count() == before {
            for (field, reason) in workload.mistakes() {
                let key = field.trim_start_matches("workload.");
                let at = lines.get(key).copied().unwrap_or(line);
                self.mistakes.note(at, &format!("{path}{key}"), reason);
            }
        }
        workload
    }

    /// Sorts the entries of a table by their keys; an unknown key is a mistake.
    fn fields<'t>(
        &mut self,
        path: &'static str,
        line: u64,
        table: DeTable<'t>,
        known: &'static [&'static str],
    ) -> Fields<'t> {
        let mut entries = BTreeMap::new();
        for (key, value) in table {
            if self.mistakes.are_too_many() {
                break;
            }
            let line = self.line(key.span());
            let key: Spanned<_> = key;
            let name = key.into_inner();
            match known.iter().copied().find(|known| *known == name) {
                Some(known) => {
                    entries.insert(known, Entry { line, value: value.into_inner() });
                }
                None => {
                    let meant = nearest(&name, known.iter().copied()).map(|meant| format!("did you mean {meant}?"));
                    let meant = meant.unwrap_or_else(|| format!("there are {}", known.join(", ")));
                    let path = format!("{path}{}", Escaped(&name));
                    self.mistakes.note(line, &path, format!("there is no such key; {meant}"));
                }
            }
        }
        Fields { path, line, entries }
    }

    fn missing(&mut self, fields: &Fields<'_>, key: &str) {
        self.mistakes.note(fields.line, &format!("{}{key}", fields.path), "is missing");
    }

    /// Notes a key that must be there and is not.
    fn required(&mut self, fields: &mut Fields<'_>, key: &str) {
        if !fields.entries.contains_key(key) {
            self.missing(fields, key);
        }
    }

    fn wrong<T>(&mut self, fields: &Fields<'_>, line: u64, key: &str, reason: impl Into<String>) -> Option<T> {
        self.mistakes.note(line, &format!("{}{key}", fields.path), reason);
        None
    }

    fn text(&mut self, fields: &mut Fields<'_>, key: &str) -> Option<(u64, String)> {
        let Entry { line, value } = fields.entries.remove(key)?;
        match value {
            DeValue::String(text) => Some((line, text.into_owned())),
            _ => self.wrong(fields, line, key, "must be text"),
        }
    }

    fn required_text(&mut self, fields: &mut Fields<'_>, key: &str) -> Option<(u64, String)> {
        self.required(fields, key);
        self.text(fields, key)
    }

    /// Reads a required list of texts.
    fn texts(&mut self, fields: &mut Fields<'_>, key: &str) -> Vec<(u64, String)> {
        self.required(fields, key);
        let Some(Entry { line, value }) = fields.entries.remove(key) else { return Vec::new() };
        let DeValue::Array(list) = value else {
            self.mistakes.note(line, &format!("{}{key}", fields.path), "must be a list of texts");
            return Vec::new();
        };
        if list.is_empty() {
            self.mistakes.note(line, &format!("{}{key}", fields.path), "must not be empty");
        }
        let mut texts = Vec::new();
        for item in list {
            if self.mistakes.are_too_many() {
                break;
            }
            let line = self.line(item.span());
            match item.into_inner() {
                DeValue::String(text) => texts.push((line, text.into_owned())),
                _ => self.mistakes.note(line, &format!("{}{key}", fields.path), "must be text"),
            }
        }
        texts
    }

    fn whole(&mut self, fields: &mut Fields<'_>, key: &str, least: u64, most: u64) -> Option<u64> {
        let Entry { line, value } = fields.entries.remove(key)?;
        let number = match &value {
            DeValue::Integer(integer) => u64::from_str_radix(integer.as_str(), integer.radix()).ok(),
            _ => None,
        };
        match number.filter(|number| (least..=most).contains(number)) {
            Some(number) => Some(number),
            None => self.wrong(fields, line, key, format!("must be a whole number from {least} to {most}")),
        }
    }

    fn number(&mut self, fields: &mut Fields<'_>, key: &str) -> Option<f64> {
        let Entry { line, value } = fields.entries.remove(key)?;
        let number = match &value {
            DeValue::Integer(integer) => {
                i64::from_str_radix(integer.as_str(), integer.radix()).ok().map(|it| it as f64)
            }
            DeValue::Float(float) => float.as_str().parse().ok(),
            _ => None,
        };
        match number.filter(|number: &f64| number.is_finite()) {
            Some(number) => Some(number),
            None => self.wrong(fields, line, key, "must be a number"),
        }
    }

    fn flag(&mut self, fields: &mut Fields<'_>, key: &str) -> Option<bool> {
        let Entry { line, value } = fields.entries.remove(key)?;
        match value {
            DeValue::Boolean(flag) => Some(flag),
            _ => self.wrong(fields, line, key, "must be true or false"),
        }
    }

    fn duration(&mut self, fields: &mut Fields<'_>, key: &str, least: Duration, most: Duration) -> Option<Duration> {
        let Entry { line, value } = fields.entries.remove(key)?;
        let DeValue::String(text) = value else {
            return self.wrong(fields, line, key, "must be a duration such as \"250ms\" or \"1m 30s\"");
        };
        match reader::duration(&text) {
            None => self.wrong(fields, line, key, "must be a duration such as \"250ms\" or \"1m 30s\""),
            Some(duration) if (least..=most).contains(&duration) => Some(duration),
            Some(_) if least.is_zero() => {
                self.wrong(fields, line, key, format!("must be at most {}", reader::span(most)))
            }
            Some(_) => self.wrong(fields, line, key, format!("must be above zero and at most {}", reader::span(most))),
        }
    }
}
