use std::collections::BTreeSet;

use clap::CommandFactory;
use serde_json::Value;

use super::*;
use crate::snapshot::tests::Fixture;

const NO_ENGINE: Loads = Ok(Vec::new());
const X: At<'_> = At { board: "/x", is_off: false };

/// Renders everything, for tests that only want no panic.
pub(crate) fn show(snapshot: Snapshot) {
    for (json, totals) in [(true, false), (false, true), (false, false)] {
        let view = View { json, totals, all: true, ..View::default() };
        assert!(!page(&view, Some(snapshot.clone()), X, &NO_ENGINE).unwrap().is_empty());
    }
}

fn json(view: &View, snapshot: Option<Snapshot>) -> Value {
    let view = View { json: true, ..view.clone() };
    let loads = Ok(vec![Load::default()]);
    serde_json::from_str(&page(&view, snapshot, X, &loads).unwrap()).unwrap()
}

fn names(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            into.insert(name.clone());
            names(value, into);
        }),
        Value::Array(items) => items.iter().for_each(|item| names(item, into)),
        _ => {}
    }
}

/// Each field name that the JSON can have.
pub(crate) fn fields() -> BTreeSet<String> {
    let view = View { all: true, ..View::default() };
    let mut all = BTreeSet::new();
    let mut snapshot = Fixture::busy().snapshot();
    // Described as a list, not field by field.
    snapshot.listeners.clear();
    names(&json(&view, Some(snapshot)), &mut all);
    all
}

#[test]
fn without_a_board_there_is_one_line_or_an_empty_object() {
    let text = page(&View::default(), None, X, &NO_ENGINE).unwrap();
    assert_eq!(text, "no board at /x: no program runs under shunt here\n");
    let object = json(&View::default(), None);
    for list in ["processes", "link_groups", "connections", "listeners"] {
        assert_eq!(object[list], Value::Array(Vec::new()), "{list}");
    }
    assert_eq!(object["version"], 1);
}

/// On top, whether there is a board or not.
#[test]
fn what_is_switched_off_is_said_first() {
    let off = At { is_off: true, ..X };
    for json in [false, true] {
        let view = View { json, ..View::default() };
        for snapshot in [None, Some(Fixture::busy().snapshot())] {
            let [on, off] =
                [X, off].map(|at| page(&view, snapshot.clone(), at, &NO_ENGINE).unwrap());
            if json {
                let [on, off]: [Value; 2] =
                    [on, off].map(|text| serde_json::from_str(&text).unwrap());
                assert_eq!(
                    (&on["switched_off"], &off["switched_off"]),
                    (&false.into(), &true.into())
                );
            } else {
                assert_eq!(off, format!("{SWITCHED_OFF}\n\n{on}"));
            }
        }
    }
}

#[test]
fn the_table_has_what_users_of_smcss_look_for() {
    let text = page(&View::default(), Some(Fixture::busy().snapshot()), X, &NO_ENGINE).unwrap();
    let mut lines = text.lines();
    let headings = lines.next().unwrap();
    for heading in ["State", "UID", "Inode", "Local Address", "Peer Address", "Mode"] {
        assert!(headings.contains(heading), "{headings}");
    }
    assert!(text.contains("127.0.0.1:80"), "{text}");
    assert!(text.contains("  SHM  "), "{text}");
    assert!(text.contains("TCP 1 (peer does not run under shunt, or ended first)"), "{text}");
    assert!(text.contains("TCP 26 (offered, not taken)"), "{text}");
    assert!(!text.contains("CLOSED") && !text.contains("gone"), "{text}");
    assert!(text.ends_with("4 ends of connections: 2 in shared memory, 2 on TCP\n"), "{text}");
}

#[test]
fn all_shows_the_closed_the_dead_and_listeners() {
    let view = View { all: true, ..View::default() };
    let text = page(&view, Some(Fixture::busy().snapshot()), X, &NO_ENGINE).unwrap();
    assert!(text.contains("CLOSED") && text.contains("gone (dead)"), "{text}");
    assert!(text.contains("\nListeners\n") && text.contains("LISTEN"), "{text}");
}

#[test]
fn totals_have_what_users_of_smcd_stats_look_for() {
    let view = View { totals: true, ..View::default() };
    let text = page(&view, Some(Fixture::busy().snapshot()), X, &NO_ENGINE).unwrap();
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    // What stands under a heading, in the line that has all of these words.
    let under = |heading: &str, words: &[&str]| {
        let at = lines.iter().position(|cells| cells.contains(&heading));
        let head = &lines[at.unwrap_or_else(|| panic!("no {heading}: {text}"))];
        let line = lines
            .iter()
            .find(|cells| words.iter().all(|word| cells.iter().any(|cell| cell.ends_with(word))));
        let column = head.iter().rev().position(|name| *name == heading).unwrap();
        let line = line.unwrap_or_else(|| panic!("no {words:?}: {text}"));
        line[line.len() - 1 - column].to_owned()
    };
    for (heading, figure) in
        [("Attached", "7"), ("Client", "2"), ("Server", "5"), ("TxReqs", "35"), ("RxReqs", "46")]
            .into_iter()
            .chain([("Tx", "1.1K"), ("Rx", "601"), ("Stalls", "9")])
    {
        assert_eq!(under(heading, &["server", "1000"]), figure, "{heading}: {text}");
    }
    assert!(text.contains("\nBuffers in use\n"), "{text}");
    for way in ["Tx", "Rx"] {
        assert_eq!(under("64K", &["/server", way]), "1", "{text}");
        assert_eq!(under("128K", &["/server", way]), "0", "{text}");
    }
}

/// What the help tells users of `smcd stats`, piece by piece, and the headings that it sends them to.
const TOLD_IN_HELP: &[(&str, &[&str])] = &[
    ("SMC connections are Attached", &["Attached"]),
    ("of which Client and Server", &["Client", "Server"]),
    ("TCP fallback is in the table of fallbacks, by reason", &["Fallbacks to TCP", "Reason"]),
    ("data transmitted is Tx and Rx", &["Tx", "Rx"]),
    ("total requests are TxReqs and RxReqs", &["TxReqs", "RxReqs"]),
    ("Buffer full is Stalls", &["Stalls"]),
    ("buffers of each size are counted as in Bufs.", &["Buffers in use", "16K", "64K"]),
];

#[test]
fn the_help_sends_users_of_smcd_stats_to_headings_that_are_there() {
    let cli = crate::commands::Cli::command();
    let help = cli.find_subcommand("stat").unwrap().get_long_about().unwrap().to_string();
    let told = help.split("smcd stats, in --totals: ").nth(1).unwrap();
    let told = told.split("\n\n").next().unwrap();
    let view = View { totals: true, ..View::default() };
    let text = page(&view, Some(Fixture::busy().snapshot()), X, &NO_ENGINE).unwrap();
    let headings: Vec<&str> = text.split(['\n', ' ']).chain(text.lines()).collect();
    let mut rest = told.to_owned();
    for (piece, under) in TOLD_IN_HELP {
        assert!(told.contains(piece), "{piece}: {told}");
        rest = rest.replacen(piece, "", 1);
        for heading in *under {
            assert!(headings.contains(heading), "{heading}: {text}");
        }
    }
    // Whoever tells more there tells it here as well.
    let rest: Vec<&str> = rest.split([',', ';', ' ']).filter(|word| !word.is_empty()).collect();
    assert_eq!(rest.join(" "), "(calls that moved bytes) and", "{told}");
}

#[test]
fn totals_are_of_processes_pairs_and_reasons() {
    let view = View { totals: true, ..View::default() };
    let text = page(&view, Some(Fixture::busy().snapshot()), X, &NO_ENGINE).unwrap();
    assert!(text.contains("\nLink groups\n") && text.contains("/server"), "{text}");
    assert!(text.contains("\nFallbacks to TCP\n"), "{text}");
    assert!(text.contains("1 (peer does not run under shunt, or ended first)"), "{text}");
    assert!(!text.contains("127.0.0.1"), "{text}");
}

#[test]
fn json_has_the_ends_of_a_connection_that_name_each_other() {
    let object = json(&View::default(), Some(Fixture::busy().snapshot()));
    let connections = object["connections"].as_array().unwrap();
    let linked: Vec<_> = connections.iter().filter(|c| !c["peer_half"].is_null()).collect();
    assert_eq!(linked.len(), 2);
    assert_eq!(linked[0]["peer_half"], linked[1]["half"]);
    assert_eq!(linked[0]["mode"], "SHM");
    assert_eq!(linked[0]["state"], "ACTIVE");
    assert_eq!(linked[0]["local_address"], "127.0.0.1");
    assert_eq!(linked[0]["reason_words"], Value::Null);
    assert_eq!(linked[0]["bytes_tx"], 100);
    assert_eq!(object["processes"][0]["fallbacks"][0]["count"], 3);
}

#[test]
fn a_process_is_chosen_by_its_id() {
    let snapshot = Fixture::busy().snapshot();
    let gone = snapshot.processes.iter().find(|p| p.program == "gone").unwrap().pid;
    let view = View { pid: Some(gone), all: true, ..View::default() };
    let object = json(&view, Some(snapshot));
    assert_eq!(object["processes"].as_array().unwrap().len(), 1);
    assert_eq!(object["connections"].as_array().unwrap().len(), 1);
    assert_eq!(object["link_groups"].as_array().unwrap().len(), 0);
    assert_eq!(object["listeners"].as_array().unwrap().len(), 0);
}

#[test]
fn a_stream_has_an_object_a_line() {
    let view = View { json: true, watch: Some(Duration::from_secs(1)), ..View::default() };
    let text = page(&view, Some(Fixture::busy().snapshot()), X, &NO_ENGINE).unwrap();
    assert_eq!(text.lines().count(), 1);
}

#[test]
fn the_engine_is_shown_where_there_is_one_and_what_keeps_it_from_answering() {
    let of = |view: &View, loads: &Loads| {
        page(view, Some(Fixture::busy().snapshot()), X, loads).unwrap()
    };
    let loads = Ok(vec![Load { vector: 3, ..Load::default() }]);
    for totals in [false, true] {
        let text = of(&View { totals, ..View::default() }, &loads);
        assert!(text.contains("\nVectors of the engine\n"), "{text}");
    }
    assert!(!of(&View::default(), &NO_ENGINE).contains("Vectors"));
    let silent = Err("the engine does not answer: it sleeps".to_owned());
    assert!(of(&View::default(), &silent).contains("\nthe engine does not answer: it sleeps\n"));
    let object: Value =
        serde_json::from_str(&of(&View { json: true, ..View::default() }, &silent)).unwrap();
    assert_eq!(object["vectors"], Value::Null, "there may be some");
}
