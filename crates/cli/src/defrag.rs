//! `shunt defrag`: what its options mean, and what it says.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use engine::defrag::{Config, Error, Options, Policy, Report, run};
use serde_json::{Value, json};

mod bar;
pub(crate) mod live;

use crate::say;

use bar::Bar;
use live::LiveArguments;

/// All of it was read and written.
const EXIT_OK: u8 = 0;
/// The input was damaged; what could be read is written.
const EXIT_DAMAGED: u8 = 1;
const EXIT_USAGE: u8 = 2;

const STDIO: &str = "-";

#[derive(Args, Debug)]
pub(crate) struct DefragArguments {
    /// The capture to read, pcap or pcapng; - is standard input
    #[arg(required_unless_present = "interface", conflicts_with_all = ["interface"].iter().chain(live::OPTIONS))]
    input: Option<PathBuf>,
    /// The capture to write, .pcap or .pcapng; other names have the format of INPUT; - is standard output
    #[arg(required_unless_present = "interface", conflicts_with = "interface")]
    output: Option<PathBuf>,
    /// Print a JSON object to standard output; to standard error if the capture goes there (OUTPUT - or /dev/stdout, --write /dev/stdout), where then nothing else is but errors and warnings. With --interface one a line, as often as statistics, and one of all at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    rules: Rules,
    #[command(flatten)]
    live: LiveArguments,
}

/// How fragments are put together.
#[derive(Args, Debug)]
pub(crate) struct Rules {
    /// Also put together what is fragmented inside of tunnels, up to 4 deep: GRE, IP in IP, VXLAN (UDP port
    /// 4789), GTP-U (UDP port 2152)
    #[arg(long, conflicts_with = "interface")]
    tunnels: bool,
    /// Write fragments that make no datagram as they came, instead of dropping them
    #[arg(long, conflicts_with = "interface")]
    keep_incomplete: bool,
    /// Whose bytes count where fragments overlap: as the hosts see it that the capture is about
    #[arg(long, value_name = "POLICY", default_value = "strict", value_parser = policies())]
    policy: String,
    /// Memory for fragments that wait for others, at least 64K
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    memory: u64,
    /// How long an IPv4 datagram may take from its first fragment on, seconds: of the capture's time, live of the clock
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    timeout: u64,
    /// The same for IPv6
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    timeout6: u64,
    /// Most fragments of one datagram, 2 to 8192
    #[arg(long, value_name = "N", default_value_t = Config::default().fragments_max, value_parser = clap::value_parser!(u16).range(2..=8192))]
    max_fragments: u16,
    /// Fewest bytes of payload in a fragment that is not the last, at most 1280; smaller ones are dropped
    #[arg(long, value_name = "BYTES", default_value_t = Config::default().fragment_min, value_parser = clap::value_parser!(u16).range(..=1280))]
    min_fragment: u16,
}

impl Rules {
    pub(crate) fn options(&self) -> Options {
        let policy = Policy::ALL.iter().find(|policy| policy.name() == self.policy);
        let config = Config {
            memory_bytes: self.memory,
            fragments_max: self.max_fragments,
            fragment_min: self.min_fragment,
            timeout_v4_ns: self.timeout,
            timeout_v6_ns: self.timeout6,
            overlap: policy.copied().unwrap_or_default(),
            ..Config::default()
        };
        Options { config, tunnels: self.tunnels, keep_incomplete: self.keep_incomplete }
    }
}

fn policies() -> PossibleValuesParser {
    let value = |policy: &Policy| PossibleValue::new(policy.name()).help(meaning(*policy));
    PossibleValuesParser::new(Policy::ALL.iter().map(value))
}

/// Whose bytes count, of an old and a new fragment that overlap.
const fn meaning(policy: Policy) -> &'static str {
    match policy {
        Policy::Strict => {
            "nobody's: the datagram is dropped, as hosts should (RFC 5722). A fragment of exactly the same range is taken \
             for a duplicate and dropped alone: contents are not compared"
        }
        Policy::First => "the old one's",
        Policy::Last => "the new one's",
        Policy::Bsd => "the old one's if it begins before the new one or with it",
        Policy::BsdRight => "the new one's if the old one begins before it or with it",
        Policy::Linux => "the old one's if it begins before the new one",
        Policy::Windows => "the old one's unless the new one begins before it and ends behind it",
        Policy::Solaris => "the same, or unless the new one begins before it and ends with it",
    }
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = local::config::parse_size(text).and_then(|n| u64::try_from(n).ok());
    bytes.filter(|n| *n >= 64 << 10).ok_or_else(|| "a size such as 64M, at least 64K".into())
}

/// Nanoseconds in so many seconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the range")]
fn seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|s: &f64| (0.001..=86400.0).contains(s));
    seconds.map(|s| (s * 1e9) as u64).ok_or_else(|| "seconds, 0.001 to 86400".into())
}

/// Does it; the exit status.
pub(crate) fn defrag(arguments: &DefragArguments) -> Result<u8, (u8, anyhow::Error)> {
    let DefragArguments { input, output, json, rules, live } = arguments;
    let (Some(input), Some(output)) = (input, output) else {
        return live.run(rules.options().config, *json).map_err(|e| (EXIT_USAGE, e));
    };
    let mut bar = Bar::new();
    let report = run(input, output, &rules.options(), &mut |at, of| bar.show(at, of));
    bar.clear();
    let report = report.map_err(|e| (status_of(&e), blame(e, input)))?;
    if *json {
        print_json(&report, output).map_err(|e| (EXIT_USAGE, e.into()))?;
    } else {
        say::plain(text(&report));
    }
    match &report.damage {
        None => Ok(EXIT_OK),
        // Standard error is the object, which says so.
        Some(_) if *json && is_aside(output) => Ok(EXIT_DAMAGED),
        Some(damage) => {
            say::line(format_args!(
                "shunt: {}: damaged {damage}; everything before it is in the output",
                name(input)
            ));
            Ok(EXIT_DAMAGED)
        }
    }
}

fn status_of(e: &Error) -> u8 {
    if matches!(e, Error::Damaged(_)) { EXIT_DAMAGED } else { EXIT_USAGE }
}

/// Errors that are about the input do not know its name.
fn blame(e: Error, input: &Path) -> anyhow::Error {
    match &e {
        Error::NoCapture
        | Error::UnknownLink(_)
        | Error::LinksDiffer(..)
        | Error::ChecksumsDiffer => anyhow::anyhow!("{} {e}", name(input)),
        Error::Damaged(damage) if damage.at == 0 && is_of(input, std::fs::Metadata::is_dir) => {
            anyhow::anyhow!("{} is a directory, and no capture", name(input))
        }
        Error::Damaged(damage) if damage.at == 0 && is_of(input, |about| about.len() == 0) => {
            anyhow::anyhow!("{} is empty", name(input))
        }
        Error::Damaged(_) => anyhow::anyhow!("{}: {e}; there is nothing to write", name(input)),
        Error::Write(io) if io.kind() == std::io::ErrorKind::BrokenPipe => {
            std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()
        }
        _ => e.into(),
    }
}

/// Whether the input is a file, or a directory, of which this is true.
fn is_of(input: &Path, what: impl Fn(&std::fs::Metadata) -> bool) -> bool {
    let is_plain = |about: &std::fs::Metadata| about.is_file() || about.is_dir();
    std::fs::metadata(input).is_ok_and(|about| is_plain(&about) && what(&about))
}

fn name(input: &Path) -> String {
    if input.as_os_str() == STDIO { "standard input".into() } else { input.display().to_string() }
}

fn print_json(report: &Report, output: &Path) -> std::io::Result<()> {
    let text = format!("{:#}\n", to_json(report));
    if is_aside(output) {
        return std::io::stderr().write_all(text.as_bytes());
    }
    std::io::stdout().write_all(text.as_bytes())
}

/// Whether the object is to go to standard error, for the capture goes to standard output.
fn is_aside(output: &Path) -> bool {
    output.as_os_str() == STDIO || is_standard_output(output)
}

/// Whether what is written to this file is what others take for our standard output, as /dev/stdout is. Devices that keep
/// nothing do not count.
fn is_standard_output(path: &Path) -> bool {
    let out = std::io::stdout().as_fd().try_clone_to_owned().map(std::fs::File::from);
    let both = out.and_then(|out| out.metadata()).ok().zip(path.metadata().ok());
    both.is_some_and(|(a, b)| {
        !a.file_type().is_char_device() && (a.dev(), a.ino()) == (b.dev(), b.ino())
    })
}

/// Keys stay what they are; there may be more in time.
fn to_json(report: &Report) -> Value {
    let dropped = report.dropped().map(|(reason, fragments, datagrams)| {
        json!({
            "reason": reason.key(),
            "words": reason.words(),
            "fragments": fragments,
            "datagrams": datagrams,
        })
    });
    json!({
        "version": 1,
        "bytes": report.bytes,
        "packets": report.packets,
        "packets_written": report.written,
        "fragments": report.frag.fragments,
        "datagrams": report.frag.datagrams,
        "datagrams_incomplete": report.incomplete,
        "fragments_lost": report.frag.fragments_lost,
        "fragments_kept": report.kept,
        "fragments_too_long": report.too_long,
        "packets_cut": report.cut,
        "packets_malformed": report.malformed,
        "packets_unknown_link": report.unknown_link,
        "dropped": dropped.collect::<Vec<_>>(),
        "damage": report.damage.as_ref().map(|damage| json!({
            "byte": damage.at,
            "packet": damage.packets,
            "words": damage.why.to_string(),
        })),
    })
}

fn text(report: &Report) -> String {
    let mut lines = vec![format!(
        "{}, {}, {} put together, {} written",
        counted(report.packets, "packet"),
        counted(report.frag.fragments, "fragment"),
        counted(report.frag.datagrams, "datagram"),
        counted(report.written, "packet")
    )];
    let mut line = |n: u64, words: &str| {
        if n > 0 {
            lines.push(format!("{n:>9}  {words}"));
        }
    };
    line(report.incomplete, "datagrams were not complete at the end");
    for (reason, fragments, datagrams) in report.dropped() {
        line(datagrams, &format!("datagrams dropped: {}", reason.words()));
        line(fragments, &format!("fragments dropped: {}", reason.words()));
    }
    line(report.kept, "fragments written as they came");
    line(
        report.too_long,
        "fragments left as they came: the datagram would not fit into its tunnel",
    );
    line(
        report.cut,
        "packets hold less than they had on the wire (record with -s 0): passed through",
    );
    line(report.malformed, "packets with an IP header that makes no sense: passed through");
    let links: Vec<String> = report.unknown_links.iter().map(u32::to_string).collect();
    let more = if report.more_unknown_links { " and more" } else { "" };
    let unknown =
        format!("packets of unknown link types ({}{more}): passed through", links.join(", "));
    line(report.unknown_link, &unknown);
    lines.join("\n") + "\n"
}

fn counted(n: u64, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Names of all fields of the summary.
    pub(crate) fn fields() -> Vec<String> {
        let Value::Object(fields) = to_json(&Report::default()) else { unreachable!() };
        fields.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn settings_are_written_as_people_do() {
        assert_eq!(size("64K"), Ok(64 << 10));
        assert_eq!(size("2G"), Ok(2 << 30));
        assert!(size("1K").is_err() && size("x").is_err());
        assert_eq!(seconds("0.5"), Ok(500_000_000));
        assert!(seconds("0").is_err() && seconds("nan").is_err() && seconds("1e9").is_err());
    }

    #[test]
    fn the_summary_has_a_line_for_each_reason() {
        let mut report = Report { packets: 2, written: 1, incomplete: 3, ..Report::default() };
        report.frag.datagrams_dropped[frag_reason("overlap")] = 4;
        report.frag.fragments_dropped[frag_reason("duplicate")] = 5;
        let expected = "2 packets, 0 fragments, 0 datagrams put together, 1 packet written\n        \
                        3  datagrams were not complete at the end\n        \
                        4  datagrams dropped: fragments overlap\n        \
                        5  fragments dropped: fragment was here already\n";
        assert_eq!(text(&report), expected);
    }

    fn frag_reason(key: &str) -> usize {
        let reasons = engine::defrag::Reason::ALL.iter();
        reasons.copied().find(|reason| reason.key() == key).map_or(0, |reason| reason as usize)
    }
}
