//! What people see: `shunt stat`, `top` and `doctor` beside programs whose bytes are known, and what the
//! settings of `shunt run` do to a real program.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use e2e::board::Board;
use e2e::calls::filter::without_netlink;
use e2e::run::{BoardDir, Guest, Outcome, Under};
use e2e::run::{command, eventually, outcome, plain_only, skipped};
use e2e::{built, installed};
use serde_json::Value;

const GUEST: &str = env!("CARGO_BIN_EXE_load-guest");
/// Far longer than anything takes here.
const LIMIT: Duration = Duration::from_secs(60);

/// `shunt` with these words, on this board.
pub(crate) fn shunt(words: &[&str], dir: &Path) -> Command {
    let mut shunt = command(built("shunt"), Under::Tcp);
    shunt.args(words).env("SHUNT_DIR", dir);
    shunt
}

/// What it says, ending like that.
#[track_caller]
pub(crate) fn said(words: &[&str], dir: &Path, code: i32) -> String {
    let got = outcome(&mut shunt(words, dir), LIMIT);
    assert_eq!(got.code, code, "shunt {words:?}: {}{}{:?}", got.out, got.err, got.hung);
    got.out
}

/// A server, and a client of it that moves what it is told to, over one connection.
struct Pair {
    port: u16,
    server: Guest,
    client: Guest,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Pair {
    fn start(dir: &BoardDir) -> Self {
        // Nobody spins, so that each message needs its doorbell.
        Self::start_with(dir, &[("SHUNT_SPIN_US", "0")])
    }

    fn start_with(dir: &BoardDir, settings: &[(&str, &str)]) -> Self {
        let guest = || {
            let mut command = command(GUEST, Under::Shunt(dir));
            command.envs(settings.iter().copied()).stdout(Stdio::piped());
            command
        };
        let mut server = Guest::start(guest().arg("serve"));
        let port = port_of(&mut server);
        let mut steps = guest();
        steps.args(["steps", &port.to_string()]).stdin(Stdio::piped());
        let mut client = Guest::start(&mut steps);
        let orders = client.take_stdin().unwrap();
        let answers = BufReader::new(client.take_stdout().unwrap());
        let mut pair = Self { port, server, client, orders, answers };
        // Until both ends send by the rings.
        for _ in 0..8 {
            pair.moves(100);
        }
        pair
    }

    /// So many bytes go there and back.
    #[track_caller]
    fn moves(&mut self, bytes: u64) {
        writeln!(self.orders, "{bytes}").unwrap();
        self.has_moved(bytes);
    }

    /// Stops the server where it waits, and not in what it does after an answer.
    fn stop_server(&self) {
        let state = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.server.pid())).ok()?;
            stat.rsplit(") ").next()?.chars().next()
        };
        eventually("the server waits", || state() == Some('S'));
        self.server.signal(libc::SIGSTOP);
        eventually("the server is stopped", || state() == Some('T'));
    }

    /// So many bytes have gone there and back.
    #[track_caller]
    fn has_moved(&mut self, bytes: u64) {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer.trim(), format!("moved {bytes}"));
    }
}

fn port_of(server: &mut Guest) -> u16 {
    let mut lines = BufReader::new(server.take_stdout().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    first.trim().strip_prefix("port ").unwrap_or_else(|| panic!("{first:?}")).parse().unwrap()
}

/// The connection of this process, and its counters: sent, received, doorbells.
fn counters(stat: &Value, pid: i32) -> Option<[u64; 3]> {
    let all = stat["connections"].as_array()?;
    let one =
        all.iter().find(|c| c["pid"] == pid && c["tx_mode"] == "SHM" && c["rx_mode"] == "SHM")?;
    let number = |name: &str| one[name].as_u64();
    Some([number("bytes_tx")?, number("bytes_rx")?, number("doorbells")?])
}

#[test]
fn stat_counts_each_byte() {
    if plain_only() {
        return skipped("nothing is counted on kernel TCP");
    }
    const LEN: u64 = 3_000_000;
    let dir = BoardDir::new();
    let mut pair = Pair::start(&dir);
    let look =
        || -> Value { serde_json::from_str(&said(&["stat", "--json"], dir.path(), 0)).unwrap() };
    let before = look();
    pair.moves(LEN);
    let after = look();
    for (name, pid) in [("client", pair.client.pid()), ("server", pair.server.pid())] {
        let at = |stat| counters(stat, pid).unwrap_or_else(|| panic!("{name} {pid}: {stat:#}"));
        let (before, after) = (at(&before), at(&after));
        assert_eq!([after[0] - before[0], after[1] - before[1]], [LEN; 2], "{name}: {after:?}");
        // Without spinning somebody has slept, and was woken.
        assert!(after[2] >= before[2], "{name}: doorbells go back");
    }
    let bells = |stat| {
        let each =
            [pair.client.pid(), pair.server.pid()].map(|pid| counters(stat, pid).unwrap()[2]);
        each[0] + each[1]
    };
    assert!(bells(&after) > bells(&before), "no doorbell was counted: {after:#}");
    totals_are_those_of_the_pair(&before, &after, &pair, LEN);
    names_are_those_of_the_sockets(&after, &pair);
    // Calls that moved bytes are its requests, and whoever connected is the client.
    for (name, pid, clients) in [("client", pair.client.pid(), 1), ("server", pair.server.pid(), 0)]
    {
        let of = |stat: &Value| -> Vec<u64> {
            let all = stat["processes"].as_array().unwrap();
            let one = all.iter().find(|p| p["pid"] == pid).unwrap();
            let names = ["sends", "receives", "attached_total", "attached_clients"];
            names.map(|name| one[name].as_u64().unwrap_or_else(|| panic!("no {name}"))).into()
        };
        let (before, after) = (of(&before), of(&after));
        assert!(after[0] > before[0] && after[1] > before[1], "{name}: {before:?} {after:?}");
        assert_eq!(after[2..], [1, clients], "{name}");
    }
    // And for people, in the columns of smcss.
    let table = said(&["stat"], dir.path(), 0);
    assert!(table.contains("load-guest") && table.contains("SHM"), "{table}");
}

/// Each process, and the link group of the two, has counted what their only connection has moved.
#[track_caller]
fn totals_are_those_of_the_pair(before: &Value, after: &Value, pair: &Pair, len: u64) {
    let pids = [pair.client.pid(), pair.server.pid()];
    let moved = |of: &dyn Fn(&Value) -> Value| {
        ["bytes_tx", "bytes_rx"]
            .map(|name| of(after)[name].as_u64().unwrap() - of(before)[name].as_u64().unwrap())
    };
    let only = |list: &Value, fits: &dyn Fn(&Value) -> bool| {
        let found: Vec<&Value> = list.as_array().unwrap().iter().filter(|one| fits(one)).collect();
        let [one] = found[..] else { panic!("{found:?} in {list:#}") };
        one.clone()
    };
    for pid in pids {
        let process = |stat: &Value| only(&stat["processes"], &|p| p["pid"] == pid);
        assert_eq!(moved(&process), [len; 2], "process {pid}: {after:#}");
        assert_eq!(process(after)["connections_shm"], 1, "{after:#}");
    }
    let group = |stat: &Value| only(&stat["link_groups"], &|_| true);
    let mut ends = ["pid", "peer_pid"].map(|name| group(after)[name].as_i64().unwrap());
    let mut ours = pids.map(i64::from);
    ends.sort_unstable();
    ours.sort_unstable();
    assert_eq!((ends, group(after)["connections"].as_u64()), (ours, Some(1)), "{after:#}");
    assert_eq!(moved(&group), [len; 2], "link group: {after:#}");
}

/// Addresses and ports of each end are what the kernel says of that process's socket, and the inode, where it is known
/// (a client's is not).
#[track_caller]
fn names_are_those_of_the_sockets(stat: &Value, pair: &Pair) {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let end = |field: &str| {
        let (address, port) = field.split_once(':').unwrap();
        let address = u32::from_str_radix(address, 16).unwrap().to_le_bytes();
        (std::net::Ipv4Addr::from(address).to_string(), u64::from_str_radix(port, 16).unwrap())
    };
    for pid in [pair.client.pid(), pair.server.pid()] {
        let all = stat["connections"].as_array().unwrap();
        let one = all.iter().find(|c| c["pid"] == pid && c["tx_mode"] == "SHM").unwrap();
        let path = format!("/proc/{pid}/fd/{}", one["fd"]);
        let link = fs::read_link(&path).unwrap().to_string_lossy().into_owned();
        let inode = link.trim_start_matches("socket:[").trim_end_matches(']').to_owned();
        assert!(["0", &inode].contains(&one["inode"].to_string().as_str()), "{link}: {one:#}");
        let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = rows.into_iter().find(|row| row.get(9) == Some(&inode.as_str()));
        let row = row.unwrap_or_else(|| panic!("no socket {inode}: {one:#}\n{table}"));
        let says = |address: &str, port: &str| {
            (one[address].as_str().unwrap().to_owned(), one[port].as_u64().unwrap())
        };
        assert_eq!(says("local_address", "local_port"), end(row[1]), "{one:#}");
        assert_eq!(says("peer_address", "peer_port"), end(row[2]), "{one:#}");
        let servers = if pid == pair.server.pid() { "local_port" } else { "peer_port" };
        assert_eq!(one[servers].as_u64(), Some(u64::from(pair.port)), "{one:#}");
    }
}

/// The budget of spinning: without one nobody spins, and with a large one some waits end by it.
#[test]
fn spin_budget_is_kept() {
    if plain_only() {
        return skipped("nobody spins on kernel TCP");
    }
    for (budget, some) in [("0", false), ("1000", true)] {
        let dir = BoardDir::new();
        let mut pair = Pair::start_with(&dir, &[("SHUNT_SPIN_US", budget)]);
        let spins = |pair: &Pair| -> u64 {
            let each = [pair.client.pid(), pair.server.pid()];
            each.iter().map(|pid| counted(&dir, *pid, "spins").unwrap_or(0)).sum()
        };
        if some && e2e::calls::cpus::allowed().len() < 2 {
            return skipped("on one CPU nobody spins");
        }
        // Each is an occasion. On a machine with other work many are missed.
        for _ in 0..if some { 20_000 } else { 200 } {
            pair.moves(100);
            if some && spins(&pair) > 0 {
                break;
            }
        }
        assert_eq!(spins(&pair) > 0, some, "with {budget} us: {}", said(&["stat"], dir.path(), 0));
    }
}

/// The largest size of a ring: however much is moved, none grows beyond it; and without that setting it does.
#[test]
fn ring_sizes_are_kept() {
    if plain_only() {
        return skipped("there are no rings on kernel TCP");
    }
    const SMALL: u64 = 16 << 10;
    for (settings, small) in
        [(&[("SHUNT_RING_MIN", "16K"), ("SHUNT_RING_MAX", "16K")][..], true), (&[][..], false)]
    {
        let dir = BoardDir::new();
        let mut pair = Pair::start_with(&dir, settings);
        let mut largest = 0;
        for _ in 0..20 {
            pair.moves(3_000_000);
            for pid in [pair.client.pid(), pair.server.pid()] {
                for name in ["tx_buffer_bytes", "rx_buffer_bytes"] {
                    largest = counted(&dir, pid, name).unwrap_or(0).max(largest);
                }
            }
        }
        assert!(largest > 0 && (largest <= SMALL) == small, "{settings:?}: {largest}");
    }
}

/// The smallest size of a ring: the first one has it, however little is moved; and without that setting it is smaller.
#[test]
fn ring_sizes_begin_where_they_should() {
    if plain_only() {
        return skipped("there are no rings on kernel TCP");
    }
    const LARGE: u64 = 1 << 20;
    for (settings, large) in [(&[("SHUNT_RING_MIN", "1M")][..], true), (&[][..], false)] {
        let dir = BoardDir::new();
        let mut pair = Pair::start_with(&dir, settings);
        pair.moves(100);
        for pid in [pair.client.pid(), pair.server.pid()] {
            for name in ["tx_buffer_bytes", "rx_buffer_bytes"] {
                let size = counted(&dir, pid, name).unwrap_or_else(|| panic!("no {name}"));
                let is_right = size > 0 && (size == LARGE) == large && size <= LARGE;
                assert!(is_right, "{settings:?}: {name} {size}");
            }
        }
    }
}

/// A counter of the connection that this process has in shared memory.
fn counted(dir: &BoardDir, pid: i32, name: &str) -> Option<u64> {
    let stat: Value = serde_json::from_str(&said(&["stat", "--json"], dir.path(), 0)).ok()?;
    let all = stat["connections"].as_array()?;
    all.iter().find(|c| c["pid"] == pid && c["tx_mode"] == "SHM")?[name].as_u64()
}

/// What waits for a program that does not run, who waits for it, and how often somebody slept.
#[test]
fn stat_counts_what_waits() {
    if plain_only() {
        return skipped("nothing is counted on kernel TCP");
    }
    let dir = BoardDir::new();
    let mut pair = Pair::start(&dir);
    let (client, server) = (pair.client.pid(), pair.server.pid());
    let of = |pid, name| counted(&dir, pid, name).unwrap_or_else(|| panic!("no {name} of {pid}"));

    // Nobody spins: the server sleeps before each request.
    let slept = of(server, "sleeps");
    pair.moves(100);
    eventually("the server sleeps once more", || of(server, "sleeps") > slept);

    // So many bytes are unread, at their reader and nowhere else. (They fit into the smallest buffer.)
    pair.stop_server();
    writeln!(pair.orders, "1000").unwrap();
    eventually("1,000 bytes are unread", || of(server, "rx_buffer_used_bytes") == 1_000);
    assert_eq!(of(client, "rx_buffer_used_bytes"), 0);
    pair.server.signal(libc::SIGCONT);
    pair.has_moved(1_000);
    eventually("all is read", || of(server, "rx_buffer_used_bytes") == 0);

    // More than a buffer holds: who sends is stopped by it.
    let stalled = of(client, "stalls");
    pair.stop_server();
    writeln!(pair.orders, "8000000").unwrap();
    eventually("the buffer is full", || of(client, "stalls") > stalled);
    let (used, all) = (of(server, "rx_buffer_used_bytes"), of(server, "rx_buffer_bytes"));
    assert!(used > all / 2 && used <= all, "{used} of {all}");
    pair.server.signal(libc::SIGCONT);
    pair.has_moved(8_000_000);

    // First the columns of smcss, by its names, then these counters.
    let table = said(&["stat"], dir.path(), 0);
    let columns = ["State", "UID", "Inode", "Local Address", "Peer Address", "Mode"];
    let counters = ["Tx", "Rx", "Bells", "Sleeps", "Spins", "Stalls", "TxBuf", "RxBuf"];
    let head = table.lines().find(|line| line.starts_with("State")).unwrap_or_default();
    let at = columns.iter().chain(&counters).map(|name| head.find(name));
    assert!(at.collect::<Option<Vec<_>>>().is_some_and(|at| at.is_sorted()), "{table}");
}

/// A server that listens at all addresses does not ask for the one of a connection that stays on TCP; who looks sees it
/// all the same, and the number of the socket that `ss -e` and `/proc/PID/fd` show.
#[test]
fn stat_finds_the_address_and_the_inode() {
    if plain_only() {
        return skipped("nothing is on the board");
    }
    let dir = BoardDir::new();
    let mut serve = command(GUEST, Under::Shunt(&dir));
    serve.arg("serve").env("E2E_HOST", "0.0.0.0").stdout(Stdio::piped());
    let mut server = Guest::start(&mut serve);
    let port = port_of(&mut server);
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.write_all(b"part of a request").unwrap();
    let shown = || -> Option<Value> {
        let stat: Value = serde_json::from_str(&said(&["stat", "--json"], dir.path(), 0)).ok()?;
        stat["connections"].as_array()?.iter().find(|c| c["pid"] == server.pid()).cloned()
    };
    eventually("the server's end is shown", || shown().is_some());
    let shown = shown().unwrap();
    let expected = serde_json::json!({
        "local_address": "127.0.0.1", "local_port": port, "peer_address": "127.0.0.1",
        "peer_port": client.local_addr().unwrap().port(), "reason": 1, "mode": "TCP",
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&shown[name], value, "{name}: {shown:#}");
    }
    let socket = format!("socket:[{}]", shown["inode"]);
    let at = format!("/proc/{}/fd/{}", server.pid(), shown["fd"]);
    assert_eq!(fs::read_link(&at).unwrap(), Path::new(&socket), "{at}");
}

/// Lets this process run on one CPU only.
fn pin(pid: i32, cpu: &str) {
    let words = ["-apc", cpu, &pid.to_string()];
    let status = Command::new("taskset").args(words).stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "taskset {words:?}");
}

/// The largest buffer that a client on one of these CPUs is seen to have towards a server on the other, which again
/// and again does not read.
fn largest_buffer([server_cpu, client_cpu]: [&str; 2]) -> u64 {
    let dir = BoardDir::new();
    let mut pair = Pair::start(&dir);
    let (client, server) = (pair.client.pid(), pair.server.pid());
    pin(server, server_cpu);
    pin(client, client_cpu);
    // Now each has been seen where it is.
    pair.moves(100);
    let of = |name| counted(&dir, client, name).unwrap_or_else(|| panic!("no {name}"));
    let mut largest = 0;
    // A buffer that was full is followed by one of four times as much, once it is read.
    for _ in 0..8 {
        let stalled = of("stalls");
        pair.stop_server();
        writeln!(pair.orders, "10000000").unwrap();
        eventually("the buffer is full", || of("stalls") > stalled);
        largest = largest.max(of("tx_buffer_bytes"));
        pair.server.signal(libc::SIGCONT);
        pair.has_moved(10_000_000);
    }
    largest
}

/// What goes to another core goes through a buffer that the core's own cache can hold.
#[test]
fn buffers_grow_less_towards_another_core() {
    if plain_only() {
        return skipped("there are no rings on kernel TCP");
    }
    if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 2 {
        return skipped("wants two CPUs");
    }
    assert_eq!(largest_buffer(["0", "0"]), 4 << 20);
    assert_eq!(largest_buffer(["0", "1"]), 2 << 20);
}

/// What the two processes on this board keep for rings and their ends, bytes, and how many
/// connections they have in shared memory.
fn kept(dir: &Path) -> Option<(Vec<u64>, u64)> {
    let stat: Value = serde_json::from_str(&said(&["stat", "--json"], dir, 0)).ok()?;
    let all = stat["processes"].as_array()?;
    let number = |name: &str| all.iter().map(|p| p[name].as_u64()).collect::<Option<Vec<_>>>();
    Some((number("memory_owned_bytes")?, number("connections_shm")?.iter().sum()))
}

#[test]
fn connections_that_do_nothing_give_their_rings_back() {
    if plain_only() {
        return skipped("there are no rings on kernel TCP");
    }
    const CONNECTIONS: u64 = 400;
    // Half a KiB for each end, in blocks of 16 KiB, and as much for rings as nobody looks after: each of them would take 16.
    const MAX: u64 = (CONNECTIONS * 512).next_multiple_of(16 << 10) + (512 << 10);
    let dir = BoardDir::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let _server = Guest::start(command(built("httpd"), Under::Shunt(&dir)).arg(&port));
    let begun = Instant::now();
    while TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        assert!(begun.elapsed() < LIMIT, "nobody listens");
    }
    let mut idle = command(built("idle"), Under::Shunt(&dir));
    idle.args([port.as_str(), "--connections", &CONNECTIONS.to_string(), "--seconds", "60"]);
    let _client = Guest::start(idle.stdout(Stdio::null()));
    loop {
        let (owned, connections) = kept(dir.path()).unwrap_or_default();
        if connections == 2 * CONNECTIONS && owned.iter().all(|bytes| *bytes <= MAX) {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "{connections} ends keep {owned:?} bytes, of {MAX}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn stat_watches_in_rounds() {
    if plain_only() {
        return skipped("nothing is counted on kernel TCP");
    }
    let dir = BoardDir::new();
    let mut pair = Pair::start(&dir);
    let mut stat = shunt(&["stat", "--json", "--watch=0.2"], dir.path());
    let mut stat = Guest::start(stat.stdout(Stdio::piped()));
    let mut rounds = BufReader::new(stat.take_stdout().unwrap());
    let mut round = || -> Value {
        let mut line = String::new();
        rounds.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    };
    let first = counters(&round(), pair.client.pid()).unwrap();
    pair.moves(50_000);
    let begun = Instant::now();
    loop {
        let next = counters(&round(), pair.client.pid()).unwrap();
        if next[0] - first[0] == 50_000 {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "rounds do not go on: {next:?} after {first:?}");
    }
}

/// The numbers of the page are those of the connection, printed and served.
#[test]
fn stat_has_a_page_for_prometheus() {
    if plain_only() {
        return skipped("nothing is counted on kernel TCP");
    }
    const LEN: u64 = 50_000;
    let dir = BoardDir::new();
    let mut pair = Pair::start(&dir);
    let mut stat = shunt(&["stat", "--metrics", "127.0.0.1:0"], dir.path());
    let mut server = Guest::start(stat.stderr(Stdio::piped()));
    let mut said_by = BufReader::new(server.take_stderr().unwrap());
    let mut words = String::new();
    said_by.read_line(&mut words).unwrap();
    let place = words.trim().split("http://").nth(1).and_then(|url| url.strip_suffix("/metrics"));
    let place = place.unwrap_or_else(|| panic!("{words}")).to_owned();
    let served = || {
        let mut stream = TcpStream::connect(&place).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    };
    let printed = || said(&["stat", "--prometheus"], dir.path(), 0);
    let sum = |page: &str, name: &str, label: &str| -> u64 {
        let of = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(label);
        let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
        page.lines().filter(of).map(value).sum()
    };
    let before = served();
    pair.moves(LEN);
    for after in [served(), printed()] {
        let moved = |name| sum(&after, name, "load-guest") - sum(&before, name, "load-guest");
        assert_eq!(moved("shunt_sent_bytes_total"), 2 * LEN, "{after}");
        assert_eq!(moved("shunt_received_bytes_total"), 2 * LEN, "{after}");
        assert_eq!(sum(&after, "shunt_connections", "mode=\"shm\""), 2, "{after}");
        for pid in [pair.client.pid(), pair.server.pid()] {
            assert_eq!(sum(&after, "shunt_process_info", &format!("pid=\"{pid}\"")), 1, "{after}");
        }
    }
    server.signal(libc::SIGTERM);
    assert!(server.wait(LIMIT).is_ok_and(|status| status.success()));
}

#[test]
fn top_shows_the_connection_on_a_terminal() {
    let Some(script) = installed("script") else { return skipped("script is not installed") };
    if plain_only() {
        return skipped("nothing is counted on kernel TCP");
    }
    let dir = BoardDir::new();
    let pair = Pair::start(&dir);
    let mut top = command(script, Under::Tcp);
    let line = format!("stty rows 40 cols 160; exec {} top", built("shunt").display());
    top.args(["-qec", &line, "/dev/null"]).env("SHUNT_DIR", dir.path()).env("TERM", "xterm");
    let mut top = Guest::start(top.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut keys = top.take_stdin().unwrap();
    let mut screen = top.take_stdout().unwrap();
    let (pid, begun) = (pair.client.pid().to_string(), Instant::now());
    let (mut shown, mut part) = (String::new(), [0u8; 4096]);
    while !(shown.contains("load-guest") && shown.contains(&pid)) {
        let n = screen.read(&mut part).unwrap();
        assert!(n > 0 && begun.elapsed() < LIMIT, "no connection on the screen:\n{shown}");
        shown += &String::from_utf8_lossy(&part[..n]);
    }
    keys.write_all(b"q").unwrap();
    let reading = std::thread::spawn(move || std::io::copy(&mut screen, &mut std::io::sink()));
    let ended = top.wait(LIMIT).unwrap_or_else(|e| panic!("q does not end it: {e}"));
    assert!(ended.success(), "{ended:?}");
    reading.join().unwrap().unwrap();
}

// ----- doctor ------------------------------------------------------------------------------------

/// The line of a check: how it ended, and the rest.
#[track_caller]
fn check(report: &str, name: &str) -> (String, String) {
    let mut lines = report.lines().map(|line| line.split_whitespace());
    let found = lines.find_map(|mut words| {
        let outcome = words.next()?;
        (words.next()? == name).then(|| (outcome.to_owned(), words.collect::<Vec<_>>().join(" ")))
    });
    found.unwrap_or_else(|| panic!("no check {name}:\n{report}"))
}

#[test]
fn doctor_says_that_there_is_no_space() {
    for (size, word, code) in [("1M", "no", 1), ("32M", "warn", 0), ("256M", "ok", 0)] {
        let dir = match BoardDir::small(size) {
            Ok(dir) => dir,
            Err(e) => {
                let why = e2e::show::errno_name(e);
                return skipped(&format!("cannot mount a tmpfs: {why}"));
            }
        };
        let report = said(&["doctor", "true"], dir.path(), code);
        let (outcome, found) = check(&report, "space");
        assert_eq!(outcome, word, "{size}: {report}");
        assert!(found.contains("MiB free"), "{found}");
        assert_eq!(check(&report, "memory").0, "ok", "{report}");
    }
}

#[test]
fn doctor_says_that_it_is_no_tmpfs() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("doctor-on-disk");
    let _ = fs::create_dir(&dir);
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    let kind = outcome(Command::new("stat").args(["-f", "-c", "%T"]).arg(&dir), LIMIT).out;
    if matches!(kind.trim(), "tmpfs" | "ramfs") {
        return skipped("the target directory is in memory itself");
    }
    // It works there, but not as well.
    let report = said(&["doctor", "true"], &dir, 0);
    let (outcome, found) = check(&report, "memory");
    assert_eq!(outcome, "warn", "{report}");
    assert!(found.contains("is not a tmpfs"), "{found}");
}

#[test]
fn doctor_looks_at_the_board() {
    if plain_only() {
        return skipped("no board is made on kernel TCP");
    }
    let dir = BoardDir::new();
    let report = said(&["doctor", "true"], dir.path(), 0);
    assert!(check(&report, "board").1.contains("will be made"), "{report}");
    let pair = Pair::start(&dir);
    let report = said(&["doctor", "true"], dir.path(), 0);
    let (outcome, path) = check(&report, "board");
    assert_eq!(outcome, "ok", "{report}");
    let of_it = said(&["doctor", "--pid", &pair.client.pid().to_string()], dir.path(), 0);
    assert!(of_it.contains("is accelerated"), "{of_it}");
    // Whoever comes now makes another one.
    let aside = format!("{path}.aside");
    fs::rename(&path, &aside).unwrap();
    let of_it = said(&["doctor", "--pid", &pair.client.pid().to_string()], dir.path(), 1);
    assert!(of_it.contains("meets nobody who came later"), "{of_it}");
    assert!(!of_it.lines().last().unwrap().contains("accelerated"), "{of_it}");
    fs::rename(&aside, &path).unwrap();
    drop(pair);
    let board = Board::find(dir.path(), true).unwrap().unwrap();
    let version = std::mem::offset_of!(sys::abi::Header, version);
    let kept = board.word64(version);
    board.scribble(version, &u64::MAX.to_le_bytes()).unwrap();
    let report = said(&["doctor", "true"], dir.path(), 1);
    assert_eq!(check(&report, "board").0, "no", "{report}");
    board.scribble(version, &kept.to_le_bytes()).unwrap();
    assert_eq!(check(&said(&["doctor", "true"], dir.path(), 0), "board").0, "ok");
    // Half made, as by a maker that died.
    fs::write(&path, "").unwrap();
    let report = said(&["doctor", "true"], dir.path(), 0);
    assert_eq!(check(&report, "board").0, "warn", "{report}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let report = said(&["doctor", "true"], dir.path(), 1);
    assert_eq!(check(&report, "board").0, "no", "{report}");
}

#[test]
fn doctor_asks_for_netlink() {
    let dir = BoardDir::new();
    assert_eq!(check(&said(&["doctor", "true"], dir.path(), 0), "netlink").0, "ok");
    let mut doctor = shunt(&["doctor", "true"], dir.path());
    let got = outcome(without_netlink(&mut doctor), LIMIT);
    assert_eq!(got.code, 1, "{}{}", got.out, got.err);
    let (outcome, found) = check(&got.out, "netlink");
    assert_eq!(outcome, "no", "{}", got.out);
    assert!(found.contains("NETLINK_SOCK_DIAG"), "{found}");
}

/// Whoever is under a filter is told, and of a process also that it has made one for itself.
#[test]
fn doctor_sees_filters_of_seccomp() {
    let dir = BoardDir::new();
    // Containers have us run under one already.
    let ours = fs::read_to_string("/proc/self/status").unwrap();
    let is_free = ours.lines().any(|l| l.starts_with("Seccomp:") && l.ends_with("\t0"));
    let assert_free = |report: &str| {
        let (outcome, found) = check(report, "seccomp");
        assert!(!is_free || outcome == "ok" && found == "no filter", "{report}");
    };
    let assert_warned = |report: &str| {
        let (outcome, found) = check(report, "seccomp");
        assert!(outcome == "warn" && found.starts_with("a filter is at work; it must"), "{report}");
    };
    assert_free(&said(&["doctor", "true"], dir.path(), 0));
    let mut doctor = shunt(&["doctor", "true"], dir.path());
    assert_warned(&outcome(without_netlink(&mut doctor), LIMIT).out);
    // Processes, looked at from outside of the filter.
    let of = |sleep: &mut Command| {
        let sleep = Guest::start(sleep.arg("600"));
        said(&["doctor", "--pid", &sleep.pid().to_string()], dir.path(), 1)
    };
    assert_free(&of(&mut command("sleep", Under::Tcp)));
    assert_warned(&of(without_netlink(&mut command("sleep", Under::Tcp))));
}

/// A program that becomes another user when it is started.
#[test]
fn doctor_looks_at_whose_program_it_is() {
    const SOMEBODY: u32 = 61_001;
    let Some(like) = installed("true") else { return skipped("there is no true") };
    if e2e::calls::geteuid() != 0 {
        return skipped("only root makes a program another user's");
    }
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("set-uid-true");
    let _ = fs::remove_file(&program);
    e2e::run::copy_program(fs::canonicalize(like).unwrap(), &program);
    let dir = BoardDir::new();
    let words = ["doctor", program.to_str().unwrap()];
    assert_eq!(check(&said(&words, dir.path(), 0), "set-uid").0, "ok");
    std::os::unix::fs::chown(&program, Some(SOMEBODY), None).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let report = said(&words, dir.path(), 1);
    let (outcome, found) = check(&report, "set-uid");
    assert_eq!(outcome, "no", "{report}");
    assert!(found.contains(&SOMEBODY.to_string()), "{found}");
    fs::remove_file(&program).unwrap();
}

// ----- settings ----------------------------------------------------------------------------------

/// A transfer between two programs under `shunt run` with these options: what the client left.
fn run_with(options: &[&str], dir: &BoardDir) -> Outcome {
    const LEN: u64 = 24 << 20;
    let run = |words: &[&str]| {
        let mut all = vec!["run"];
        all.extend(options);
        all.extend(["--", GUEST]);
        all.extend(words);
        shunt(&all, dir.path())
    };
    let mut server = run(&["serve"]);
    let mut server = Guest::start(server.stdout(Stdio::piped()).stderr(Stdio::null()));
    let port = port_of(&mut server).to_string();
    let got = outcome(&mut run(&["transfer", &port, "0", "3", &LEN.to_string()]), LIMIT);
    assert_eq!(got.out.trim(), format!("sent={LEN} received={LEN} status=done"), "{}", got.err);
    got
}

/// A port in a rule is the one that is connected to, at both ends: not the one that the client has been given.
#[test]
fn rules_about_the_port_of_the_listener() {
    const LEN: u64 = 1 << 20;
    let rules: [(&str, u16, bool); 4] = [
        ("--exclude", 0, false),
        ("--exclude", 1, true),
        ("--include", 0, true),
        ("--include", 1, false),
    ];
    for (rule, beside, attached) in rules {
        let dir = BoardDir::new();
        let mut server = shunt(&["run", "--", GUEST, "serve"], dir.path());
        let mut server = Guest::start(server.stdout(Stdio::piped()).stderr(Stdio::null()));
        let port = port_of(&mut server);
        let rule = [rule.to_owned(), format!("port:{}", port.wrapping_add(beside).max(1))];
        let [len, port] = [LEN.to_string(), port.to_string()];
        let words = ["transfer", &port, "0", "3", &len];
        let mut client = shunt(&["run", &rule[0], &rule[1], "--", GUEST], dir.path());
        let got = outcome(client.args(words), LIMIT);
        assert_eq!(got.out.trim(), format!("sent={LEN} received={LEN} status=done"), "{}", got.err);
        let is_so = dir.attached() > 0 || plain_only() && attached;
        assert_eq!(is_so, attached, "{rule:?}, port {port}:\n{}", dir.summary());
    }
}

#[test]
fn rules_and_log_of_a_real_run() {
    // Which rules leave a connection in shared memory, and which do not.
    for (options, attached) in [
        (&[][..], true),
        (&["--exclude", "port:1-65535"], false),
        (&["--exclude", "addr:127.0.0.1"], false),
        (&["--exclude", "program:load-guest"], false),
        (&["--exclude", "program:nginx,addr:10.0.0.0/8"], true),
        (&["--include", "port:1-65535"], true),
        (&["--include", "addr:127.0.0.0/8"], true),
        (&["--include", "program:load-guest"], true),
        (&["--include", "program:nginx"], false),
        (&["--include", "addr:::1"], false),
        // Exclusion wins.
        (&["--include", "addr:127.0.0.0/8", "--exclude", "addr:127.0.0.1"], false),
    ] {
        let dir = BoardDir::new();
        let got = run_with(options, &dir);
        assert_eq!(dir.attached() > 0, attached, "{options:?}:\n{}{}", got.err, dir.summary());
        assert_eq!(got.err, "", "{options:?}: a word that nobody asked for");
    }
    // The same rule in a file, and one on the command line that is stronger.
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rules.toml");
    fs::write(&file, "exclude = \"addr:127.0.0.1\"\nlog = \"info\"\n").unwrap();
    let file = file.to_str().unwrap();
    for (more, attached) in [(&[][..], false), (&["--exclude", "addr:10.0.0.0/8"], true)] {
        let dir = BoardDir::new();
        let got = run_with(&[&["--config", file], more].concat(), &dir);
        assert_eq!(dir.attached() > 0, attached, "{more:?}:\n{}{}", got.err, dir.summary());
        let said = if attached { "attached after" } else { "on TCP: 3 excluded by configuration" };
        assert!(got.err.contains(said) || plain_only(), "the log of the file: {}", got.err);
    }
    for (level, talks) in [("off", false), ("error", false), ("debug", true)] {
        let dir = BoardDir::new();
        let got = run_with(&["--log", level], &dir);
        assert_eq!(!got.err.is_empty(), talks, "--log {level}: {}", got.err);
    }
    let dir = BoardDir::new();
    let got = run_with(&["--log", "info"], &dir);
    assert!(got.err.contains("attached after"), "{}", got.err);
    let dir = BoardDir::new();
    let got = run_with(&["--log", "info", "--exclude", "addr:127.0.0.1"], &dir);
    assert!(got.err.contains("on TCP: 3 excluded by configuration"), "{}", got.err);
}
