//! A guest, the bridge, and `shunt serve` at the host's end of it.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::sys::signal::Signal;
use testkit::kernels::capture::{Capture, WHOLE};
use testkit::kernels::guest::{Guest, Image, Running, Shape};
use testkit::kernels::network::{HOST, Network};

use super::case::{Case, Loss, Work};
use crate::bench::stage as place;
use crate::interop::program::Host;

const START_LIMIT: Duration = Duration::from_secs(90);
/// The end of what the server says when it takes connections.
const READY: &str = "Ctrl-C ends";
const SHARE: &str = "files";
const USER: &str = "smbtest";
const PASSWORD: &str = "pw";
/// Records that are written while the server is lost, and how many of them before.
const RECORDS: u32 = 60;
const RECORDS_BEFORE: u32 = 15;
/// Connections of a mount with `max_channels=4`.
const CHANNELS: usize = 4;
/// How long the server is not there.
const AWAY: Duration = Duration::from_secs(3);
/// A client finds out by itself that the server is back.
const RETURN_LIMIT: Duration = Duration::from_secs(200);

/// What was built.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) image: Image,
    pub(super) shunt: PathBuf,
    pub(super) player: PathBuf,
    /// Where folders are shared from.
    pub(super) folder: PathBuf,
    /// Where captures go, if they are wanted.
    pub(super) keep: Option<PathBuf>,
    pub(super) seed: u64,
    pub(super) limit: Duration,
}

/// All of it, at work.
pub(super) struct Stage<'a> {
    // In this order they end: the programs before their network.
    guest: Guest,
    network: Network,
    prepared: &'a Prepared,
}

/// A running server and the folder that it shares.
struct Server<'a> {
    host: Host,
    folder: &'a Path,
}

/// A folder that is gone when this is.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        place::remove_dir(&self.0);
    }
}

impl<'a> Stage<'a> {
    pub(super) fn boot(prepared: &'a Prepared) -> anyhow::Result<Self> {
        let network = Network::new().context("a network namespace with a bridge")?;
        let addresses = vec![Ipv4Addr::new(10, 99, 0, 1)];
        let shape = Shape::small("client", addresses, prepared.limit);
        let guest = Guest::switch_on(&network, &prepared.image, shape)?;
        let release = guest.wait_ready()?;
        println!("the guest runs Linux {release}");
        Ok(Self { guest, network, prepared })
    }

    pub(super) fn play(&self, case: &Case) -> anyhow::Result<()> {
        let folder = Folder(place::new_dir(&self.prepared.folder.join("shunt-interop"))?);
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o777))?;
        let mut server = self.serve(&folder.0, case)?;
        let capture = self.capture(case)?;
        let played = self.work(case, &mut server);
        let said = server.host.text();
        let unmounted = self.guest.run("cd /; umount -l /m /n 2>/dev/null; rm -rf /tmp/*");
        let played = played.and_then(|()| unmounted.map(drop));
        if let Some(capture) = capture {
            capture.stop()?;
        }
        if server.host.ended() {
            bail!("the server ended: {said}; {played:?}");
        }
        played.with_context(|| {
            let log = self.guest.run("dmesg | grep -v 'Attempting to mount' | tail -n 12");
            let log = log.map_or_else(|e| e.to_string(), |output| output.text);
            format!("the server says: {said}\nthe guest's kernel says: {log}\nand")
        })
    }

    fn capture(&self, case: &Case) -> anyhow::Result<Option<Capture>> {
        let Some(keep) = &self.prepared.keep else { return Ok(None) };
        let name: String =
            case.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let file = keep.join(format!("{name}.pcap"));
        Capture::start(&self.network, &file, WHOLE, self.prepared.limit).map(Some)
    }

    fn serve<'b>(&self, folder: &'b Path, case: &Case) -> anyhow::Result<Server<'b>> {
        let mut command = self.network.command(&self.prepared.shunt);
        command.args(["serve", "--listen", &format!("{HOST}:445")]);
        command.args(["--user", &format!("{USER}:{PASSWORD}"), "--share"]);
        command.arg(format!("{SHARE}={}{}", folder.display(), case.share));
        let mut host = Host::start(command, self.prepared.limit).context("shunt serve")?;
        let deadline = Instant::now() + START_LIMIT;
        while !host.text().contains(READY) {
            ensure!(!host.ended(), "shunt serve ended: {}", host.text());
            ensure!(Instant::now() < deadline, "shunt serve is not ready: {}", host.text());
            sleep(Duration::from_millis(20));
        }
        Ok(Server { host, folder })
    }

    fn work(&self, case: &Case, server: &mut Server<'_>) -> anyhow::Result<()> {
        let limit = Duration::from_secs(case.limit_s);
        match case.work {
            Work::Script(script) => self.script(case, script, limit),
            Work::Twice(script) => self.script(case, &format!("mount_at /n && {script}"), limit),
            Work::Then(script, after) => {
                self.script(case, script, limit)?;
                let mut command = Command::new("sh");
                command.args(["-c", after]).env("FOLDER", server.folder);
                let output = command.output().context("sh")?;
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                ensure!(output.status.success(), "on the server: {said}");
                Ok(())
            }
            Work::Lose(loss) => self.lose(case, loss, server, limit),
        }
    }

    /// The shell's words for mounting, before a script.
    fn prelude(&self, case: &Case) -> String {
        format!(
            "SEED={}; mount_at() {{ fileplay mount //{HOST}/{SHARE} $1 --options \
             ip={HOST},user={USER},pass={PASSWORD},nosharesock,{} >/dev/null || \
             {{ dmesg | tail -n 5; exit 1; }}; }}; \
             remount() {{ umount /m && mount_at /m; }}; mount_at /m && ",
            self.prepared.seed, case.options
        )
    }

    fn script(&self, case: &Case, script: &str, limit: Duration) -> anyhow::Result<()> {
        let output = self.guest.run_for(&(self.prelude(case) + script), limit)?;
        let text = output.text.trim();
        ensure!(output.status == 0, "ended with {}: {text}", output.status);
        Ok(())
    }

    fn lose(
        &self,
        case: &Case,
        loss: Loss,
        server: &mut Server<'_>,
        limit: Duration,
    ) -> anyhow::Result<()> {
        let seed = self.prepared.seed;
        let write =
            format!("fileplay write /m/records --seed {seed} --records {RECORDS} --pause-ms 50");
        let writing = self.guest.spawn(&(self.prelude(case) + &write))?;
        writing.wait_for(&format!("kept={RECORDS_BEFORE}\n"), limit)?;
        match loss {
            Loss::Stop | Loss::Kill => {
                let signal = if loss == Loss::Kill { Signal::SIGKILL } else { Signal::SIGTERM };
                server.host.signal(signal as i32);
                self.wait_for_end(server)?;
                // What was said to be kept is there, whoever looks.
                let kept = kept(&writing.text());
                self.check(server.folder, kept).context("while the server is away")?;
                sleep(AWAY);
                server.host = self.serve(server.folder, case)?.host;
            }
            Loss::Cable => {
                let port = self.guest.port(0);
                self.network.connect(&port, false)?;
                sleep(AWAY);
                self.network.connect(&port, true)?;
            }
            Loss::Cut => drop(self.connections("-K", &[])?),
            Loss::Channels => self.cut_in_turn(&writing, limit)?,
        }
        let output = writing.wait(RETURN_LIMIT)?;
        ensure!(output.status == 0, "ended with {}: {}", output.status, last_line(&output.text));
        self.check(server.folder, RECORDS).context("in the end")
    }

    /// Cuts each of four connections, one after the other; between two of them records are written.
    fn cut_in_turn(&self, writing: &Running<'_>, limit: Duration) -> anyhow::Result<()> {
        let channels = self.clients()?;
        ensure!(channels.len() == CHANNELS, "there are {} channels: {channels:?}", channels.len());
        for (at, channel) in (1..).zip(&channels) {
            self.connections("-K", &["dst", channel])?;
            ensure!(!self.clients()?.contains(channel), "{channel} is there still");
            writing.wait_for(&format!("kept={}\n", RECORDS_BEFORE + 8 * at), limit)?;
        }
        Ok(())
    }

    /// The clients' ends of all connections to the server.
    fn clients(&self) -> anyhow::Result<Vec<String>> {
        let said = self.connections("-H", &[])?;
        let peer = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
        Ok(said.lines().filter_map(peer).collect())
    }

    /// What `ss` says of connections to the server, or does with them; `which`: of these only.
    fn connections(&self, option: &str, which: &[&str]) -> anyhow::Result<String> {
        let mut command = self.network.command("ss");
        command.args(["-tn", option, "state", "established", "sport", "=", ":445"]).args(which);
        let output = command.output().context("ss")?;
        ensure!(output.status.success(), "ss {option}: {}", output.status);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn wait_for_end(&self, server: &mut Server<'_>) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while !server.host.ended() {
            ensure!(Instant::now() < deadline, "the server does not end");
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Looks at the records in the folder itself.
    fn check(&self, folder: &Path, records: u32) -> anyhow::Result<()> {
        let mut command = Command::new(&self.prepared.player);
        command.arg("check").arg(folder.join("records"));
        command.args(["--seed", &self.prepared.seed.to_string()]);
        let output = command.args(["--records", &records.to_string()]).output()?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        ensure!(output.status.success(), "{said}");
        Ok(())
    }
}

/// The last record that a writer said to be kept.
fn kept(text: &str) -> u32 {
    let numbers = text.lines().filter_map(|line| line.strip_prefix("kept=")?.parse().ok());
    numbers.max().unwrap_or(0)
}

fn last_line(text: &str) -> &str {
    text.trim().lines().next_back().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_the_last_number() {
        assert_eq!(kept("kept=1\nkept=2\nkept=3"), 3);
        assert_eq!(kept(""), 0);
        assert_eq!(last_line("a\nb\n"), "b");
    }
}
