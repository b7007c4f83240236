//! The alerts: their queries, their runbook sections, and the thresholds of the resiliency playbook.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::promql::{self, Selector};
use crate::{files, yaml};

/// One alert.
struct Alert {
    name: String,
    expression: String,
    /// How long the condition must hold.
    lasting: String,
    severity: String,
    annotations: Value,
}

fn alerts() -> Vec<Alert> {
    let file = yaml::file("dashboards/alerts.yml");
    let rules = file["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap().clone());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    rules
        .map(|rule| Alert {
            name: text(&rule["alert"]),
            expression: text(&rule["expr"]).split_whitespace().collect::<Vec<_>>().join(" "),
            lasting: text(&rule["for"]),
            severity: text(&rule["labels"]["severity"]),
            annotations: rule["annotations"].clone(),
        })
        .collect()
}

/// Returns every selector with its alert.
pub(crate) fn queries() -> Vec<(String, Selector)> {
    let queries = |alert: Alert| {
        let read = promql::selectors(&alert.expression);
        let read = read.unwrap_or_else(|error| panic!("{}: {error}", alert.name));
        read.into_iter().map(move |selector| (format!("alert {}", alert.name), selector))
    };
    alerts().into_iter().flat_map(queries).collect()
}

/// Returns the headings of a level with their text, in order.
fn sections(level: &str) -> Vec<(String, String)> {
    let text = files::text("docs/runbook.md");
    let mut sections: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix(level).and_then(|rest| rest.strip_prefix(' ')) {
            sections.push((title.to_owned(), String::new()));
        } else if let Some((_, body)) = sections.last_mut() {
            body.push_str(line);
            body.push('\n');
        }
    }
    sections
}

#[test]
fn every_alert_has_a_section_in_the_runbook_and_every_section_an_alert() {
    let alerts: Vec<_> = alerts().into_iter().map(|alert| alert.name).collect();
    let sections = sections("###");
    let titles: Vec<_> = sections.iter().map(|(title, _)| title.clone()).collect();
    assert_eq!(alerts, titles, "the same names in the same order");
    for (title, body) in sections {
        for part in ["Means: ", "Look first at: ", "Do first: ", "Then: ", "False alarm when: "] {
            assert_eq!(body.matches(&format!("\n{part}")).count(), 1, "{title} has no {part:?}");
        }
    }
}

#[test]
fn every_alert_has_a_severity_annotations_and_a_runbook_link() {
    let mut names = BTreeSet::new();
    for Alert { name, severity, annotations, expression, .. } in alerts() {
        assert!(names.insert(name.clone()), "{name} twice");
        assert!(["page", "warning"].contains(&severity.as_str()), "{name}: {severity:?}");
        let anchor = format!("docs/runbook.md#{}", name.to_lowercase());
        assert_eq!(annotations["runbook_url"], anchor, "{name}");
        let kept: BTreeSet<_> = promql::selectors(&expression).unwrap().into_iter().flat_map(|it| it.labels).collect();
        for part in ["summary", "description"] {
            let text = annotations[part].as_str().unwrap_or_else(|| panic!("{name} has no {part}"));
            for label in text.split("$labels.").skip(1).filter_map(|rest| rest.split(' ').next()) {
                assert!(
                    kept.contains(label),
                    "{name}: its {part} uses the label {label}, which the query does not keep"
                );
            }
        }
    }
}

#[test]
fn the_playbooks_thresholds_are_alerts() {
    let alerts = alerts();
    let assert_alert = |part: &str, threshold: &str, lasting: &str, severity: &str| {
        let fits = |alert: &&Alert| {
            alert.expression.contains(part) && alert.expression.ends_with(threshold) && alert.lasting == lasting
        };
        let found = alerts.iter().find(fits).unwrap_or_else(|| panic!("no alert on {part} {threshold} for {lasting}"));
        assert_eq!(found.severity, severity, "{}", found.name);
    };
    assert_alert("histogram_quantile(0.99", "> 0.5 * 1.5", "5m", "warning"); // p99 above 1.5 × SLO
    assert_alert("histogram_quantile(0.99", "> 0.8", "5m", "page"); // http.p99_ms
    assert_alert("circuit_open", "> 0.05", "10m", "page"); // breaker.open_share
    assert_alert("rate_limited", "> 0.01", "5m", "warning"); // shed.rate, by the alerts
    assert_alert("rate_limited", "> 0.02", "5m", "page"); // shed.rate, by the table
    assert_alert("phalanx_retries_total", "> 2", "5m", "page"); // retry.count_per_req
    assert_alert("phalanx_store_degraded", "== 1", "1m", "page");
    assert_alert("forced_open", "> 0", "1h", "warning"); // not in the playbook: an override in Redis is visible nowhere else
}

#[test]
fn links_in_the_runbook_are_valid() {
    let text = files::text("docs/runbook.md");
    let headings =
        ["##", "###"].into_iter().flat_map(sections).map(|(title, _)| title.to_lowercase().replace(' ', "-"));
    let anchors: BTreeSet<_> = headings.collect();
    for link in text.split("](#").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(anchors.contains(link), "nothing at #{link}");
    }
    for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|link| !link.starts_with('#'))
    {
        assert!(files::path("docs").join(link).exists(), "no file {link}");
    }
}
