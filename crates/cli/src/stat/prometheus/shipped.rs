//! What is shipped for Prometheus and Grafana speaks of metrics that there are.

use std::collections::BTreeSet;

use engine::defrag::live::Tally;
use serde_json::Value;

use super::page;

const RULES: &str = include_str!("../../../../../dist/monitoring/shunt.rules.yml");
const DASHBOARD: &str = include_str!("../../../../../dist/monitoring/shunt-dashboard.json");

/// All names that our pages have.
fn exported() -> BTreeSet<String> {
    let pages = [
        page(&[], &[], &[]),
        engine::serve::stat::Stat::default().prometheus(),
        Tally::default().prometheus(),
    ];
    let mut names = BTreeSet::new();
    for line in pages.iter().flat_map(|page| page.lines()) {
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' '))
        else {
            continue;
        };
        let parts: &[&str] =
            if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        names.extend(parts.iter().map(|part| format!("{name}{part}")));
    }
    names
}

/// The names of ours in a text.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("shunt_")).collect()
}

#[track_caller]
fn all_exported(text: &str, what: &str) {
    let exported = exported();
    for name in named(text) {
        assert!(exported.contains(name), "{what}: nobody exports {name}");
    }
}

/// An alert, as the file of rules has it.
#[derive(Debug, Default)]
struct Alert {
    name: String,
    expr: String,
    severity: String,
    summary: String,
}

/// As much of YAML as that file is written in: a key and its value on a line, or lines further in behind a `|`.
fn alerts(text: &str) -> Vec<Alert> {
    let mut all: Vec<Alert> = Vec::new();
    let mut block = None;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        if block.is_some_and(|outside| indent > outside) {
            let alert = all.last_mut().expect("a block of an alert");
            alert.expr += line.trim();
            alert.expr.push(' ');
            continue;
        }
        block = None;
        let line = line.trim();
        if let Some(name) = line.strip_prefix("- alert: ") {
            all.push(Alert { name: name.into(), ..Alert::default() });
        }
        let Some(alert) = all.last_mut() else { continue };
        if line == "expr: |" {
            block = Some(indent);
        } else if let Some(expr) = line.strip_prefix("expr: ") {
            alert.expr = expr.into();
        } else if let Some(severity) = line.strip_prefix("labels: {severity: ") {
            alert.severity = severity.trim_end_matches('}').into();
        } else if let Some(summary) = line.strip_prefix("summary: ") {
            alert.summary = summary.into();
        }
    }
    all
}

#[test]
fn alerts_are_of_metrics_that_there_are() {
    let alerts = alerts(RULES);
    assert_eq!(alerts.len(), RULES.matches("alert:").count());
    let names: BTreeSet<&str> = alerts.iter().map(|alert| &*alert.name).collect();
    assert_eq!(names.len(), alerts.len(), "two of one name");
    for Alert { name, expr, severity, summary } in &alerts {
        assert!(!named(expr).is_empty() || expr.starts_with("up{"), "{name}: {expr}");
        all_exported(expr, name);
        let depth = |open| expr.matches(open).count();
        assert_eq!(depth('('), depth(')'), "{name}: {expr}");
        assert!(["info", "warning", "critical"].contains(&&**severity), "{name}: {severity}");
        assert!(summary.starts_with('"') && summary.len() > 20, "{name}: {summary}");
    }
    all_exported(RULES, "rules");
    // Each page has some.
    for page in ["shunt_board_", "shunt_engine_", "shunt_smb_", "shunt_defrag_"] {
        assert!(RULES.contains(page), "{page}");
    }
}

#[test]
fn panels_are_of_metrics_that_there_are() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: another one has its id");
        let at = &panel["gridPos"];
        assert!(places.insert((at["x"].as_u64(), at["y"].as_u64())), "{title}: lies on another");
        let targets = panel["targets"].as_array();
        assert_eq!(targets.is_none(), panel["type"] == "row", "{title}");
        for target in targets.into_iter().flatten() {
            let expr = target["expr"].as_str().unwrap();
            assert!(!named(expr).is_empty(), "{title}: {expr}");
            assert!(
                expr.contains("instance=~\"$instance\""),
                "{title}: {expr} is of all instances"
            );
        }
    }
    all_exported(DASHBOARD, "dashboard");
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        let used =
            DASHBOARD.contains(&format!("${name}")) || DASHBOARD.contains(&format!("${{{name}}}"));
        assert!(used, "{name} is chosen in vain");
    }
}

#[test]
fn a_name_that_nobody_exports_is_found() {
    let names = named("rate(shunt_smb_logon_total{a=\"b\"}[5m]) / shunt_smb_sessions");
    let unknown: Vec<_> = names.into_iter().filter(|name| !exported().contains(*name)).collect();
    assert_eq!(unknown, ["shunt_smb_logon_total"]);
}
