//! The table of instruments in the documentation is the one of the code.

use phalanx::telemetry::metrics::names::{ALL, Instrument, Named};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/telemetry.md");

fn row(named: &Named) -> String {
    let kind = match named.instrument {
        Instrument::Counter => "counter",
        Instrument::Histogram => "histogram",
        Instrument::Gauge => "gauge",
    };
    let unit = if named.unit.is_empty() { "–".to_owned() } else { format!("`{}`", named.unit) };
    let attributes: Vec<_> = named.attributes.iter().map(|name| format!("`{name}`")).collect();
    let attributes = if attributes.is_empty() { "–".to_owned() } else { attributes.join(", ") };
    format!("| `{}` | {kind} | {unit} | {attributes} | {} | `{}` |", named.name, named.meaning, named.prometheus)
}

#[test]
fn the_documentation_lists_exactly_the_instruments() {
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    let (_, metrics) = document.split_once("\n## Metrics\n").unwrap();
    let written: Vec<_> = metrics.lines().filter(|line| line.starts_with("| `phalanx.")).collect();
    let table: Vec<_> = ALL.iter().map(row).collect();
    assert_eq!(written, table, "docs/telemetry.md should say:\n{}\n", table.join("\n"));
}

#[test]
fn instrument_names_are_unique() {
    for (number, named) in ALL.iter().enumerate() {
        assert!(named.name.starts_with("phalanx.") && named.prometheus.starts_with("phalanx_"));
        assert!(ALL[..number].iter().all(|other| other.name != named.name && other.prometheus != named.prometheus));
    }
}
