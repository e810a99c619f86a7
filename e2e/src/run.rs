//! How tests start guests: plain or under the preload library, with a board of their own, a time
//! limit, and nothing left behind.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::board::Board;
use crate::{built, calls};

/// The library under test.
///
/// # Panics
///
/// When it has not been built.
#[must_use]
pub fn library() -> PathBuf {
    built("libshunt_preload.so")
}

/// Whether `SHUNT_TEST_PLAIN` is set: everything runs on kernel TCP, which shows that a test asks for
/// nothing that TCP does not do.
#[must_use]
pub fn plain_only() -> bool {
    std::env::var_os("SHUNT_TEST_PLAIN").is_some()
}

/// A board of one test: a directory that is removed in the end.
#[derive(Debug)]
pub struct BoardDir {
    path: PathBuf,
    mounted: bool,
}

static MADE: AtomicUsize = AtomicUsize::new(0);

fn fresh_path() -> PathBuf {
    let n = MADE.fetch_add(1, Ordering::Relaxed);
    let since = std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.subsec_nanos());
    PathBuf::from(format!("/dev/shm/shunt-test-{}-{n}-{since:x}", std::process::id()))
}

impl BoardDir {
    /// An empty one in `/dev/shm`.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    #[must_use]
    pub fn new() -> Self {
        let path = fresh_path();
        fs::create_dir(&path).expect("a directory in /dev/shm");
        fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("its mode");
        Self { path, mounted: false }
    }

    /// One on a file system of its own with only so much room; the errno when that needs more
    /// rights than we have.
    ///
    /// # Errors
    ///
    /// What `mount` says.
    pub fn small(size: &str) -> Result<Self, i32> {
        let mut dir = Self::new();
        calls::mount_tmpfs(dir.text(), size)?;
        dir.mounted = true;
        Ok(dir)
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn text(&self) -> &str {
        self.path.to_str().unwrap_or_default()
    }

    /// The board, if a guest has made it.
    #[must_use]
    pub fn board(&self) -> Option<Board> {
        Board::find(&self.path, false).ok().flatten()
    }

    /// What stands on the board, for people who read a failure.
    #[must_use]
    pub fn summary(&self) -> String {
        self.board().map_or_else(|| "no board was made\n".to_owned(), |b| b.summary())
    }

    /// How many connections all processes on the board attached.
    #[must_use]
    pub fn attached(&self) -> u64 {
        self.board().map_or(0, |b| b.processes().iter().map(|p| p.attached).sum())
    }

    /// How many connections processes of this name attached.
    #[must_use]
    pub fn attached_by_program(&self, name: &str) -> u64 {
        self.board().map_or(0, |b| b.attached_by_program(name))
    }
}

impl Default for BoardDir {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for BoardDir {
    fn drop(&mut self) {
        if self.mounted {
            let _ = calls::unmount(self.text());
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Whether a program runs under Shunt.
#[derive(Clone, Copy, Debug)]
pub enum Under<'a> {
    /// On kernel TCP.
    Tcp,
    /// With the library and this board.
    Shunt(&'a BoardDir),
}

/// A command in the environment that a user would have: nothing of ours but what `under` says.
#[must_use]
pub fn command(program: impl AsRef<std::ffi::OsStr>, under: Under<'_>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SHUNT_") {
            command.env_remove(name);
        }
    }
    command.env_remove("LD_PRELOAD");
    // Of a build with delays: what runs without one never looks.
    if let Some(delays) = std::env::var_os("SHUNT_DELAYS") {
        command.env("SHUNT_DELAYS", delays);
    }
    if let (Under::Shunt(dir), false) = (under, plain_only()) {
        command.env("LD_PRELOAD", library()).env("SHUNT_DIR", dir.path());
        // A developer's wish to see more.
        if let Some(level) = std::env::var_os("SHUNT_LOG") {
            command.env("SHUNT_LOG", level);
        }
    }
    command
}

/// Copies a program that is to be run. By a process of its own: were it open here to be written, what another test starts at
/// that moment would have it open as well, and the kernel runs no program that somebody writes (`ETXTBSY`).
///
/// # Panics
///
/// When it cannot be copied.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let copied = Command::new("cp").arg("--").args([from, to]).status();
    assert!(
        copied.is_ok_and(|status| status.success()),
        "copy {} to {}",
        from.display(),
        to.display()
    );
}

/// A process that is killed, with all its children, when the test is done with it.
#[derive(Debug)]
pub struct Guest {
    child: Child,
    name: String,
}

impl Guest {
    /// Starts `command` in a process group of its own.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        command.process_group(0);
        let child = command.spawn().unwrap_or_else(|e| panic!("{name} does not start: {e}"));
        Self { child, name }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// The standard output of a guest that was started with a pipe for it.
    pub fn take_stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// The standard input of a guest that was started with a pipe for it.
    pub fn take_stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// The standard error of a guest that was started with a pipe for it.
    pub fn take_stderr(&mut self) -> Option<std::process::ChildStderr> {
        self.child.stderr.take()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: i32) {
        let _ = calls::kill(self.pid(), signal);
    }

    /// Whether it has ended, and how.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// When it does not end in time; it is killed then, with all that it started.
    pub fn wait(&mut self, limit: Duration) -> Result<std::process::ExitStatus, String> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            if start.elapsed() > limit {
                let where_it_is = stacks(self.pid());
                self.kill_all();
                return Err(format!("{} hangs (over {limit:?}):\n{where_it_is}", self.name));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills the process group, and waits until all of it has ended: what its other members hold, a port
    /// that they listen at among it, is free then.
    pub fn kill_all(&mut self) {
        let group = self.pid();
        let _ = calls::kill(-group, libc::SIGKILL);
        let _ = self.child.wait();
        let deadline = Instant::now() + Duration::from_secs(10);
        while calls::kill(-group, 0).is_ok() && lives(group) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill_all();
    }
}

/// Whether a process group has a member that is no zombie: those are gone but for whoever is to reap them.
fn lives(group: i32) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok()).any(
        |stat| {
            // The name, in parentheses, may hold anything; behind it are the state, the parent and the group.
            let mut words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            let state = words.next();
            words.nth(1) == Some(group.to_string().as_str()) && !matches!(state, Some("Z" | "X"))
        },
    )
}

/// What the kernel knows about where the threads of a process and of its children wait.
fn stacks(pid: i32) -> String {
    let mut out = String::new();
    let mut pids = vec![pid];
    while let Some(pid) = pids.pop() {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}"));
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let at = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let (comm, call, channel) = (at("comm"), at("syscall"), at("wchan"));
            let thread = task.file_name();
            let thread = thread.to_string_lossy();
            out += &format!("  {pid}/{thread} {} {channel} {}\n", comm.trim(), call.trim());
            let children = at("children");
            pids.extend(children.split_whitespace().filter_map(|p| p.parse::<i32>().ok()));
        }
        if let Ok(command) = read("cmdline") {
            out += &format!("  {pid}: {}\n", command.replace('\0', " "));
        }
    }
    out
}

/// What a program left.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Exit code, or 128 and the signal.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// Set when it had to be killed.
    pub hung: Option<String>,
    /// How long it ran.
    pub took: Duration,
}

impl Outcome {
    /// Whether it ended well.
    #[must_use]
    pub const fn ok(&self) -> bool {
        self.code == 0 && self.hung.is_none()
    }
}

fn reader(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Runs a command to its end, within `limit`.
///
/// # Panics
///
/// When it cannot be started.
#[must_use]
pub fn outcome(command: &mut Command, limit: Duration) -> Outcome {
    outcome_after(command, limit, |_| ())
}

/// The same with something that is done while it runs, which the limit does not count.
///
/// # Panics
///
/// When it cannot be started.
#[must_use]
pub fn outcome_after(
    command: &mut Command,
    limit: Duration,
    meanwhile: impl FnOnce(&Guest),
) -> Outcome {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = Instant::now();
    let mut guest = Guest::start(command);
    let (out, err) = (reader(guest.take_stdout()), reader(guest.take_stderr()));
    meanwhile(&guest);
    let ended = guest.wait(limit);
    // Children that hold the pipes would keep the readers waiting.
    guest.kill_all();
    let (code, hung) = match ended {
        Ok(status) => (status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)), None),
        Err(why) => (-1, Some(why)),
    };
    let text = |reading: thread::JoinHandle<String>| reading.join().unwrap_or_default();
    Outcome { code, out: text(out), err: text(err), hung, took: begun.elapsed() }
}

/// The first lines that differ, as a person wants to see them: one wrong answer leads to others.
#[must_use]
pub fn differences(plain: &str, shunt: &str) -> String {
    const SHOWN: usize = 8;
    let (left, right): (Vec<&str>, Vec<&str>) = (plain.lines().collect(), shunt.lines().collect());
    let (mut out, mut count) = (String::new(), 0);
    for i in 0..left.len().max(right.len()) {
        let (l, r) = (left.get(i).unwrap_or(&"(no line)"), right.get(i).unwrap_or(&"(no line)"));
        if l != r {
            count += 1;
            if count <= SHOWN {
                out += &format!("  line {}\n    tcp   {l}\n    shunt {r}\n", i + 1);
            }
        }
    }
    if count > SHOWN {
        out += &format!("  and {} more lines\n", count - SHOWN);
    }
    out
}

/// Longer than anything takes that happens at all, on a machine that has much else to do.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
///
/// # Panics
///
/// When it is not after [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    until(what, PATIENCE, is_so);
}

/// Waits until something is so, for a limit that means something.
///
/// # Panics
///
/// When it is not by then.
#[track_caller]
pub fn until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !is_so() {
        assert!(Instant::now() < deadline, "not so after {limit:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Says what people should know although the test has passed: `cargo xtask test` shows such lines.
pub fn noted(what: &str) {
    for line in what.lines() {
        eprintln!("noted: {line}");
    }
}

/// Says why a test does nothing here.
pub fn skipped(why: &str) {
    eprintln!("skipped: {why}");
}
