//! What is measured and what it must reach: the table of floors, as rows.

use super::load::Load;
use super::pairs::Better;
use super::server::Kind;
use super::stage::{Cpus, Way};

/// What a measurement under Shunt is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Against {
    /// The same programs over TCP.
    Tcp,
    /// The same, and only the server is under Shunt: what it costs where the peer has no Shunt.
    TcpServerOnly,
    /// The same, and only the client is under Shunt.
    TcpClientOnly,
    /// The same programs over the server's UNIX socket.
    UnixSocket,
    /// A cache line each way between the two CPUs, each written by one end, as a channel needs it.
    LineEachWay,
    /// One cache line to and fro between the two CPUs, written by both.
    OneLine,
}

impl Against {
    /// The ways of server and client that are ours in the comparison.
    pub(crate) const fn ours(self) -> (Way, Way) {
        match self {
            Self::TcpServerOnly => (Way::Shunt, Way::Tcp),
            Self::TcpClientOnly => (Way::Tcp, Way::Shunt),
            Self::Tcp | Self::UnixSocket | Self::LineEachWay | Self::OneLine => {
                (Way::Shunt, Way::Shunt)
            }
        }
    }
}

/// A comparison.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// For people, and for `--only`.
    pub(crate) name: String,
    /// The server.
    pub(crate) server: Kind,
    /// The client.
    pub(crate) load: Load,
    /// Where they run.
    pub(crate) cpus: Cpus,
    /// What it is compared with.
    pub(crate) against: Against,
    /// Of the figure.
    pub(crate) unit: &'static str,
    /// Which figure is better.
    pub(crate) better: Better,
    /// The ratio that it must reach; 0: it is only recorded.
    pub(crate) floor: f64,
    /// Whether `--quick` measures it.
    pub(crate) quick: bool,
    /// Whether CPU time and system calls per request are recorded too.
    pub(crate) costs: bool,
    /// How many times as few system calls per request it must make at either end; 0: they are only recorded.
    pub(crate) calls_floor: f64,
}

/// Connections that are held idle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    /// So many.
    pub(crate) connections: u32,
    /// Whether `--quick` measures it.
    pub(crate) quick: bool,
}

/// Idle connections: how many are held.
pub(crate) const IDLE: &[Idle] = &[
    Idle { connections: 1, quick: false },
    Idle { connections: 1000, quick: true },
    Idle { connections: 10_000, quick: false },
];

/// What is asked of a message's round trip: no more than 2.5 times that of a bare cache line.
const BARE_LINE_FLOOR: f64 = 0.4;
/// Two ends that are both awake make no system calls, where TCP makes two for each message. What is counted all the
/// same, of a whole run of a client, is what its process and its connection begin and end with, and sleeps of an end
/// whose peer was taken off its CPU (the tracer, which is slow, runs beside the two on the same CPUs): a hundredth of
/// TCP's, one call in fifty messages, is room for these and for nothing that each message makes.
const AWAKE_CALLS_FLOOR: f64 = 100.0;
/// A stream, against TCP with cubic and with the congestion control that the machine has set.
const CUBIC_FLOOR: f64 = 2.0;
const DEFAULT_FLOOR: f64 = 3.0;
/// Where more threads want to run than there are CPUs, each message ends a sleep (ADR 27): at least as fast as TCP.
const THREADS_FLOOR: f64 = 1.0;
/// Where nobody says which program runs where: never slower than TCP.
const ANY_CPU_FLOOR: f64 = 1.0;
/// On one CPU Shunt may cost this much and no more.
const ONE_CPU_FLOOR: f64 = 0.98;
/// What is lost to a third program on the CPU is known, about a tenth (README, Limits): much more must not be.
const CROWDED_FLOOR: f64 = 0.85;

/// Threads that sleep in the kernel until a short answer comes gain nothing (ADR 32): they must not lose much.
const SHORT_FLOOR: f64 = 0.85;

impl Row {
    fn new(name: String, server: Kind, load: Load, floor: f64) -> Self {
        let (unit, better) = match load {
            Load::Wrk { .. } | Load::Siege { .. } | Load::Redis { .. } | Load::Http { .. } => {
                ("req/s", Better::Higher)
            }
            Load::PingPong { .. } | Load::PingPongThreads { .. } => ("trips/s", Better::Higher),
            Load::PingPongTime { .. } => ("ns", Better::Lower),
            Load::SockperfPingPong => ("us", Better::Lower),
            Load::SockperfThroughput => ("GB/s", Better::Higher),
            Load::Iperf { .. } => ("Gb/s", Better::Higher),
            Load::Pgbench { .. } => ("tx/s", Better::Higher),
        };
        let (cpus, against) = (Cpus::Two, Against::Tcp);
        let (quick, costs, calls_floor) = (true, false, 0.0);
        Self { name, server, load, cpus, against, unit, better, floor, quick, costs, calls_floor }
    }

    /// Whether it is about a difference smaller than what two measurements of the same differ by. A bare cache line
    /// takes half as long or twice as long, by where in the caches it comes to lie that time.
    pub(crate) fn is_close_call(&self) -> bool {
        (self.against, self.cpus) == (Against::Tcp, Cpus::One)
            && matches!(self.load, Load::Wrk { close: true, .. } | Load::Pgbench { .. })
            || matches!(self.against, Against::OneLine | Against::LineEachWay)
    }

    /// Whether one end alone is under Shunt: all there is to see is what that costs.
    pub(crate) fn is_one_sided(&self) -> bool {
        matches!(self.against, Against::TcpServerOnly | Against::TcpClientOnly)
    }

    fn full_only(mut self) -> Self {
        self.quick = false;
        self
    }

    fn with_costs(mut self) -> Self {
        self.costs = true;
        self
    }

    fn against(mut self, against: Against, what: &str) -> Self {
        self.against = against;
        self.name = format!("{}, {what}", self.name);
        self
    }

    fn on_one_cpu(mut self, floor: f64) -> Self {
        self.cpus = Cpus::One;
        self.name = format!("{}, one CPU", self.name);
        self.floor = floor;
        self.costs = false;
        self.calls_floor = 0.0;
        self
    }
}

/// Web server and load generator: keep-alive, then a connection for each request.
pub(crate) fn web() -> Vec<Row> {
    let keep_alive = |(c, floor)| {
        Row::new(
            format!("nginx+wrk keep-alive c={c}"),
            Kind::Nginx,
            Load::Wrk { c, close: false },
            floor,
        )
    };
    let close = |(c, floor)| {
        Row::new(format!("nginx+wrk close c={c}"), Kind::Nginx, Load::Wrk { c, close: true }, floor)
    };
    let floors = [(1, 5.5), (16, 2.6), (128, 3.0), (500, 3.0), (2000, 3.0), (6000, 3.0)];
    let mut rows: Vec<Row> = floors.map(keep_alive).into();
    rows.extend([(4, 1.0), (8, 1.0), (16, 1.3), (32, 1.0), (64, 1.0), (200, 1.0)].map(close));
    for row in &mut rows {
        row.quick = !matches!(row.load, Load::Wrk { c: 8 | 32 | 64 | 200 | 500 | 2000 | 6000, .. });
        row.costs =
            matches!(row.load, Load::Wrk { c: 1 | 16 | 128, .. } | Load::Wrk { close: true, .. });
    }
    rows
}

/// redis, against TCP.
pub(crate) fn redis() -> Vec<Row> {
    let mut rows = Vec::new();
    for command in ["get", "set"] {
        for (c, floor) in [(1, 4.5), (16, 1.9), (128, 2.2)] {
            let name = format!("redis-benchmark {} c={c}", command.to_uppercase());
            let mut row = Row::new(name, Kind::Redis, Load::Redis { command, c }, floor);
            row.quick = command == "get" && c < 128 || c == 16;
            row.costs = command == "get";
            rows.push(row);
        }
    }
    rows
}

fn redis_unix() -> impl Iterator<Item = Row> {
    redis().into_iter().map(|mut row| {
        row.quick = matches!(row.load, Load::Redis { command: "get", c: 16 });
        row.floor = 1.0;
        row.costs = false;
        row.against(Against::UnixSocket, "against its UNIX socket")
    })
}

/// One message at a time between two CPUs.
pub(crate) fn ping_pong() -> Row {
    let row =
        Row::new("ping-pong 100 B".into(), Kind::PingPong, Load::PingPong { size: 100 }, 50.0);
    Row { calls_floor: AWAKE_CALLS_FLOOR, ..row.with_costs() }
}

/// A thread for each connection, at both ends: none of them can look for others while it waits.
fn threads() -> Vec<Row> {
    let row = |c| {
        let name = format!("ping-pong 100 B, {c} connections, a thread each");
        Row::new(name, Kind::PingPong, Load::PingPongThreads { c }, THREADS_FLOOR)
    };
    let quick = row(32);
    vec![row(2).full_only(), row(8).full_only(), quick, row(128).full_only()]
}

fn small_messages() -> Vec<Row> {
    let time = Row::new(
        "ping-pong 100 B round trip".into(),
        Kind::PingPong,
        Load::PingPongTime { size: 100 },
        BARE_LINE_FLOOR,
    );
    vec![
        ping_pong(),
        // The bare round trip: one line to and fro. A message of 100 bytes is on two lines itself, and a third one
        // says that it is there.
        time.clone().against(Against::OneLine, "against one bare cache line"),
        // What a channel with one writer per word cannot do without, even of an empty message.
        time.against(Against::LineEachWay, "against a bare cache line each way"),
        Row::new("sockperf ping-pong 14 B".into(), Kind::Sockperf, Load::SockperfPingPong, 30.0),
    ]
}

fn bulk() -> Vec<Row> {
    let throughput = |kind, control, floor| {
        let name = format!("sockperf throughput 64000 B, {control}");
        Row::new(name, kind, Load::SockperfThroughput, floor)
    };
    let mut rows = vec![
        throughput(Kind::SockperfCubic, "cubic", CUBIC_FLOOR).full_only(),
        throughput(Kind::Sockperf, "default", DEFAULT_FLOOR),
    ];
    for block in ["64K", "128K", "1M"] {
        for (cubic, control, floor) in
            [(true, "cubic", CUBIC_FLOOR), (false, "default", DEFAULT_FLOOR)]
        {
            let name = format!("iperf3 {block}, {control}");
            let row = Row::new(name, Kind::Iperf, Load::Iperf { block, cubic }, floor);
            rows.push(if block == "128K" { row.full_only() } else { row });
        }
    }
    rows
}

fn database() -> Vec<Row> {
    let row = |(c, floor)| {
        let load = Load::Pgbench { c, threads: 1 };
        Row::new(format!("pgbench -S c={c}"), Kind::Postgres, load, floor).with_costs()
    };
    [(1, 1.3), (8, 1.0), (32, 1.0)].map(row).into()
}

/// Each where the scheduler puts it, as most people run them: a process for each connection, and loops.
fn on_any_cpu() -> Vec<Row> {
    let postgres = |(c, threads)| {
        let name = format!("pgbench -S c={c} -j {threads}");
        Row::new(name, Kind::Postgres, Load::Pgbench { c, threads }, ANY_CPU_FLOOR)
    };
    let mut rows: Vec<Row> = [(8, 1), (8, 2), (32, 2)].map(postgres).into();
    let web = Load::Wrk { c: 16, close: false };
    rows.push(Row::new("nginx+wrk keep-alive c=16".into(), Kind::Nginx, web, ANY_CPU_FLOOR));
    let get = Load::Redis { command: "get", c: 16 };
    rows.push(Row::new("redis-benchmark GET c=16".into(), Kind::Redis, get, ANY_CPU_FLOOR));
    let name = "nginx+siege, a thread and connection each, c=16".to_owned();
    rows.push(Row::new(name, Kind::Nginx, Load::Siege { c: 16 }, SHORT_FLOOR));
    for row in &mut rows {
        row.cpus = Cpus::Any;
        row.name += ", any CPU";
        row.quick = matches!(row.load, Load::Pgbench { threads: 2, c: 8 });
    }
    rows
}

/// Shunt on one side only: what everybody else pays. 1 % in throughput, 2 % in connections.
fn overhead() -> Vec<Row> {
    let web = |close, floor| {
        let kind = if close { "close" } else { "keep-alive" };
        let load = Load::Wrk { c: 16, close };
        Row::new(format!("nginx+wrk {kind} c=16"), Kind::Nginx, load, floor).with_costs()
    };
    let get = Load::Redis { command: "get", c: 16 };
    let stream = Load::Iperf { block: "64K", cubic: true };
    let rows = [
        web(false, 0.99),
        web(true, 0.98),
        Row::new("redis-benchmark GET c=16".to_owned(), Kind::Redis, get, 0.99).with_costs(),
        Row::new("iperf3 64K, cubic".to_owned(), Kind::Iperf, stream, 0.99),
    ];
    let both = |row: Row| {
        let quick = matches!(row.load, Load::Wrk { .. });
        let server = row.clone().against(Against::TcpServerOnly, "server alone under Shunt");
        let client = row.against(Against::TcpClientOnly, "client alone under Shunt").full_only();
        [if quick { server } else { server.full_only() }, client]
    };
    rows.into_iter().flat_map(both).collect()
}

/// Each workload again with both ends on one CPU.
fn on_one_cpu(rows: &[Row]) -> Vec<Row> {
    let compared = rows.iter().filter(|row| row.against == Against::Tcp);
    let again = compared.map(|row| {
        let floor = if row.load == Load::SockperfPingPong { 1.5 } else { ONE_CPU_FLOOR };
        let mut row = row.clone().on_one_cpu(floor);
        // One of each kind.
        row.quick = match row.load {
            Load::Wrk { c, .. } => c == 16,
            Load::Redis { command, c } => command == "get" && c == 16,
            Load::Pgbench { c, .. } => c == 8,
            Load::Iperf { block, cubic } => block == "64K" && cubic,
            Load::SockperfThroughput => false,
            _ => true,
        };
        row
    });
    again.collect()
}

/// Each kind of program on a CPU that it shares with one that computes without end.
fn on_a_crowded_cpu(rows: &[Row]) -> Vec<Row> {
    let chosen =
        rows.iter().filter(|row| row.against == Against::Tcp).filter(|row| match row.load {
            Load::Wrk { c, .. } => matches!(c, 1 | 4 | 16),
            Load::Redis { command, c } => command == "get" && c != 128,
            Load::Pgbench { c, .. } => c == 8,
            _ => false,
        });
    let crowded = chosen.map(|row| {
        let name = format!("{}, one crowded CPU", row.name);
        let quick = matches!(row.load, Load::Wrk { c: 1, .. });
        Row { cpus: Cpus::Crowded, name, floor: CROWDED_FLOOR, costs: false, quick, ..row.clone() }
    });
    crowded.collect()
}

/// What the demonstration shows of a web server and a database: those that people know.
pub(crate) fn known() -> Vec<Row> {
    let shown = |row: &Row| {
        matches!(
            row.load,
            Load::Wrk { c: 1 | 16 | 128, close: false } | Load::Redis { command: "get", .. }
        )
    };
    web().into_iter().chain(redis()).filter(shown).collect()
}

/// What the demonstration shows where those are absent.
pub(crate) fn built_here() -> Vec<Row> {
    let load = |c| Load::Http { c, close: false };
    [1, 16, 128]
        .map(|c| Row::new(format!("httpd+httpload keep-alive c={c}"), Kind::Httpd, load(c), 1.0))
        .into()
}

/// What is compared between two hosts.
pub(crate) fn remote() -> Vec<Row> {
    let web = |c, close, floor| {
        let kind = if close { "close" } else { "keep-alive" };
        let load = Load::Wrk { c, close };
        Row::new(format!("nginx+wrk {kind} c={c}"), Kind::Nginx, load, floor)
    };
    let mut rows: Vec<Row> = [100, 200, 400].map(|c| web(c, false, 1.0)).into();
    rows.extend([1, 16].map(|c| web(c, false, 0.0).full_only()));
    rows.extend([4, 16, 64, 200].map(|c| web(c, true, 0.5)));
    rows.extend([1, 16, 128].map(|c| {
        let load = Load::Redis { command: "get", c };
        Row::new(format!("redis-benchmark GET c={c}"), Kind::Redis, load, 0.0).full_only()
    }));
    // Streams are left to TCP, and lose nothing by it.
    rows.extend(["64K", "1M"].map(|block| {
        let load = Load::Iperf { block, cubic: true };
        Row::new(format!("iperf3 {block}, cubic"), Kind::Iperf, load, 0.9)
    }));
    for row in &mut rows {
        row.costs = matches!(row.load, Load::Wrk { c: 100, close: false });
        row.quick &= !matches!(row.load, Load::Wrk { c: 200 | 64, .. });
    }
    rows
}

/// Programs of two network namespaces of one host that have one board, as containers may: no engine.
pub(crate) fn one_board() -> Vec<Row> {
    let web = |c, close, floor| {
        let kind = if close { "close" } else { "keep-alive" };
        let load = Load::Wrk { c, close };
        Row::new(format!("nginx+wrk {kind} c={c}, one board"), Kind::Nginx, load, floor)
    };
    let redis = |(c, floor)| {
        let load = Load::Redis { command: "get", c };
        Row::new(format!("redis-benchmark GET c={c}, one board"), Kind::Redis, load, floor)
    };
    let mut rows: Vec<Row> =
        [(1, 1.5), (16, 1.5), (128, 1.5)].map(|(c, floor)| web(c, false, floor)).into();
    rows.extend([4, 16, 200].map(|c| web(c, true, 1.0)));
    rows.extend([(1, 1.5), (16, 1.5), (128, 1.5)].map(redis));
    let load = Load::Iperf { block: "128K", cubic: true };
    rows.push(Row::new("iperf3 128K, cubic, one board".into(), Kind::Iperf, load, 1.0));
    for row in &mut rows {
        row.quick = matches!(row.load, Load::Wrk { c: 16, .. });
    }
    rows
}

/// Short connections and streams between two hosts whose engines leave none of them to TCP: told without a floor, for
/// which way they go is the engine's to choose (ADRs 24 and 33), and the floor is that of its choice.
pub(crate) fn remote_all_by_smc() -> Vec<Row> {
    let row = |c| {
        let name = format!("nginx+wrk close c={c}, all by SMC-R");
        Row::new(name, Kind::Nginx, Load::Wrk { c, close: true }, 0.0)
    };
    let mut rows: Vec<Row> = [4, 16, 64, 200].map(row).into();
    rows.extend(["64K", "1M"].map(|block| {
        let load = Load::Iperf { block, cubic: true };
        Row::new(format!("iperf3 {block}, cubic, all by SMC-R"), Kind::Iperf, load, 0.0)
    }));
    rows.iter_mut().for_each(|row| row.quick = matches!(row.load, Load::Wrk { c: 16, .. }));
    rows
}

/// Everything that is compared, in an order in which servers serve as many rows as they can.
pub(crate) fn all() -> Vec<Row> {
    let groups = [
        web(),
        overhead(),
        redis(),
        redis_unix().collect(),
        small_messages(),
        threads(),
        bulk(),
        database(),
    ];
    let mut rows: Vec<Row> = Vec::new();
    for group in &groups {
        rows.extend(group.iter().cloned());
    }
    for group in
        groups.iter().filter(|group| group.iter().all(|row| row.against != Against::TcpServerOnly))
    {
        rows.extend(on_one_cpu(group));
        rows.extend(on_a_crowded_cpu(group));
    }
    rows.extend(on_any_cpu());
    rows
}

#[cfg(test)]
mod tests {
    use super::{Against, all};
    use crate::bench::stage::{Cpus, Way};

    #[test]
    fn each_row_has_its_own_name() {
        let mut names: Vec<String> = all().into_iter().map(|row| row.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn each_workload_is_also_measured_on_one_cpu() {
        let rows = all();
        let two = |name: &str| rows.iter().find(|row| row.name == name);
        for row in rows.iter().filter(|row| row.cpus == Cpus::Two && row.against == Against::Tcp) {
            let one = two(&format!("{}, one CPU", row.name)).expect("its row on one CPU");
            assert!((0.98..=1.5).contains(&one.floor));
        }
    }

    #[test]
    fn costs_are_recorded_where_they_were_promised() {
        let rows = all();
        let costs = |name: &str| rows.iter().find(|row| row.name == name).map(|row| row.costs);
        for name in [
            "nginx+wrk close c=4",
            "nginx+wrk close c=200",
            "redis-benchmark GET c=1",
            "pgbench -S c=1",
            "pgbench -S c=32",
            "nginx+wrk keep-alive c=16, server alone under Shunt",
            "nginx+wrk close c=16, client alone under Shunt",
            "redis-benchmark GET c=16, server alone under Shunt",
        ] {
            assert_eq!(costs(name), Some(true), "{name}");
        }
    }

    #[test]
    fn who_is_awake_makes_no_system_calls() {
        let rows = all();
        let asked: Vec<&str> =
            rows.iter().filter(|row| row.calls_floor > 0.0).map(|row| row.name.as_str()).collect();
        assert_eq!(asked, ["ping-pong 100 B"], "and on one CPU one of the two sleeps");
        assert!(rows.iter().all(|row| row.costs || row.calls_floor == 0.0), "what is not counted");
    }

    #[test]
    fn one_side_alone_is_one_side() {
        assert_eq!(Against::TcpServerOnly.ours(), (Way::Shunt, Way::Tcp));
        assert_eq!(Against::TcpClientOnly.ours(), (Way::Tcp, Way::Shunt));
        assert_eq!(Against::Tcp.ours(), (Way::Shunt, Way::Shunt));
    }

    #[test]
    fn floors_that_were_promised() {
        let floor =
            |name: &str| all().into_iter().find(|row| row.name == name).map(|row| row.floor);
        assert_eq!(floor("nginx+wrk keep-alive c=1"), Some(5.5));
        assert_eq!(floor("nginx+wrk close c=16"), Some(1.3));
        assert_eq!(floor("redis-benchmark SET c=16"), Some(1.9));
        assert_eq!(floor("ping-pong 100 B"), Some(50.0));
        assert_eq!(
            floor("ping-pong 100 B round trip, against one bare cache line"),
            Some(1.0 / 2.5)
        );
        assert_eq!(floor("sockperf ping-pong 14 B, one CPU"), Some(1.5));
        for c in ["c=1", "c=16", "c=128"] {
            for command in ["GET", "SET"] {
                let name = format!("redis-benchmark {command} {c}, against its UNIX socket");
                assert_eq!(floor(&name), Some(1.0), "{name}");
            }
        }
        for stream in ["sockperf throughput 64000 B", "iperf3 64K", "iperf3 128K", "iperf3 1M"] {
            assert_eq!(floor(&format!("{stream}, cubic")), Some(2.0), "{stream}");
            assert_eq!(floor(&format!("{stream}, default")), Some(3.0), "{stream}");
            for control in ["cubic", "default"] {
                assert_eq!(floor(&format!("{stream}, {control}, one CPU")), Some(0.98), "{stream}");
            }
        }
        assert_eq!(floor("pgbench -S c=1"), Some(1.3));
    }
}
