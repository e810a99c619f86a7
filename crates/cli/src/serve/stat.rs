//! `shunt stat smb`: what a server has and has done, as tables or as JSON.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use engine::serve::control::Request;
use serde_json::Value;

use super::place::Place;
use crate::table::{self, Side};

const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";
/// Lines of sessions and of opens that people are shown, of each.
const LINES: usize = 40;

#[derive(Args, Debug)]
pub(crate) struct SmbArguments {
    /// Print a JSON object; with --watch, one a line
    #[arg(long)]
    json: bool,
    /// Print again every so many seconds, 0.1 to 86400 [2 if no number is given]
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "2",
        value_parser = crate::commands::seconds
    )]
    watch: Option<Duration>,
    /// All sessions and opens, and not the first 40 of each
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    place: Place,
}

/// Prints it, once or again and again.
pub(crate) fn run(arguments: &SmbArguments) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let clear = arguments.watch.is_some() && !arguments.json && std::io::stdout().is_terminal();
    loop {
        let stat = arguments.place.ask(&Request::Stat {})?;
        let text = match (arguments.json, arguments.watch) {
            (true, Some(_)) => serde_json::to_string(&stat)? + "\n",
            (true, None) => serde_json::to_string_pretty(&stat)? + "\n",
            (false, _) => text(&stat, if arguments.all { usize::MAX } else { LINES }),
        };
        if clear {
            out.write_all(CLEAR_SCREEN.as_bytes())?;
        }
        out.write_all(text.as_bytes())?;
        out.flush()?;
        let Some(pause) = arguments.watch else { return Ok(()) };
        std::thread::sleep(pause);
    }
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

/// A word that a client may have chosen: without what a terminal would obey.
fn word(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "-".into(),
        Value::String(text) => text.chars().map(|c| if c.is_control() { '?' } else { c }).collect(),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

/// A time in at most six characters.
fn time(value: &Value) -> String {
    let Some(ns) = value.as_u64() else { return "-".into() };
    match ns {
        0..10_000 => format!("{:.1}us", Duration::from_nanos(ns).as_secs_f64() * 1e6),
        10_000..10_000_000 => format!("{}us", ns / 1000),
        10_000_000..10_000_000_000 => format!("{}ms", ns / 1_000_000),
        _ => format!("{}s", ns / 1_000_000_000),
    }
}

fn joined(value: &Value, name: &str) -> String {
    let words: Vec<String> = list(value, name).map(word).collect();
    if words.is_empty() { "-".into() } else { words.join(",") }
}

fn text(stat: &Value, lines: usize) -> String {
    let driver = word(&stat["driver"]);
    let mut text = format!(
        "SMB server, pid {}, at {}, by {driver}, up {} s\nshares: {}\n",
        stat["pid"],
        joined(stat, "listen").replace(',', " and "),
        number(stat, "age_s"),
        joined(stat, "shares").replace(',', ", "),
    );
    if let Value::String(why) = &stat["fell_back"] {
        text += &format!("no io_uring: {why}\n");
    }
    let files = &stat["files"];
    text += &format!(
        "{} connections, {} sessions; {} files open {} times ({} away); {} oplocks, {} leases, {} breaking; \
         {} locks, {} waiting\nread {}, written {}\n",
        number(stat, "connections"),
        number(stat, "sessions_count"),
        number(files, "files"),
        number(files, "opens"),
        number(files, "away"),
        number(files, "oplocks"),
        number(files, "leases"),
        number(files, "breaking"),
        number(files, "locks"),
        number(files, "waiting"),
        table::bytes(number(stat, "bytes_read")),
        table::bytes(number(stat, "bytes_written")),
    );
    for slow in list(stat, "slow_shares") {
        let (calls, most) = (number(slow, "calls"), number(slow, "calls_max"));
        let full = if calls >= most { ": more calls wait" } else { "" };
        text += &format!(
            "the file system of {} keeps its callers waiting; {calls} of {most} threads are in it{full}\n",
            word(&slow["share"])
        );
    }
    text += &logons(stat);
    text += &limits(stat);
    let limited = number(stat, "connections_limited");
    if limited > 0 {
        text += &format!("{limited} connections closed: more than connections-max\n");
    }
    text += &commands(stat);
    text += &sessions(stat, lines);
    text += &opens(stat, lines);
    if stat["truncated"] == true {
        text += "\nThere are more sessions or opens than are told.\n";
    }
    text
}

/// What has happened, and how often.
fn happened(stat: &Value, name: &str) -> String {
    let all: Vec<String> = list(stat, name)
        .filter(|of| number(of, "count") > 0)
        .map(|of| format!("{} {}", word(&of["what"]).replace('_', " "), number(of, "count")))
        .collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// Who has come in, and who has not.
fn logons(stat: &Value) -> String {
    format!("logons: {}; refused: {}\n", happened(stat, "logons"), happened(stat, "logons_failed"))
}

/// What there is of each thing that has a limit. Nothing, if it is one of before there were these.
fn limits(stat: &Value) -> String {
    let most = &stat["limits"];
    if !most.is_object() {
        return String::new();
    }
    format!(
        "in use: {} of {} connections, {} of {} sessions, {} of {} descriptors, {} of {} for answers that wait\n",
        number(stat, "connections"),
        number(most, "connections_max"),
        number(stat, "sessions_count"),
        number(most, "sessions_max"),
        number(stat, "descriptors"),
        number(most, "descriptors_max"),
        table::bytes(number(stat, "backlog_bytes")),
        table::bytes(number(most, "backlog_bytes_max")),
    )
}

fn commands(stat: &Value) -> String {
    let rows: Vec<Vec<String>> = list(stat, "commands")
        .map(|c| {
            let mut row = vec![word(&c["command"])];
            row.extend(
                ["served", "failed", "limited", "waited"].map(|n| table::count(number(c, n))),
            );
            row.extend(["p50_ns", "p99_ns", "p999_ns"].map(|n| time(&c[n])));
            row
        })
        .collect();
    let columns = ["Command", "Served", "Failed", "Limited", "Waited", "50%", "99%", "99.9%"];
    under(
        &columns.map(|c| (c, if c == "Command" { Side::Left } else { Side::Right })),
        &rows,
        usize::MAX,
    )
}

/// A table after an empty line, if there is something in it.
fn under(columns: &[(&str, Side)], rows: &[Vec<String>], lines: usize) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let shown = &rows[..rows.len().min(lines)];
    let mut text = format!("\n{}", table::render(columns, shown));
    if shown.len() < rows.len() {
        text += &format!("and {} more (--all)\n", rows.len() - shown.len());
    }
    text
}

/// A line for each channel of a session.
fn sessions(stat: &Value, lines: usize) -> String {
    let mut rows = Vec::new();
    for session in list(stat, "sessions") {
        let user = match word(&session["kind"]).as_str() {
            "user" => word(&session["user"]),
            "guest" => format!("{} (guest)", word(&session["user"])),
            other => format!("({other})"),
        };
        let mut first = vec![format!("{:x}", number(session, "id")), user];
        first.extend(["dialect", "signing", "encryption"].map(|n| word(&session[n])));
        first.push(table::count(number(session, "opens")));
        let channels: Vec<&Value> = list(session, "channels").collect();
        for (at, channel) in channels.iter().enumerate() {
            let mut row = if at == 0 { first.clone() } else { vec![String::new(); first.len()] };
            row.push(word(&channel["peer"]));
            row.push(word(&channel["vector"]));
            row.extend(["bytes_in", "bytes_out"].map(|n| table::bytes(number(channel, n))));
            rows.push(row);
        }
        if channels.is_empty() {
            rows.push(first);
        }
    }
    let columns = [
        ("Session", Side::Left),
        ("User", Side::Left),
        ("SMB", Side::Left),
        ("Signing", Side::Left),
        ("Encryption", Side::Left),
        ("Opens", Side::Right),
        ("From", Side::Left),
        ("Vector", Side::Right),
        ("In", Side::Right),
        ("Out", Side::Right),
    ];
    under(&columns, &rows, lines)
}

fn opens(stat: &Value, lines: usize) -> String {
    let notes = |open: &Value| {
        let all = [
            ("breaking", "breaking"),
            ("durable", "durable"),
            ("away", "away"),
            ("delete_pending", "to be deleted"),
        ];
        let set: Vec<&str> =
            all.iter().filter(|(n, _)| open[*n] == true).map(|(_, w)| *w).collect();
        set.join(", ")
    };
    let rows: Vec<Vec<String>> = list(stat, "opens")
        .map(|open| {
            let path = if open["path"] == "" { "\\".to_owned() } else { word(&open["path"]) };
            vec![
                format!("{:x}", number(open, "session")),
                word(&open["user"]),
                word(&open["access"]),
                word(&open["shared"]),
                word(&open["caching"]),
                table::count(number(open, "locks")),
                word(&open["share"]),
                path,
                notes(open),
            ]
        })
        .collect();
    let columns = [
        ("Session", Side::Left),
        ("User", Side::Left),
        ("May", Side::Left),
        ("Others", Side::Left),
        ("Caching", Side::Left),
        ("Locks", Side::Right),
        ("Share", Side::Left),
        ("Path", Side::Left),
        ("", Side::Left),
    ];
    under(&columns, &rows, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_is_shown() {
        let stat = serde_json::json!({
            "pid": 7, "listen": ["0.0.0.0:445", "[::]:445"], "driver": "epoll", "age_s": 5,
            "fell_back": "it rains", "shares": ["music", "IPC$"], "connections": 2, "sessions_count": 1,
            "slow_shares": [{"share": "music", "calls": 16, "calls_max": 16}],
            "bytes_read": 2048, "bytes_written": 1, "connections_limited": 3, "truncated": true,
            "files": {"files": 1, "opens": 2, "locks": 4}, "descriptors": 5, "backlog_bytes": 4096,
            "logons": [{"what": "user", "count": 4}, {"what": "guest", "count": 0}],
            "logons_failed": [{"what": "wrong_password", "count": 6}, {"what": "locked_out", "count": 0}],
            "limits": {"connections_max": 4096, "sessions_max": 16384, "descriptors_max": 512,
                "backlog_bytes_max": 1 << 30},
            "commands": [{"command": "read", "served": 9, "failed": 1, "p50_ns": 1500, "p99_ns": 250_000}],
            "sessions": [{"id": 255, "user": "ann\u{1b}[2J", "kind": "user", "dialect": "3.1.1",
                "signing": "offered", "encryption": "aes128gcm", "opens": 2, "channels": [
                    {"peer": "192.0.2.1:50000", "vector": 0, "bytes_in": 10, "bytes_out": 2048},
                    {"peer": "192.0.2.1:50001", "vector": 1}]}],
            "opens": [{"session": 255, "user": "ann", "access": "rw", "shared": "r", "share": "music",
                "caching": "lease RH", "locks": 4, "path": "a\\b", "durable": true, "away": true}]});
        let text = text(&stat, LINES);
        for part in [
            "pid 7",
            "0.0.0.0:445 and [::]:445",
            "it rains",
            "music, IPC$",
            "1 files open 2 times",
            "read 2K",
            "logons: user 4; refused: wrong password 6\n",
            "in use: 2 of 4096 connections, 1 of 16384 sessions, 5 of 512 descriptors, 4K of 1G for answers",
            "3 connections closed",
            "the file system of music keeps its callers waiting; 16 of 16 threads are in it: more calls wait",
            "1.5us",
            "250us",
            "ann?[2J",
            "192.0.2.1:50001",
            "lease RH",
            "a\\b",
            "durable, away",
            "more sessions",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "a client's name speaks to the terminal");
    }

    #[test]
    fn long_lists_are_cut_unless_all_is_wanted() {
        let opens: Vec<Value> =
            (0..50).map(|i| serde_json::json!({"session": i, "path": "x"})).collect();
        let stat = serde_json::json!({"opens": opens});
        assert!(text(&stat, LINES).contains("and 10 more (--all)"));
        assert!(!text(&stat, usize::MAX).contains("more"));
    }

    #[test]
    fn times_are_short() {
        let shown: Vec<String> = [0, 1500, 9999, 10_000, 9_999_999, 10_000_000, 70_000_000_000]
            .map(|ns: u64| time(&ns.into()))
            .into();
        assert_eq!(shown, ["0.0us", "1.5us", "10.0us", "10us", "9999us", "10ms", "70s"]);
    }
}
