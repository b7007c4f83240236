//! The dashboard: its queries, and whether Grafana can render it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::files;
use crate::promql::{self, Selector};

const FILE: &str = "dashboards/grafana.json";

fn board() -> Value {
    serde_json::from_str(&files::text(FILE)).unwrap()
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a Vec<Value> {
    value.pointer(pointer).and_then(Value::as_array).unwrap_or_else(|| panic!("no list at {pointer}"))
}

fn panels(board: &Value) -> impl Iterator<Item = &Value> {
    list(board, "/panels").iter().flat_map(|panel| {
        let inside = panel.get("panels").and_then(Value::as_array).into_iter().flatten();
        std::iter::once(panel).chain(inside)
    })
}

fn targets(panel: &Value) -> impl Iterator<Item = &Value> {
    panel.get("targets").and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// Returns every selector of panels, variables and annotations with its location.
pub(crate) fn queries() -> Vec<(String, Selector)> {
    let board = board();
    let mut found = Vec::new();
    let mut add = |place: String, read: Result<Vec<Selector>, String>| {
        let read = read.unwrap_or_else(|error| panic!("{place}: {error}"));
        found.extend(read.into_iter().map(|selector| (place.clone(), selector)));
    };
    for panel in panels(&board) {
        let title = text(panel, "title");
        targets(panel).for_each(|target| add(format!("panel {title:?}"), promql::selectors(text(target, "expr"))));
    }
    for variable in list(&board, "/templating/list").iter().filter(|variable| text(variable, "type") == "query") {
        let query = text(&variable["query"], "query");
        add(format!("variable {:?}", text(variable, "name")), promql::variable(query).map(|one| vec![one]));
    }
    for annotation in list(&board, "/annotations/list").iter().filter(|annotation| annotation.get("expr").is_some()) {
        add(format!("annotation {:?}", text(annotation, "name")), promql::selectors(text(annotation, "expr")));
    }
    found
}

#[test]
fn panels_have_unique_ids_and_do_not_overlap() {
    let board = board();
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels(&board) {
        let title = text(panel, "title");
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is taken");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(w > 0 && h > 0 && x + w <= 24, "{title}: {x} + {w} of 24 columns");
        for cell in (x..x + w).flat_map(|column| (y..y + h).map(move |row| (column, row))) {
            assert!(taken.insert(cell), "{title} overlaps another at {cell:?}");
        }
    }
    assert!(ids.len() > 25, "{} panels", ids.len());
}

#[test]
fn every_panel_has_a_description_a_unit_and_queries_of_the_chosen_source() {
    let board = board();
    for panel in panels(&board).filter(|panel| text(panel, "type") != "row") {
        let title = text(panel, "title");
        assert!(text(panel, "description").len() > 40, "{title}: no description");
        assert!(!text(&panel["fieldConfig"]["defaults"], "unit").is_empty(), "{title}: no unit");
        let names: BTreeSet<_> = targets(panel).map(|target| text(target, "refId")).collect();
        assert_eq!(names.len(), targets(panel).count(), "{title}: two queries with the same name");
        assert!(!names.is_empty(), "{title}: no query");
        for source in targets(panel).map(|target| &target["datasource"]).chain([&panel["datasource"]]) {
            assert_eq!(text(source, "uid"), "${datasource}", "{title}: not the chosen source");
        }
    }
}

#[test]
fn used_variables_are_defined() {
    let board = board();
    let variables = list(&board, "/templating/list");
    let names: BTreeSet<_> = variables.iter().map(|variable| text(variable, "name")).collect();
    for name in ["policy", "route"] {
        let variable = variables.iter().find(|variable| text(variable, "name") == name).unwrap();
        assert_eq!((&variable["multi"], &variable["includeAll"]), (&Value::Bool(true), &Value::Bool(true)));
    }
    for (place, selector) in queries() {
        for used in selector.matchers.iter().filter_map(|matcher| matcher.value.strip_prefix('$')) {
            assert!(names.contains(used), "{place} uses ${used}");
        }
    }
}

#[test]
fn a_legend_names_only_labels_that_its_query_keeps() {
    let board = board();
    for panel in panels(&board) {
        for target in targets(panel) {
            let kept = promql::selectors(text(target, "expr")).unwrap();
            for label in text(target, "legendFormat").split("{{").skip(1).filter_map(|rest| rest.split_once("}}")) {
                let is_kept = kept.iter().any(|selector| !selector.grouped || selector.labels.contains(label.0));
                assert!(is_kept, "{}: {} in the legend", text(panel, "title"), label.0);
            }
        }
    }
}
