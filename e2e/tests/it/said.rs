//! What the library says on standard error, and where it says nothing: the descriptor is the program's.

use std::path::PathBuf;
use std::time::Duration;

use e2e::installed;
use e2e::run::{BoardDir, Outcome, Under, command, outcome, skipped};

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

/// The program with `what` done, and a line asked for each connection.
fn ran(what: &str) -> Option<Outcome> {
    let Some(python) = installed("python3") else {
        skipped("python3 is not installed");
        return None;
    };
    let board = BoardDir::new();
    let name = format!("shunt-said-{}-{what}", std::process::id());
    let place: PathBuf = std::env::temp_dir().join(name);
    let mut program = command(&python, Under::Shunt(&board));
    program.env("SHUNT_LOG", "info").args(["-c", PROGRAM, what]).arg(&place);
    let got = outcome(&mut program, LIMIT);
    let _ = std::fs::remove_file(&place);
    assert!(got.ok(), "{what}: {got:?}");
    assert!(board.attached() > 0, "{what}: it took no part\n{}", board.summary());
    Some(got)
}

#[test]
fn lines_go_to_standard_error_and_to_a_log_in_its_place() {
    let Some(got) = ran("nothing") else { return };
    assert!(got.err.contains("shunt[") && got.out.is_empty(), "{got:?}");
    let Some(got) = ran("log") else { return };
    assert!(got.out.contains("shunt[") && got.err.is_empty(), "{got:?}");
}

/// A daemon has closed it, and what it has opened since is its own.
#[test]
fn nothing_is_written_to_what_only_has_the_number_of_standard_error() {
    for what in ["file", "socket", "closed"] {
        let Some(got) = ran(what) else { return };
        assert_eq!((got.out.trim(), &*got.err), ("", ""), "{what}");
    }
}
