//! The sizing table of the docs: figures of the first edition of the fleet protocol, which were measured once and are kept in
//! `first-edition.jsonl`, beside those of this run.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::thread::available_parallelism;

use serde_json::Value;

use super::load::{MAX_DEGRADED, MIN_MADE};
use crate::figures::Row;

/// The output of `scale --json` for the first edition, after a line with the day and the machine.
const FIRST_EDITION: &str = include_str!("../../first-edition.jsonl");

/// The lines of the page between which the table is.
const BEGIN: &str = "<!-- phalanx-bench scale -->";
const END: &str = "<!-- end of phalanx-bench scale -->";

/// What the table calls each case.
const TITLES: &[(&str, &str)] = &[
    ("idle_100x1000", "100 replicas × 1,000 healthy circuits, each called 1.1 times a second"),
    ("idle_100x100", "100 × 100 of them"),
    ("idle_20x10000", "20 × 10,000 of them"),
    ("failing_100x10", "100 × 10 circuits of a dependency that fails wholly, 10 calls/s each, until all are open"),
    ("halfopen_100x50", "100 × 50 half-open circuits, 20 calls/s each, probes that take long"),
    ("halfopen_10x50", "10 × 50 of them"),
    ("resubscribe_100x100", "100 × 100 healthy circuits, all subscriptions cut at once"),
    ("routes_10000", "10,000 routes with a breaker in one replica"),
    ("routes_10000.with_limit", "10,000 routes with a breaker and an exact limit"),
    ("overload_rejections", "an exact limit of 10/s, 3 replicas, 20,000 calls/s"),
];

/// Replaces the table in the page.
pub(crate) fn rewrite(page: &Path, date: &str, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let cores = available_parallelism()?;
    let rows: Vec<_> = rows.iter().map(Row::object).collect();
    let text = with_table(&fs::read_to_string(page)?, &table(&format!("{date}, {cores} cores"), &rows)?)?;
    Ok(fs::write(page, text)?)
}

fn with_table(page: &str, table: &str) -> Result<String, Box<dyn Error>> {
    let (before, rest) = page.split_once(BEGIN).ok_or_else(|| format!("the page has no line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| format!("the page has no line {END}"))?;
    Ok(format!("{before}{BEGIN}\n{table}{END}{after}"))
}

fn table(measured: &str, now: &[Value]) -> Result<String, Box<dyn Error>> {
    let first = FIRST_EDITION.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let first_measured = first.first().and_then(|about| about["measured"].as_str()).unwrap_or_default();
    let mut table = format!("| | first edition ({first_measured}) | now ({measured}) |\n|---|---|---|\n");
    for (case, title) in TITLES {
        let cell = |rows: &[Value]| rows.iter().find(|row| row["case"] == *case).map_or_else(|| "–".to_owned(), cell);
        table += &format!("| {title} | {} | {} |\n", cell(&first), cell(now));
    }
    Ok(table)
}

/// Returns the figures of a row in words.
fn cell(row: &Value) -> String {
    let of = |name: &str| row[name].as_f64().unwrap_or_default();
    let number = |name: &str| short(of(name));
    let kilobytes = |name: &str| short(of(name) / 1e3);
    let case = row["case"].as_str().unwrap_or_default();
    let mut parts = match case.split('_').next().unwrap_or_default() {
        "resubscribe" => vec![
            format!("{} scripts in the first second, {} in a steady one", number("value"), number("steady_per_s")),
            format!("at most {} in 250 ms", number("peak_250ms")),
        ],
        "routes" => vec![
            format!("{} B a route, {} B in Redis", number("value"), number("redis_bytes_per_route")),
            format!("first call: p50 {} µs, p99 {} µs", number("first_call_p50_us"), number("first_call_p99_us")),
        ],
        "overload" => vec![format!("{} scripts per 1,000 rejected calls", number("value"))],
        _ => vec![
            format!("{} % of a core", number("value")),
            format!("{} scripts/s", number("scripts_per_s")),
            format!("{} kB/s in, {} out", kilobytes("received_bytes_per_s"), kilobytes("sent_bytes_per_s")),
        ],
    };
    if let Some(all_open) = row["all_open_ms"].as_f64() {
        parts.push(format!("all open after {} ms, due after {}", short(all_open), number("due_ms")));
    }
    if row["calls_made"].as_f64().is_some_and(|made| made < MIN_MADE) {
        parts.push(format!("only {} % of the calls were made", short(100.0 * of("calls_made"))));
    }
    if of("degraded") > MAX_DEGRADED {
        parts.push(format!("replicas degraded {} % of the time", short(100.0 * of("degraded"))));
    }
    parts.join("; ")
}

/// Writes three figures at least, with commas between thousands.
fn short(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.1}").trim_end_matches(".0").to_owned();
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{BEGIN, END, FIRST_EDITION, TITLES, cell, table, with_table};

    #[test]
    fn every_case_of_the_first_edition_has_a_row() {
        let all = table("today", &[]).unwrap();
        let cases: Vec<serde_json::Value> =
            FIRST_EDITION.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(cases[0]["measured"].is_string());
        for case in &cases[1..] {
            assert!(TITLES.iter().any(|(name, _)| case["case"] == *name) && all.contains(&cell(case)), "{case}");
        }
    }

    #[test]
    fn a_cell_says_when_its_figures_do_not_count() {
        let row = json!({
            "case": "idle_100x1000", "value": 38.04, "scripts_per_s": 11_991.0, "received_bytes_per_s": 4_178_773.0,
            "sent_bytes_per_s": 657_323.0, "calls_made": 0.5, "degraded": 0.71,
        });
        assert_eq!(
            cell(&row),
            "38 % of a core; 11,991 scripts/s; 4,179 kB/s in, 657 out; only 50 % of the calls were made; \
             replicas degraded 71 % of the time"
        );
    }

    #[test]
    fn the_rest_of_the_page_stays() {
        let page = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        assert_eq!(with_table(&page, "new\n").unwrap(), format!("a\n{BEGIN}\nnew\n{END}\nb\n"));
        assert!(with_table("a", "new").is_err());
    }
}
