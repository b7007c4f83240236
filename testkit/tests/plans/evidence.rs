//! The evidence: the same for the same seed, and readable as text, Markdown, JSON and SVG.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::OnceLock;

use phalanx::config::Config;
use phalanx_testkit::plan::{Evidence, Plan, Player};

use crate::{plans, policies};

/// A short plan with every fault, over every policy, with three replicas.
fn short_plan() -> Plan {
    let policies = policies();
    let mut plan = Plan::load(plans().join("playbook.csv"), &policies).unwrap();
    plan.replicas = 3;
    for step in &mut plan.steps {
        step.duration = std::time::Duration::from_secs(8);
        step.workload.recovery = std::time::Duration::from_secs(4);
        step.workload.rate = 20.0;
    }
    plan
}

/// The evidence of the short plan, played once for all tests that only read it.
fn evidence() -> &'static Evidence {
    static EVIDENCE: OnceLock<Evidence> = OnceLock::new();
    EVIDENCE.get_or_init(|| Player::new(policies()).play(&short_plan()).unwrap())
}

fn all_bytes(evidence: &Evidence) -> String {
    let plots: String = evidence.steps.iter().map(|step| step.to_svg()).collect();
    evidence.to_text() + &evidence.to_markdown() + &evidence.to_json() + &plots
}

fn play(seed: u64) -> String {
    all_bytes(&Player::new(policies()).seed(seed).play(&short_plan()).unwrap())
}

/// Where a child process of the test writes its evidence.
const OUTPUT: &str = "PHALANX_PLAN_EVIDENCE";

#[test]
fn the_same_seed_gives_the_same_bytes_also_in_another_process_and_another_seed_gives_others() {
    let own = play(7);
    if let Some(path) = std::env::var_os(OUTPUT) {
        std::fs::write(path, own).unwrap();
        return;
    }
    let path = std::env::temp_dir().join(format!("phalanx-evidence-{}", std::process::id()));
    let name = "evidence::the_same_seed_gives_the_same_bytes_also_in_another_process_and_another_seed_gives_others";
    let child =
        Command::new(std::env::current_exe().unwrap()).args(["--exact", name]).env(OUTPUT, &path).output().unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    let theirs = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    assert!(own == theirs, "the evidence differs between processes");
    assert!(own == play(7), "the evidence differs between runs");
    assert!(own != play(8), "another seed gives other evidence");
}

#[test]
fn a_step_does_not_depend_on_the_other_steps() {
    let plan = short_plan();
    let alone = Plan { steps: vec![plan.steps[1].clone()], ..plan.clone() };
    let alone = Player::new(policies()).play(&alone).unwrap();
    assert_eq!(format!("{:?}", evidence().steps[1]), format!("{:?}", alone.steps[0]));
}

#[tokio::test]
async fn a_plan_can_be_played_inside_an_async_test() {
    let mut plan = short_plan();
    plan.steps.truncate(1);
    assert!(Player::new(policies()).play(&plan).is_ok());
}

#[test]
fn the_timeline_adds_up_to_the_calls_of_the_step() {
    let evidence = evidence();
    for step in &evidence.steps {
        let slices = |count: fn(&phalanx_testkit::plan::Slice) -> u64| step.slices.iter().map(count).sum::<u64>();
        let seconds: f64 = step.slices.iter().map(|slice| slice.length_s).sum();
        assert!((seconds - 22.0).abs() < 1e-9, "{seconds}");
        let rejected: u64 = step.slices.iter().flat_map(|slice| slice.rejected.values()).sum();
        assert_eq!(slices(|it| it.offered), slices(|it| it.served) + slices(|it| it.failed) + rejected, "{}", step.id);
    }
}

#[test]
fn the_json_has_every_verdict_with_its_figure_and_source() {
    let evidence = evidence();
    let json: serde_json::Value = serde_json::from_str(&evidence.to_json()).unwrap();
    assert_eq!(json["passed"].as_bool(), Some(evidence.passed()));
    let verdict = &json["steps"][1]["verdicts"][0];
    assert_eq!((verdict["expectation"].as_str(), verdict["policy"].as_str()), (Some("breaker=open"), Some("catalog")));
    assert!(verdict["measured"].as_str().unwrap().starts_with("opened "));
    assert_eq!(verdict["source"].as_str(), Some("breaker transitions"));
    assert!(json["steps"][1]["slices"].as_array().unwrap().len() >= 20);
}

#[test]
fn the_text_and_the_markdown_have_one_row_for_each_verdict() {
    let evidence = evidence();
    let verdicts: usize = evidence.steps.iter().map(|step| step.verdicts.len()).sum();
    let text = evidence.to_text();
    assert_eq!(text.lines().count(), verdicts + 3, "{text}");
    let markdown = evidence.to_markdown();
    let rows = markdown.lines().filter(|line| line.contains("| passed |") || line.contains("| **failed** |"));
    assert_eq!(rows.count(), verdicts);
    assert!(evidence.steps.iter().all(|step| markdown.contains(&format!("]({}.svg)", step.id))));
}

/// Panics unless the text is one well-formed XML element.
fn check_xml(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text.trim();
    while let Some(begin) = rest.find('<') {
        let (before, tag) = rest.split_at(begin);
        assert!(!before.contains('>') && (before.trim().is_empty() || !open.is_empty()), "text outside: {before}");
        for entity in before.split('&').skip(1) {
            let name = entity.split(';').next().unwrap();
            assert!(["amp", "lt", "gt", "quot", "#39"].contains(&name), "&{name}");
        }
        let end = tag.find('>').unwrap_or_else(|| panic!("unclosed: {tag}"));
        let inner = &tag[1..end];
        assert!(!inner.contains('<'), "{inner}");
        if let Some(name) = inner.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else {
            let name = inner.split([' ', '/']).next().unwrap();
            assert_eq!(inner.matches('"').count() % 2, 0, "{inner}");
            let attributes: Vec<&str> =
                inner.split('"').step_by(2).map(str::trim).filter(|it| it.ends_with('=')).collect();
            assert_eq!(attributes.iter().collect::<BTreeSet<_>>().len(), attributes.len(), "twice in {inner}");
            if !inner.ends_with('/') {
                open.push(name);
            }
        }
        rest = &tag[end + 1..];
    }
    assert!(open.is_empty() && rest.is_empty(), "{open:?} {rest}");
}

#[test]
fn a_plot_is_well_formed_and_names_its_axes_and_lines_without_colour() {
    let evidence = evidence();
    for step in &evidence.steps {
        let svg = step.to_svg();
        check_xml(&svg);
        for label in
            ["calls per second", "milliseconds", "time in the step (seconds)", ">phase<", ">p50<", ">p95<", ">p99<"]
        {
            assert!(svg.contains(label), "{}: {label}", step.id);
        }
        for code in step.policies.iter().flat_map(|policy| policy.rejected.keys()) {
            assert!(svg.contains(&format!(">{code}<")) || svg.contains("other codes"), "{}: {code}", step.id);
        }
        assert!(!svg.contains("<script") && !svg.contains("@import") && !svg.contains("url(http"), "{}", step.id);
        assert_eq!(svg.matches("http").count(), 1, "the namespace, and no address to load from");
        assert!(svg.contains("prefers-color-scheme:dark"));
        let dashes: BTreeSet<&str> =
            svg.split("stroke-dasharray=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(dashes.len() >= 4, "{dashes:?}");
    }
}

#[test]
fn names_with_markup_stay_text() {
    let name = "<b>&\"x\"|\u{1}";
    let policies = Config::from_toml("[policies.\"<b>&\\\"x\\\"|\\u0001\"]\ntimeout = '1s'").unwrap();
    let plan = "[[steps]]\nid = 'A'\ntarget = '*'\nfault = '5xx'\nduration = '5s'\nexpected = ['recovers']";
    let plan = Plan::from_toml("<plan>.toml", plan, &policies).unwrap();
    let evidence = Player::new(policies).play(&plan).unwrap();
    assert_eq!(evidence.steps[0].policies[0].policy, name);
    check_xml(&evidence.steps[0].to_svg());
    assert!(
        evidence.to_markdown().contains("| recovers | &lt;b>&amp;\"x\"\\|  | passed |"),
        "{}",
        evidence.to_markdown()
    );
    assert!(!evidence.to_text().contains('\u{1}'));
    assert!(serde_json::from_str::<serde_json::Value>(&evidence.to_json()).is_ok());
}
