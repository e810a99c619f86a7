//! `shunt engine`: starts it, changes its settings, shows what it does.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Subcommand};
use engine::remote::config::{Config, SETTINGS, Setting};
use engine::remote::control::Request;
use engine::remote::host::{self, Host};
use engine::remote::users::Users;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::{self, Section, SettingOptions, Source, Written};
use crate::table::{self, Side};
use crate::{doctor, say, service, snapshot};

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct EngineArguments {
    #[command(flatten)]
    options: EngineOptions,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Change settings of the engine that runs
    Set {
        /// Settings and their values, as in: autocork=0 max_links=2
        #[arg(required = true, value_name = "NAME=VALUE")]
        settings: Vec<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Have the engine take no new connections, and end when the last of those that it carries is gone
    #[command(
        long_about = "Have the engine take no new connections, and end, with exit status 0, when the last of those that it \
            carries is gone.\n\n\
            New connections of programs are plain TCP from then on; peers who were promised SMC by a listener here are told no. \
            `shunt engine status` says how many are left. When none is, listeners promise SMC no more, and it ends a second \
            later: a new connection that was promised SMC by then and that its server has not accepted is lost, as is one that \
            is on its way in that moment. An upgrade that resets nothing else is: shunt engine drain --wait, \
            and then to start the new one (systemctl start shunt-engine). Connections that last for days keep it for so long: \
            give --wait a limit, and end it then as ever."
    )]
    Drain {
        /// Wait until it has ended, so many seconds at most [as long as it takes if no number is given]
        #[arg(
            long,
            value_name = "SECONDS",
            num_args = 0..=1,
            value_parser = patience,
            conflicts_with = "undo"
        )]
        wait: Option<Option<Duration>>,
        /// Take new connections again
        #[arg(long)]
        undo: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Show what the engine does: its vectors, link groups and settings
    Status {
        /// Print a JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: Place,
    },
}

/// Which engine is meant.
#[derive(Args, Debug)]
struct Place {
    /// Directory of the board [also SHUNT_DIR] [/dev/shm/shunt-UID]
    #[arg(long, value_name = "DIR")]
    dir: Option<String>,
    /// Configuration file [also SHUNT_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The options that settings of the engine can be given by.
#[derive(Clone, Debug, Default)]
struct EngineOptions {
    config: Option<PathBuf>,
    written: Vec<(&'static Setting, String)>,
}

fn argument(setting: &'static Setting) -> Arg {
    let mut help = setting.help.to_owned();
    help[..1].make_ascii_uppercase();
    Arg::new(setting.name)
        .long(setting.name.replace('_', "-"))
        .value_name(setting.value)
        .allow_negative_numbers(true)
        .help(help)
}

impl Args for EngineOptions {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Configuration file, of which the section [engine] counts [also SHUNT_CONFIG]");
        command.args(SETTINGS.iter().map(argument)).arg(file)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for EngineOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut options = Self::default();
        options.update_from_arg_matches(matches)?;
        Ok(options)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.config = matches.get_one::<PathBuf>("config").cloned();
        let given = |setting: &'static Setting| {
            Some((setting, matches.get_one::<String>(setting.name)?.clone()))
        };
        self.written = SETTINGS.iter().filter_map(given).collect();
        Ok(())
    }
}

/// What the section of the configuration file says.
fn of_file(place: &SettingOptions) -> anyhow::Result<Config> {
    let (config, _, wrong) = read(place)?;
    wrong.into_iter().next().map_or(Ok(config), |bad| Err(bad.into()))
}

/// The same as far as it makes sense, with who wrote it, and all that makes none.
pub(crate) fn read(
    place: &SettingOptions,
) -> anyhow::Result<(Config, Vec<Written>, Vec<config::Wrong>)> {
    let Section { written, mut wrong } = config::engine_section(place, SETTINGS)?;
    let mut config = Config::default();
    let is_good = |Written { setting, text, source }: &Written| {
        let set = config.set(setting, text).map_err(|bad| config::Wrong::at(source, bad));
        set.map_err(|bad| wrong.push(bad)).is_ok()
    };
    let written = written.into_iter().filter(is_good).collect();
    Ok((config, written, wrong))
}

/// What is wrong with that section, for who does not start an engine.
pub(crate) fn mistakes_in_file(place: &SettingOptions) -> Vec<config::Wrong> {
    let (config, written, mut wrong) = match read(place) {
        Ok(all) => all,
        Err(bad) => return vec![bad.into()],
    };
    if let Err(bad) = config.checked() {
        let who = written.iter().find(|written| written.setting == bad.name);
        wrong.push(match who {
            Some(written) => config::Wrong::at(&written.source, bad),
            None => anyhow::Error::from(bad).into(),
        });
    }
    wrong
}

/// What is wrong with what the section names: a directory, a device, users, addresses, a control group; and what may be only
/// for who asks.
pub(crate) fn mistakes_beside_file(place: &SettingOptions) -> (Vec<config::Wrong>, Vec<String>) {
    let (mut wrong, mut told) = (Vec::new(), Vec::new());
    let Ok((config, written, _)) = read(place) else { return (wrong, told) };
    // The one that was written last counts.
    let source = |name: &str| written.iter().rev().find(|w| w.setting == name).map(|w| &w.source);
    if let (Some(dir), Some(source)) = (&config.dir, source("dir"))
        && let Some(bad) = doctor::wrong_directory(dir)
    {
        wrong.push(config::Wrong::at(source, format_args!("dir: {bad}")));
    }
    if let (Some(device), Some(source)) = (&config.device, source("device"))
        && let Err(bad) = rdma_device(device)
    {
        wrong.push(config::Wrong::at(source, format_args!("device: {bad}")));
    }
    for (name, bad) in host::try_out(&config) {
        // What nobody has written is the business of who starts an engine.
        match source(name) {
            Some(source) if bad.is_of_rights() => told.push(format!("{source}: {bad}")),
            Some(source) => wrong.push(config::Wrong::at(source, bad)),
            None => {}
        }
    }
    (wrong, told)
}

/// Where the kernel has a directory for each RDMA device.
const RDMA_DEVICES: &str = "/sys/class/infiniband";

/// The RDMA devices of this host, by name.
pub(crate) fn rdma_devices() -> Vec<String> {
    let all = std::fs::read_dir(RDMA_DEVICES).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn rdma_device(name: &str) -> Result<(), String> {
    let there = rdma_devices();
    if there.iter().any(|one| one == name) {
        return Ok(());
    }
    let which = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    Err(format!("{name}: there is no such RDMA device here (there are: {which})"))
}

/// Merges options over the section of the configuration file.
fn load(options: &EngineOptions) -> anyhow::Result<Config> {
    let place = SettingOptions::with_dir(options.config.clone(), None);
    // Of what is not in its section it uses the directory alone.
    let (merged, aside) = config::look_for_dir(&place)?;
    if let Some(bad) = aside {
        say::line(format_args!("shunt: {bad}; so programs stay on TCP"));
    }
    if let Some(words) = merged.closed() {
        say::line(format_args!("shunt: {words}"));
    }
    let mut config = of_file(&place)?;
    for (setting, text) in &options.written {
        let option = setting.name.replace('_', "-");
        config.set(setting.name, text).map_err(|bad| anyhow!("--{option}: {bad}"))?;
    }
    // A directory that is the engine's alone is refused with several users.
    let mut config = config.checked()?;
    if config.users == Users::Own {
        config.dir = config.dir.or(merged.limits.dir);
    } else if let (Some(dir), Some(source)) = (&merged.limits.dir, merged.source("dir")) {
        say::line(format_args!(
            "shunt: the boards of users are in the usual place: programs that meet in {dir} ({source}) are not served"
        ));
    }
    Ok(config)
}

/// Does it.
pub(crate) fn engine(arguments: &EngineArguments) -> anyhow::Result<()> {
    match &arguments.action {
        None => serve(&arguments.options),
        Some(Action::Set { settings, place }) => set(settings, place),
        Some(Action::Drain { wait, undo, place }) => drain(*wait, !undo, place),
        Some(Action::Status { json, place }) => status(*json, place),
    }
}

fn serve(options: &EngineOptions) -> anyhow::Result<()> {
    let config = load(options)?;
    // Before there are threads, so that all of them leave these signals to us.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let begun = config.clone();
    if config.eids.is_empty() {
        say::line(format_args!(
            "shunt: no enterprise ID is set (--eid): every peer will be declined"
        ));
    }
    let dir = local::board::directory(config.dir.as_deref());
    local::board::sweep(config.dir.as_deref());
    // When it has drained: as if somebody had told it to end, which nobody need do any more.
    let end = || drop(signal_hook::low_level::raise(SIGTERM));
    let host = Host::start(config, end).map_err(|error| match error {
        // Which directory, for whoever has several.
        host::Error::Board(error) => anyhow!("{dir}: {error}"),
        error => error.into(),
    })?;
    let stat = host.stat();
    if let Some(problem) = &stat.problem {
        say::line(format_args!("shunt: {problem} Connections from there stay on TCP"));
    }
    let s = if stat.vectors.len() == 1 { "" } else { "s" };
    let from = if stat.addresses.is_empty() {
        "from the address that each connection has".to_owned()
    } else {
        format!("from {}", stat.addresses.join(" and "))
    };
    // On standard output, for those who start it and wait until it is there.
    let mut out = std::io::stdout();
    writeln!(out, "ready: {} vector{s}, RoCEv2 {from}; Ctrl-C ends", stat.vectors.len())?;
    out.flush()?;
    service::is_ready();
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
        match reload(&host, options, &begun) {
            Ok(words) => say::line(format_args!("shunt engine: {words}")),
            Err(bad) => {
                say::line(format_args!("shunt engine: not reloaded, all is as it was: {bad:#}"));
            }
        }
    }
    service::stops();
    host.stop();
    Ok(())
}

/// Reads the settings again, of which those count from now on that can; the others are as they were until it is started
/// again. What became of it, in words. `begun`: what they were when it was started.
fn reload(host: &Host, options: &EngineOptions, begun: &Config) -> anyhow::Result<String> {
    let refused = |words: String| anyhow!(words);
    let new = load(options)?;
    let now = host.answer(Request::Show {}).map_err(refused)?;
    let differs = |setting: &&Setting| match setting.live {
        true => new.show(setting.name).as_deref() != now[setting.name].as_str(),
        false => new.show(setting.name) != begun.show(setting.name),
    };
    let (live, fixed): (Vec<_>, Vec<_>) = SETTINGS.iter().filter(differs).partition(|s| s.live);
    let value = |setting: &Setting| new.show(setting.name).unwrap_or_default();
    let changes = live.iter().map(|s: &&Setting| (s.name.to_owned(), value(s))).collect();
    host.answer(Request::Set(changes)).map_err(refused)?;
    let words: Vec<_> = live.iter().map(|s| format!("{}={}", s.name, value(s))).collect();
    let mut said = match words.is_empty() {
        true => "reloaded: nothing that it can change while it runs has changed".to_owned(),
        false => format!("reloaded: {}", words.join(" ")),
    };
    if !fixed.is_empty() {
        let names: Vec<_> = fixed.iter().map(|s| s.name).collect();
        said += &format!(
            "; changed, and to count once the engine is started again: {}",
            names.join(", ")
        );
    }
    Ok(said)
}

fn ask(place: &Place, request: &Request) -> anyhow::Result<Value> {
    let options = SettingOptions::with_dir(place.config.clone(), place.dir.clone());
    let (merged, _) = config::look_for_dir(&options)?;
    let is_of_the_file = matches!(merged.source("dir"), Some(Source::File(..)));
    let dir = merged.limits.dir;
    // One that serves several users is in the usual place, whatever directory the file tells their programs of.
    let mut places = vec![dir.as_deref()];
    if is_of_the_file {
        places.push(None);
    }
    let is_absent =
        |e: &std::io::Error| matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
    let mut answers = places.iter().map(|place| host::ask(*place, request));
    let answer = answers.find(|answer| !answer.as_ref().is_err_and(is_absent));
    answer.unwrap_or_else(|| Err(ErrorKind::NotFound.into())).map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            match places.iter().find_map(|place| served_by(*place)) {
                Some(pid) => anyhow!(
                    "the engine that serves this user is root's (pid {pid}), and answers only root: `sudo shunt engine \
                     status`"
                ),
                None => anyhow!("no engine runs here for this user: start one with `shunt engine`"),
            }
        }
        ErrorKind::InvalidData => anyhow!("{e}"),
        _ => anyhow::Error::from(e).context("the engine does not answer"),
    })
}

/// The engine of another user that serves this board: its process id.
fn served_by(dir: Option<&str>) -> Option<u32> {
    let (path, netns) = snapshot::locate(dir).ok()?;
    let engine = snapshot::engine_at(&path, netns)?;
    (engine.uid != sys::call::geteuid()).then_some(engine.pid)
}

fn set(settings: &[String], place: &Place) -> anyhow::Result<()> {
    let mut changes = BTreeMap::new();
    for text in settings {
        let Some((name, value)) = text.split_once('=') else {
            bail!("{text}: NAME=VALUE is wanted, as in autocork=0");
        };
        changes.insert(name.trim().replace('-', "_"), value.trim().to_owned());
    }
    ask(place, &Request::Set(changes)).map(drop)
}

/// How long to wait.
fn patience(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s: &f64| (0.0..=1e9).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "seconds, 0 to 1000000000".into())
}

/// `wait`: until it has ended, for so long at most if that is said.
fn drain(wait: Option<Option<Duration>>, on: bool, place: &Place) -> anyhow::Result<()> {
    const LOOK: Duration = Duration::from_millis(100);
    let first = ask(place, &Request::Stat {})?;
    ask(place, &Request::Drain(on))?;
    let Some(most) = wait else { return Ok(()) };
    let begun = Instant::now();
    let state = format!("/proc/{}/stat", first["pid"]);
    let is_gone = || std::fs::read(&state).map_or(true, |stat| has_ended(&stat));
    let mut left = number(&first, "guest_connections");
    loop {
        match ask(place, &Request::Stat {}) {
            // Another one is there already.
            Ok(now) if now["pid"] != first["pid"] => return Ok(()),
            Ok(now) if now["draining"] != true => bail!("somebody has it take connections again"),
            Ok(now) => left = number(&now, "guest_connections"),
            // It parts from its peers before it is gone.
            Err(_) if is_gone() => return Ok(()),
            Err(_) => {}
        }
        if let Some(most) = most
            && begun.elapsed() > most
        {
            bail!(
                "{left} connections are left after {} s; it goes on to wait for them, until it is told to end, or to take \
                 new ones again (--undo)",
                most.as_secs_f64()
            );
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether a process has ended, by its `/proc/PID/stat`; it is there until whoever has started it looks.
fn has_ended(stat: &[u8]) -> bool {
    // Its name, in brackets, may have brackets in it.
    let name_end = stat.iter().rposition(|byte| *byte == b')');
    let state = name_end.and_then(|at| stat.get(at + 2));
    matches!(state, Some(b'Z' | b'X'))
}

fn status(json: bool, place: &Place) -> anyhow::Result<()> {
    let mut stat = ask(place, &Request::Stat {})?;
    let settings = ask(place, &Request::Show {})?;
    let text = if json {
        if let Value::Object(fields) = &mut stat {
            fields.insert("settings".into(), settings);
        }
        serde_json::to_string_pretty(&stat)? + "\n"
    } else {
        text(&stat, &settings)
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).context("cannot write")?;
    Ok(out.flush()?)
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

/// A field as people read it.
fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

fn text(stat: &Value, settings: &Value) -> String {
    let mut text = format!("engine, pid {}\n\n", stat["pid"]);
    if stat["draining"] == true {
        text += &format!(
            "draining: it takes no new connections, and ends when these are gone: {}\n\n",
            number(stat, "guest_connections")
        );
    }
    let vector = |v: &Value| {
        let mut row = vec![word(&v["vector"])];
        row.extend(["connections", "handshakes"].map(|n| table::count(number(v, n))));
        row.push(list(v, "groups").count().to_string());
        row.extend(["bytes_tx", "bytes_rx"].map(|n| table::bytes(number(v, n))));
        row.extend(["packets_tx", "packets_rx", "sleeps"].map(|n| table::count(number(v, n))));
        row.extend(["declined_total", "aborted_total"].map(|n| table::count(number(v, n))));
        row
    };
    let columns = [
        "Vector",
        "Conns",
        "Handshakes",
        "Groups",
        "Sent",
        "Received",
        "PktsOut",
        "PktsIn",
        "Sleeps",
        "Declined",
        "Aborted",
    ];
    let columns = columns.map(|name| (name, Side::Right));
    text += &table::render(&columns, &list(stat, "vectors").map(vector).collect::<Vec<_>>());
    let links: Vec<Vec<String>> = list(stat, "vectors").flat_map(link_rows).collect();
    if !links.is_empty() {
        let columns = [
            ("Vector", Side::Right),
            ("Role", Side::Left),
            ("Type", Side::Left),
            ("Conns", Side::Right),
            ("EID", Side::Left),
            ("Link", Side::Left),
            ("Local", Side::Left),
            ("Peer", Side::Left),
            ("QP", Side::Right),
            ("PeerQP", Side::Right),
            ("MTU", Side::Right),
            ("Rate", Side::Right),
            ("CQs", Side::Left),
        ];
        text.push('\n');
        text += &table::render(&columns, &links);
    }
    text += &setup_waits(stat);
    text += &congestion(stat);
    text += &reasons(stat, "declined", "These connections of the engine stayed on TCP:");
    text += &reasons(stat, "broken_off", "These handshakes ended in a reset:");
    let [stayed, reset] =
        ["no_memory_total", "no_memory_reset_total"].map(|name| stat[name].as_u64().unwrap_or(0));
    if stayed + reset > 0 {
        text += &format!(
            "\nFor {stayed} connections there was no memory, so they stayed on TCP; {reset} were reset for that \
             (memory_max).\n"
        );
    }
    text += &users(stat);
    let met: Vec<String> = list(stat, "met").map(word).collect();
    if !met.is_empty() {
        text += &format!("\nEngines met: {}\n", met.join(", "));
    }
    let spared: Vec<String> = list(stat, "spared").map(word).collect();
    if !spared.is_empty() {
        text += "\nSMC does not pay for connections to these; new ones stay on TCP for now:\n";
        spared.iter().for_each(|to| text += &format!("{to}\n"));
    }
    text.push('\n');
    for setting in SETTINGS {
        text += &format!("{} = {}\n", setting.name, word(&settings[setting.name]));
    }
    if let Value::String(problem) = &stat["problem"] {
        text += &format!("\nlast problem: {problem}\n");
    }
    text
}

/// A line for each user whose programs are served or should be, if there is another one than the engine's.
fn users(stat: &Value) -> String {
    let rows: Vec<Vec<String>> = list(stat, "users")
        .map(|user| {
            let mut row = vec![word(&user["uid"]), word(&user["name"])];
            row.push(table::count(number(user, "connections")));
            row.push(table::bytes(number(user, "memory_bytes")));
            let is_served = user["is_served"] == true;
            row.push(match &user["problem"] {
                Value::String(problem) if !is_served => format!("no: {problem}"),
                _ if is_served => "yes".into(),
                _ => "no more".into(),
            });
            row
        })
        .collect();
    if rows.len() < 2 {
        return String::new();
    }
    let columns = [
        ("UID", Side::Right),
        ("User", Side::Left),
        ("Conns", Side::Right),
        ("Memory", Side::Right),
        ("Served", Side::Left),
    ];
    format!("\n{}", table::render(&columns, &rows))
}

/// What set-ups of connections have waited for, of all vectors: how long on average, and for what.
fn setup_waits(stat: &Value) -> String {
    const PARTS: [&str; 5] =
        ["wait_ns", "network_ns", "no_cpu_ns", "waking_ns", "behind_others_ns"];
    let mut kinds = BTreeMap::<&str, (u64, [u64; PARTS.len()])>::new();
    for vector in list(stat, "vectors") {
        for (kind, wait) in vector["setup_waits"].as_object().into_iter().flatten() {
            let (count, sums) = kinds.entry(kind).or_default();
            *count += number(wait, "count");
            sums.iter_mut().zip(PARTS).for_each(|(sum, part)| *sum += number(wait, part));
        }
    }
    // A sum without waits is no mean.
    kinds.retain(|_, (count, _)| *count > 0);
    if kinds.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = kinds
        .into_iter()
        .map(|(kind, (count, sums))| {
            let mean = |ns: &u64| (ns / count / 1000).to_string();
            let begin = [kind.to_owned(), table::count(count)];
            begin.into_iter().chain(sums.iter().map(mean)).collect()
        })
        .collect();
    let columns = ["Times", "Mean", "Network", "NoCPU", "Waking", "Others"];
    let columns: Vec<_> = std::iter::once(("Wait", Side::Left))
        .chain(columns.map(|name| (name, Side::Right)))
        .collect();
    format!(
        "\nWhat set-ups waited for, in microseconds: until it was here (Network), and from then on for a CPU \
         (NoCPU), to be woken (Waking) and behind other work (Others):\n{}",
        table::render(&columns, &rows)
    )
}

/// A line for each reason that the vectors have counted under a name, the most frequent first.
fn reasons(stat: &Value, name: &str, title: &str) -> String {
    let mut counts = BTreeMap::<&str, u64>::new();
    for vector in list(stat, "vectors") {
        for (why, count) in vector[name].as_object().into_iter().flatten() {
            *counts.entry(why).or_default() += count.as_u64().unwrap_or(0);
        }
    }
    let mut rows: Vec<_> = counts.into_iter().collect();
    rows.sort_by_key(|(why, count)| (std::cmp::Reverse(*count), *why));
    if rows.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|(why, count)| vec![table::count(count), why.to_owned()]).collect();
    let columns = [("Count", Side::Right), ("Why", Side::Left)];
    format!("\n{title}\n{}", table::render(&columns, &rows))
}

/// What became of congestion marks, if there were any.
fn congestion(stat: &Value) -> String {
    let sum = |name: &str| list(stat, "vectors").map(|vector| number(vector, name)).sum::<u64>();
    let all = ["marks_rx", "cnp_tx", "cnp_rx", "rate_cuts"].map(sum);
    if all == [0; 4] {
        return String::new();
    }
    let [marks, sent, came, cuts] = all.map(table::count);
    format!(
        "\nCongestion: {marks} packets came marked, {sent} notifications went; {came} came, {cuts} of them lowered a \
         rate\n"
    )
}

/// The rate of a link: `off` where marks are not answered, `free` where there is no need.
fn rate(link: &Value) -> String {
    match (link["congestion"].as_bool(), link["rate_bits"].as_u64()) {
        (Some(true), Some(bits)) => format!("{} Mbit/s", bits / 1_000_000),
        (Some(true), None) => "free".into(),
        _ => "off".into(),
    }
}

/// A line for each link of a vector's link groups.
fn link_rows(vector: &Value) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for group in list(vector, "groups") {
        for link in list(group, "links") {
            let fields = [&vector["vector"], &group["role"], &group["kind"], &group["connections"]];
            let mut row: Vec<String> = fields.map(word).into();
            row.push(word(&group["eid"]));
            let fields = ["state", "local", "peer", "qpn", "peer_qpn", "mtu"];
            row.extend(fields.map(|name| word(&link[name])));
            row.push(rate(link));
            row.push(if link["split"] == true { "split" } else { "joined" }.into());
            rows.push(row);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn options(arguments: &[&str]) -> EngineOptions {
        let command = EngineOptions::augment_args(Command::new("x").no_binary_name(true));
        let matches = command.try_get_matches_from(arguments).unwrap();
        EngineOptions::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn options_win_over_the_section_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        let text = "spin_us = 5\n[engine]\neid = [\"A\", \"B\"]\nmax_conns = 20\npoll_us = 7\n";
        std::fs::write(&file, text).unwrap();
        let path = file.to_str().unwrap();
        let config = load(&options(&["--config", path, "--poll-us", "0"])).unwrap();
        assert_eq!(config.show("eid").as_deref(), Some("A,B"));
        assert_eq!((config.max_conns, config.poll.as_micros()), (20, 0));
        // And `shunt run` does not mind the section.
        let other = SettingOptions::with_dir(Some(file.clone()), None);
        assert_eq!(config::load(&other).unwrap().limits.spin.as_micros(), 5);
        // Nor we what is wrong with its settings, except for the directory.
        std::fs::write(&file, "spin_u = 5\n[engine]\nmax_conns = 21\n").unwrap();
        assert_eq!(load(&options(&["--config", path])).unwrap().max_conns, 21);
        for bad in ["dir = \"x\"\n", "dri = \"/x\"\n", "[engine\n", "dir = 1\n[engine]\n"] {
            std::fs::write(&file, bad).unwrap();
            let words = load(&options(&["--config", path])).unwrap_err().to_string();
            assert!(words.contains(":1: "), "{words}");
        }
        std::fs::write(&file, "[engine]\nmax_lynks = 2\n").unwrap();
        let words = load(&options(&["--config", path])).unwrap_err().to_string();
        assert!(words.contains(":2: no such setting: max_lynks"), "{words}");
        assert!(words.contains("max_links"), "{words}");
    }

    #[test]
    fn each_setting_may_be_an_option_or_stand_in_the_section() {
        let written = [
            ("address", "10.0.0.1,10.0.0.2", r#"["10.0.0.1", "10.0.0.2"]"#),
            ("device", "mlx5_0", r#""mlx5_0""#),
            ("eid", "A,B-2", r#"["A", "B-2"]"#),
            ("send_buffer", "1M", r#""1M""#),
            ("receive_buffer", "16K", "16384"),
            ("max_conns", "16", "16"),
            ("max_links", "2", "2"),
            ("autocork", "0", "0"),
            ("testlink_time", "7", "7"),
            ("handshakes_max", "1", "1"),
            ("spare_short", "off", "false"),
            ("reuse_buffers", "off", r#""off""#),
            ("peer_groups", "1", "1"),
            ("memory_max", "16M", r#""16M""#),
            ("peers", "192.0.2.0/24,2001:db8::1", r#"["192.0.2.0/24", "2001:db8::1"]"#),
            ("congestion", "off", "false"),
            ("vectors", "3", "3"),
            ("use_vectors", "1-2", r#""1-2""#),
            ("split_cqs", "0,2", "[0, 2]"),
            ("segments", "1", "1"),
            ("raw_ingress", "on", "true"),
            ("poll_us", "0", "0"),
            ("stamps", "on", "true"),
            ("cgroup", "/x", r#""/x""#),
            ("users", "own", r#""own""#),
            ("dir", "/dev/shm/x", r#""/dev/shm/x""#),
        ];
        assert!(written.iter().map(|(name, ..)| *name).eq(SETTINGS.iter().map(|s| s.name)));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        let path = file.to_str().unwrap();
        let lines: Vec<_> = written.iter().map(|(n, _, value)| format!("{n} = {value}")).collect();
        std::fs::write(&file, format!("[engine]\n{}\n", lines.join("\n"))).unwrap();
        let of_file = load(&options(&["--config", path])).unwrap();
        std::fs::write(&file, "").unwrap();
        let words =
            written.map(|(name, value, _)| [format!("--{}", name.replace('_', "-")), value.into()]);
        let words: Vec<&str> = words.iter().flatten().map(String::as_str).collect();
        let by_options = load(&options(&[&["--config", path], &words[..]].concat())).unwrap();
        assert_eq!(of_file, by_options);
        let usual = Config::default();
        for setting in SETTINGS.iter().filter(|setting| setting.name != "users") {
            assert_ne!(of_file.show(setting.name), usual.show(setting.name), "{}", setting.name);
        }
    }

    #[test]
    fn a_list_may_be_of_strings_and_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        let path = file.to_str().unwrap();
        let loaded = |value: &str| {
            std::fs::write(&file, format!("[engine]\nvectors = 6\nsplit_cqs = {value}\n")).unwrap();
            let config = load(&options(&["--config", path]));
            config.map_err(|e| format!("{e:#}")).map(|config| config.split_cqs.to_string())
        };
        for value in ["[0, \"2-5\"]", "[\"0\", \"2-5\"]", "[0, 2, 0x3, 4, 5]", "\"0,2-5\""] {
            assert_eq!(loaded(value).as_deref(), Ok("0,2-5"), "{value}");
        }
        assert_eq!(loaded("1").as_deref(), Ok("1"));
        for (value, words) in [
            ("[0, -1]", "numbers of vectors from 0 to 63 as in 0,2-5"),
            ("[64]", "numbers of vectors from 0 to 63 as in 0,2-5"),
            ("[]", "numbers of vectors from 0 to 63 as in 0,2-5"),
            ("[0.5]", "a list of strings or numbers is wanted, not of float"),
            ("[true]", "a list of strings or numbers is wanted, not of boolean"),
            ("[[0]]", "a list of strings or numbers is wanted, not of array"),
            ("[99999999999999999999]", "the number is too large"),
        ] {
            let told = loaded(value).unwrap_err();
            assert!(told.contains(words) && told.contains("split_cqs"), "{value}: {told}");
        }
    }

    #[test]
    fn a_general_directory_is_not_for_an_engine_of_several_users() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        let path = file.to_str().unwrap();
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        let loaded = |more: &[&str]| load(&options(&[&["--config", path], more].concat()));
        write("dir = \"/dev/shm/shunt-web\"\n");
        assert_eq!(loaded(&[]).unwrap().dir.as_deref(), Some("/dev/shm/shunt-web"));
        assert_eq!(loaded(&["--users", "all"]).unwrap().dir, None);
        assert!(loaded(&["--users", "all", "--dir", "/dev/shm/x"]).is_err());
        write("dir = \"/dev/shm/shunt-web\"\n[engine]\ndir = \"/dev/shm/x\"\n");
        assert_eq!(loaded(&[]).unwrap().dir.as_deref(), Some("/dev/shm/x"));
        assert!(loaded(&["--users", "all"]).is_err());
    }

    #[test]
    fn status_shows_links_and_settings() {
        let stat = serde_json::json!({"pid": 7, "problem": "it rains", "no_memory_total": 12,
            "no_memory_reset_total": 3, "vectors": [{
            "vector": 1, "connections": 3, "bytes_tx": 2048, "marks_rx": 70, "cnp_tx": 7, "cnp_rx": 5, "rate_cuts": 3,
            "declined": {"No device for SMC was found.": 3, "The peer: Not enough memory.": 4},
            "groups": [{
                "role": "client", "kind": "SINGLE", "connections": 3, "eid": "E", "links": [
                    {"state": "ACTIVE", "local": "10.0.0.1", "peer": "10.0.0.2", "qpn": 5,
                     "peer_qpn": 6, "mtu": 1024, "congestion": true, "rate_bits": 73_000_001,
                     "split": true}]}]}]});
        let text = text(&stat, &serde_json::json!({"eid": "E"}));
        let (more, less) = (text.find("The peer: Not enough"), text.find("No device for SMC"));
        assert!(more.is_some() && more < less, "{text}");
        let marks =
            "70 packets came marked, 7 notifications went; 5 came, 3 of them lowered a rate";
        for part in [
            "pid 7",
            "10.0.0.2",
            "ACTIVE",
            "2K",
            "eid = E",
            "it rains",
            "For 12 connections there was no memory, so they stayed on TCP; 3 were reset",
            "73 Mbit/s",
            marks,
            "split",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }

    #[test]
    fn status_shows_whose_programs_are_served() {
        let user = |uid: u64, is_served: bool, problem: Option<&str>| {
            serde_json::json!({"uid": uid, "name": format!("u{uid}"), "is_served": is_served,
                "connections": 3, "memory_bytes": 4096, "problem": problem})
        };
        let own = user(0, true, None);
        assert_eq!(users(&serde_json::json!({"users": [own]})), "", "its own are no news");
        let all = [own, user(7, false, Some("it is raining")), user(8, false, None)];
        let text = users(&serde_json::json!({"users": all}));
        let line = |uid: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(uid)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("0"), "0 u0 3 4K yes");
        assert_eq!(line("7"), "7 u7 3 4K no: it is raining");
        assert_eq!(line("8"), "8 u8 3 4K no more");
    }

    #[test]
    fn status_shows_what_set_ups_waited_for_in_all_vectors() {
        let wait = |count: u64, parts: [u64; 4]| {
            let [network, no_cpu, waking, others] = parts.map(|us| us * 1000);
            serde_json::json!({
                "count": count, "wait_ns": network + no_cpu + waking + others, "network_ns": network,
                "no_cpu_ns": no_cpu, "waking_ns": waking, "behind_others_ns": others})
        };
        let of = |wait| serde_json::json!({"setup_waits": {"message by TCP": wait}});
        let stat = serde_json::json!({"pid": 7, "vectors": [
            of(wait(1, [2000, 100, 50, 10])), of(wait(3, [4000, 300, 70, 30]))]});
        let text = text(&stat, &serde_json::json!({}));
        let line = text.lines().find(|line| line.starts_with("message by TCP")).unwrap();
        let words: Vec<_> = line.split_whitespace().skip(3).collect();
        assert_eq!(words, ["4", "1640", "1500", "100", "30", "10"], "{text}");
        assert_eq!(setup_waits(&serde_json::json!({"vectors": [{}]})), "", "there were none");
        let unanswered = of(wait(0, [0, 0, 0, 50]));
        assert_eq!(setup_waits(&serde_json::json!({"vectors": [unanswered]})), "");
    }

    #[test]
    fn no_patience_is_not_patience_without_end() {
        let wait = |word: &str| {
            let words = ["shunt", "engine", "drain", word];
            let matches = crate::commands::Cli::command().try_get_matches_from(words).unwrap();
            let mut last = &matches;
            while let Some((_, next)) = last.subcommand() {
                last = next;
            }
            let said = last.get_one::<Duration>("wait").copied();
            (last.contains_id("wait"), said)
        };
        assert_eq!(wait("--wait=0"), (true, Some(Duration::ZERO)));
        assert_eq!(wait("--wait=1.5"), (true, Some(Duration::from_millis(1500))));
        assert_eq!(wait("--wait"), (true, None));
    }

    #[test]
    fn who_has_ended_is_told_by_the_state() {
        let running = b"7 (a) Z (b) S 1 7 7 0 -1 4194560 ";
        assert!(!has_ended(running), "that is its name");
        assert!(has_ended(b"7 (shunt) Z 1 7 7 0 -1 4194560 "));
        assert!(has_ended(b"7 (shunt) X 1 7 7 0 -1 4194560 "));
        // Its memory has gone, and all else has not yet.
        let own = std::fs::read("/proc/self/stat").unwrap();
        assert!(!has_ended(&own));
    }

    #[test]
    fn settings_are_not_named_as_actions() {
        let command = crate::commands::Cli::command();
        let engine = command.find_subcommand("engine").unwrap();
        let names: Vec<_> = engine.get_subcommands().map(|c| c.get_name().to_owned()).collect();
        assert_eq!(names, ["set", "drain", "status"]);
    }
}
