//! What requests cost beside time: CPU and system calls of both ends; and what idle connections do.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, bail};

use super::load::{Figure, Load, Run, named};
use super::pairs::{Better, Pairs};
use super::server::{Kind, Server, find, patience, words};
use super::stage::{Board, Cpus, End, Running, Stage, Way, remove_dir};
use crate::install;

/// Memory that an idle connection may take beyond what it takes over TCP, bytes.
const IDLE_BYTES_MAX: f64 = 4096.0;
/// "No CPU": less than a thousandth of one, in microseconds per second.
const IDLE_CPU_US_MAX: f64 = 1000.0;
/// How long they are held at least, seconds.
const IDLE_SECONDS_MIN: f64 = 5.0;
/// Memory that a process takes at its first connection is not what a connection costs.
const IDLE_COUNT_MIN: u32 = 1000;

/// CPU time of both ends for each request, microseconds.
pub(crate) fn cpu_per_request(figure: &Figure) -> Option<f64> {
    let used = figure.client_cpu + figure.server_cpu;
    (figure.requests > 0.0).then(|| used.as_secs_f64() * 1e6 / figure.requests)
}

/// Who counts system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tracer {
    /// `perf stat`: costs next to nothing.
    Perf,
    /// `strace -c`: slow, but there.
    Strace,
}

const EVENT: &str = "raw_syscalls:sys_enter";

fn words_of_a_try() -> impl Iterator<Item = OsString> {
    ["stat", "-e", EVENT, "true"].into_iter().map(OsString::from)
}

impl Tracer {
    /// One that works here for whom `user` makes of us (no words: nobody else), or a sentence with the
    /// package that brings one. perf asks for rights that others than root mostly lack.
    pub(crate) fn here(user: &[OsString]) -> Result<Self, String> {
        let perf = install::find("perf").is_some_and(|perf| {
            let words = user.iter().cloned().chain([perf.into()]);
            let words: Vec<OsString> = words.chain(words_of_a_try()).collect();
            let output = Command::new(&words[0]).args(&words[1..]).output();
            output.is_ok_and(|output| output.status.success())
        });
        if perf {
            return Ok(Self::Perf);
        }
        install::find("strace")
            .map(|_| Self::Strace)
            .ok_or_else(|| "wants strace: apt-get install strace".into())
    }

    fn words(self, file: &Path) -> anyhow::Result<Vec<OsString>> {
        let mut command = match self {
            Self::Perf => [find("perf")?]
                .into_iter()
                .chain(words(&format!("stat -x, -e {EVENT} -o")))
                .collect(),
            Self::Strace => {
                [find("strace")?].into_iter().chain(words("-c -f -q -o")).collect::<Vec<_>>()
            }
        };
        command.push(file.into());
        Ok(command)
    }

    /// Counts what these processes call from now on.
    fn attach(self, pids: &[u32], dir: &Path) -> anyhow::Result<Running> {
        let mut command = self.words(&dir.join("count"))?;
        match self {
            Self::Perf => {
                let list: Vec<String> = pids.iter().map(u32::to_string).collect();
                command.extend(["-p".into(), list.join(",").into()]);
            }
            Self::Strace => {
                command.extend(pids.iter().flat_map(|pid| ["-p".into(), pid.to_string().into()]));
            }
        }
        let tracer = Running::start(&command, dir, &[])?.ends_by_interrupt();
        thread::sleep(Duration::from_millis(500));
        Ok(tracer)
    }

    fn read(self, text: &str) -> Option<f64> {
        match self {
            Self::Perf => {
                text.lines().find(|line| line.contains(EVENT))?.split(',').next()?.parse().ok()
            }
            Self::Strace if text.trim().is_empty() => Some(0.0),
            Self::Strace => {
                let total = text.lines().find(|line| line.trim_end().ends_with(" total"))?;
                total.split_whitespace().nth(3)?.parse().ok()
            }
        }
    }

    fn read_file(self, file: &Path) -> anyhow::Result<f64> {
        let text =
            fs::read_to_string(file).with_context(|| format!("no counts in {}", file.display()))?;
        self.read(&text)
            .with_context(|| format!("cannot make sense of these counts: {}", text.trim()))
    }

    /// System calls for each request of one end, set-up of connections included.
    ///
    /// # Errors
    ///
    /// When the load fails or nothing was counted.
    pub(crate) fn calls_per_request(
        self,
        stage: &Stage,
        server: &mut Server,
        load: Load,
        run: Run<'_>,
        end: End,
    ) -> anyhow::Result<f64> {
        let dir = stage.new_dir()?;
        let file = dir.join("count");
        let figure = match end {
            End::Client => {
                // The client may be somebody else's.
                fs::set_permissions(&dir, fs::Permissions::from_mode(0o777))?;
                load.run(stage, server, Run { tracer: &self.words(&file)?, ..run })?
            }
            End::Server => {
                let mut tracer = self.attach(&server.running.family(), &dir)?;
                let figure = load.run(stage, server, run)?;
                tracer.ask_to_end();
                if tracer.wait(Duration::from_secs(5))?.is_none() {
                    bail!("the tracer does not end");
                }
                figure
            }
        };
        let calls = self.read_file(&file)?;
        remove_dir(&dir);
        Ok(calls / figure.requests)
    }
}

/// What idle connections take, of both ends together.
#[derive(Clone, Copy, Debug)]
struct Held {
    bytes_per_connection: f64,
    cpu_us_per_second: f64,
}

/// Idle connections: a row's name, unit, pairs and floor.
pub(crate) type Finding = (String, &'static str, Pairs, Option<f64>);

/// Holds so many connections over TCP and under Shunt and says what they took.
///
/// # Errors
///
/// When they cannot be held.
pub(crate) fn idle(stage: &Stage, connections: u32, seconds: f64) -> anyhow::Result<Vec<Finding>> {
    // What is read of the processes at the beginning and at the end costs them time too.
    let seconds = seconds.max(IDLE_SECONDS_MIN);
    let tcp = hold(stage, Way::Tcp, connections, seconds).context("over TCP")?;
    let shunt = hold(stage, Way::Shunt, connections, seconds).context("under Shunt")?;
    let pairs =
        |peer: f64, ours: f64| Pairs::of(&[(peer.max(0.01), ours.max(0.01))], Better::Lower);
    let name = |what: &str| format!("{connections} idle connections, {what}");
    let bounded = connections >= IDLE_COUNT_MIN;
    let beyond = shunt.bytes_per_connection - tcp.bytes_per_connection;
    let mut findings = vec![
        (
            name("bytes each"),
            "B",
            pairs(tcp.bytes_per_connection, shunt.bytes_per_connection),
            None,
        ),
        (
            name("CPU per second against a thousandth"),
            "us",
            pairs(IDLE_CPU_US_MAX, shunt.cpu_us_per_second),
            Some(1.0),
        ),
    ];
    if bounded {
        let allowed = pairs(IDLE_BYTES_MAX, beyond);
        findings.push((name("bytes beyond TCP each against 4 KiB"), "B", allowed, Some(1.0)));
    }
    findings
        .into_iter()
        .map(|(name, unit, pairs, floor)| {
            Ok((name, unit, pairs.context("nothing was held")?, floor))
        })
        .collect()
}

fn hold(stage: &Stage, way: Way, connections: u32, seconds: f64) -> anyhow::Result<Held> {
    let board = Board::new()?;
    let settings = [("SHUNT_DIR", board.path().into())];
    let server = Server::start_with(stage, Kind::Httpd, way, Cpus::Two, &settings)?;
    let [pid] = server.running.family()[..] else { bail!("the server is one process") };
    let dir = stage.new_dir()?;
    let mut command = stage.prefix(way, End::Client, Cpus::Two);
    command.push(stage.program("idle").into());
    let args = format!(
        "{} --connections {connections} --seconds {seconds} --pid {pid} --shared",
        server.port
    );
    command.extend(words(&args));
    command.push(board.path().into());
    let output = Running::start(&command, &dir, &settings)?.finish(patience(seconds) * 2)?;
    remove_dir(&dir);
    Ok(Held {
        bytes_per_connection: named(&output, "bytes")? / f64::from(connections),
        cpu_us_per_second: named(&output, "cpu_us")? / named(&output, "seconds")?,
    })
}

#[cfg(test)]
mod tests {
    use super::Tracer;

    #[test]
    fn who_may_not_count_by_perf_counts_otherwise() {
        // Becomes somebody who fails at everything.
        let nobody = ["false".into()];
        assert_ne!(Tracer::here(&nobody), Ok(Tracer::Perf));
    }

    #[test]
    fn counts_are_read() {
        let perf = "# started on Fri\n\n143,,raw_syscalls:sys_enter,3327000,100.00,,\n";
        assert_eq!(Tracer::Perf.read(perf), Some(143.0));
        assert_eq!(Tracer::Perf.read("<not counted>,,raw_syscalls:sys_enter,0,0.00,,"), None);
        let strace = "% time     seconds  usecs/call     calls    errors syscall\n\
                      ------ ----------- ----------- --------- --------- ----------------\n\
                      90.00    0.001000           1       900         3 read\n\
                      100.00    0.002000           1      1234         3 total\n";
        assert_eq!(Tracer::Strace.read(strace), Some(1234.0));
        assert_eq!(Tracer::Strace.read(""), Some(0.0));
    }
}
