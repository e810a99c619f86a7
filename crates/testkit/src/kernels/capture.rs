//! What went over the bridge, and what Wireshark thinks of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::ending::Bounded;
use super::network::{BRIDGE, Network};

const START_LIMIT: Duration = Duration::from_secs(10);
/// So that `tcpdump` has written what has come.
const SETTLE: Duration = Duration::from_millis(300);
/// Bytes of each packet that may be kept: all headers and messages of SMC, not all of what programs send.
pub const HEADERS: u32 = 512;
/// Bytes of each packet that may be kept: all of them.
pub const WHOLE: u32 = 65_535;

/// A capture in progress. It ends when this is dropped.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Bounded,
    file: PathBuf,
}

impl Capture {
    /// Captures what goes over the bridge into a file, so many bytes of each packet.
    ///
    /// # Errors
    ///
    /// If `tcpdump` does not start.
    pub fn start(
        network: &Network,
        file: &Path,
        kept: u32,
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let mut command = network.command("tcpdump");
        command.args([
            "-i",
            BRIDGE,
            "-s",
            &kept.to_string(),
            "--immediate-mode",
            "-U",
            "-Z",
            "root",
            "-w",
        ]);
        command.arg(file);
        let log = file.with_extension("log");
        let words = fs::File::create(&log)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(words);
        let tcpdump = Bounded::start(&mut command, limit).context("cannot start tcpdump")?;
        let mut capture = Self { tcpdump, file: file.to_owned() };
        let deadline = Instant::now() + START_LIMIT;
        while !fs::read_to_string(&log).is_ok_and(|text| text.contains("listening on")) {
            ensure!(capture.tcpdump.ended().is_none(), "tcpdump: {}", fs::read_to_string(&log)?);
            ensure!(Instant::now() < deadline, "tcpdump does not listen");
            sleep(Duration::from_millis(20));
        }
        Ok(capture)
    }

    /// Ends the capture.
    ///
    /// # Errors
    ///
    /// If `tcpdump` does not end.
    pub fn stop(mut self) -> anyhow::Result<Captured> {
        sleep(SETTLE);
        self.tcpdump.signal(libc::SIGINT);
        self.tcpdump.wait().context("tcpdump does not end")?;
        Ok(Captured { file: self.file.clone() })
    }
}

/// A capture that is over.
#[derive(Clone, Debug)]
pub struct Captured {
    /// Where it is.
    pub file: PathBuf,
}

impl Captured {
    /// One line for each packet that Wireshark's filter lets pass, with these fields, tab between.
    ///
    /// # Errors
    ///
    /// What `tshark` says: a filter or field that it does not know.
    pub fn fields(&self, filter: &str, fields: &[&str]) -> anyhow::Result<Vec<String>> {
        let mut command = Command::new("tshark");
        command.arg("-n").arg("-r").arg(&self.file).args(["-Y", filter, "-T", "fields"]);
        for field in fields {
            command.args(["-e", field]);
        }
        let output = command.stdin(Stdio::null()).output().context("cannot start tshark")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "tshark: {}", said.trim());
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(lines.lines().map(str::to_owned).collect())
    }

    /// How many packets the filter lets pass.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn count(&self, filter: &str) -> anyhow::Result<usize> {
        Ok(self.fields(filter, &["frame.number"])?.len())
    }
}
