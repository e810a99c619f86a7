//! What the library says on standard error, and where it says nothing: the descriptor is the program's.

use std::path::PathBuf;
use std::time::Duration;

use e2e::installed;
use e2e::run::{BoardDir, Outcome, Under, command, outcome, plain_only, skipped};

const LIMIT: Duration = Duration::from_secs(60);

/// Has a connection after something was done to descriptor 2.
const PROGRAM: &str = r#"
import os, socket, sys
what, place = sys.argv[1], sys.argv[2]
if what != "nothing":
    os.close(2)
if what == "file":
    assert os.open(place, os.O_RDWR | os.O_CREAT) == 2
elif what == "log":
    assert os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND) == 2
elif what == "socket":
    ours, theirs = socket.socketpair()
    assert ours.fileno() == 2
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
client.sendall(b"here")
assert server.recv(4) == b"here"
server.sendall(b"there")
assert client.recv(5) == b"there"
for end in (client, server, listener):
    end.close()
if what == "socket":
    theirs.setblocking(False)
    try:
        print(theirs.recv(1000).decode())
    except BlockingIOError:
        pass
elif what in ("file", "log"):
    print(open(place).read())
"#;

/// Starts the program with a socket in the place of what the words name, and prints what has come by it.
const SUPERSERVER: &str = r#"
import socket, subprocess, sys
program, kind, places = sys.argv[1], sys.argv[2], sys.argv[3:]
if kind == "unix":
    ours, theirs = socket.socketpair()
else:
    listener = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(listener.getsockname())
    theirs, _ = listener.accept()
given = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
given.update(dict.fromkeys(places, theirs))
subprocess.run([sys.executable, "-c", program, "nothing", ""], check=True, **given)
theirs.close()
with ours.makefile() as came:
    print(came.read())
"#;

/// How the programs below serve a connection.
const SERVES: &str = r#"
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
def serves():
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    for word in (b"here", b"there"):
        client.sendall(word)
        assert server.recv(5) == word
        server.sendall(word)
        assert client.recv(5) == word
"#;

/// Serves (behind [`SERVES`]), becomes nobody, and has a child serve another connection.
const DAEMON: &str = r#"
serves()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
if os.fork() == 0:
    serves()
    os._exit(0)
assert os.wait()[1] == 0
"#;

/// The program with `what` done, and a line asked for each connection.
fn ran(what: &str) -> Option<Outcome> {
    let name = format!("shunt-said-{}-{what}", std::process::id());
    let place: PathBuf = std::env::temp_dir().join(name);
    let got = ran_with(PROGRAM, &[what, place.to_str().expect("UTF-8")]);
    let _ = std::fs::remove_file(&place);
    got
}

/// A program in Python, with a line asked for each connection.
fn ran_with(text: &str, words: &[&str]) -> Option<Outcome> {
    ran_at("info", text, words)
}

/// The same, with as much said as `log` has it.
fn ran_at(log: &str, text: &str, words: &[&str]) -> Option<Outcome> {
    let Some(python) = installed("python3") else {
        skipped("python3 is not installed");
        return None;
    };
    let board = BoardDir::new();
    let mut program = command(&python, Under::Shunt(&board));
    program.env("SHUNT_LOG", log).args(["-c", text]).args(words);
    let got = outcome(&mut program, LIMIT);
    assert!(got.ok(), "{words:?}: {got:?}");
    assert!(board.attached() > 0, "{words:?}: it took no part\n{}", board.summary());
    Some(got)
}

#[test]
fn lines_go_to_standard_error_and_to_a_log_in_its_place() {
    let Some(got) = ran("nothing") else { return };
    assert!(got.err.contains("shunt[") && got.out.is_empty(), "{got:?}");
    let Some(got) = ran("log") else { return };
    assert!(got.out.contains("shunt[") && got.err.is_empty(), "{got:?}");
}

/// As a daemon does: closes what it has not opened, puts a file of its own on a number that may be ours, and has a
/// connection then.
const CLOSING: &str = r#"
import os, socket, sys
own, log = sys.argv[1], sys.argv[2]
os.close(2)
os.closerange(3, 4096)
mine = os.open(own, os.O_RDWR | os.O_CREAT)
def serves():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    client.sendall(b"here")
    assert server.recv(4) == b"here"
    server.sendall(b"there")
    assert client.recv(5) == b"there"
serves()
def leads_there(n):
    try:
        return os.readlink("/proc/self/fd/%d" % n) == log
    except OSError:
        return False
number = [n for n in range(1024) if leads_there(n)]
for n in number:
    os.dup2(mine, n)
serves()
assert os.path.getsize(own) == 0, open(own).read()
"#;

#[test]
fn lines_go_to_a_file_whatever_the_program_does_with_descriptors() {
    let Some(python) = installed("python3") else {
        return skipped("python3 is not installed");
    };
    let dir = std::env::temp_dir().join(format!("shunt-log-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let (own, log) = (dir.join("own"), dir.join("log"));
    let board = BoardDir::new();
    let mut program = command(&python, Under::Shunt(&board));
    program.env("SHUNT_LOG", "info").env("SHUNT_LOG_FILE", &log);
    let got = outcome(program.args(["-c", CLOSING]).args([&own, &log]), LIMIT);
    assert!(got.ok() && got.err.is_empty(), "{got:?}");
    let said = std::fs::read_to_string(&log).expect("the log");
    assert_eq!(said.lines().filter(|line| line.contains("attached")).count(), 4, "{said}");
    // One that cannot be is told to who asks for lines, and does not keep the program from anything.
    for (level, told) in [("error", false), ("info", true)] {
        let mut program = command(&python, Under::Shunt(&board));
        program.env("SHUNT_LOG", level).env("SHUNT_LOG_FILE", &dir);
        let got = outcome(program.args(["-c", "pass"]), LIMIT);
        assert!(got.ok(), "{got:?}");
        assert_eq!(got.err.contains("lines go to standard error"), told, "{level}: {got:?}");
    }
    let _ = std::fs::remove_dir_all(&dir);
}

/// Gives itself a limit for the size of files, in one of several ways, and has connections where lines of ours would go
/// beyond it, and where they have room. Behind [`SERVES`]. (Python would do without the signal.)
const LIMITED: &str = r#"
import ctypes, platform, resource, signal, sys
how, log, most = sys.argv[1], sys.argv[2], 100_000
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
def goes_on_at(size):
    # Those that do not append go on where their descriptor is, whatever the size.
    os.truncate(log, 0)
    if how != "stderr":
        os.truncate(log, size)
    else:
        os.lseek(2, size, os.SEEK_SET)
def has_been_written_to():
    return b"attached" in open(log, "rb").read()
serves()
assert has_been_written_to()
limits = (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
if how == "exec":
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    os.execv(sys.executable, [sys.executable, "-c", os.environ["SCRIPT"], "begun", log])
elif how == "prlimit":
    resource.prlimit(0, resource.RLIMIT_FSIZE, limits)
elif how == "number":
    number = 302 if platform.machine() == "x86_64" else 261
    pair = (ctypes.c_uint64 * 2)(*limits)
    assert ctypes.CDLL(None).syscall(number, 0, int(resource.RLIMIT_FSIZE), pair, None) == 0
elif how != "begun":
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
for _ in range(2):
    goes_on_at(most - 10)
    serves()
    assert not has_been_written_to()
    if os.fork() == 0:
        serves()
        os._exit(0)
    assert os.wait()[1] == 0
    goes_on_at(0)
    serves()
    assert has_been_written_to() and os.path.getsize(log) < most
print("done")
"#;

#[test]
fn a_limit_of_file_sizes_ends_no_program_for_a_line_of_ours() {
    if plain_only() {
        return skipped("the library is not loaded");
    }
    let Some(python) = installed("python3") else {
        return skipped("python3 is not installed");
    };
    let name = format!("shunt-limited-{}", std::process::id());
    let log = std::env::temp_dir().join(name);
    let text = [SERVES, LIMITED].concat();
    for how in ["setrlimit", "prlimit", "number", "exec", "stderr"] {
        let _ = std::fs::remove_file(&log);
        let board = BoardDir::new();
        let mut program = command("sh", Under::Shunt(&board));
        program.env("SHUNT_LOG", "info");
        let script =
            if how == "stderr" { "exec \"$0\" \"$@\" 2>\"$LOG\"" } else { "exec \"$0\" \"$@\"" };
        if how != "stderr" {
            program.env("SHUNT_LOG_FILE", &log);
        }
        program.env("LOG", &log).env("SCRIPT", &text).args(["-c", script]).arg(&python);
        let got = outcome(program.args(["-c", &text, how]).arg(&log), LIMIT);
        assert!(got.ok() && got.out == "done\n", "{how}: {got:?}\n{}", board.summary());
    }
    let _ = std::fs::remove_file(&log);
}

/// Connects to a server without Shunt, as a program does that is told later how that went, and asks for it by `connect`.
const ASKING: &str = r#"
import errno, os, select, socket, sys
port = int(sys.argv[1])
client = socket.socket()
client.setblocking(False)
told = [client.connect_ex(("127.0.0.1", port))]
select.select([], [client], [])
told += [client.connect_ex(("127.0.0.1", port)) for _ in range(2)]
assert told == [errno.EINPROGRESS, 0, errno.EISCONN], told
print("127.0.0.1:%d -> 127.0.0.1:%d" % (client.getsockname()[1], port))
# The same socket, for another connection, of which there is something to be said.
client.setblocking(True)
client.close()
again = socket.create_connection(("127.0.0.1", port))
print("127.0.0.1:%d -> 127.0.0.1:%d" % (again.getsockname()[1], port))
"#;

#[test]
fn a_line_says_which_connection_it_is_about_and_is_said_once() {
    let Some(got) = ran("nothing") else { return };
    let both = |line: &&str| line.matches("127.0.0.1:").count() == 2 && line.contains(" -> ");
    let attached: Vec<&str> = got.err.lines().filter(|line| line.contains("attached")).collect();
    assert!(attached.len() == 2 && attached.iter().all(both), "{got:?}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = listener.local_addr().expect("an address").port().to_string();
    let Some(python) = installed("python3") else {
        return skipped("python3 is not installed");
    };
    let board = BoardDir::new();
    let mut program = command(&python, Under::Shunt(&board));
    program.env("SHUNT_LOG", "info").args(["-c", ASKING, &port]);
    let got = outcome(&mut program, LIMIT);
    assert!(got.ok(), "{got:?}");
    let said: Vec<&str> = got.err.lines().filter(|line| line.contains("on TCP: 2 ")).collect();
    let wanted: Vec<&str> = got.out.lines().collect();
    assert_eq!((said.len(), wanted.len()), (2, 2), "{got:?}");
    for (line, ends) in said.iter().zip(wanted) {
        assert!(line.contains(ends), "{line} does not say {ends}");
    }
}

/// Who loads the library without `shunt run` hears of what is wrong, unless nothing is to be said.
#[test]
fn settings_that_make_no_sense_are_told_unless_nothing_is_to_be_said() {
    let said = |settings: &[(&str, &str)]| {
        let board = BoardDir::new();
        let mut program = command("true", Under::Shunt(&board));
        let got = outcome(program.envs(settings.iter().copied()), LIMIT);
        assert!(got.ok(), "{got:?}");
        got.err
    };
    if plain_only() {
        return skipped("the library is not loaded");
    }
    let rings = [("SHUNT_RING_MIN", "4M"), ("SHUNT_RING_MAX", "16K")];
    for (settings, what) in
        [(&rings[..], "ring_m"), (&[("SHUNT_SPIN_US", "many")], "SHUNT_SPIN_US")]
    {
        let words = said(settings);
        assert!(words.contains(what) && words.contains("staying on TCP"), "{words}");
        assert_eq!(words.lines().count(), 1, "{words}");
        for quiet in [("SHUNT_LOG", "off"), ("SHUNT_ENABLED", "off")] {
            assert_eq!(said(&[settings, &[quiet]].concat()), "", "{quiet:?}");
        }
    }
}

/// A daemon has closed it, and what it has opened since is its own.
#[test]
fn nothing_is_written_to_what_only_has_the_number_of_standard_error() {
    for what in ["file", "socket", "closed"] {
        let Some(got) = ran(what) else { return };
        assert_eq!((got.out.trim(), &*got.err), ("", ""), "{what}");
    }
}

/// A superserver (inetd) gives a program its connection as standard error, too: what is said there goes to the peer.
#[test]
fn nothing_is_written_to_a_connection_that_a_program_is_started_with() {
    let all = &["stdin", "stdout", "stderr"][..];
    for (kind, places) in [("tcp", all), ("tcp", &all[1..]), ("unix", all)] {
        let Some(got) = ran_with(SUPERSERVER, &[&[PROGRAM, kind], places].concat()) else { return };
        assert_eq!(got.out.trim(), "", "{kind} {places:?}");
    }
    // As the journal is.
    let Some(got) = ran_with(SUPERSERVER, &[PROGRAM, "unix", "stdout", "stderr"]) else { return };
    assert!(got.out.contains("shunt["), "{got:?}");
}

/// Daemons drop their rights: that their children may not open root's board is nobody's mistake.
#[test]
fn a_daemon_that_has_become_another_user_is_not_complained_of() {
    if e2e::calls::geteuid() != 0 {
        return skipped("root alone can become another user");
    }
    let text = [SERVES, DAEMON].concat();
    let Some(got) = ran_at("error", &text, &[]) else { return };
    assert_eq!(got.err, "");
    let Some(got) = ran_at("info", &text, &[]) else { return };
    assert!(got.err.contains("has become another user"), "{got:?}");
}
