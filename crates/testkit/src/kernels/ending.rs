//! That nothing stays behind: processes and network namespaces that were made here end with this
//! process, whichever way it ends.
//!
//! A process asks the kernel to be killed when the thread that started it ends, so even `kill -9` of a
//! test leaves no guest. What only we can remove (a namespace, a directory) has our process id in its
//! name, and goes at the next run if nobody could remove it before.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// All that has to end: leaders of process groups, names of namespaces, directories.
static ALIVE: Mutex<BTreeSet<Thing>> = Mutex::new(BTreeSet::new());

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    // In this order they are ended.
    Group(i32),
    ControlGroup(PathBuf),
    Namespace(String),
    Directory(PathBuf),
}

fn alive() -> MutexGuard<'static, BTreeSet<Thing>> {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end(thing: &Thing) {
    match thing {
        // SAFETY: a plain call; the group is of a child of ours that was not waited for.
        Thing::Group(leader) => drop(unsafe { libc::kill(-leader, libc::SIGKILL) }),
        Thing::ControlGroup(path) => remove_group(path),
        Thing::Namespace(name) => drop(Command::new("ip").args(["netns", "del", name]).output()),
        Thing::Directory(path) => drop(fs::remove_dir_all(path)),
    }
}

/// A process that was killed leaves its group a little later.
fn remove_group(path: &Path) {
    for _ in 0..100 {
        if fs::remove_dir(path).is_ok() || !path.exists() {
            return;
        }
        sleep(Duration::from_millis(10));
    }
}

/// Ends all of it and then this process, with that exit code.
pub fn exit(code: i32) -> ! {
    // Held to the end: from here on nothing is started and nothing is made.
    let all = alive();
    all.iter().for_each(end);
    std::process::exit(code)
}

/// A process that is killed, with those that it started, when this is dropped or its time is over.
#[derive(Debug)]
pub struct Bounded {
    child: Child,
    deadline: Instant,
    ended: Option<ExitStatus>,
}

impl Bounded {
    /// Starts a command that may take so long. It ends with the thread that calls this.
    ///
    /// # Errors
    ///
    /// Why it cannot be started.
    pub fn start(command: &mut Command, limit: Duration) -> io::Result<Self> {
        command.process_group(0);
        // SAFETY: a system call that changes the child only, between fork and exec.
        unsafe {
            command.pre_exec(|| {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                    Ok(())
                } else {
                    Err(io::Error::last_os_error())
                }
            })
        };
        let mut all = alive();
        let child = command.spawn()?;
        all.insert(Thing::Group(child.id().cast_signed()));
        Ok(Self { child, deadline: Instant::now() + limit, ended: None })
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How it ended, if it did; it is killed if its time is over.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            if Instant::now() > self.deadline {
                self.signal(libc::SIGKILL);
            }
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() {
                self.forget();
            }
            self.ended = ended;
        }
        self.ended
    }

    /// Waits for its end until its time is over.
    ///
    /// # Errors
    ///
    /// `TimedOut` if it had to be killed.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            let late = Instant::now() > self.deadline;
            match self.ended() {
                Some(_) if late => return Err(io::ErrorKind::TimedOut.into()),
                Some(status) => return Ok(status),
                None => sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Sends a signal to it and to what it started.
    pub fn signal(&self, signal: i32) {
        if self.ended.is_none() {
            // SAFETY: a plain call; the child was not waited for, so the number is still its own.
            unsafe { libc::kill(-self.id(), signal) };
        }
    }

    fn forget(&self) {
        // What it started and left behind goes, too; then the number may be somebody else's.
        end(&Thing::Group(self.id()));
        alive().remove(&Thing::Group(self.id()));
    }
}

impl Drop for Bounded {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.signal(libc::SIGKILL);
            self.forget();
            let _ = self.child.wait();
        }
    }
}

/// A name, of a namespace or a directory, that says whose it is.
fn name(kind: &str, count: u32) -> String {
    format!("{kind}-{}-{count}", std::process::id())
}

/// Whether the process that made the thing of this name is gone.
fn is_left_behind(thing: &str, kind: &str) -> bool {
    let id = thing.strip_prefix(kind).and_then(|rest| rest.strip_prefix('-'));
    let id = id.and_then(|rest| rest.split_once('-')).map(|(id, _)| id);
    id.is_some_and(|id| id.parse::<u32>().is_ok() && !Path::new("/proc").join(id).exists())
}

fn next() -> u32 {
    static COUNT: Mutex<u32> = Mutex::new(0);
    let mut count = COUNT.lock().unwrap_or_else(PoisonError::into_inner);
    *count += 1;
    *count
}

/// A network namespace that is removed in the end.
#[derive(Debug)]
pub struct Namespace(String);

impl Namespace {
    /// A new one; those of earlier runs that nobody removed are removed.
    ///
    /// # Errors
    ///
    /// What `ip` says.
    pub fn new() -> io::Result<Self> {
        const KIND: &str = "shunt-kernels";
        for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
            let thing = entry.file_name().to_string_lossy().into_owned();
            if is_left_behind(&thing, KIND) {
                end(&Thing::Namespace(thing));
            }
        }
        let name = name(KIND, next());
        let output = Command::new("ip").args(["netns", "add", &name]).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(io::Error::other(said));
        }
        alive().insert(Thing::Namespace(name.clone()));
        Ok(Self(name))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let thing = Thing::Namespace(self.0.clone());
        end(&thing);
        alive().remove(&thing);
    }
}

/// A control group of version 2 that is removed in the end: for programs that treat the sockets of one in
/// their own way.
#[derive(Debug)]
pub struct ControlGroup {
    name: PathBuf,
    at: PathBuf,
}

impl ControlGroup {
    /// A new one below that of this process; `None`: there is no such hierarchy, or we may not.
    #[must_use]
    pub fn new() -> Option<Self> {
        const KIND: &str = "shunt-kernels";
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let top = mounts.lines().find_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            kind.starts_with("cgroup2 ").then(|| place.split(' ').nth(4)).flatten()
        })?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned();
        let place = Path::new(top).join(own.trim_start_matches('/'));
        for entry in fs::read_dir(&place).ok()?.flatten() {
            if is_left_behind(&entry.file_name().to_string_lossy(), KIND) {
                end(&Thing::ControlGroup(entry.path()));
            }
        }
        let name = name(KIND, next());
        let group = Self { at: place.join(&name), name: Path::new(&own).join(&name) };
        fs::create_dir(&group.at).ok()?;
        alive().insert(Thing::ControlGroup(group.at.clone()));
        Some(group)
    }

    /// Its path from the top of the hierarchy.
    #[must_use]
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// The file by which processes come in.
    #[must_use]
    pub fn door(&self) -> PathBuf {
        self.at.join("cgroup.procs")
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let thing = Thing::ControlGroup(self.at.clone());
        end(&thing);
        alive().remove(&thing);
    }
}

/// A directory that is removed in the end.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// A new one in the directory for temporary files, closed to others.
    ///
    /// # Errors
    ///
    /// Why it cannot be made.
    pub fn new() -> io::Result<Self> {
        Self::new_in(&std::env::temp_dir())
    }

    /// The same, in another directory.
    ///
    /// # Errors
    ///
    /// Why it cannot be made.
    pub fn new_in(top: &Path) -> io::Result<Self> {
        const KIND: &str = "shunt-kernels";
        for entry in fs::read_dir(top).into_iter().flatten().flatten() {
            if is_left_behind(&entry.file_name().to_string_lossy(), KIND) {
                end(&Thing::Directory(entry.path()));
            }
        }
        let path = top.join(name(KIND, next()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        alive().insert(Thing::Directory(path.clone()));
        Ok(Self(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let thing = Thing::Directory(self.0.clone());
        end(&thing);
        alive().remove(&thing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_killed_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]).stdout(std::process::Stdio::piped());
        let begun = Instant::now();
        let mut slow = Bounded::start(&mut command, Duration::from_millis(300)).unwrap();
        let mut line = String::new();
        let out = slow.child().stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(out), &mut line).unwrap();
        assert_eq!(slow.wait().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(60));
        let inner = Path::new("/proc").join(line.trim());
        let gone = |at: &Path| {
            fs::read_to_string(at.join("stat")).map_or(true, |stat| stat.contains(") Z "))
        };
        for _ in 0..1000 {
            if gone(&inner) {
                return;
            }
            sleep(Duration::from_millis(20));
        }
        panic!("{} is still there", inner.display());
    }

    #[test]
    fn what_is_dropped_is_killed() {
        let mut command = Command::new("sleep");
        let child = Bounded::start(command.arg("60"), Duration::from_secs(60)).unwrap();
        let id = child.id();
        drop(child);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }

    #[test]
    fn things_say_whose_they_are() {
        let kind = "shunt-kernels";
        assert!(!is_left_behind(&name(kind, 1), kind), "ours");
        assert!(is_left_behind("shunt-kernels-4194999-1", kind), "of nobody");
        assert!(!is_left_behind("something-4194999-1", kind), "of somebody else");
        let directory = Directory::new().unwrap();
        let path = directory.path().to_owned();
        assert!(path.is_dir());
        drop(directory);
        assert!(!path.exists());
    }
}
