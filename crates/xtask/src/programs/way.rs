//! The ways in which a program runs, and how it ends in each.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use testkit::hosts::{Host, Hosts};

use super::script::{PORTS, Script};
use crate::bench::stage::{self, Board, Running, Stage};

/// How long a server may take until it listens, and a client in all.
const SERVER: Duration = Duration::from_secs(60);
const CLIENT: Duration = Duration::from_secs(120);

/// Who runs under `shunt run`, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Plain,
    Both,
    Server,
    Client,
    /// Both, on two hosts.
    Hosts,
}

impl Way {
    pub(super) const UNDER_SHUNT: [Self; 4] = [Self::Both, Self::Server, Self::Client, Self::Hosts];

    const fn has_server(self) -> bool {
        matches!(self, Self::Both | Self::Server | Self::Hosts)
    }

    const fn has_client(self) -> bool {
        matches!(self, Self::Both | Self::Client | Self::Hosts)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Both => "both",
            Self::Server => "server",
            Self::Client => "client",
            Self::Hosts => "hosts",
        })
    }
}

/// How a program ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// What went wrong beside the client.
    pub(super) fault: Option<String>,
    /// The client's exit code; `None`: it was killed, or has not ended in time.
    pub(super) status: Option<i32>,
    pub(super) said: String,
    /// What client and servers said to standard error, and servers to standard output.
    pub(super) errors: String,
    /// Ends of connections that were in shared memory; of two hosts: connections by SMC-R.
    pub(super) attached: u64,
    /// Why others were on TCP.
    pub(super) reasons: String,
}

/// What to type before a program so that it is that user's.
fn as_user(user: &str) -> Vec<OsString> {
    let words = ["setpriv", "--reuid", user, "--regid", user, "--init-groups"];
    words.map(OsString::from).into()
}

pub(super) fn ending(status: Option<i32>) -> String {
    status.map_or_else(
        || format!("has not ended by itself within {} seconds", CLIENT.as_secs()),
        |code| format!("ended with status {code}"),
    )
}

/// The end of what was said, on one line.
pub(super) fn tail(said: &str, errors: &str) -> String {
    let last = |text: &str| {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(3)..].join(" | ")
    };
    format!("it said {:?}, and to standard error {:?}", last(said), last(errors))
}

/// Where all of it takes place: this host, and two others.
pub(super) struct Place {
    stage: Stage,
}

impl Place {
    /// # Errors
    ///
    /// When there is no room, or no second network.
    pub(super) fn new(built: &Path) -> anyhow::Result<Self> {
        Ok(Self { stage: Stage::new(built)?.on(Hosts::new().context("two hosts")?) })
    }

    /// The server's, and the client's.
    fn hosts(&self) -> anyhow::Result<[&Host; 2]> {
        let hosts = self.stage.hosts().context("two hosts")?;
        Ok([&hosts.server, &hosts.client])
    }

    /// Runs a program once.
    ///
    /// # Errors
    ///
    /// When it cannot be tried at all. What the program does is in the answer.
    pub(super) fn run(&self, script: &Script, way: Way) -> anyhow::Result<Ended> {
        let dir = self.stage.new_dir()?;
        // The server's and the client's: two of two hosts.
        let mut boards = vec![Board::new()?];
        let mut engines = Vec::new();
        if way == Way::Hosts {
            boards.push(Board::new()?);
            for (host, board) in self.hosts()?.into_iter().zip(&boards) {
                engines.push(self.engine(host, board)?);
            }
        }
        if way == Way::Hosts {
            self.wait_until_met(&boards)?;
        }
        if let Some(user) = &script.user {
            let status = Command::new("chown").arg(user).arg(&dir).arg(boards[0].path()).status();
            ensure!(status.context("chown")?.success(), "there is no user {user}");
        }
        let settings = self.settings(&dir, way)?;
        let settings: Vec<(&str, OsString)> =
            settings.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let mut ended = Ended::default();
        let mut servers = Vec::new();
        let outcome = self.play(script, way, &settings, &mut servers, &boards, &mut ended);
        ended.fault = outcome.err().map(|error| format!("{error:#}"));
        for (running, logs) in &mut servers {
            if ended.fault.is_none() {
                ended.fault = running.fell();
            }
            for name in ["stdout", "stderr"] {
                let bytes = fs::read(logs.join(name)).unwrap_or_default();
                ended.errors += &String::from_utf8_lossy(&bytes);
            }
        }
        ended.attached = self.carried(way, &boards[0])?;
        ended.reasons = self.reasons(way, &boards)?;
        drop(servers);
        stage::remove_dir(&dir);
        Ok(ended)
    }

    fn engine(&self, host: &Host, board: &Board) -> anyhow::Result<Running> {
        let mut words = host.prefix();
        words.push(self.stage.program("shunt").into());
        let options = ["engine", "--cgroup", "none", "--spare-short", "off", "--peers"];
        words.extend(options.map(OsString::from));
        let [server, client] = self.hosts()?;
        let networks = format!("{},{}", server.address(), client.address());
        words.extend([networks.into(), "--dir".into(), board.path().into()]);
        let mut engine = Running::start(&words, &self.stage.new_dir()?, &[])?;
        for _ in 0..500 {
            if engine.output().contains("ready") {
                return Ok(engine);
            }
            if let Some(why) = engine.fell() {
                bail!("{why}");
            }
            sleep(Duration::from_millis(20));
        }
        bail!("an engine is not ready after ten seconds")
    }

    /// Until then connections would stay on TCP.
    fn wait_until_met(&self, boards: &[Board]) -> anyhow::Result<()> {
        for (host, board) in self.hosts()?.into_iter().zip(boards) {
            let met = || -> anyhow::Result<bool> {
                let status = self.told(Way::Hosts, host, &["engine", "status", "--json"], board)?;
                Ok(status["met"].as_array().is_some_and(|met| !met.is_empty()))
            };
            for turn in 0.. {
                if met()? {
                    break;
                }
                ensure!(turn < 500, "two engines do not find each other");
                sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Starts servers, then the client, and waits for its end.
    fn play(
        &self,
        script: &Script,
        way: Way,
        settings: &[(&str, OsString)],
        servers: &mut Vec<(Running, std::path::PathBuf)>,
        boards: &[Board],
        ended: &mut Ended,
    ) -> anyhow::Result<()> {
        let user: Vec<OsString> = script.user.iter().flat_map(|user| as_user(user)).collect();
        let function = |name: &str| -> [OsString; 4] {
            let path = script.path.display();
            let line = format!("cd \"$D\" && . '{path}' && {name}");
            ["sh".into(), "-c".into(), line.into(), script.name.clone().into()]
        };
        if script.has_setup {
            let logs = self.stage.new_dir()?;
            let words = [&user[..], &function("setup")].concat();
            Running::start(&words, &logs, settings)?.finish(CLIENT).context("setup")?;
        }
        for (name, port) in &script.servers {
            let mut words = if way == Way::Hosts { self.hosts()?[0].prefix() } else { Vec::new() };
            words.extend(user.iter().cloned());
            words.extend(self.under(way.has_server(), &boards[0]));
            words.extend(function(name));
            let logs = self.stage.new_dir()?;
            let mut running = Running::start(&words, &logs, settings)?;
            let number = settings[*port].1.to_string_lossy().parse()?;
            let listens = running.wait_for_port_within(number, SERVER);
            servers.push((running, logs));
            listens?;
        }
        sleep(script.pause);
        let mut words = if way == Way::Hosts { self.hosts()?[1].prefix() } else { Vec::new() };
        words.extend(user.iter().cloned());
        words.extend(self.under(way.has_client(), &boards[boards.len() - 1]));
        words.extend(function("client"));
        let logs = self.stage.new_dir()?;
        let mut client = Running::start(&words, &logs, settings)?;
        ended.status = client.wait(CLIENT)?.and_then(|status| status.code());
        ended.said = client.output();
        ended.errors += &String::from_utf8_lossy(&fs::read(logs.join("stderr"))?);
        Ok(())
    }

    fn under(&self, is: bool, board: &Board) -> Vec<OsString> {
        if !is {
            return Vec::new();
        }
        let words: [OsString; 5] = [
            self.stage.program("shunt").into(),
            "run".into(),
            "--dir".into(),
            board.path().into(),
            "--".into(),
        ];
        words.into()
    }

    /// The ports first, in their order.
    fn settings(&self, dir: &Path, way: Way) -> anyhow::Result<Vec<(String, OsString)>> {
        let mut settings = Vec::new();
        for at in 0..PORTS {
            let name = if at == 0 { "P".to_owned() } else { format!("P{}", at + 1) };
            settings.push((name, stage::free_port()?.to_string().into()));
        }
        let address =
            if way == Way::Hosts { self.hosts()?[0].address() } else { Ipv4Addr::LOCALHOST };
        settings.push(("A".to_owned(), address.to_string().into()));
        settings.extend(["D", "HOME"].map(|name| (name.to_owned(), dir.into())));
        settings.push(("LC_ALL".to_owned(), "C.UTF-8".into()));
        Ok(settings)
    }

    /// Ends of connections that processes of a board have had in shared memory; of the engine of a host: connections that
    /// it has carried.
    fn carried(&self, way: Way, board: &Board) -> anyhow::Result<u64> {
        let (words, list, count) = match way {
            Way::Hosts => (&["engine", "status", "--json"][..], "vectors", "connections_total"),
            _ => (&["stat", "--all", "--json"][..], "processes", "attached_total"),
        };
        let all = self.told(way, self.hosts()?[0], words, board)?;
        let all = all[list].as_array().cloned().unwrap_or_default();
        Ok(all.iter().filter_map(|one| one[count].as_u64()).sum())
    }

    /// Why connections of a board were on TCP, by program, in words.
    fn reasons(&self, way: Way, boards: &[Board]) -> anyhow::Result<String> {
        let mut reasons = BTreeSet::new();
        for (host, board) in self.hosts()?.into_iter().zip(boards) {
            let all = self.told(way, host, &["stat", "--all", "--json"], board)?;
            for process in all["processes"].as_array().into_iter().flatten() {
                for fallback in process["fallbacks"].as_array().into_iter().flatten() {
                    reasons.insert(format!("{}: {}", process["program"], fallback["words"]));
                }
            }
        }
        Ok(reasons.into_iter().collect::<Vec<_>>().join(", "))
    }

    /// What `shunt` says of a board, which is of a network.
    fn told(
        &self,
        way: Way,
        host: &Host,
        words: &[&str],
        board: &Board,
    ) -> anyhow::Result<serde_json::Value> {
        let shunt = self.stage.program("shunt");
        let mut command = match way {
            Way::Hosts => host.command(shunt),
            _ => Command::new(shunt),
        };
        let output = command.args(words).env("SHUNT_DIR", board.path()).output();
        let output = output.context("cannot run shunt")?;
        // Before the first process there is no board.
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
    }
}
