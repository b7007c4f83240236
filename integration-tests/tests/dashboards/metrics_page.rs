//! A metrics page in the Prometheus text format, and whether it has the series of a query.

use std::collections::{BTreeMap, BTreeSet};

use crate::promql::{Matcher, Selector};

/// Labels that Prometheus adds to everything it scrapes.
const SCRAPE_LABELS: [&str; 2] = ["job", "instance"];
/// Metrics that Prometheus creates itself.
const PROMETHEUS_METRICS: [&str; 2] = ["up", "ALERTS"];

type Labels = BTreeMap<String, String>;

/// The series of one or several pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct MetricsPage(BTreeMap<String, BTreeSet<Labels>>);

impl MetricsPage {
    /// Adds the series of a page. Several pages are merged, because a gauge may be missing from a later one.
    pub(crate) fn add(&mut self, text: &str) -> Result<(), String> {
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, labels) = series(line).ok_or_else(|| format!("no series: {line}"))?;
            self.0.entry(name).or_default().insert(labels);
        }
        Ok(())
    }

    /// Returns the names of all metrics.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns the values of a label of a metric.
    pub(crate) fn values(&self, metric: &str, label: &str) -> BTreeSet<&str> {
        let all = self.0.get(metric).into_iter().flatten();
        all.filter_map(|labels| labels.get(label)).map(String::as_str).collect()
    }

    /// Returns what a selector uses that is not on the page.
    pub(crate) fn missing(&self, selector: &Selector) -> Vec<String> {
        let Selector { metric, matchers, labels, .. } = selector;
        if PROMETHEUS_METRICS.contains(&metric.as_str()) {
            return Vec::new();
        }
        let Some(series) = self.0.get(metric) else { return vec![format!("no series {metric}")] };
        let ours = |label: &&String| !SCRAPE_LABELS.contains(&label.as_str());
        let mut missing = Vec::new();
        for label in labels.iter().chain(matchers.iter().map(|matcher| &matcher.label)).filter(ours) {
            if !series.iter().any(|labels| labels.contains_key(label)) {
                missing.push(format!("{metric} has no label {label}"));
            }
        }
        for matcher in matchers.iter().filter(|matcher| ours(&&matcher.label)) {
            for value in matcher.values() {
                if !self.values(metric, &matcher.label).contains(value) {
                    missing.push(format!("{metric} has no {}=\"{value}\"", matcher.label));
                }
            }
        }
        let exact = |labels: &Labels| {
            let exact = matchers.iter().filter(|matcher| matcher.sign == "=" && ours(&&matcher.label));
            exact.into_iter().all(|matcher| labels.get(&matcher.label) == Some(&matcher.value))
        };
        if missing.is_empty() && !series.iter().any(exact) {
            missing.push(format!("no series {metric} has all of {matchers:?}"));
        }
        missing
    }
}

impl Matcher {
    /// Returns the values it names, each of which must exist: a misspelt value in `!~` would match everything unnoticed.
    /// Grafana variables are skipped.
    fn values(&self) -> impl Iterator<Item = &str> {
        let named = !self.value.contains('$');
        self.value.split(if self.sign.ends_with('~') { '|' } else { '\n' }).filter(move |_| named)
    }
}

/// Parses `name{label="value",…} 1.5` into name and labels.
fn series(line: &str) -> Option<(String, Labels)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, value) = rest.split_once("=\"")?;
            let (value, after) = quoted(value)?;
            labels.insert(label.trim().to_owned(), value);
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.split_whitespace().next()?;
    let is_number = value.parse::<f64>().is_ok() || value == "+Inf" || value == "-Inf";
    (is_number && !name.is_empty()).then(|| (name.to_owned(), labels))
}

/// Returns a value up to its closing quote, unescaped, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut escaped) = (String::new(), false);
    for (at, letter) in text.char_indices() {
        match letter {
            'n' if escaped => value.push('\n'),
            letter if escaped => value.push(letter),
            '\\' => {
                escaped = true;
                continue;
            }
            '"' => return Some((value, &text[at + 1..])),
            letter => value.push(letter),
        }
        escaped = false;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promql::selectors;

    const TEXT: &str = r#"
# HELP calls_total Calls.
# TYPE calls_total counter
calls_total{outcome="ok",policy="a, \"b\"\\",x="{}"} 12
calls_total{outcome="bad",policy="c",x=""} 1.5e3 1700000000
plain 0
took_bucket{le="+Inf"} +Inf
"#;

    fn missing(expression: &str) -> Vec<String> {
        let mut page = MetricsPage::default();
        page.add(TEXT).unwrap();
        selectors(expression).unwrap().iter().flat_map(|selector| page.missing(selector)).collect()
    }

    #[test]
    fn series_on_the_page_are_found() {
        let mut page = MetricsPage::default();
        page.add(TEXT).unwrap();
        assert_eq!(page.values("calls_total", "policy"), BTreeSet::from(["a, \"b\"\\", "c"]));
        for fine in [
            "plain",
            r#"sum by (policy, job) (rate(calls_total{outcome="ok", instance="anything"}[5m]))"#,
            r#"calls_total{outcome!~"ok|bad", policy=~"$policy"}"#,
            "histogram_quantile(0.5, sum by (le) (took_bucket))",
            "up == 0",
        ] {
            assert_eq!(missing(fine), [""; 0], "{fine}");
        }
    }

    #[test]
    fn a_wrong_metric_label_or_value_is_reported() {
        assert_eq!(missing("call_total"), ["no series call_total"]);
        assert_eq!(missing("sum by (polcy) (calls_total)"), ["calls_total has no label polcy"]);
        assert_eq!(missing("sum by (le) (plain)"), ["plain has no label le"]);
        assert_eq!(missing(r#"calls_total{outcome="okay"}"#), [r#"calls_total has no outcome="okay""#]);
        assert_eq!(missing(r#"calls_total{outcome!~"ok|bat"}"#), [r#"calls_total has no outcome="bat""#]);
        assert_eq!(missing(r#"calls_total{outcome="ok", policy="c"}"#).len(), 1, "both exist, but not in one series");
        assert_eq!(missing("plain / took_count"), ["no series took_count"]);
    }

    #[test]
    fn invalid_pages_are_errors() {
        for wrong in ["a{b=\"c} 1", "a{b=\"c\"}", "a b", "{} 1", "<html>"] {
            assert!(MetricsPage::default().add(wrong).is_err(), "{wrong}");
        }
    }
}
