//! Programs whose control group has little memory, as a small container has: the kernel ends one of its processes when
//! they have more, so that what goes through shared memory must leave them what they need themselves.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::run::{BoardDir, Under, command, outcome, plain_only, skipped};
use local::Reason;

use crate::reasons::assert_counted;

const LIMIT: Duration = Duration::from_secs(90);
const LIMIT_BYTES: u64 = 64 << 20;

/// A control group with a limit, removed in the end.
struct Group(PathBuf);

impl Group {
    /// Of version 1 or 2, wherever memory is limited here.
    fn new(bytes: u64) -> Result<Self, String> {
        let name = format!("shunt-test-{}", std::process::id());
        let [old, new] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
        let (tree, file) = match old.join("memory.limit_in_bytes").exists() {
            true => (old, "memory.limit_in_bytes"),
            false => (new, "memory.max"),
        };
        let failed = |what: &str| {
            let what = what.to_owned();
            move |e: std::io::Error| format!("{what}: {e}")
        };
        if tree == new {
            // It may be on already, and where it is not ours to switch on the limit cannot be set below.
            let _ = fs::write(new.join("cgroup.subtree_control"), "+memory");
        }
        fs::create_dir(tree.join(&name)).map_err(failed("make a control group"))?;
        let group = Self(tree.join(&name));
        fs::write(group.0.join(file), bytes.to_string()).map_err(failed("limit its memory"))?;
        Ok(group)
    }

    /// How many of its processes the kernel has ended for want of memory.
    fn ended(&self) -> u64 {
        let files = ["memory.events", "memory.oom_control"];
        let text = files.iter().find_map(|file| fs::read_to_string(self.0.join(file)).ok());
        let text = text.unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.map_or(0, |count| count.trim().parse().unwrap())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// As many connections as an argument says, to each of which the server sends a megabyte that nobody reads until all that
/// go have gone; then all of it is read.
const FULL: &str = r#"
import os, select, socket, sys
count, each = int(sys.argv[1]), 1 << 20
listener = socket.create_server(("127.0.0.1", 0), backlog=count)
port = listener.getsockname()[1]
reads, writes = os.pipe()
if os.fork() == 0:
    block, left = bytes(1 << 14), {}
    poll = select.poll()
    for _ in range(count):
        peer, _ = listener.accept()
        assert peer.recv(1) == b"x"
        peer.setblocking(False)
        left[peer.fileno()] = [peer, each]
        poll.register(peer, select.POLLOUT)
    full = False
    while left:
        found = poll.poll(300)
        if not found and not full:
            full = True
            os.write(writes, b"f")
        for fd, _ in found:
            entry = left[fd]
            try:
                entry[1] -= entry[0].send(block[:entry[1]])
            except BlockingIOError:
                continue
            if entry[1] == 0:
                poll.unregister(fd)
                entry[0].close()
                del left[fd]
    if not full:
        os.write(writes, b"f")
    os._exit(0)
peers = []
for _ in range(count):
    peer = socket.create_connection(("127.0.0.1", port))
    peer.sendall(b"x")
    peers.append(peer)
assert os.read(reads, 1) == b"f"
for peer in peers:
    got = 0
    while (some := peer.recv(1 << 16)):
        got += len(some)
    assert got == each, got
assert os.wait()[1] == 0
"#;

/// Many connections that nobody reads fill what the group may have for them: the others stay on TCP, everything arrives,
/// and nobody is ended.
#[test]
fn many_full_connections() {
    let group = match Group::new(LIMIT_BYTES) {
        Ok(group) => group,
        Err(why) => return skipped(&why),
    };
    let dir = BoardDir::new();
    let mut program = command("sh", Under::Shunt(&dir));
    let enter = "echo 0 > \"$0\" && exec python3 -c \"$@\"";
    program.args(["-c", enter]).arg(group.0.join("cgroup.procs")).args([FULL, "300"]);
    let got = outcome(&mut program, LIMIT);
    assert!(got.ok(), "exit {}\n{}{}{:?}\n{}", got.code, got.out, got.err, got.hung, dir.summary());
    assert_eq!(group.ended(), 0, "{}", dir.summary());
    let Some(board) = dir.board() else {
        assert!(plain_only(), "no board was made");
        return;
    };
    let owned: u64 = board.processes().iter().map(|process| process.owned).sum();
    // Two of them may ask at once, for 256 KiB each.
    assert!(owned <= LIMIT_BYTES / 4 + (1 << 18), "{owned} bytes");
    assert!(dir.attached() > 100, "{}", dir.summary());
    assert_counted(&dir, Reason::NoMemory, "no room for all");
}
