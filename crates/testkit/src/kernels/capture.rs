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
/// What Wireshark takes some messages of LLC for, by a guess, and then calls them malformed.
const GUESSED: &str = "rpcordma";
/// From which severity on what Wireshark's experts say is no remark: it is a warning.
const WARNING: u32 = 0x60_0000;
/// The group of what they say about the order of TCP's segments.
const SEQUENCE: u32 = 0x0200_0000;

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
        command.args(["-n", "--disable-protocol", GUESSED]).arg("-r").arg(&self.file);
        command.args(["-Y", filter, "-T", "fields"]);
        for field in fields {
            command.args(["-e", field]);
        }
        let output = command.stdin(Stdio::null()).output().context("cannot start tshark")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "tshark: {}", said.trim());
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(lines.lines().map(str::to_owned).collect())
    }

    /// What Wireshark warns of in messages of SMC, by TCP and by RoCEv2, and in all headers of RoCEv2, or finds malformed
    /// there: a line for each such packet. Not how TCP has carried them.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn warnings(&self) -> anyhow::Result<Vec<String>> {
        let filter = format!("_ws.expert.severity >= {WARNING} && (smc || udp.port == 4791)");
        let mut fields = vec!["_ws.expert.severity", "_ws.expert.group", "frame.number"];
        fields.extend(["ip.src", "ipv6.src", "frame.protocols", "_ws.expert.message"]);
        let mut lines = self.fields(&filter, &fields)?;
        lines.retain(|line| is_warning(line));
        Ok(lines)
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

/// Whether a line of severities, their groups, and whatever stands behind, has a warning that is not about TCP.
fn is_warning(line: &str) -> bool {
    let mut columns = line.split('\t').map(|column| {
        let numbers = column.split(',').map(|number| number.parse::<u32>().unwrap_or(u32::MAX));
        numbers.collect::<Vec<_>>()
    });
    let (severities, groups) = (columns.next(), columns.next());
    let both = severities.into_iter().flatten().zip(groups.into_iter().flatten());
    both.into_iter().any(|(severity, group)| severity >= WARNING && group != SEQUENCE)
}

#[cfg(test)]
mod tests {
    use super::is_warning;

    #[test]
    fn remarks_and_the_order_of_segments_are_no_warnings() {
        // As tshark 4.0 says it.
        for (line, is) in [
            ("4194304,8388608\t33554432,117440512\t7\t10.99.0.2\t\tip:udp\tTTL,Malformed", true),
            ("4194304\t33554432\t7\t10.99.0.2\t\tip:udp\t\"Time To Live\" only 1", false),
            ("6291456\t33554432\t9\t10.99.0.1\t\tip:tcp:smc\tOut-Of-Order", false),
            ("6291456,6291456\t33554432,150994944\t9\t10.99.0.1\t\ttcp:smc\t,", true),
        ] {
            assert_eq!(is_warning(line), is, "{line}");
        }
    }
}
