//! What people see of programs in containers: with numbers, users and files of their own. Here they are made of namespaces.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use e2e::built;
use e2e::run::{BoardDir, Guest, Under, command, outcome, plain_only, skipped};

const LIMIT: Duration = Duration::from_secs(60);

/// A server with one client, both of one process, which waits for the end of its standard input.
const PAIR: &str = r#"
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
for _ in range(8):
    for one, other in (client, server), (server, client):
        one.sendall(b"x" * 100)
        got = 0
        while got < 100:
            got += len(other.recv(100))
print("ready", flush=True)
sys.stdin.read()
"#;

/// Words that make a container of what follows them: with numbers of its own, and with files that `change` has changed.
fn contained(change: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["sh", "-c", &format!("set -e; {change}; exec \"$@\""), "sh"]);
    command
}

fn possible() -> bool {
    let got = outcome(contained(":").arg("true"), LIMIT);
    if !got.ok() {
        skipped(&format!("namespaces cannot be made: {}", got.err.trim()));
    } else if plain_only() {
        skipped("no board is made on kernel TCP");
    }
    got.ok() && !plain_only()
}

/// A program in a container, when it is ready.
struct Contained {
    guest: Guest,
    /// As the host knows it.
    pid: u32,
}

impl Contained {
    fn start(dir: &Path, change: &str) -> Self {
        let mut all = contained(change);
        let inner = command("python3", Under::Tcp);
        all.arg("env").arg(format!("SHUNT_DIR={}", dir.display()));
        all.arg(format!("LD_PRELOAD={}", e2e::run::library().display()));
        all.arg(inner.get_program()).args(["-c", PAIR]);
        all.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut guest = Guest::start(&mut all);
        let mut line = String::new();
        BufReader::new(guest.take_stdout().unwrap()).read_line(&mut line).unwrap();
        if line != "ready\n" {
            let mut said = String::new();
            guest.take_stderr().unwrap().read_to_string(&mut said).unwrap();
            panic!("it does not start: {said}");
        }
        // The child of `unshare` has become it.
        let own = guest.pid();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
        Self { guest, pid: children.trim().parse().unwrap() }
    }

    /// Ends it; what it has said on standard error.
    fn said(mut self) -> String {
        drop(self.guest.take_stdin());
        let mut stderr = self.guest.take_stderr().unwrap();
        self.guest.wait(LIMIT).unwrap();
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        said
    }
}

fn shunt(words: &[&str], dir: &Path) -> String {
    let got = outcome(command(built("shunt"), Under::Tcp).args(words).env("SHUNT_DIR", dir), LIMIT);
    assert_eq!(got.err, "", "{words:?}");
    got.out
}

fn doctor(pid: u32, dir: &Path) -> String {
    shunt(&["doctor", "--pid", &pid.to_string()], dir)
}

fn processes(dir: &Path) -> serde_json::Value {
    let all = serde_json::from_str(&shunt(&["stat", "--json"], dir));
    let mut all: serde_json::Value = all.unwrap();
    all["processes"].take()
}

#[test]
fn a_process_is_shown_by_the_hosts_number_until_it_ends() {
    if !possible() {
        return;
    }
    let dir = BoardDir::new();
    let inside = Contained::start(dir.path(), ":");
    let pid = inside.pid;
    let seen = processes(dir.path());
    assert_eq!(seen.as_array().unwrap().len(), 1, "{seen}");
    assert_eq!(seen[0]["host_pid"], pid, "{seen}");
    assert_eq!(seen[0]["pid"], 1, "{seen}");
    assert_eq!(seen[0]["elsewhere"], true, "{seen}");
    let name = format!("{pid}/python3");
    let connections = shunt(&["stat", "--pid", &pid.to_string()], dir.path());
    assert_eq!(
        connections.matches(&name).count(),
        4,
        "both ends, and who is at the other:\n{connections}"
    );
    assert!(shunt(&["stat", "--totals"], dir.path()).contains("Container"));
    let told = doctor(pid, dir.path());
    assert!(told.contains("is accelerated"), "{told}");
    // Killed, as a container that is removed: nothing is left of it, though a process 1 is there all the time.
    inside.guest.signal(libc::SIGKILL);
    let begun = Instant::now();
    while !processes(dir.path()).as_array().unwrap().is_empty() {
        assert!(begun.elapsed() < LIMIT, "{}", shunt(&["stat", "--totals"], dir.path()));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The directory was not mounted into the container: there is another one of that name, which only its programs see.
#[test]
fn a_directory_that_is_not_the_hosts() {
    if !possible() {
        return;
    }
    let dir = BoardDir::new();
    let inside = Contained::start(dir.path(), "mount -t tmpfs none /dev/shm");
    let told = doctor(inside.pid, dir.path());
    assert!(told.contains("is not that of this host"), "{told}");
    assert!(told.contains("is accelerated"), "its own programs meet: {told}");
    let said = inside.said();
    assert!(said.contains("made for this container alone"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_directory_that_cannot_be_written_to() {
    if !possible() {
        return;
    }
    let dir = BoardDir::new();
    let place = dir.path().display();
    let inside = Contained::start(dir.path(), &format!("mount --bind -o ro {place} {place}"));
    let told = doctor(inside.pid, dir.path());
    assert!(told.contains("is read-only for it"), "{told}");
    assert!(told.contains("stays on TCP"), "{told}");
    let said = inside.said();
    assert!(said.contains(&format!("{place}: open the board: Read-only file system")), "{said}");
}

#[test]
fn a_library_that_is_not_there() {
    if !possible() {
        return;
    }
    let dir = BoardDir::new();
    let folder = e2e::run::library().parent().unwrap().display().to_string();
    let inside = Contained::start(dir.path(), &format!("mount -t tmpfs none {folder}"));
    let told = doctor(inside.pid, dir.path());
    assert!(told.contains("though LD_PRELOAD names"), "{told}");
    assert!(told.contains("stays on TCP"), "{told}");
}

/// A program that connects, and shares its connection with a child whose numbers are those of a namespace of its own: here
/// each of them is the first there. Both write, and the reader says what has come.
const SHARED: &str = r#"
import ctypes, os, socket
N = 60000
listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    s, _ = listener.accept()
    for _ in range(8):
        s.sendall(s.recv(100, socket.MSG_WAITALL))
    got = bytearray()
    while part := s.recv(1 << 20):
        got += part
    print(*(got.count(who) for who in (b"p", b"c")), len(got), flush=True)
    os._exit(0)
c = socket.create_connection(listener.getsockname())
for _ in range(8):
    c.sendall(b"x" * 100)
    assert c.recv(100, socket.MSG_WAITALL) == b"x" * 100
CLONE_NEWPID = 0x20000000
assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWPID) == 0
child = os.fork()
assert (os.getpid() if child else 1) == os.getpid() == 1
word = b"p" if child else b"c"
for _ in range(N):
    c.sendall(word)
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
c.close()
os.wait()
"#;

/// Words in shared memory by which processes keep each other from writing at the same place have numbers of theirs in them.
#[test]
fn a_connection_is_shared_with_a_child_that_has_numbers_of_its_own() {
    if !possible() {
        return;
    }
    let dir = BoardDir::new();
    let mut all = contained(":");
    all.arg("env").arg(format!("SHUNT_DIR={}", dir.path().display()));
    all.arg(format!("LD_PRELOAD={}", e2e::run::library().display()));
    all.args(["python3", "-c", SHARED]);
    let got = outcome(&mut all, LIMIT);
    assert!(got.ok(), "{}{:?}", got.err, got.hung);
    assert!(dir.attached() > 0, "{}", dir.summary());
    assert_eq!(got.out, "60000 60000 120000\n", "{}", dir.summary());
    crate::reasons::assert_counted(&dir, local::Reason::Namespace, "a child that writes");
}
