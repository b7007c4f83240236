//! The output of `fleet` and `scale`: a table, or one JSON object per line.
//!
//! A row has a `ratio` if there is a peer, otherwise a `value` with its `unit`, followed by other figures.

use std::io::{self, Write};

use serde::{Serialize, Serializer};

/// The bar of a result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }

    fn text(self, value: f64) -> String {
        let met = if self.is_met(value) { "ok" } else { "MISSED" };
        match self {
            Self::AtMost(most) => format!("<= {most:<4} {met}"),
            Self::AtLeast(least) => format!(">= {least:<4} {met}"),
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Figure {
    Number(f64),
    Text(String),
    Flag(bool),
}

/// One result. In `--json` its figures are the fields of the object, in this order.
pub(crate) struct Row {
    figures: Vec<(&'static str, Figure)>,
    /// The main figure of the row.
    result: f64,
    bar: Option<Bar>,
}

impl Row {
    /// A comparison with a peer.
    pub(crate) fn ratio(case: impl Into<String>, peer: &str, ratio: f64) -> Self {
        let (result, case) = (rounded(ratio), case.into());
        let figures = vec![
            ("case", Figure::Text(case)),
            ("peer", Figure::Text(peer.to_owned())),
            ("ratio", Figure::Number(result)),
        ];
        Self { figures, result, bar: None }
    }

    /// A value without a peer.
    pub(crate) fn value(case: impl Into<String>, value: f64, unit: &str) -> Self {
        let (result, case) = (rounded(value), case.into());
        let figures = vec![
            ("case", Figure::Text(case)),
            ("value", Figure::Number(result)),
            ("unit", Figure::Text(unit.to_owned())),
        ];
        Self { figures, result, bar: None }
    }

    pub(crate) fn bar(mut self, bar: impl Into<Option<Bar>>) -> Self {
        self.bar = bar.into();
        self
    }

    /// Sets a bar that `--json` shows too, as `bar` and `met`. It is missed, whatever the result, if the measurement is
    /// not `valid`.
    pub(crate) fn shown_bar(mut self, bar: Bar, valid: bool) -> Self {
        let (Bar::AtMost(number) | Bar::AtLeast(number)) = bar;
        let met = valid && bar.is_met(self.result);
        self.figures.extend([("bar", Figure::Number(rounded(number))), ("met", Figure::Flag(met))]);
        self.bar = if valid { Some(bar) } else { None };
        self
    }

    /// Returns the figures as the object that `--json` prints.
    pub(crate) fn object(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Adds another figure.
    pub(crate) fn with(mut self, name: &'static str, value: f64) -> Self {
        self.figures.push((name, Figure::Number(rounded(value))));
        self
    }

    pub(crate) fn case(&self) -> &str {
        self.text("case").unwrap_or_default()
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.figures.iter().find_map(|(known, figure)| match figure {
            Figure::Text(text) if *known == name => Some(text.as_str()),
            _ => None,
        })
    }

    fn other_numbers(&self) -> String {
        let number = |(name, figure): &(&'static str, Figure)| match figure {
            Figure::Number(number) if *name != "bar" => Some(format!("{name} {number}")),
            _ => None,
        };
        self.figures.iter().skip(3).filter_map(number).collect::<Vec<_>>().join("  ")
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.figures.iter().map(|(name, figure)| (name, figure)))
    }
}

pub(crate) fn json(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    for row in rows {
        serde_json::to_writer(&mut *out, row)?;
        writeln!(out)?;
    }
    Ok(())
}

pub(crate) fn table(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let widest = rows.iter().map(|row| row.case().len()).max().unwrap_or(0);
    writeln!(out, "{:<widest$}  {:>20}  {:<15}  other figures", "case", "result", "bar")?;
    for row in rows {
        let result =
            row.text("unit").map_or_else(|| format!("{}x", row.result), |unit| format!("{} {unit}", row.result));
        let bar = row.bar.map_or_else(String::new, |bar| bar.text(row.result));
        let line = format!("{:<widest$}  {result:>20}  {bar:<15}  {}", row.case(), row.other_numbers());
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Rounds to three decimals, or to an integer from 1,000 on.
fn rounded(value: f64) -> f64 {
    let digits = if value.abs() >= 1_000.0 { 0 } else { 3 };
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::{Bar, Row, json, table};

    #[test]
    fn a_row_is_one_object_with_its_figures_in_order() {
        let rows = [
            Row::ratio("a", "p", 2.50004).with("ours_per_s", 1234.56).bar(Bar::AtLeast(2.0)),
            Row::value("b", 0.1234, "ms").bar(Bar::AtMost(0.1)),
        ];
        let (mut objects, mut lines) = (Vec::new(), Vec::new());
        json(&rows, &mut objects).unwrap();
        table(&rows, &mut lines).unwrap();
        assert_eq!(
            String::from_utf8(objects).unwrap(),
            "{\"case\":\"a\",\"peer\":\"p\",\"ratio\":2.5,\"ours_per_s\":1235.0}\n\
             {\"case\":\"b\",\"value\":0.123,\"unit\":\"ms\"}\n"
        );
        let lines = String::from_utf8(lines).unwrap();
        assert!(lines.contains(">= 2    ok") && lines.contains("<= 0.1  MISSED"), "{lines}");
    }

    #[test]
    fn a_shown_bar_is_part_of_the_object_and_an_invalid_measurement_misses_it() {
        let row = |valid| Row::value("a", 1.0, "%").shown_bar(Bar::AtMost(3.0), valid).with("calls", 2.0);
        let mut objects = Vec::new();
        json(&[row(true), row(false)], &mut objects).unwrap();
        let object =
            |met| format!("{{\"case\":\"a\",\"value\":1.0,\"unit\":\"%\",\"bar\":3.0,\"met\":{met},\"calls\":2.0}}\n");
        assert_eq!(String::from_utf8(objects).unwrap(), object(true) + &object(false));
        let mut lines = Vec::new();
        table(&[row(true)], &mut lines).unwrap();
        let lines = String::from_utf8(lines).unwrap();
        assert!(lines.contains("<= 3    ok") && !lines.contains("bar 3"), "{lines}");
    }
}
