//! Where a measurement takes place: a scratch directory with copies of the programs that were
//! built, free ports, children on their CPUs, and an end that leaves nothing behind.

mod network;

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, io, process, thread};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use testkit::hosts::Hosts;

pub(crate) use network::Network;

/// The library and the programs that a measurement of programs on this host runs, as cargo names them.
pub(crate) const LOCAL: &[&str] =
    &["libshunt_preload.so", "shunt", "pingpong", "cacheline", "httpd", "httpload", "bulk", "idle"];

/// How long a child may take to end when it is asked to.
const GRACE: Duration = Duration::from_secs(3);
/// How often a child is looked at: seldom enough to disturb nobody.
const GLANCE: Duration = Duration::from_millis(20);

/// How a program reaches its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The kernel's TCP.
    Tcp,
    /// Under `shunt run`.
    Shunt,
}

/// Which CPUs a server and its client run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cpus {
    /// The server on CPU 0, the client on CPU 1.
    Two,
    /// Both on CPU 0.
    One,
    /// Both on CPU 0, where another program computes without end.
    Crowded,
    /// Each where the scheduler puts it, on CPUs 0 and 1.
    Any,
}

/// The end of a connection that a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Accepts.
    Server,
    /// Connects.
    Client,
}

impl Cpus {
    /// The CPU of one end, as `taskset` wants it.
    pub(crate) fn of(self, end: End) -> &'static str {
        match (self, end) {
            (Self::Two, End::Client) => "1",
            (Self::Two | Self::One | Self::Crowded, _) => "0",
            (Self::Any, _) => "0,1",
        }
    }
}

/// A directory that is removed at the end, with the programs in it; and the hosts that they run on.
#[derive(Debug)]
pub(crate) struct Stage {
    dir: PathBuf,
    /// Two hosts; without them, this one.
    hosts: Option<Hosts>,
    /// Not the usual board of its user and network.
    board: Option<Board>,
}

/// What must go when a person interrupts: our children, our directories.
static CHILDREN: Mutex<Vec<u32>> = Mutex::new(Vec::new());
static NAMESPACES: Mutex<Vec<String>> = Mutex::new(Vec::new());
static DIRS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn locked<T>(what: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on an interrupt ends what was started and removes what was made.
///
/// # Errors
///
/// When signals cannot be watched.
pub(crate) fn clean_up_when_interrupted() -> anyhow::Result<()> {
    let signals =
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP];
    let mut signals =
        signal_hook::iterator::Signals::new(signals).context("cannot watch for interrupts")?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Held to the end: from here on nothing is started and nothing is made.
            let (children, dirs) = (locked(&CHILDREN), locked(&DIRS));
            children.iter().for_each(|leader| kill_family(*leader));
            dirs.iter().for_each(|dir| remove_from_under(dir));
            for name in locked(&NAMESPACES).iter() {
                let _ = Command::new("ip").args(["netns", "del", name]).status();
            }
            process::exit(128 + signal);
        }
    });
    Ok(())
}

impl Stage {
    /// A new directory, with copies of what a measurement of programs on this host runs.
    ///
    /// # Errors
    ///
    /// As [`Self::with`].
    pub(crate) fn new(built: &Path) -> anyhow::Result<Self> {
        Self::with(built, LOCAL)
    }

    /// A new directory, with copies of files in `built` (a cargo output directory).
    ///
    /// Copies, because another user (PostgreSQL's) must be able to run them, and because a build
    /// that happens meanwhile must not change them.
    ///
    /// # Errors
    ///
    /// When something is not built, or there is no room.
    pub(crate) fn with(built: &Path, names: &[&str]) -> anyhow::Result<Self> {
        let dir = new_dir(&env::temp_dir().join("shunt-bench"))?;
        let stage = Self { dir, hosts: None, board: None };
        fs::create_dir(stage.dir.join("bin"))?;
        for name in names {
            let from = built.join(name);
            fs::copy(&from, stage.program(name)).with_context(|| {
                format!("{} is not built: run without --no-build", from.display())
            })?;
        }
        Ok(stage)
    }

    /// From now on servers run on one of these hosts, and clients on the other.
    pub(crate) fn on(mut self, hosts: Hosts) -> Self {
        for host in [&hosts.server, &hosts.client] {
            locked(&NAMESPACES).push(host.namespace().to_owned());
        }
        locked(&NAMESPACES).extend(hosts.middle().map(str::to_owned));
        self.hosts = Some(hosts);
        self
    }

    /// From now on programs under Shunt have this board.
    pub(crate) fn share(&mut self, board: Board) {
        self.board = Some(board);
    }

    /// The hosts, if there are two.
    pub(crate) fn hosts(&self) -> Option<&Hosts> {
        self.hosts.as_ref()
    }

    /// Where servers listen.
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.hosts.as_ref().map_or(Ipv4Addr::LOCALHOST, |hosts| hosts.server.address())
    }

    /// A program built in this workspace.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.dir.join("bin").join(name)
    }

    /// A new empty directory for one server, or one run of a client.
    ///
    /// # Errors
    ///
    /// When there is no room.
    pub(crate) fn new_dir(&self) -> anyhow::Result<PathBuf> {
        new_dir(&self.dir.join("run"))
    }

    /// What to type for `end` before a program: its CPU, its host and its way. Two hosts share all CPUs.
    pub(crate) fn prefix(&self, way: Way, end: End, cpus: Cpus) -> Vec<OsString> {
        self.prefix_in(None, way, end, cpus)
    }

    /// The same on `network`, if there is one, in place of this process's.
    pub(crate) fn prefix_in(
        &self,
        network: Option<&Network>,
        way: Way,
        end: End,
        cpus: Cpus,
    ) -> Vec<OsString> {
        let mut words: Vec<OsString> = match &self.hosts {
            None => ["taskset", "-c", cpus.of(end)].map(OsString::from).into(),
            Some(hosts) => match end {
                End::Server => hosts.server.prefix(),
                End::Client => hosts.client.prefix(),
            },
        };
        words.extend(network.into_iter().flat_map(Network::prefix));
        if way == Way::Shunt {
            words.extend([self.program("shunt").into(), "run".into()]);
            if let Some(board) = &self.board {
                words.extend(["--dir".into(), board.path().into()]);
            }
            words.push("--".into());
        }
        words
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        remove_dir(&self.dir);
    }
}

/// Makes a directory whose name begins with `prefix` and is nobody's yet; everybody may look.
pub(crate) fn new_dir(prefix: &Path) -> anyhow::Result<PathBuf> {
    for _ in 0..100 {
        let mut name = prefix.as_os_str().to_owned();
        name.push(format!("-{}-{:08x}", process::id(), random()));
        let dir = PathBuf::from(name);
        let mut dirs = locked(&DIRS);
        match fs::create_dir(&dir) {
            Ok(()) => {
                fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
                dirs.push(dir.clone());
                return Ok(dir);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make {}", dir.display()));
            }
        }
    }
    bail!("cannot find a free name for a directory beside {}", prefix.display())
}

/// Removes a directory in which processes that are just dying may still make files.
fn remove_from_under(dir: &Path) {
    for _ in 0..20 {
        if fs::remove_dir_all(dir).is_ok() || !dir.exists() {
            return;
        }
        sleep(GLANCE);
    }
}

/// Removes a directory that [`new_dir`] made.
pub(crate) fn remove_dir(dir: &Path) {
    remove_from_under(dir);
    locked(&DIRS).retain(|other| other != dir);
}

/// A board of its own, so that what others left on the usual one hides nothing; removed in the end.
#[derive(Debug)]
pub(crate) struct Board(PathBuf);

impl Board {
    /// An empty one, in memory where there is `/dev/shm`.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let shm = Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm.to_owned() } else { env::temp_dir() };
        let outer = new_dir(&parent.join("shunt-bench"))?;
        let board = outer.join("board");
        // As the library wants it: closed to others.
        fs::DirBuilder::new().mode(0o700).create(&board)?;
        debug_assert_eq!(fs::metadata(&board)?.mode() & 0o777, 0o700);
        Ok(Self(board))
    }

    /// One for the programs of all network namespaces.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub(crate) fn across() -> anyhow::Result<Self> {
        let board = Self::new()?;
        fs::write(board.path().join("all-namespaces"), "")?;
        Ok(board)
    }

    /// The directory, as `SHUNT_DIR` wants it.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.0.parent().into_iter().for_each(remove_dir);
    }
}

/// Different each time; std seeds its hash maps so.
fn random() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let bytes =
        std::collections::hash_map::RandomState::new().build_hasher().finish().to_le_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// A port that nobody uses, below those that the kernel gives to clients.
///
/// # Errors
///
/// When none is found.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    for _ in 0..1000 {
        let port = 20000 + u16::try_from(random() % 12000)?;
        if std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port from 20000 to 32000")
}

/// Whether somebody listens on `port`. Asked of /proc, because a server such as iperf3 takes
/// whoever connects for its client.
fn is_listening(process: u32, port: u16) -> bool {
    let want = format!(":{port:04X}");
    // The tables are those of the process's own network.
    let tables = ["tcp", "tcp6"].map(|table| format!("/proc/{process}/net/{table}"));
    tables.iter().filter_map(|path| fs::read_to_string(path).ok()).any(|text| {
        text.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().unwrap_or_default();
            local.ends_with(&want) && words.nth(1) == Some("0A")
        })
    })
}

/// A child and whatever it starts, ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    dir: PathBuf,
    name: String,
    /// What makes it end in order.
    polite: Signal,
}

impl Running {
    /// Starts `words` in `dir` as a process group of its own; what it says goes to files there.
    ///
    /// # Errors
    ///
    /// When the program cannot be started.
    pub(crate) fn start(
        words: &[OsString],
        dir: &Path,
        settings: &[(&str, OsString)],
    ) -> anyhow::Result<Self> {
        let (program, args) = words.split_first().context("no program to start")?;
        let output = |name| File::create(dir.join(name));
        let mut children = locked(&CHILDREN);
        let child = Command::new(program)
            .args(args)
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(output("stdout")?)
            .stderr(output("stderr")?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        children.push(child.id());
        let name = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        Ok(Self { child, dir: dir.into(), name, polite: Signal::SIGTERM })
    }

    /// Ends it with SIGINT in place of SIGTERM.
    pub(crate) fn ends_by_interrupt(mut self) -> Self {
        self.polite = Signal::SIGINT;
        self
    }

    /// Waits until it listens on `port`.
    ///
    /// # Errors
    ///
    /// When it ends before, or takes ten seconds.
    pub(crate) fn wait_for_port(&mut self, port: u16) -> anyhow::Result<()> {
        self.wait_for_port_within(port, Duration::from_secs(10))
    }

    /// Waits until it listens on `port`, but not longer than `patience`.
    ///
    /// # Errors
    ///
    /// When it ends before, or takes longer.
    pub(crate) fn wait_for_port_within(
        &mut self,
        port: u16,
        patience: Duration,
    ) -> anyhow::Result<()> {
        let begin = Instant::now();
        while !is_listening(self.child.id(), port) {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "`{}` ended with {status} before it listened: {}",
                    self.name,
                    self.last_words()
                );
            }
            if begin.elapsed() > patience {
                bail!("`{}` does not listen on port {port}: {}", self.name, self.last_words());
            }
            sleep(GLANCE);
        }
        Ok(())
    }

    /// Waits for its end and returns what it wrote to standard output.
    ///
    /// # Errors
    ///
    /// When it fails, or takes longer than `patience` (it is ended then).
    pub(crate) fn finish(mut self, patience: Duration) -> anyhow::Result<String> {
        let status = self.wait(patience)?;
        match status {
            Some(status) if status.success() => Ok(self.output()),
            Some(status) => bail!("`{}` {}: {}", self.name, ending(status), self.last_words()),
            None => {
                bail!("`{}` hangs: not done after {patience:?}; {}", self.name, self.last_words())
            }
        }
    }

    /// Waits for its end, but not longer than `patience`.
    ///
    /// # Errors
    ///
    /// When the child cannot be waited for.
    pub(crate) fn wait(&mut self, patience: Duration) -> anyhow::Result<Option<ExitStatus>> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if begin.elapsed() > patience {
                return Ok(None);
            }
            sleep(GLANCE);
        }
    }

    /// What it wrote to standard output so far.
    pub(crate) fn output(&self) -> String {
        let bytes = fs::read(self.dir.join("stdout")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Whether it has ended by itself, and how.
    pub(crate) fn fell(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("`{}` {}: {}", self.name, ending(status), self.last_words()))
    }

    /// Process ids: its own and those of everything it started.
    pub(crate) fn family(&self) -> Vec<u32> {
        family(self.child.id())
    }

    /// CPU time that all of it has used.
    pub(crate) fn cpu_used(&self) -> Duration {
        self.family().into_iter().map(cpu_used).sum()
    }

    /// Asks it to end (SIGTERM), without waiting.
    pub(crate) fn ask_to_end(&self) {
        signal_group(self.child.id(), self.polite);
    }

    /// The last lines of what it said, for an error message.
    fn last_words(&self) -> String {
        let mut said = String::new();
        for name in ["stdout", "stderr", "error.log"] {
            let bytes = fs::read(self.dir.join(name)).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
            for line in &lines[lines.len().saturating_sub(4)..] {
                said.push_str(if said.is_empty() { "" } else { " | " });
                said.push_str(line.trim());
            }
        }
        if said.is_empty() { "it said nothing".into() } else { said }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let leader = self.child.id();
        let family = family(leader);
        if matches!(self.child.try_wait(), Ok(None)) {
            signal_group(leader, self.polite);
            drop(self.wait(GRACE));
        }
        // Whatever did not follow its leader, in its group or out of it.
        signal_group(leader, Signal::SIGKILL);
        for pid in family.into_iter().filter(|pid| *pid != leader && parent(*pid).is_some()) {
            signal(pid, Signal::SIGKILL);
        }
        drop(self.child.wait());
        locked(&CHILDREN).retain(|other| *other != leader);
    }
}

fn ending(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by {}", name_of(signal)),
        (None, Some(code)) => format!("failed with status {code}"),
        (None, None) => "ended".into(),
    }
}

/// A signal's name.
pub(crate) fn name_of(signal: i32) -> String {
    Signal::try_from(signal)
        .map_or_else(|_| format!("signal {signal}"), |signal| signal.to_string())
}

fn to_pid(pid: u32) -> Option<Pid> {
    // 0 and negative numbers would mean others than we started.
    i32::try_from(pid).ok().filter(|pid| *pid > 1).map(Pid::from_raw)
}

fn signal_group(leader: u32, signal: Signal) {
    if let Some(pid) = to_pid(leader) {
        // It may be gone already.
        let _ = killpg(pid, signal);
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = to_pid(pid) {
        let _ = kill(pid, signal);
    }
}

fn kill_family(leader: u32) {
    let family = family(leader);
    signal_group(leader, Signal::SIGKILL);
    family.into_iter().for_each(|pid| signal(pid, Signal::SIGKILL));
}

fn parent(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// `leader` and everything that it, or what it started, has started.
fn family(leader: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![leader];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, parent)| *parent == pid).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

/// CPU time of the living threads of a process, as the scheduler counts it, and of the children
/// that it has waited for.
fn cpu_used(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
    let ns = texts.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok()).sum();
    Duration::from_nanos(ns) + cpu_of_waited(pid)
}

/// CPU time of our children that have been waited for.
pub(crate) fn cpu_of_finished_children() -> Duration {
    cpu_of_waited(process::id())
}

fn cpu_of_waited(pid: u32) -> Duration {
    /// The kernel counts for user space in hundredths of a second on each Linux machine of today.
    const TICK: Duration = Duration::from_millis(10);
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u32 =
        rest.split_whitespace().skip(13).take(2).filter_map(|word| word.parse::<u32>().ok()).sum();
    TICK * ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long what a busy machine has to do may take.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < PATIENCE, "not so after {PATIENCE:?}: {what}");
            sleep(GLANCE);
        }
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_child_and_its_children_end_with_it() {
        let dir = new_dir(&env::temp_dir().join("shunt-stage-test")).unwrap();
        let mut command = words("sh -c");
        // The second one ignores what asks it to end, and leaves the group.
        command.push("sleep 1000 & setsid sh -c 'trap \"\" TERM; sleep 1000; :' & wait".into());
        let running = Running::start(&command, &dir, &[]).unwrap();
        let begin = Instant::now();
        while running.family().len() < 4 && begin.elapsed() < PATIENCE {
            sleep(GLANCE);
        }
        let family = running.family();
        assert!(family.len() >= 4, "{family:?}");
        drop(running);
        let alive = |pid: &&u32| {
            let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            state.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
        };
        eventually("all have ended", || family.iter().filter(alive).count() == 0);
        remove_dir(&dir);
        assert!(!dir.exists());
    }

    #[test]
    fn a_failure_says_what_the_program_said() {
        let dir = new_dir(&env::temp_dir().join("shunt-stage-test")).unwrap();
        let mut command = words("sh -c");
        command.push("echo out; echo the reason >&2; exit 3".into());
        let running = Running::start(&command, &dir, &[]).unwrap();
        let error = running.finish(PATIENCE).unwrap_err().to_string();
        assert!(error.contains("status 3") && error.contains("the reason"), "{error}");
        let running = Running::start(&words("sleep 100"), &dir, &[]).unwrap();
        let error = running.finish(Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("hangs"), "{error}");
        remove_dir(&dir);
    }

    #[test]
    fn listeners_are_seen_without_connecting() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listening(process::id(), port));
        drop(listener);
        // A child that another test is just starting has it, too, until it is another program.
        eventually("it is gone", || !is_listening(process::id(), port));
    }
}
