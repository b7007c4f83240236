//! The dashboard, the alerts and the runbook are consistent: every metric, label and value that they query is exported,
//! every alert has a section in the runbook, and the compose file serves what Prometheus scrapes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed expectation panics, in helpers too

#[path = "dashboards/alerts.rs"]
mod alerts;
#[path = "dashboards/compose.rs"]
mod compose;
#[path = "dashboards/dashboard.rs"]
mod dashboard;
#[path = "dashboards/exported_metrics.rs"]
mod exported_metrics;
#[path = "dashboards/files.rs"]
mod files;
#[path = "dashboards/metrics_page.rs"]
mod metrics_page;
#[path = "dashboards/promql.rs"]
mod promql;
#[path = "dashboards/tokens.rs"]
mod tokens;
#[path = "dashboards/yaml.rs"]
mod yaml;
