//! The manual pages: options from the command line's own definitions, the rest from here.
//!
//! `shunt man DIR` writes them; those in `docs/man` are checked by a test to be the same.

use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use engine::defrag;
use engine::defrag::live::Tally;
use engine::serve::config::SHARE_OPTIONS;
use local::Reason;
use local::config::SETTINGS;

use crate::commands::{self, Cli};

const CONFIG: &str = "SHUNT_CONFIG";

/// A term and what it means.
type Entry = (String, String);

const RUN_EXIT: &[(&str, &str)] = &[
    (
        "125",
        "shunt itself failed: a wrong option, or the library was not found; with --strict also a mistake in the \
         configuration file or in a SHUNT_ variable, with which the program runs on TCP otherwise",
    ),
    ("126", "the program was found but cannot be executed"),
    ("127", "the program was not found"),
    ("otherwise", "that of the program, which has replaced shunt"),
];
const DOCTOR_EXIT: &[(&str, &str)] = &[
    (
        "0",
        "the program can be (with --pid: is) accelerated; without a program, programs can be on this host",
    ),
    ("1", "it stays on TCP, or they do; or, with --pid, that cannot be told"),
    ("2", "wrong usage"),
];
const STAT_EXIT: &[(&str, &str)] = &[
    ("0", "success; also when there is no board, and so nothing to show"),
    (
        "1",
        "the board cannot be read; with --pid or --program, there is no such process, or it is not on the board",
    ),
    ("2", "wrong usage"),
];
const CONFIG_EXIT: &[(&str, &str)] = &[
    ("0", "nothing is wrong; also when there is no configuration file"),
    ("1", "something is wrong, and told; or the file that was named cannot be read"),
    ("2", "wrong usage"),
];
const CONFIG_FIELDS: &[(&str, &str)] = &[
    ("version", "of this format; fields may be added, none changes its meaning within one"),
    ("file", "the configuration file that was read; null if there is none"),
    ("valid", "of check: whether nothing is wrong"),
    ("mistakes", "each with line (null where it has none) and words"),
    ("warnings", "of check: what may be meant"),
    (
        "sections",
        "of show: each with name (null for what is outside of sections) and settings: each with name, value (null where it is \
         not set) and source, which is FILE:LINE, a variable, or default",
    ),
];
const SWITCH_EXIT: &[(&str, &str)] = &[
    ("0", "it is so from now on, or was before"),
    ("1", "it is not so, or not everywhere: standard error says why"),
    ("2", "wrong usage"),
];
const TOP_EXIT: &[(&str, &str)] = &[
    ("0", "it was shown until it was told to end"),
    ("1", "there is no terminal that it could be shown on, or the board cannot be read"),
    ("2", "wrong usage"),
];
const DEFRAG_EXIT: &[(&str, &str)] = &[
    (
        "0",
        "all of the input was read and all of the output written; with --interface it ran until --count, --seconds, \
         SIGINT (Ctrl-C), SIGTERM or SIGHUP",
    ),
    ("1", "the input was damaged from some byte on, which is told; what could be read is written"),
    (
        "2",
        "wrong usage, or a file that cannot be opened or written or is no capture; with --interface whatever \
         keeps it from beginning or going on, as when the interface or the device goes away",
    ),
    (
        "130",
        "a second SIGINT (Ctrl-C) or SIGTERM came before the end that the first one had asked for",
    ),
];
const ENGINE_EXIT: &[(&str, &str)] = &[
    ("0", "the engine ran until it was told to end; or it took the settings, or answered"),
    ("1", "it cannot start, or none runs, or it refuses a setting: standard error says why"),
    ("2", "wrong usage"),
];
const DRAIN_EXIT: &[(&str, &str)] = &[
    (
        "0",
        "the engine takes no new connections, or has ended (--wait), or takes them again (--undo)",
    ),
    (
        "1",
        "none runs, or it is too late for --undo; with --wait, connections are left after SECONDS, or somebody has it take \
         connections again: standard error says what",
    ),
    ("2", "wrong usage"),
];
const SERVE_EXIT: &[(&str, &str)] = &[
    ("0", "the server ran until it was told to end; or what was asked for was done"),
    ("1", "it cannot start, or none runs, or it refuses: standard error says why"),
    ("2", "wrong usage"),
];
const USER_EXIT: &[(&str, &str)] = &[
    ("0", "it was done, or the users were shown"),
    ("1", "it was not, and nothing has changed: standard error says why"),
    ("2", "wrong usage"),
];
const MAIN_EXIT: &[(&str, &str)] = &[
    ("0", "success"),
    ("1", "failure"),
    ("2", "wrong usage; shunt run has values of its own, see shunt-run(1)"),
];

const JSON_FIELDS: &[(&str, &str)] = &[
    (
        "version, board, switched_off, time_ms, truncated",
        "version of this format (1); path of the board; whether new connections stay on TCP (shunt-off(1)); when it was \
         read, milliseconds since 1970; whether something was left out because there was too much",
    ),
    ("processes", "one object for each process"),
    ("  slot, pid, uid, program, alive, since", "who; since in seconds since 1970"),
    (
        "  host_pid, elsewhere, container",
        "pid as it is seen from here, null if it is not; whether the process is in another pid namespace, in \
         which pid is its number; identity of its container, shortened, or null",
    ),
    ("  memory_owned_bytes, memory_used_bytes", "shared memory taken, and in use for buffers"),
    (
        "  connections_shm, connections_smcr, connections_tcp",
        "ends of connections that are open now, by mode",
    ),
    (
        "  attached_total, attached_clients, closed_total",
        "connections that were ever in shared memory, those of them that the process had made with \
         connect(), and those closed",
    ),
    (
        "  bytes_tx, bytes_rx, doorbells, sleeps, spins, stalls, sends, receives",
        "since the process joined: bytes sent and received through shared memory; one-byte wake-ups \
         sent over TCP; sleeps in the kernel; waits that spinning answered; times a buffer was full; \
         calls that sent, and that received bytes",
    ),
    (
        "  tx_buffers, rx_buffers",
        "of open connections, how many buffers there are of up to 8, 16, 32, 64, 128, 256 and 512 KiB, and larger",
    ),
    ("  fallbacks", "reason, words, count: why connections stayed on TCP or went back to it"),
    ("link_groups", "one object for each pair of processes with connections in shared memory"),
    (
        "  slot, pid, host_pid, program, peer_slot, peer_pid, peer_host_pid, peer_program",
        "the two processes",
    ),
    (
        "  connections, bytes_tx, bytes_rx, doorbells, sleeps, stalls",
        "over the connections that are open now; tx from the first to the second; bells, sleeps and \
         stalls of both",
    ),
    ("connections", "one object for each end of a connection"),
    ("  half, generation", "together, these name the end for as long as it exists"),
    (
        "  state",
        "ACTIVE, INIT (offered), PEERCLW (we have shut down), APPCLW (the peer has), CLOSED",
    ),
    (
        "  mode, reason, reason_words",
        "SHM, SMCR or TCP; why TCP: number and words; 0 and null otherwise. Numbers from 65536 on are those of \
         SMC (RFC 7609 A.2.4), with 2147483648 added where the peer has said it",
    ),
    ("  tx_mode, rx_mode", "mode of each direction; rx_mode is null if the peer is not known"),
    ("  client", "whether this end called connect()"),
    ("  uid, inode, fd, slot, pid, host_pid, program, alive", "whose end it is"),
    ("  local_address, local_port, peer_address, peer_port", "its addresses, IPv4 written as such"),
    (
        "  peer_slot, peer_pid, peer_host_pid, peer_program, peer_half",
        "the other end, null if it is not known",
    ),
    ("  since_ns", "when it was offered or attached, nanoseconds since 1970"),
    (
        "  bytes_tx, bytes_rx, doorbells, sleeps, spins, stalls, sends, receives",
        "of this end, as for processes",
    ),
    (
        "  tx_buffer_bytes, tx_buffer_used_bytes, tx_buffer_peak_bytes",
        "buffer that this end writes to",
    ),
    ("  rx_buffer_bytes, rx_buffer_used_bytes", "buffer that the peer writes to"),
    ("listeners", "port, slot, pid, host_pid, uid, program: one object for each port listened on"),
    (
        "vectors",
        "one object for each vector of the engine: none without an engine, null if it does not answer",
    ),
    (
        "  vector, connections, link_groups, links, completions, bytes_tx, bytes_rx, cpu_ns, cpu_percent",
        "which one; what it has: connections by SMC, link groups, their links (queue pairs); what it has done since the \
         engine began: completions, bytes by RDMA WRITE, CPU time; percent of a CPU since the last look (--watch)",
    ),
];

const DEFRAG_FIELDS: &[(&str, &str)] = &[
    ("version", "version of this format (1); keys are added, never changed"),
    ("bytes, packets", "read from the input"),
    ("packets_written", "written to the output"),
    ("fragments, datagrams", "fragments that came, and datagrams that they made"),
    ("datagrams_incomplete", "not complete when the input ended"),
    (
        "fragments_lost",
        "that went with datagrams which were dropped, or not complete; with --keep-incomplete written all the same",
    ),
    ("fragments_kept", "written as they came because of --keep-incomplete or of their tunnel"),
    ("fragments_too_long", "of datagrams that would not fit into their tunnel; left as they came"),
    ("packets_cut", "recorded without their end (snap length), and no fragments; passed through"),
    ("packets_malformed", "with an IP header that makes no sense; passed through"),
    ("packets_unknown_link", "of link types that are not known; passed through"),
    (
        "dropped",
        "reason, words, fragments, datagrams: why fragments were dropped on their own, or datagrams",
    ),
    ("damage", "byte, packet, words: where the input stopped making sense, and how; or null"),
];

const LIVE_FIELDS: &[(&str, &str)] = &[
    ("version", "version of this format (1); keys are added, never changed"),
    ("seconds", "time that the rates of this line are of; at the end, of the whole run"),
    (
        "packets_per_s, fragments_per_s, datagrams_per_s, gbit_per_s",
        "frames that the ring brought, fragments, datagrams put together, gigabits of their payload, each a second",
    ),
    ("cpu", "CPUs that the workers kept busy"),
    (
        "frames, frame_bytes, ring_dropped, unread, other_frames, no_frame, handed_over, taken_over, lane_full, \
         whole_packets, fragments, datagrams, bytes, fragments_delivered, fragments_lost, output_sent, output_dropped, \
         output_failed, output_unwritten, output_surplus",
        "since the beginning: as the metrics with _total behind these names",
    ),
    (
        "in_progress, fragments_in_progress, memory_bytes",
        "at the moment, as each worker has said within 50 ms: as the metrics of these names",
    ),
    (
        "fragments_dropped, datagrams_dropped",
        "since the beginning, an object: how many for each reason that has occurred",
    ),
];

/// Names and meanings of the metrics of `shunt defrag --interface`, as they are served.
fn metrics_of_defrag() -> Vec<Entry> {
    let page = Tally::default().prometheus();
    let heads = page.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    let labels = |name: &str| {
        let labelled = page.contains(&format!("\n{name}{{reason="));
        if labelled { "{reason=\"...\"}" } else { "" }
    };
    let entry =
        |(name, meaning): (&str, &str)| (format!("{name}{}", labels(name)), meaning.to_owned());
    heads.map(entry).collect()
}

fn reasons_for_drops() -> Vec<Entry> {
    let of = |reason: &defrag::Reason| (reason.key().to_owned(), reason.words().to_owned());
    defrag::Reason::ALL.iter().map(of).collect()
}

fn entries(from: &[(&str, &str)]) -> Vec<Entry> {
    from.iter().map(|(term, meaning)| ((*term).to_owned(), (*meaning).to_owned())).collect()
}

/// What matters to those who only look.
fn environment_of_viewers() -> Vec<Entry> {
    environment()
        .into_iter()
        .filter(|(name, _)| ["SHUNT_DIR", CONFIG].contains(&name.as_str()))
        .collect()
}

fn environment() -> Vec<Entry> {
    let own = [
        (CONFIG, "path of the configuration file, instead of the usual ones"),
        ("SHUNT_PRELOAD", "path of libshunt_preload.so, instead of the usual places"),
        (
            "LD_PRELOAD",
            "shunt run puts the library in front of what is there and keeps the rest; see ld.so(8). Where it lies as packages \
             have it, by $LIB, a word that musl does not know: programs with musl that the program starts stay on TCP. \
             Otherwise these do not start",
        ),
    ];
    let settings = SETTINGS.iter().map(|s| (s.env.to_owned(), s.help.to_owned()));
    settings.chain(entries(&own)).collect()
}

const HOME: (&str, &str) =
    ("XDG_CONFIG_HOME, HOME", "where the file of users lies, unless --users says it");
const USERS: (&str, &str) = (
    "~/.config/shunt/users, /etc/shunt/users",
    "who may log on, made by shunt serve user; the second for root. Refused if others can read it",
);

fn environment_of_servers() -> Vec<Entry> {
    entries(&[
        (CONFIG, "path of the configuration file, instead of the usual ones"),
        (
            "RUNTIME_DIRECTORY, XDG_RUNTIME_DIR",
            "where the socket for shunt stat smb lies: in the first, else in shunt of the second, for root in \
             /run/shunt, else in /dev/shm/shunt-UID",
        ),
        ("LISTEN_PID, LISTEN_FDS", "sockets to listen on, handed over as sd_listen_fds(3) says"),
    ])
}

fn files_of_servers() -> Vec<Entry> {
    entries(&[
        (
            "~/.config/shunt/config.toml, /etc/shunt/config.toml",
            "settings, in the section [serve]; the first that exists is read. $XDG_CONFIG_HOME stands for \
             ~/.config where it is set",
        ),
        USERS,
        ("serve-PORT", "the socket by which a server is asked; see ENVIRONMENT"),
    ])
}

fn files() -> Vec<Entry> {
    entries(&[
        (
            "~/.config/shunt/config.toml, /etc/shunt/config.toml",
            "settings; the first that exists is read. $XDG_CONFIG_HOME stands for ~/.config where it is set",
        ),
        (
            "/dev/shm/shunt-UID/board-NETNS-vN",
            "the board: who takes part, and the shared memory; one for each user and network namespace. \
             Made by the first program, and free to be removed when none runs",
        ),
        (
            "/dev/shm/shunt-UID/switched-off",
            "where it is, new connections stay on TCP: made by shunt off, and removed by shunt on",
        ),
        (
            "libshunt_preload.so",
            "the library: looked for beside the shunt program, then in ../lib/shunt, /usr/lib/shunt and \
             /usr/local/lib/shunt",
        ),
    ])
}

fn reasons() -> Vec<Entry> {
    Reason::ALL.iter().map(|r| (r.code().to_string(), r.words().to_owned())).collect()
}

fn section(roff: &mut Roff, title: &str, entries: Vec<Entry>) {
    roff.control("SH", [title]);
    for (term, meaning) in entries {
        roff.control("TP", []);
        roff.text([bold(term)]);
        roff.text([roman(meaning)]);
    }
}

/// Text that stays as it is set.
fn verbatim(roff: &mut Roff, title: &str, text: &str) {
    roff.control("SH", [title]);
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

/// The page of the command that a command belongs to.
fn above(own: &str) -> &str {
    own.rsplit_once('-').map_or("shunt", |(above, _)| above)
}

fn see_also(roff: &mut Roff, own: &str) {
    let all = [
        "shunt",
        "shunt-run",
        "shunt-doctor",
        "shunt-stat",
        "shunt-top",
        "shunt-off",
        "shunt-on",
        "shunt-engine",
        "shunt-serve",
        "shunt-defrag",
        "shunt-config",
        "shunt-completions",
    ];
    // A command within another is read beside that one.
    let near = [above(own)];
    let pages = if own == "shunt" || above(own) == "shunt" { &all[..] } else { &near };
    let others = pages.iter().filter(|page| **page != own).map(|page| format!("{page}(1)"));
    let others: Vec<String> = others.chain(["ld.so(8)".into(), "ss(8)".into()]).collect();
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(others.join(", "))]);
}

/// One page: its file name and text.
fn page(command: &Command) -> anyhow::Result<(String, String)> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let source = format!("shunt {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).title(name.as_str()).source(source).manual("Shunt");
    let mut bytes = Vec::new();
    man.render_title(&mut bytes)?;
    man.render_name_section(&mut bytes)?;
    man.render_synopsis_section(&mut bytes)?;
    man.render_description_section(&mut bytes)?;
    man.render_options_section(&mut bytes)?;
    if command.get_subcommands().any(|c| !c.is_hide_set()) {
        man.render_subcommands_section(&mut bytes)?;
    }
    let mut roff = Roff::default();
    more_sections(&mut roff, &name);
    see_also(&mut roff, &name);
    let mut text = String::from_utf8(bytes).context("not UTF-8")?;
    text.push_str(&roff.to_roff());
    Ok((format!("{name}.1"), without_repeated_preambles(&text)))
}

/// Each piece of a page brings the same preamble, which defines an apostrophe; one is enough.
fn without_repeated_preambles(text: &str) -> String {
    let preamble = |line: &str| line.starts_with(".ie \\n(.g") || line.starts_with(".el .ds Aq");
    let lines = text.lines().enumerate().filter(|(i, line)| *i < 2 || !preamble(line));
    lines.flat_map(|(_, line)| [line, "\n"]).collect()
}

fn more_sections(roff: &mut Roff, name: &str) {
    let (examples, exit) = match name {
        "shunt-run" => (Some(commands::EXAMPLES_RUN), RUN_EXIT),
        "shunt-doctor" => (Some(commands::EXAMPLES_DOCTOR), DOCTOR_EXIT),
        "shunt-stat" => (Some(commands::EXAMPLES_STAT), STAT_EXIT),
        "shunt-stat-smb" => (None, SERVE_EXIT),
        "shunt-top" => (None, TOP_EXIT),
        "shunt-off" => (Some(commands::EXAMPLES_OFF), SWITCH_EXIT),
        "shunt-on" => (Some(commands::EXAMPLES_ON), SWITCH_EXIT),
        "shunt-share" => (Some(commands::EXAMPLES_SHARE), MAIN_EXIT),
        "shunt-config" => (Some(commands::EXAMPLES_CONFIG), CONFIG_EXIT),
        name if name.starts_with("shunt-config-") => (None, CONFIG_EXIT),
        "shunt-completions" => (Some(commands::EXAMPLES_COMPLETIONS), MAIN_EXIT),
        "shunt-engine" => (Some(commands::EXAMPLES_ENGINE), ENGINE_EXIT),
        "shunt-serve" => (Some(commands::EXAMPLES_SERVE), SERVE_EXIT),
        "shunt-defrag" => (Some(commands::EXAMPLES_DEFRAG), DEFRAG_EXIT),
        "shunt-engine-drain" => (None, DRAIN_EXIT),
        name if name.starts_with("shunt-engine-") => (None, ENGINE_EXIT),
        name if name.starts_with("shunt-serve-user") => (None, USER_EXIT),
        name if name.starts_with("shunt-serve-") => (None, SERVE_EXIT),
        _ => (Some(commands::EXAMPLES), MAIN_EXIT),
    };
    if name == "shunt-stat" {
        section(roff, "JSON", entries(JSON_FIELDS));
        section(roff, "REASONS FOR TCP", reasons());
    }
    if name == "shunt-config" {
        section(roff, "JSON", entries(CONFIG_FIELDS));
    }
    if name == "shunt-serve" {
        let options = SHARE_OPTIONS.iter();
        let options = options.map(|o| (format!("{}={}", o.name, o.value), o.help.to_owned()));
        section(roff, "OPTIONS OF A SHARE", options.collect());
    }
    if name.starts_with("shunt-serve-user") {
        section(roff, "ENVIRONMENT", entries(&[HOME]));
        section(roff, "FILES", entries(&[USERS]));
    } else if name.starts_with("shunt-serve") || name == "shunt-stat-smb" {
        section(roff, "ENVIRONMENT", environment_of_servers());
        section(roff, "FILES", files_of_servers());
    } else if name == "shunt-defrag" {
        section(roff, "JSON", entries(DEFRAG_FIELDS));
        section(roff, "LIVE JSON", entries(LIVE_FIELDS));
        section(roff, "METRICS", metrics_of_defrag());
        section(roff, "REASONS FOR DROPS", reasons_for_drops());
    } else {
        let looks = matches!(name, "shunt-stat" | "shunt-top" | "shunt-off" | "shunt-on")
            || name.starts_with("shunt-engine");
        section(roff, "ENVIRONMENT", if looks { environment_of_viewers() } else { environment() });
        section(roff, "FILES", files());
    }
    section(roff, "EXIT STATUS", entries(exit));
    if let Some(examples) = examples {
        verbatim(roff, "EXAMPLES", examples.strip_prefix("Examples:\n").unwrap_or(examples));
    }
}

/// Each page: its file name and text.
fn pages() -> anyhow::Result<Vec<(String, String)>> {
    let mut command = Cli::command();
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &mut pages)?;
    Ok(pages)
}

/// That of a command, and those of the commands within it.
fn add_pages(command: &Command, pages: &mut Vec<(String, String)>) -> anyhow::Result<()> {
    pages.push(page(command)?);
    let mut visible = command.get_subcommands().filter(|c| !c.is_hide_set());
    visible.try_for_each(|within| add_pages(within, pages))
}

/// Writes the pages.
pub(crate) fn write(dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    for (name, text) in pages()? {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_pages_in_docs_are_up_to_date() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
        let mut names = BTreeSet::new();
        for (name, text) in pages().unwrap() {
            let there = std::fs::read_to_string(dir.join(&name)).unwrap_or_default();
            let how = "run: cargo run -p shunt-cli -- man docs/man";
            assert!(there == text, "docs/man/{name} is out of date; {how}");
            names.insert(name);
        }
        let files = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().file_name().into_string());
        let files: BTreeSet<String> = files.map(Result::unwrap).collect();
        assert_eq!(files, names, "a page that nobody writes");
    }

    #[test]
    fn each_page_has_its_sections() {
        for (name, text) in pages().unwrap() {
            // It reads nothing but its input.
            let middle =
                if name == "shunt-defrag.1" { ["JSON"; 2] } else { ["ENVIRONMENT", "FILES"] };
            for title in ["NAME", "SYNOPSIS", "OPTIONS", "EXIT STATUS"].iter().chain(&middle) {
                let heading = [format!(".SH {title}\n"), format!(".SH \"{title}\"\n")];
                assert!(heading.iter().any(|h| text.contains(h)), "{name}: {title}");
            }
            assert!(!text.contains("man DIR"), "{name} has a hidden command");
        }
    }

    #[test]
    fn each_page_that_is_named_is_there() {
        let pages = pages().unwrap();
        for (name, text) in &pages {
            for other in text.split("shunt\\-").skip(1).filter_map(|rest| rest.split_once("(1)")) {
                let other = format!("shunt-{}.1", other.0.replace('\\', ""));
                let is_page =
                    other.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b));
                let there = pages.iter().any(|(name, _)| *name == other);
                assert!(!is_page || there, "{name} names {other}, which nobody writes");
            }
        }
    }

    #[test]
    fn each_field_of_the_summary_is_in_the_manual() {
        let documented: BTreeSet<&str> =
            DEFRAG_FIELDS.iter().flat_map(|(names, _)| names.split(", ")).collect();
        assert_eq!(documented, crate::defrag::tests::fields().iter().map(|f| &**f).collect());
    }

    #[test]
    fn each_field_of_a_line_of_statistics_is_in_the_manual() {
        let documented: BTreeSet<&str> =
            LIVE_FIELDS.iter().flat_map(|(names, _)| names.split(", ")).collect();
        let fields = crate::defrag::live::tests::fields();
        assert_eq!(documented, fields.iter().map(|f| &**f).collect());
    }

    /// What is said of the fields is true: they are the metrics of these names.
    #[test]
    fn each_metric_is_in_the_manual_and_a_field_where_it_is_said_to_be() {
        let metrics: BTreeSet<String> =
            metrics_of_defrag().into_iter().map(|(name, _)| name).collect();
        let page = Tally::default().prometheus();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            assert!(metrics.iter().any(|metric| metric.split('{').next() == Some(name)), "{name}");
        }
        for (names, meaning) in LIVE_FIELDS {
            let behind = match *meaning {
                text if text.contains("as the metrics with _total") => "_total",
                text if text.contains("as the metrics") => "",
                text if text.contains("for each reason") => "_total{reason=\"...\"}",
                _ => continue,
            };
            for name in names.split(", ") {
                assert!(metrics.contains(&format!("shunt_defrag_{name}{behind}")), "{name}");
            }
        }
    }

    /// Names of the fields in the manual, by the array that they belong to.
    #[test]
    fn each_field_of_the_json_is_in_the_manual() {
        let documented: BTreeSet<&str> =
            JSON_FIELDS.iter().flat_map(|(names, _)| names.trim().split(", ")).collect();
        for field in crate::stat::tests::fields() {
            let inside = ["reason", "words", "count"].contains(&field.as_str());
            assert!(inside || documented.contains(field.as_str()), "{field} is not documented");
        }
    }
}
