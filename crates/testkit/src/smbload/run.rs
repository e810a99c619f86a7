//! A whole run: clients and their connections, the time that is measured, what is told of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::connection::Request;
use super::connection::expect_ok;
use super::pattern;
use super::session::{Channel, new_guid};
use super::settings::{Op, Settings, Src};
use super::usage::{self, Machine, Usage};
use super::wire::{self, command};
use super::work::{Counters, File, SMALL, Signals, Worker};
use crate::latency::Latency;

/// What a run gave.
#[derive(Debug)]
pub struct Report {
    settings: Settings,
    seconds: f64,
    operations: f64,
    bytes: f64,
    entries: f64,
    latency: Latency,
    max: Duration,
    server: Option<Usage>,
    client: Usage,
    machine: Machine,
}

/// How long a run's end may take beyond an answer.
const GLANCE: Duration = Duration::from_millis(20);
/// Written at once by `prepare`.
const PIECE: usize = 1 << 20;

/// One channel's part of a run.
type Task<'a> = Box<dyn FnOnce(&Counters, &Signals) -> anyhow::Result<Latency> + Send + 'a>;

/// Runs the load and measures it.
///
/// # Errors
///
/// When the server or the network fails, or data is not what it must be
/// ([`Mismatch`](super::Mismatch)).
pub fn run(settings: &Settings) -> anyhow::Result<Report> {
    check(settings)?;
    let mut files = Vec::new();
    let mut channels = Vec::new();
    for client in 0..settings.clients {
        if settings.op == Op::Session {
            continue;
        }
        let (file, own) =
            client_channels(settings, client).with_context(|| format!("client {client}"))?;
        files.push(file);
        channels.push(own);
    }
    let mut tasks: Vec<Task<'_>> = Vec::new();
    if settings.op == Op::Session {
        tasks.extend((0..settings.clients).map(|_| session_task(settings)));
    }
    let pace = (settings.rate > 0.0)
        .then(|| settings.rate * 1e6 / f64::from(settings.clients * settings.channels));
    let mut number = 0;
    for (file, own) in files.iter().zip(channels) {
        for channel in own {
            let mut worker = Worker::new(channel.connection, settings, file, number)?;
            number += 1;
            tasks.push(Box::new(move |counters, signals| worker.run(counters, signals, pace)));
        }
    }
    let report = measure(settings, tasks)?;
    if settings.verify && settings.op == Op::Write {
        for (client, file) in (0..).zip(&files) {
            read_again(settings, client, file)?;
        }
    }
    Ok(report)
}

fn check(settings: &Settings) -> anyhow::Result<()> {
    let secured = settings.signing().is_some() || settings.encryption().is_some();
    ensure!(
        settings.src == Src::Copy || !(secured || settings.verify),
        "--src sendfile sends what is in a file: it cannot be signed, encrypted or verified"
    );
    ensure!(
        !settings.op.has_file() || settings.size >= u64::from(settings.io),
        "--size is less than --io"
    );
    ensure!(
        !settings.verify || settings.io.is_multiple_of(8),
        "--verify wants an --io that is a multiple of 8"
    );
    Ok(())
}

/// A client's channels and its file.
fn client_channels(settings: &Settings, client: u32) -> anyhow::Result<(File, Vec<Channel>)> {
    let mut first = Channel::open(settings, new_guid()?)?;
    let mut file = File { id: wire::PREVIOUS, size: 0, next: AtomicU64::new(0) };
    if settings.op.has_file() {
        let writes = settings.op.writes_file();
        let most = if writes { first.agreed.max_write } else { first.agreed.max_read };
        ensure!(settings.io <= most, "the server takes at most {most} bytes at once");
        let opening = if writes { wire::WRITING } else { wire::READING };
        let name = settings.file(client);
        let (id, size) =
            first.create(&name, opening).context("`smbload prepare` makes the files")?;
        file.id = id;
        file.size = if writes { settings.size } else { size.min(settings.size) };
        ensure!(file.size >= u64::from(settings.io), "{name} is shorter than one read");
    }
    let mut channels = vec![first];
    for number in 1..settings.channels {
        let further = Channel::bind(settings, &channels[0].session);
        channels.push(further.with_context(|| format!("channel {number}"))?);
    }
    Ok((file, channels))
}

fn session_task(settings: &Settings) -> Task<'_> {
    Box::new(move |counters, signals| {
        let mut latency = Latency::default();
        while !signals.stopping.load(Relaxed) {
            let begun = Instant::now();
            drop(Channel::open(settings, new_guid()?)?);
            if signals.measuring.load(Relaxed) {
                latency.record(begun.elapsed());
            }
            counters.operations.fetch_add(1, Relaxed);
        }
        Ok(latency)
    })
}

/// What has been done at some moment.
struct Snapshot {
    at: Instant,
    operations: u64,
    bytes: u64,
    entries: u64,
    server: Option<Usage>,
    client: Usage,
    machine: Machine,
}

impl Snapshot {
    fn take(settings: &Settings, counters: &[Counters]) -> anyhow::Result<Self> {
        let sum = |of: fn(&Counters) -> &AtomicU64| {
            counters.iter().map(|counters| of(counters).load(Relaxed)).sum()
        };
        Ok(Self {
            at: Instant::now(),
            operations: sum(|counters| &counters.operations),
            bytes: sum(|counters| &counters.bytes),
            entries: sum(|counters| &counters.entries),
            server: settings.server_pid.map(usage::of_tree).transpose()?,
            client: usage::own(),
            machine: Machine::now(),
        })
    }
}

fn measure(settings: &Settings, tasks: Vec<Task<'_>>) -> anyhow::Result<Report> {
    let signals = Signals::default();
    let counters: Vec<Counters> = tasks.iter().map(|_| Counters::default()).collect();
    let latencies: Mutex<Vec<Latency>> = Mutex::default();
    let failure: Mutex<Option<anyhow::Error>> = Mutex::default();
    let failed = AtomicBool::new(false);
    let start = Barrier::new(tasks.len() + 1);
    let spans = thread::scope(|scope| {
        for (number, (task, own)) in tasks.into_iter().zip(&counters).enumerate() {
            let (signals, start, latencies, failure, failed) =
                (&signals, &start, &latencies, &failure, &failed);
            scope.spawn(move || {
                start.wait();
                match task(own, signals) {
                    Ok(latency) => locked(latencies).push(latency),
                    Err(error) => {
                        failed.store(true, Relaxed);
                        signals.stopping.store(true, Relaxed);
                        // The first is the cause; others are what came of it.
                        let error = error.context(format!("connection {number}"));
                        locked(failure).get_or_insert(error);
                    }
                }
            });
        }
        start.wait();
        let spans = watch(settings, &counters, &signals, &failed);
        signals.stopping.store(true, Relaxed);
        spans
    });
    if let Some(error) = locked(&failure).take() {
        return Err(error);
    }
    let (before, after) = spans?;
    let mut all = Latency::default();
    locked(&latencies).iter().for_each(|latency| all.add(latency));
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    let difference = |before: u64, after: u64| (after - before) as f64;
    let operations = difference(before.operations, after.operations);
    let entries = difference(before.entries, after.entries);
    ensure!(operations + entries > 0.0, "not one operation was done in {} seconds", settings.secs);
    Ok(Report {
        settings: settings.clone(),
        seconds: after.at.duration_since(before.at).as_secs_f64(),
        operations,
        bytes: difference(before.bytes, after.bytes),
        entries,
        max: Duration::from_nanos(all.quantile_ns(1000)),
        latency: all,
        server: after.server.zip(before.server).map(|(after, before)| after.since(before)),
        client: after.client.since(before.client),
        machine: after.machine.since(before.machine),
    })
}

/// Waits for the warm-up and the measurement to pass, or for a failure.
fn watch(
    settings: &Settings,
    counters: &[Counters],
    signals: &Signals,
    failed: &AtomicBool,
) -> anyhow::Result<(Snapshot, Snapshot)> {
    let wait = |seconds: f64| {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        while !failed.load(Relaxed) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(GLANCE));
        }
    };
    wait(settings.warmup);
    signals.measuring.store(true, Relaxed);
    let before = Snapshot::take(settings, counters)?;
    wait(settings.secs);
    let after = Snapshot::take(settings, counters)?;
    signals.measuring.store(false, Relaxed);
    Ok((before, after))
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads what a client has written, and checks it.
fn read_again(settings: &Settings, client: u32, file: &File) -> anyhow::Result<()> {
    let io = u64::from(settings.io);
    let written = file.next.load(Relaxed).saturating_mul(io).min(file.size / io * io);
    let mut channel = Channel::open(settings, new_guid()?)?;
    let (id, _) = channel.create(&settings.file(client), wire::READING)?;
    let charge = wire::charge(settings.io);
    channel.connection.gather_credits(u32::from(charge))?;
    for offset in (0..written).step_by(settings.io as usize) {
        let body = wire::read(&id, settings.io, offset);
        let request = Request::new(command::READ, &body).charge(charge);
        let answer = expect_ok(channel.connection.call(request)?, "READ")?;
        ensure!(answer.count == settings.io, "a READ brought {} bytes", answer.count);
        pattern::check(channel.connection.data(&answer)?, offset)?;
    }
    channel.close(&id)
}

/// Writes what the other operations want: each client's file, and the small files.
///
/// # Errors
///
/// When the server or the network fails.
pub fn prepare(settings: &Settings) -> anyhow::Result<()> {
    let mut buffer = vec![0; PIECE];
    for client in 0..settings.clients {
        let mut channel = Channel::open(settings, new_guid()?)?;
        if settings.size > 0 && !(settings.one_file && client > 0) {
            let (file, _) = channel.create(&settings.file(client), wire::REPLACING)?;
            for offset in (0..settings.size).step_by(PIECE) {
                let len = usize::try_from(settings.size - offset).map_or(PIECE, |n| n.min(PIECE));
                pattern::fill(&mut buffer[..len], offset);
                channel.write(&file, &buffer[..len], offset)?;
            }
            channel.close(&file)?;
        }
        if client == 0 && settings.nfiles > 0 {
            let (folder, _) = channel.create(&settings.dir, wire::FOLDER)?;
            channel.close(&folder)?;
            pattern::fill(&mut buffer[..SMALL as usize], 0);
            for number in 0..settings.nfiles {
                let name = settings.small_file(u64::from(number));
                let (file, _) = channel.create(&name, wire::REPLACING)?;
                channel.write(&file, &buffer[..SMALL as usize], 0)?;
                channel.close(&file)?;
            }
        }
    }
    Ok(())
}

/// What the server says of itself and of its interfaces, a line for each.
///
/// # Errors
///
/// When the server or the network fails.
pub fn interfaces(settings: &Settings) -> anyhow::Result<Vec<String>> {
    let mut channel = Channel::open(settings, new_guid()?)?;
    let agreed = channel.agreed;
    let mut lines = vec![format!(
        "dialect={:#x} capabilities={:#x} max_read={} max_write={}",
        agreed.dialect, agreed.capabilities, agreed.max_read, agreed.max_write
    )];
    lines.extend(channel.interfaces()?);
    Ok(lines)
}

impl Report {
    /// One line of JSON. Rates are per second, MB and GB are powers of ten, CPU times are seconds.
    #[must_use]
    pub fn json(&self) -> String {
        let settings = &self.settings;
        let gb = self.bytes / 1e9;
        let per_gb = |seconds: f64| if gb > 0.0 { seconds / gb } else { 0.0 };
        let us =
            |permille| Duration::from_nanos(self.latency.quantile_ns(permille)).as_secs_f64() * 1e6;
        let per_op = |seconds: f64| seconds * 1e6 / self.operations.max(1.0);
        let word = |text: String| format!("\"{}\"", text.escape_default());
        let number = |value: f64, digits: usize| format!("{value:.digits$}");
        let mut fields = vec![
            ("label", word(settings.label.clone())),
            ("op", word(settings.op.name())),
            ("clients", settings.clients.to_string()),
            ("channels", settings.channels.to_string()),
            ("qd", settings.qd.to_string()),
            ("io", settings.io.to_string()),
            ("sign", word(format!("{:?}", settings.sign).to_lowercase())),
            ("enc", settings.encryption().map_or(0, |e| e.key_len() * 8).to_string()),
            ("secs", number(self.seconds, 3)),
            ("MBps", number(self.bytes / 1e6 / self.seconds, 1)),
            ("ops", number(self.operations / self.seconds, 1)),
            ("entries_per_s", number(self.entries / self.seconds, 0)),
            ("p50_us", number(us(500), 1)),
            ("p95_us", number(us(950), 1)),
            ("p99_us", number(us(990), 1)),
            ("max_us", number(self.max.as_secs_f64() * 1e6, 1)),
        ];
        if let Some(server) = self.server {
            fields.extend([
                ("srv_user", number(server.user, 2)),
                ("srv_sys", number(server.system, 2)),
                ("srv_procs", server.processes.to_string()),
                ("srv_cpu_pct", number(100.0 * server.total() / self.seconds, 1)),
                ("srv_s_per_GB", number(per_gb(server.total()), 4)),
                ("srv_us_per_op", number(per_op(server.total()), 3)),
            ]);
        }
        fields.extend([
            ("cli_user", number(self.client.user, 2)),
            ("cli_sys", number(self.client.system, 2)),
            ("cli_s_per_GB", number(per_gb(self.client.total()), 4)),
            ("cli_us_per_op", number(per_op(self.client.total()), 3)),
            ("sys_busy_pct", number(self.machine.busy_percent(), 1)),
            ("steal_s", number(self.machine.stolen, 2)),
        ]);
        let fields: Vec<String> =
            fields.into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", fields.join(","))
    }
}
