//! Our side: `shunt engine` on the host's end of the bridge, and programs under `shunt run`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use testkit::kernels::network::{HOST, HOST_TOO, Network};

use super::program::Host;
use super::scenario::Case;

const START_LIMIT: Duration = Duration::from_secs(10);
/// The end of what the engine says when it takes connections.
const READY: &str = "Ctrl-C ends";

/// The engine at work. It ends when this is dropped.
pub(super) struct Engine(Host);

/// Why `shunt` cannot be a peer yet; `None`: it can.
pub(super) fn absent(built: &Path) -> Option<String> {
    let mut command = Command::new(built.join("shunt"));
    command.args(["engine", "--help"]).stdin(Stdio::null()).stdout(Stdio::null());
    let knows = command.stderr(Stdio::null()).status();
    match knows {
        Ok(status) if status.success() => None,
        Ok(_) => Some("this shunt has no `shunt engine`".to_owned()),
        Err(e) => Some(format!("{}: {e}", built.join("shunt").display())),
    }
}

impl Engine {
    /// Starts it in the network, with this enterprise id or none and what the case wants of links, and a directory for
    /// what it shares with programs.
    pub(super) fn start(
        network: &Network,
        built: &Path,
        directory: &Path,
        eid: Option<&str>,
        case: &Case,
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let mut command = network.host_command(built.join("shunt"));
        let addresses = [HOST, HOST_TOO].map(|address| address.to_string());
        let addresses = addresses[..case.links.min(2)].join(",");
        command.args(["engine", "--address", &addresses, "--eid", eid.unwrap_or_default()]);
        command.args(case.engine);
        // A kernel must get nothing of it.
        command.args(["--congestion", "on"]);
        command.args(["--max-links", &case.links.to_string()]);
        command.args(["--testlink-time", &case.test_link_s.to_string()]);
        // What is to be shown is SMC, also by connections that are too short for it.
        command.args(["--spare-short", "off"]);
        // Nobody else's sockets, on a machine where others work.
        command.arg("--cgroup").arg(network.group().context("there is no cgroup of version 2")?);
        command.env("SHUNT_DIR", directory);
        let mut host = Host::start(command, limit).context("cannot start shunt engine")?;
        let deadline = std::time::Instant::now() + START_LIMIT;
        while !host.text().contains(READY) {
            ensure!(!host.ended(), "shunt engine ended: {}", host.text());
            let patient = std::time::Instant::now() < deadline;
            ensure!(patient, "shunt engine is not ready: {}", host.text());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self(host))
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: i32) {
        self.0.signal(signal);
    }

    /// What it has said.
    pub(super) fn text(&self) -> String {
        self.0.text()
    }
}

/// A program in the network under `shunt run`.
pub(super) fn run(network: &Network, built: &Path, directory: &Path, program: &Path) -> Command {
    let mut command = network.host_command(built.join("shunt"));
    command.arg("run").arg("--").arg(program).env("SHUNT_DIR", directory);
    command
}

/// The same program for the host, which a preloaded library can get into.
pub(super) fn host_program(built: &Path) -> PathBuf {
    built.join("smcpeer")
}
