//! What is measured of file servers, and the floors of `shunt serve`.

use crate::bench::pairs::Better;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Bytes moved.
    Throughput,
    /// Operations done.
    Operations,
    /// Entries of directories.
    Entries,
    /// CPU time of the server for each byte.
    ServerPerByte,
    /// CPU time of the clients for each byte.
    ClientPerByte,
    /// CPU time of server and client together for each byte: on loopback the kernel does some of the
    /// server's work in the client's name, and the other way round.
    BothPerByte,
    /// CPU time of the server for each operation.
    ServerPerOperation,
    /// CPU time of the client for each operation.
    ClientPerOperation,
    /// Latency, the middle.
    Median,
}

impl Metric {
    /// What the row's name says of it, its unit, and which direction is good.
    pub(crate) fn words(self) -> (&'static str, &'static str, Better) {
        match self {
            Self::Throughput => ("", "MB/s", Better::Higher),
            Self::Operations => ("", "ops/s", Better::Higher),
            Self::Entries => ("", "names/s", Better::Higher),
            Self::ServerPerByte => (": server CPU", "s/GB", Better::Lower),
            Self::ClientPerByte => (": client CPU", "s/GB", Better::Lower),
            Self::BothPerByte => (": server and client CPU", "s/GB", Better::Lower),
            Self::ServerPerOperation => (": server CPU", "us/op", Better::Lower),
            Self::ClientPerOperation => (": client CPU", "us/op", Better::Lower),
            Self::Median => (": half take at most", "us", Better::Lower),
        }
    }

    /// What it is in smbload's line.
    pub(crate) fn of(self, line: &serde_json::Value) -> Option<f64> {
        let field = |name: &str| line.get(name)?.as_f64();
        match self {
            Self::Throughput => field("MBps"),
            Self::Operations => field("ops"),
            Self::Entries => field("entries_per_s"),
            Self::ServerPerByte => field("srv_s_per_GB"),
            Self::ClientPerByte => field("cli_s_per_GB"),
            Self::BothPerByte => Some(field("srv_s_per_GB")? + field("cli_s_per_GB")?),
            Self::ServerPerOperation => field("srv_us_per_op"),
            Self::ClientPerOperation => field("cli_us_per_op"),
            Self::Median => field("p50_us"),
        }
    }
}

/// Where the files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// In memory: `/dev/shm`.
    Memory,
    /// Where temporary files are; they fit the page cache.
    Disk,
}

impl Medium {
    /// The share with these files.
    pub(crate) fn share(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

/// A row, or several of one measurement.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// The operation and options of smbload.
    pub(crate) load: Vec<&'static str>,
    pub(crate) medium: Medium,
    /// What is compared, and how many times as good ours must be. Each that has a floor, and the first one, is
    /// compared with that of Samba's configurations which is the best by it; the others with that of the first one.
    pub(crate) metrics: Vec<(Metric, Option<f64>)>,
    /// One operation takes so long that a measurement must, too.
    pub(crate) seconds_min: f64,
    pub(crate) quick: bool,
    /// Ours, server and client, is under `shunt run`; the peer is on TCP.
    pub(crate) carried: bool,
    /// Server and client have a CPU each, and do not share both.
    pub(crate) apart: bool,
    /// The peer is no smbd but a splice of a file into a socket, with no server around it.
    pub(crate) bare: bool,
}

fn row(name: &str, load: &'static str, metrics: &[(Metric, f64)]) -> Row {
    Row {
        name: name.into(),
        load: load.split(' ').collect(),
        medium: Medium::Memory,
        metrics: metrics.iter().map(|(metric, floor)| (*metric, Some(*floor))).collect(),
        seconds_min: 0.0,
        quick: false,
        carried: false,
        apart: false,
        bare: false,
    }
}

impl Row {
    fn quick(self) -> Self {
        Self { quick: true, ..self }
    }

    fn lasting(self, seconds_min: f64) -> Self {
        Self { seconds_min, ..self }
    }

    /// The same with files on disk; floors are for files in memory.
    fn on_disk(&self) -> Self {
        let metrics = self.metrics.iter().map(|(metric, _)| (*metric, None)).collect();
        let name = format!("{}, disk", self.name);
        Self { name, medium: Medium::Disk, metrics, quick: false, ..self.clone() }
    }

    /// The same with server and client under `shunt run`; what is compared is `metric` alone.
    fn carried(&self, metric: Metric, floor: Option<f64>) -> Self {
        let name = format!("{}, both under shunt run", self.name);
        Self { name, metrics: vec![(metric, floor)], carried: true, quick: false, ..self.clone() }
    }

    /// The same against what sending costs at the least.
    fn bare(&self) -> Self {
        let name = format!("{}, against a bare splice", self.name);
        Self { name, bare: true, quick: false, ..self.clone() }.without_floor()
    }

    /// The same with a CPU each for server and client.
    fn apart(&self) -> Self {
        let name = format!("{}, a CPU each", self.name);
        Self { name, apart: true, quick: false, ..self.clone() }.without_floor()
    }

    fn without_floor(self) -> Self {
        let metrics = self.metrics.iter().map(|(metric, _)| (*metric, None)).collect();
        Self { metrics, ..self }
    }

    /// CPU time is told of either end, for each byte or each operation: on loopback one does work of the other's.
    fn tell_both_ends(&mut self) {
        let streams = |(metric, _): &(Metric, _)| {
            matches!(metric, Metric::Throughput | Metric::ServerPerByte | Metric::BothPerByte)
        };
        let costs = if self.metrics.iter().any(streams) {
            [Metric::ServerPerByte, Metric::ClientPerByte]
        } else {
            [Metric::ServerPerOperation, Metric::ClientPerOperation]
        };
        for cost in costs {
            if self.metrics.iter().all(|(metric, _)| *metric != cost) {
                self.metrics.push((cost, None));
            }
        }
    }

    /// How many clients there are, each with a file of its own.
    pub(crate) fn clients(&self) -> u32 {
        let at = self.load.iter().position(|word| *word == "--clients");
        at.and_then(|at| self.load.get(at + 1)?.parse().ok()).unwrap_or(1)
    }
}

/// A floor for what must not exceed a part of the other's.
const fn at_most(part: f64) -> f64 {
    1.0 / part
}

/// All rows, in the order in which they are told.
pub(crate) fn all() -> Vec<Row> {
    use Metric::{
        BothPerByte, Entries, Median, Operations, ServerPerByte, ServerPerOperation, Throughput,
    };
    let read = [(Throughput, 1.35), (ServerPerByte, at_most(0.6))];
    let write = [(Throughput, 1.1), (ServerPerByte, at_most(0.85))];
    let small = [(Operations, 3.0), (ServerPerOperation, at_most(1.0 / 3.0))];
    let mut rows = vec![
        row("read 1M", "read", &read).quick(),
        row("read 1M, 4 channels", "read --channels 4", &read),
        row(
            "read 1M, 4 clients",
            "read --clients 4",
            &[(Throughput, 1.0), (BothPerByte, at_most(0.8))],
        ),
        row("read 1M at 1 GB/s", "read --rate 1000", &[(ServerPerByte, at_most(0.5))]),
        row("read 64K, depth 16", "read --io 64K --qd 16", &read).without_floor(),
        row("read 8M, depth 4", "read --io 8M --qd 4", &read).without_floor(),
        row("write 1M", "write", &write).quick(),
        row("write 1M, 4 clients", "write --clients 4", &write),
        row("read 1M, AES-128-GCM", "read --enc 128", &[(Throughput, 1.8)]).quick(),
        row("write 1M, AES-128-GCM", "write --enc 128", &[(Throughput, 1.8)]),
        row("read 1M, AES-256-GCM", "read --enc 256", &[(Throughput, 1.8)]),
        row("write 1M, AES-256-GCM", "write --enc 256", &[(Throughput, 1.8)]),
        // The client throws signed data away unchecked, else it is what is measured.
        row("read 1M, GMAC", "read --sign gmac --nocheck", &[(Throughput, 1.5)]),
        row("write 1M, GMAC", "write --sign gmac", &[(Throughput, 1.5)]),
        row("read 1M, CMAC", "read --sign cmac --nocheck", &[(Throughput, 1.3)]),
        row("write 1M, CMAC", "write --sign cmac", &[(Throughput, 1.3)]),
        row("open and close", "openclose", &small).quick(),
        row("stat, one message", "stat", &small),
        row("open, read 4K and close, one message", "readsmall", &small),
        row("create, write 4K and delete, one message", "createdel", &[(Operations, 4.0)]),
        row("directory of 1,000", "qdir --qd 1 --dir entries1000", &[(Entries, 8.0)]).quick(),
        row("directory of 100,000", "qdir --qd 1 --dir entries100000", &[(Entries, 8.0)])
            .lasting(5.0),
        row("sessions set up", "session", &[(Operations, 10.0)]),
        row("random read 4K, depth 1", "randread --io 4K --qd 1", &[(Median, at_most(0.7))])
            .quick(),
        row("random read 4K, depth 32", "randread --io 4K --qd 32", &[(Operations, 2.5)]),
        row("random write 4K, depth 32", "randwrite --io 4K --qd 32", &[(Operations, 2.5)])
            .without_floor(),
        row("echo", "echo", &[(Operations, 1.0)]).without_floor(),
    ];
    rows.extend(like(&rows, &ON_DISK, Row::on_disk));
    rows.extend(carried(&rows));
    rows.extend(streams());
    rows.extend(like(&rows, &STREAMS_ON_DISK, Row::on_disk));
    rows.extend(like(&rows, &["read 1M", "write 1M"], Row::apart));
    rows.extend(like(&rows, &["read 1M"], Row::bare));
    rows.iter_mut().for_each(Row::tell_both_ends);
    rows
}

const ON_DISK: [&str; 5] = [
    "read 1M",
    "read 1M, 4 clients",
    "open and close",
    "stat, one message",
    "create, write 4K and delete, one message",
];
const STREAMS_ON_DISK: [&str; 4] =
    ["write 1M", "write 1M, 4 clients", "read 1M at 1 GB/s", "write 1M at 1 GB/s"];

/// Rows of these names, each changed.
fn like(rows: &[Row], names: &[&str], change: fn(&Row) -> Row) -> Vec<Row> {
    let row = |name: &&str| rows.iter().find(|row| row.name == **name).map(change);
    names.iter().filter_map(row).collect()
}

/// Sizes, clients and channels between those that have a floor, and beyond them.
fn streams() -> Vec<Row> {
    use Metric::{BothPerByte, ServerPerByte, Throughput};
    let stream =
        |name, load, cost| row(name, load, &[(Throughput, 1.0), (cost, 1.0)]).without_floor();
    vec![
        stream("read 4K, depth 32", "read --io 4K --qd 32", ServerPerByte),
        stream("read 256K", "read --io 256K", ServerPerByte),
        stream("read 1M, 2 channels", "read --channels 2", ServerPerByte),
        stream("read 1M, 8 channels", "read --channels 8", ServerPerByte),
        // What is encrypted costs a core for each channel, so more of them pay where there are more cores.
        stream("read 1M, AES-128-GCM, 4 channels", "read --enc 128 --channels 4", ServerPerByte),
        stream("write 1M, AES-128-GCM, 4 channels", "write --enc 128 --channels 4", ServerPerByte),
        stream("read 1M, 2 clients", "read --clients 2", BothPerByte),
        stream("read 1M, 8 clients", "read --clients 8", BothPerByte),
        stream("write 4K, depth 32", "write --io 4K --qd 32", ServerPerByte),
        stream("write 64K, depth 16", "write --io 64K --qd 16", ServerPerByte),
        stream("write 256K", "write --io 256K", ServerPerByte),
        stream("write 8M, depth 4", "write --io 8M --qd 4", ServerPerByte),
        stream("write 1M, 2 channels", "write --channels 2", ServerPerByte),
        stream("write 1M, 4 channels", "write --channels 4", ServerPerByte),
        stream("write 1M, 8 channels", "write --channels 8", ServerPerByte),
        stream("write 1M, 2 clients", "write --clients 2", ServerPerByte),
        stream("write 1M, 8 clients", "write --clients 8", ServerPerByte),
        row("write 1M at 1 GB/s", "write --rate 1000", &[(ServerPerByte, 1.0)]).without_floor(),
    ]
}

/// What clients on the same host gain by shared memory: at least twice what smbd does for them over TCP.
fn carried(rows: &[Row]) -> Vec<Row> {
    let measured = [
        ("read 1M", Metric::Throughput, Some(2.0)),
        ("write 1M", Metric::Throughput, Some(2.0)),
        ("read 64K, depth 16", Metric::Throughput, Some(2.0)),
        ("random read 4K, depth 1", Metric::Median, Some(at_most(0.5))),
        ("open and close", Metric::Operations, Some(2.0)),
        ("stat, one message", Metric::Operations, Some(2.0)),
        ("echo", Metric::Operations, None),
        ("read 1M, 4 channels", Metric::Throughput, None),
        ("read 1M, AES-128-GCM", Metric::Throughput, None),
        ("write 1M, AES-128-GCM", Metric::Throughput, None),
    ];
    let of = |name: &str| rows.iter().find(|row| row.name == name);
    measured
        .iter()
        .filter_map(|(name, metric, floor)| Some(of(name)?.carried(*metric, *floor)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Metric, all, at_most};

    #[test]
    fn names_are_different() {
        let mut names: Vec<String> = all().into_iter().map(|row| row.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn what_shared_memory_is_measured_by_has_the_floor_of_the_issue() {
        let rows: Vec<_> = all().into_iter().filter(|row| row.carried).collect();
        assert_eq!(rows.len(), 10);
        let floors = rows.iter().flat_map(|row| &row.metrics).filter_map(|(_, floor)| *floor);
        assert!(floors.clone().count() >= 5 && floors.into_iter().all(|floor| floor == 2.0));
    }

    #[test]
    fn streams_are_measured_by_size_by_clients_and_by_channels() {
        let rows = all();
        let row = |name: &str| rows.iter().find(|row| row.name == name);
        let floor = |name: &str| row(name).unwrap().metrics[0].1;
        for what in ["read", "write"] {
            for how in ["4K, depth 32", "64K, depth 16", "256K", "1M", "8M, depth 4"] {
                assert!(row(&format!("{what} {how}")).is_some(), "{what} {how}");
            }
            for clients in [2, 4, 8] {
                let row = row(&format!("{what} 1M, {clients} clients")).unwrap();
                assert_eq!(row.clients(), clients);
            }
            for channels in [2, 4, 8] {
                let row = row(&format!("{what} 1M, {channels} channels")).unwrap();
                assert!(row.load.contains(&"--channels"));
            }
            for how in ["1M, disk", "1M, 4 clients, disk", "1M at 1 GB/s", "1M at 1 GB/s, disk"] {
                assert!(row(&format!("{what} {how}")).is_some(), "{what} {how}");
            }
            assert!(row(&format!("{what} 1M, a CPU each")).unwrap().apart);
            assert_eq!(floor(&format!("{what} 1M, a CPU each")), None);
        }
        for (name, least) in [
            ("read 1M", 1.35),
            ("read 1M, 4 channels", 1.35),
            ("read 1M, 4 clients", 1.0),
            ("write 1M", 1.1),
            ("write 1M, 4 clients", 1.1),
        ] {
            assert_eq!(floor(name), Some(least), "{name}");
        }
        assert!(["2", "8"].iter().all(|n| floor(&format!("read 1M, {n} channels")).is_none()));
    }

    #[test]
    fn what_a_byte_or_an_operation_costs_is_told_of_either_end() {
        let mut told = [0; 2];
        for row in all() {
            let has = |wanted| row.metrics.iter().any(|(metric, _)| *metric == wanted);
            let byte = [Metric::ServerPerByte, Metric::ClientPerByte].map(has);
            let operation = [Metric::ServerPerOperation, Metric::ClientPerOperation].map(has);
            assert!(byte[0] != operation[0] && byte[1] != operation[1], "{}", row.name);
            assert_eq!(byte[0], byte[1], "{}", row.name);
            assert!(byte[0] || !has(Metric::BothPerByte), "{}", row.name);
            told[usize::from(operation[0])] += 1;
        }
        assert!(told[0] > 30 && told[1] > 12, "{told:?}");
        let line = serde_json::json!({ "srv_s_per_GB": 0.25, "cli_s_per_GB": 0.5 });
        assert_eq!(Metric::ServerPerByte.of(&line), Some(0.25));
        assert_eq!(Metric::ClientPerByte.of(&line), Some(0.5));
    }

    #[test]
    fn at_most_a_half_is_twice_as_good() {
        assert_eq!(at_most(0.5), 2.0);
    }

    #[test]
    fn loads_are_such_as_smbload_knows() {
        use clap::Parser;
        for row in all() {
            let words = ["smbload"].into_iter().chain(row.load.iter().copied());
            testkit::smbload::Settings::try_parse_from(words).unwrap();
            assert!(!row.metrics.is_empty());
        }
    }

    #[test]
    fn both_ends_are_added_up() {
        let line = serde_json::json!({"srv_s_per_GB": 0.5, "cli_s_per_GB": 0.25});
        assert_eq!(Metric::BothPerByte.of(&line), Some(0.75));
        assert_eq!(Metric::Median.of(&line), None);
    }
}
