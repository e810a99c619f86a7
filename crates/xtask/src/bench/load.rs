//! The clients: what is typed for each, and what of its output is the figure.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::server::{Server, as_postgres, find, patience, words};
use super::stage::{Cpus, End, Running, Stage, Way, cpu_of_finished_children};
use crate::install;

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// wrk on nginx: connections, and whether each carries one request only.
    Wrk { c: u32, close: bool },
    /// siege on nginx: so many threads, each of which makes a connection for each request and waits for the answer.
    Siege { c: u32 },
    /// redis-benchmark without pipelining: one command, connections.
    Redis { command: &'static str, c: u32 },
    /// Ping-pong of so many bytes; the figure is the rate.
    PingPong { size: u32 },
    /// Ping-pong of 100 bytes over so many connections, each with a thread at both ends; the figure is the rate of all.
    PingPongThreads { c: u32 },
    /// One connection; the figure is the median round trip, timed as that of the bare cache line is.
    PingPongTime { size: u32 },
    /// sockperf's ping-pong of 14 bytes; the figure is the median latency.
    SockperfPingPong,
    /// sockperf's throughput with messages of 64000 bytes.
    SockperfThroughput,
    /// iperf3 with this block, under cubic or what the machine has set.
    Iperf { block: &'static str, cubic: bool },
    /// pgbench, select only, so many clients by so many threads.
    Pgbench { c: u32, threads: u32 },
    /// This workspace's load generator on its web server.
    Http { c: u32, close: bool },
}

/// What a run of a client gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    /// In the unit of its row.
    pub(crate) value: f64,
    /// Requests it made, if it makes requests.
    pub(crate) requests: f64,
    /// CPU time of the client.
    pub(crate) client_cpu: Duration,
    /// CPU time of the server meanwhile.
    pub(crate) server_cpu: Duration,
}

/// How to run a client once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    /// The client's way.
    pub(crate) way: Way,
    /// How long to measure, about.
    pub(crate) seconds: f64,
    /// For clients that want a number of requests in place of a time: the rate to expect.
    pub(crate) expected_rate: f64,
    /// What to type before the client, after its CPU: a tracer.
    pub(crate) tracer: &'a [OsString],
    /// Through redis's UNIX socket.
    pub(crate) unix_socket: bool,
}

impl Run<'_> {
    /// How many requests to ask of a client that wants to be told.
    fn requests(self, connections: u32) -> f64 {
        (self.expected_rate * self.seconds).max(f64::from(connections) * 10.0).ceil()
    }
}

/// What to type for a program that computes on the server's CPU until it is killed.
fn computer(cpus: Cpus) -> Vec<OsString> {
    let loops = "while :; do :; done";
    ["taskset", "-c", cpus.of(End::Server), "sh", "-c", loops].map(OsString::from).into()
}

impl Load {
    /// How many connections a run of it makes at least that gave `figure`; `None`: it is not known.
    pub(crate) fn connections(self, figure: &Figure) -> Option<f64> {
        match self {
            Self::Wrk { close: true, .. } | Self::Http { close: true, .. } | Self::Siege { .. } => {
                Some(figure.requests)
            }
            Self::Wrk { c, .. } | Self::Http { c, .. } | Self::Redis { c, .. } => {
                Some(f64::from(c))
            }
            // One for its data, one for what the two ends agree on.
            Self::Iperf { .. } => Some(2.0),
            _ => None,
        }
    }

    /// What is absent of a client that not all rows of its server need: a sentence with the package that brings it.
    pub(crate) fn absent(self) -> Option<String> {
        let is_absent = matches!(self, Self::Siege { .. }) && install::find("siege").is_none();
        is_absent.then(|| "wants siege: apt-get install siege".to_owned())
    }

    /// Runs the client against `server`.
    ///
    /// # Errors
    ///
    /// When it fails, hangs or says nothing that can be read, or when its requests failed.
    pub(crate) fn run(
        self,
        stage: &Stage,
        server: &mut Server,
        run: Run<'_>,
    ) -> anyhow::Result<Figure> {
        let dir = stage.new_dir()?;
        let command = self.command(stage, server, run)?;
        let crowd = match server.cpus {
            Cpus::Two | Cpus::One | Cpus::Any => None,
            Cpus::Crowded => Some(Running::start(&computer(server.cpus), &stage.new_dir()?, &[])?),
        };
        let (client_before, server_before) =
            (cpu_of_finished_children(), server.running.cpu_used());
        let output = Running::start(&command, &dir, &[])?.finish(patience(run.seconds));
        let (client_after, server_after) = (cpu_of_finished_children(), server.running.cpu_used());
        drop(crowd);
        // A server that fell is the better explanation of a client that failed.
        if let Some(fall) = server.running.fell() {
            bail!("the server fell: {fall}");
        }
        let output = output?;
        super::stage::remove_dir(&dir);
        let (value, mut requests) =
            self.read(&output).with_context(|| format!("the client said {}", brief(&output)))?;
        ensure!(
            value.is_finite() && value > 0.0,
            "nothing was answered; the client said {}",
            brief(&output)
        );
        if let Self::Redis { c, .. } = self {
            requests = run.requests(c);
        }
        Ok(Figure {
            value,
            requests,
            client_cpu: client_after.saturating_sub(client_before),
            server_cpu: server_after.saturating_sub(server_before),
        })
    }

    /// What to type first to become whose client this is; nothing: ours.
    pub(crate) fn user(self) -> Vec<OsString> {
        if matches!(self, Self::Pgbench { .. }) { as_postgres() } else { Vec::new() }
    }

    fn command(
        self,
        stage: &Stage,
        server: &Server,
        run: Run<'_>,
    ) -> anyhow::Result<Vec<OsString>> {
        let mut command = self.user();
        let mut prefix = server.client_prefix(stage, run.way);
        // After `taskset -c CPU`, or after what leads to another host or network; before `shunt run --`.
        let before = if run.way == Way::Shunt { 3 } else { 0 };
        let at = prefix.len() - before;
        prefix.splice(at..at, run.tracer.iter().cloned());
        command.extend(prefix);
        let door = if run.unix_socket {
            format!("-s {}", server.unix_socket().display())
        } else {
            format!("-h {} -p {}", server.at, server.port)
        };
        command.extend(match self {
            Self::Redis { command, c } => {
                let args = format!("{door} -t {command} -c {c} -n {} --csv", run.requests(c));
                [find("redis-benchmark")?].into_iter().chain(words(&args)).collect()
            }
            Self::Siege { c } => {
                // Where a time ends it, it cancels its threads, which now and then wait for each other then.
                let each = (run.requests(c) / f64::from(c)).ceil();
                // It writes a file of settings for its user, unless there is none.
                let args = format!("HOME=/nonexistent siege -q -b -j --no-parser -c {c} -r {each}");
                let header = ["-H", "Connection: close"].map(OsString::from);
                let url = format!("http://{}:{}/1k", server.at, server.port);
                let all = words(&args).chain(header).chain([url.into()]);
                [find("env")?].into_iter().chain(all).collect()
            }
            _ => self.words(stage, server, run.seconds)?,
        });
        Ok(command)
    }

    /// What to type for a client that runs for so long.
    ///
    /// # Errors
    ///
    /// When the program is absent, or wants a number of requests in place of a time.
    pub(crate) fn words(
        self,
        stage: &Stage,
        server: &Server,
        seconds: f64,
    ) -> anyhow::Result<Vec<OsString>> {
        let (at, port, whole) = (server.at, server.port, seconds.ceil().max(1.0));
        // Of its first half second sockperf counts nothing.
        let sockperf = |what: &str| format!("{what} --tcp -i {at} -p {port} -t {}", whole.max(2.0));
        let (program, args) = match self {
            Self::Wrk { c, close } => {
                let wrk = find("wrk")?;
                let args = format!("-t1 -c{c} -d{whole} http://{at}:{port}/1k");
                // One word with a space in it: wrk ignores a header that has none after its colon.
                let header: &[&str] = if close { &["-H", "Connection: close"] } else { &[] };
                let header = header.iter().map(OsString::from);
                return Ok([wrk].into_iter().chain(header).chain(words(&args)).collect());
            }
            Self::Redis { .. } | Self::Siege { .. } => bail!("it wants a number of requests"),
            Self::PingPong { size } | Self::PingPongTime { size } => (
                stage.program("pingpong").into(),
                format!("client {port} --size {size} --seconds {seconds}"),
            ),
            Self::PingPongThreads { c } => (
                stage.program("pingpong").into(),
                format!("client {port} --size 100 --connections {c} --seconds {seconds}"),
            ),
            Self::SockperfPingPong => (find("sockperf")?, sockperf("ping-pong -m 14 --mps 500000")),
            Self::SockperfThroughput => (find("sockperf")?, sockperf("throughput -m 64000")),
            Self::Iperf { block, cubic } => {
                let control = if cubic { "-C cubic" } else { "" };
                (find("iperf3")?, format!("-c {at} -p {port} -l {block} -t {whole} {control} -J"))
            }
            Self::Pgbench { c, threads } => (
                find("pgbench")?,
                format!(
                    "-n -S -c {c} -j {threads} -T {whole} -h {at} -p {port} -U postgres postgres"
                ),
            ),
            Self::Http { c, close } => {
                let close = if close { "--close" } else { "" };
                (
                    stage.program("httpload").into(),
                    format!("{port} --connections {c} --seconds {seconds} {close}"),
                )
            }
        };
        Ok([program].into_iter().chain(words(&args)).collect())
    }

    /// Figure and number of requests from a client's output.
    fn read(self, output: &str) -> anyhow::Result<(f64, f64)> {
        match self {
            Self::Wrk { .. } => read_wrk(output),
            Self::Redis { .. } => read_redis(output),
            Self::Siege { .. } => read_siege(output),
            Self::PingPong { .. } | Self::PingPongThreads { .. } => {
                Ok((named(output, "rate")?, named(output, "rounds")?))
            }
            Self::PingPongTime { .. } => {
                Ok((named(output, "round_trip_ns")?, named(output, "rounds")?))
            }
            Self::SockperfPingPong => {
                let latency = after(output, "percentile 50.000 =")?;
                Ok((latency, after(output, "ReceivedMessages=")?))
            }
            Self::SockperfThroughput => {
                Ok((after(output, "BandWidth is")? * MEBI / 1e9, after(output, "Total of")?))
            }
            Self::Iperf { .. } => {
                let json: serde_json::Value = serde_json::from_str(output)?;
                let bits = json["end"]["sum_received"]["bits_per_second"].as_f64();
                Ok((bits.context("no end.sum_received.bits_per_second")? / 1e9, 0.0))
            }
            Self::Pgbench { .. } => {
                let done = after(output, "number of transactions actually processed:")?;
                Ok((after(output, "tps =")?, done))
            }
            Self::Http { .. } => {
                let errors = named(output, "errors")?;
                ensure!(errors == 0.0, "{errors} connections failed");
                Ok((named(output, "rate")?, named(output, "requests")?))
            }
        }
    }
}

/// sockperf's megabytes.
const MEBI: f64 = 1_048_576.0;

/// What a client said, on one line that a table can hold.
fn brief(output: &str) -> String {
    const CHARS_MAX: usize = 400;
    let words: Vec<&str> = output.split_whitespace().collect();
    let all = words.join(" ");
    let end = all.char_indices().nth(CHARS_MAX).map_or(all.len(), |(at, _)| at);
    format!("`{}`", &all[..end])
}

/// The number right after `mark`.
fn after(output: &str, mark: &str) -> anyhow::Result<f64> {
    let (_, rest) = output.split_once(mark).with_context(|| format!("no {mark:?}"))?;
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].trim_end_matches('.').parse().with_context(|| format!("no number after {mark:?}"))
}

/// The number of a `name=number` word, as the programs of this workspace print them.
pub(crate) fn named(output: &str, name: &str) -> anyhow::Result<f64> {
    let value =
        output.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    value
        .with_context(|| format!("no {name}="))?
        .parse()
        .with_context(|| format!("{name}= is no number"))
}

fn read_wrk(output: &str) -> anyhow::Result<(f64, f64)> {
    if let Some(line) = output.lines().find(|line| line.contains("Non-2xx")) {
        bail!("{}", line.trim());
    }
    if let Some(line) = output.lines().find(|line| line.contains("Socket errors")) {
        // wrk calls a slow answer an error too ("timeout"): that is latency, not failure.
        for kind in ["connect", "read", "write"] {
            ensure!(after(line, kind)? == 0.0, "{}", line.trim());
        }
    }
    let line =
        output.lines().find(|line| line.contains(" requests in ")).context("no \"requests in\"")?;
    let requests = line.split_whitespace().next().context("no number of requests")?.parse()?;
    Ok((after(output, "Requests/sec:")?, requests))
}

fn read_siege(output: &str) -> anyhow::Result<(f64, f64)> {
    let value = |name: &str| after(output, &format!("\"{name}\":"));
    let failed = value("failed_transactions")?;
    ensure!(failed == 0.0, "{failed} requests failed");
    let requests = value("transactions")?;
    // Of the rate it tells two digits of the seconds.
    Ok((value("transaction_rate")?, requests))
}

fn read_redis(output: &str) -> anyhow::Result<(f64, f64)> {
    let line = output.lines().find(|line| line.starts_with('"') && !line.starts_with("\"test\""));
    let rate = line.and_then(|line| line.split(',').nth(1)).context("no line of figures")?;
    Ok((rate.trim_matches('"').parse()?, 0.0))
}

#[cfg(test)]
mod tests {
    use super::{Load, named};

    #[track_caller]
    fn check(load: Load, output: &str, want: (f64, f64)) {
        assert_eq!(load.read(output).unwrap(), want);
    }

    const SIEGE: &str = "
{	\"transactions\":\t\t\t       20000,
	\"availability\":\t\t\t      100.00,
	\"transaction_rate\":\t\t    19801.98,
	\"successful_transactions\":\t       20000,
	\"failed_transactions\":\t\t           0,
}
";

    #[test]
    fn siege() {
        check(Load::Siege { c: 16 }, SIEGE, (19_801.98, 20_000.0));
        let failed = SIEGE.replace("           0,", "           1,");
        assert!(Load::Siege { c: 16 }.read(&failed).is_err());
    }

    const WRK: &str = "Running 2s test @ http://127.0.0.1:20001/1k
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   120.50us  100.00us   2.00ms   90.00%
    Req/Sec   130.00k     1.00k  132.00k    70.00%
  268000 requests in 2.05s, 300.00MB read
Requests/sec: 130731.71
Transfer/sec:    150.00MB
";

    #[test]
    fn wrk() {
        let load = Load::Wrk { c: 16, close: false };
        check(load, WRK, (130_731.71, 268_000.0));
        let slow = format!("{WRK}  Socket errors: connect 0, read 0, write 0, timeout 3\n");
        check(load, &slow, (130_731.71, 268_000.0));
        let broken = format!("{WRK}  Socket errors: connect 0, read 7, write 0, timeout 0\n");
        assert!(load.read(&broken).is_err());
        assert!(load.read(&format!("{WRK}  Non-2xx or 3xx responses: 5\n")).is_err());
        assert!(load.read("").is_err());
    }

    #[test]
    fn redis_benchmark() {
        let output = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"22988.51\",\"0.448\"\n";
        check(Load::Redis { command: "get", c: 16 }, output, (22_988.51, 0.0));
    }

    #[test]
    fn sockperf() {
        let output = "sockperf: [Valid Duration] RunTime=0.550 sec; SentMessages=17347; ReceivedMessages=17347\n\
                      sockperf: ---> percentile 75.000 =   17.515\nsockperf: ---> percentile 50.000 =   14.120\n";
        check(Load::SockperfPingPong, output, (14.12, 17347.0));
        let output = "sockperf: Total of 20341 messages sent in 1.001 sec\n\
                      sockperf: Summary: BandWidth is 1000.000 MBps (8000.000 Mbps)\n";
        check(Load::SockperfThroughput, output, (1.048_576, 20341.0));
    }

    #[test]
    fn iperf_and_pgbench() {
        let output = r#"{"end": {"sum_received": {"bits_per_second": 9.5e9}}}"#;
        check(Load::Iperf { block: "64K", cubic: true }, output, (9.5, 0.0));
        let output = "number of transactions actually processed: 12345\ntps = 6172.5 (without initial connection time)\n";
        check(Load::Pgbench { c: 1, threads: 1 }, output, (6172.5, 12345.0));
    }

    #[test]
    fn our_own() {
        let output = "rounds=100 seconds=1.000 rate=99 round_trip_ns=9 p50_ns=10 p99_ns=20\n";
        check(Load::PingPong { size: 100 }, output, (99.0, 100.0));
        check(Load::PingPongThreads { c: 8 }, output, (99.0, 100.0));
        check(Load::PingPongTime { size: 100 }, output, (9.0, 100.0));
        assert_eq!(named(output, "p99_ns").unwrap(), 20.0);
        assert!(named(output, "ns").is_err());
        let output = "requests=10 seconds=1.000 rate=10 p50_ns=1 p99_ns=1 errors=2";
        assert!(Load::Http { c: 1, close: false }.read(output).is_err());
    }
}
