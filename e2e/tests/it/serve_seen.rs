//! What `shunt serve` lets its user see: who logged on and who did not, metrics, what clients hold; and that it needs
//! no rights for all that.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use e2e::built;
use e2e::run::{skipped, until};
use smb::fscc::fsctl::Code;
use smb::wire::context::{Lease, Requested};
use smb::wire::header::Command;
use smb::wire::negotiate::dialect::SMB_2_1;
use smb::wire::{ioctl, lock};
use smb::{LeaseKey, LeaseState, OplockLevel};

use crate::programs::need;
use crate::serve::{LIMIT, Place, Server, configure, contains};
use crate::serve_safety::client::{Client, Wish};
use crate::serve_safety::{self, Folder};

/// Whose rights nobody has.
const NOBODY: u32 = 65534;

#[test]
fn each_logon_and_each_that_failed_is_a_line_that_says_why() {
    need!("smbclient");
    let place = Place::new("audit");
    let users = place.word("users");
    let user =
        |word, name| place.done(&["serve", "user", word, name, "--users", &users], "first\n");
    for name in ["ann", "bob", "dan"] {
        user("add", name);
    }
    user("disable", "bob");
    for (name, day) in [("eve", "2020-01-01"), ("fay", "2999-12-31")] {
        let add = ["serve", "user", "add", name, "--expires", day, "--users", &users];
        place.done(&add, "first\n");
    }
    configure(&place, "");
    let log = place.path("log");
    let mut command = place.shunt(&["serve"]);
    command.stderr(File::create(&log).unwrap());
    let server = Server::start(command);
    let said = || fs::read_to_string(&log).unwrap();
    for (logon, status, line) in [
        ("ann%first", "", r#"user "ann" of "#),
        ("ann%other", "LOGON_FAILURE", "not let in: wrong password"),
        ("bob%first", "ACCOUNT_DISABLED", "not let in: user is disabled"),
        ("eve%first", "ACCOUNT_EXPIRED", "not let in: user has expired"),
        ("fay%first", "", r#"user "fay" of "#),
        ("carl%first", "LOGON_FAILURE", "not let in: unknown user"),
        // Nobody asked for guests or for those without a name.
        ("%", "ACCESS_DENIED", "not let in: anonymous sessions are not allowed"),
    ] {
        assert!(!said().contains(line), "{line} before {logon} came");
        let (good, answer) = server.client(logon, "all", "ls");
        assert_eq!(good, ["ann%first", "fay%first"].contains(&logon), "{logon}: {answer}");
        contains(&answer, &[status]);
        until(&format!("a line for {logon}"), LIMIT, || said().contains(line));
        of_logon(&said(), line, logon, good);
    }
    // Each guess beyond the first few costs twice as long as the one before, so that one of these comes too soon.
    let locked = "not let in: too many failures";
    let guess = |_| server.client("dan%guess", "all", "ls").1;
    let answer = (0..30).map(guess).find(|said| !said.contains("LOGON_FAILURE"));
    contains(&answer.unwrap_or_default(), &["ACCOUNT_LOCKED_OUT"]);
    until("a line for who guesses", LIMIT, || said().contains(locked));
    of_logon(&said(), locked, "dan%guess", false);
    assert!(server.client("ann%first", "all", "ls").0, "who guesses locks out only who is guessed");
}

#[test]
fn who_wants_no_lines_of_logons_has_none_and_they_are_counted() {
    need!("smbclient");
    let place = Place::new("quiet");
    let (users, control) = (place.word("users"), place.word("control"));
    place.done(&["serve", "user", "add", "ann", "--users", &users], "first\n");
    configure(&place, "");
    for audit in [true, false] {
        let log = place.path("log");
        let mut command = place.shunt(&["serve"]);
        if !audit {
            command.arg("--audit=off");
        }
        command.stderr(File::create(&log).unwrap());
        let server = Server::start(command);
        assert!(server.client("ann%first", "all", "ls").0);
        assert!(!server.client("ann%other", "all", "ls").0);
        let stat = place.done(&["stat", "smb", "--control", &control], "");
        contains(&stat, &["logons: user 1; refused: wrong password 1\n"]);
        let said = fs::read_to_string(&log).unwrap();
        for line in ["logged on", "not let in"] {
            assert_eq!(said.contains(line), audit, "{line}: {said}");
        }
    }
}

/// The last line of the log that says this says it of that logon.
fn of_logon(log: &str, says: &str, logon: &str, good: bool) {
    let name = logon.split('%').next().unwrap_or_default();
    let last = log.lines().rfind(|line| line.contains(says)).unwrap_or_default();
    assert!(last.contains(&format!("\"{name}\" of ")) && last.contains("127.0.0.1:"), "{last}");
    assert_eq!(last.contains("logged on, session 0x"), good, "{last}");
}

/// What a client of before SMB2 begins with: an SMB1 negotiate.
fn smb1_negotiate() -> Vec<u8> {
    let dialects = b"\x02NT LANMAN 1.0\0\x02NT LM 0.12\0";
    let mut message = vec![0xff, b'S', b'M', b'B', 0x72];
    message.resize(33, 0);
    message.extend_from_slice(&u16::try_from(dialects.len()).expect("short").to_le_bytes());
    message.extend_from_slice(dialects);
    let len = u32::try_from(message.len()).expect("short").to_be_bytes();
    [&len[..], &message].concat()
}

#[test]
fn who_speaks_smb1_only_or_says_nothing_is_a_line_that_says_so() {
    let folder = Folder::new();
    let server = serve_safety::Server::start_as(folder.path(), 0, &[], &["--setup-time", "2"]);
    let connect = || TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let (mut old, silent) = (connect(), connect());
    old.write_all(&smb1_negotiate()).unwrap();
    let ends = [(old, "speaks SMB1 only"), (silent, "no session was set up in time")];
    for (mut client, why) in ends {
        client.set_read_timeout(Some(LIMIT)).unwrap();
        let mut said = Vec::new();
        client.read_to_end(&mut said).unwrap();
        // None of its dialects is spoken here; who has said nothing is told nothing.
        let refused = [&[0, 0, 0, 37, 0xff][..], b"SMB\x72"].concat();
        let wanted = if why.contains("SMB1") { &refused[..] } else { &[] };
        assert!(said.starts_with(wanted) && said.is_empty() == wanted.is_empty(), "{said:02x?}");
        assert!(said.is_empty() || said[36..] == [1, 0xff, 0xff, 0, 0], "{said:02x?}");
        let peer = client.local_addr().unwrap().to_string();
        let says = |line: &str| line.contains(&peer) && line.contains(why);
        until(why, LIMIT, || server.said().lines().any(says));
    }
}

#[test]
fn who_hears_no_break_is_a_line_that_says_so() {
    let folder = Folder::new();
    let server = serve_safety::Server::start_as(folder.path(), 0, &[], &["--torture"]);
    let wish = Wish { oplock: OplockLevel::Batch, ..Wish::file("file") };
    let mut deaf = Client::ready(server.port, SMB_2_1).unwrap();
    deaf.create(&wish).unwrap();
    // From now on its TCP acknowledges nothing, as far as the server knows.
    let deafen = ioctl::Request {
        code: Code::TORTURE_FORCE_UNACKED_TIMEOUT.0,
        file: smb::FileId::ALL_ONES,
        flags: ioctl::IS_FSCTL,
        ..ioctl::Request::default()
    };
    deaf.ask(Command::Ioctl, 1, &deafen).unwrap();
    let mut other = Client::ready(server.port, SMB_2_1).unwrap();
    other.create(&wish).unwrap();
    let why = "connection ended: a break was not heard";
    until(why, LIMIT, || server.said().contains(why));
}

/// The value of a metric.
fn metric(page: &str, name: &str) -> f64 {
    let line = page.lines().find(|line| line.split(' ').next() == Some(name));
    line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0.0)
}

#[test]
fn metrics_are_served_and_move() {
    need!("smbclient");
    let place = Place::new("metrics");
    let users = place.word("users");
    place.done(&["serve", "user", "add", "ann", "--users", &users], "first\n");
    configure(&place, "");
    // Free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let server = Server::start(place.shunt(&["serve", "--metrics", &address]));
    let page = || {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: here\r\n\r\n").unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("HTTP/1.") && said.contains(" 200 "), "{said}");
        said
    };
    let before = page();
    contains(&before, &["# TYPE shunt_smb_written_bytes_total counter"]);
    assert_eq!(metric(&before, "shunt_smb_written_bytes_total"), 0.0);
    fs::write(place.path("sent"), vec![7; 300_000]).unwrap();
    let there = format!("put {} file; get file {}", place.word("sent"), place.word("back"));
    let (good, said) = server.client("ann%first", "all", &there);
    assert!(good, "{said}");
    let after = page();
    assert_eq!(metric(&after, "shunt_smb_written_bytes_total"), 300_000.0);
    assert_eq!(metric(&after, "shunt_smb_read_bytes_total"), 300_000.0);
    for name in ["session_setup", "tree_connect", "create", "write", "read", "close"] {
        let name = format!("shunt_smb_requests_total{{command=\"{name}\"}}");
        assert!(metric(&before, &name) == 0.0 && metric(&after, &name) >= 1.0, "{name}:\n{after}");
    }
}

/// Containers forbid io_uring by a filter of system calls, as strace does here.
#[test]
fn where_io_uring_is_forbidden_it_serves_without_and_says_so() {
    need!("strace");
    let folder = Folder::new();
    let log = folder.path().with_extension("strace");
    let log = log.to_str().unwrap();
    let trace = ["-e", "trace=io_uring_setup", "-e", "inject=io_uring_setup:error=EPERM"];
    let forbidden = [&["strace", "-f", "-o", log][..], &trace].concat();
    let tried = std::process::Command::new(forbidden[0]).args(&forbidden[1..]).arg("true").output();
    if !tried.unwrap().status.success() {
        skipped("strace may not look at what it starts");
        return;
    }
    let mut server = serve_safety::Server::start_as(folder.path(), 0, &forbidden, &[]);
    assert!(fs::read_to_string(log).unwrap().contains("(INJECTED)"), "no ring was asked for");
    assert!(server.ready.contains(", by epoll;"), "{}", server.ready);
    until("it says why", LIMIT, || server.said().contains("epoll and threads do its work"));
    contains(&server.said(), &["no io_uring here", "forbidden"]);
    let mut client = Client::ready(server.port, SMB_2_1).unwrap();
    let file = client.open("file").unwrap();
    let bytes = serve_safety::block(1, 300_000);
    client.write(file, 0, &bytes, true).unwrap();
    assert!(client.read(file, 0, 300_000).unwrap() == bytes, "what came back is another");
    assert!(fs::read(folder.file("file")).unwrap() == bytes);
    server.must_live();
    // And who wants nothing else is told why there is nothing.
    let mut command = std::process::Command::new(forbidden[0]);
    command.args(&forbidden[1..]).arg(built("shunt"));
    command.args(["serve", "--uring=on", "--listen", "127.0.0.1:0", "--control", "none"]);
    let output = command.args(["--guest", folder.path().to_str().unwrap()]).output().unwrap();
    assert!(!output.status.success());
    contains(&String::from_utf8_lossy(&output.stderr), &["io_uring", "forbidden"]);
    let _ = fs::remove_file(log);
}

/// The bytes that calls have moved, by what strace wrote of them: those that leave them to the kernel, and those by which they
/// pass through the process.
fn moved(log: &str) -> (u64, u64) {
    let mut sums = (0, 0);
    let log = fs::read_to_string(log).unwrap_or_default();
    for line in log.lines() {
        // "12 splice(9, …) = 65536", or the second half of it: "12 <... splice resumed>) = 65536".
        let Some((call, result)) = line.rsplit_once(" = ") else { continue };
        let digits = result.split(' ').next().unwrap_or_default();
        let Ok(bytes) = digits.parse::<u64>() else { continue };
        let by_kernel = call.contains("splice(") || call.contains("splice resumed");
        let sum = if by_kernel { &mut sums.0 } else { &mut sums.1 };
        *sum += bytes;
    }
    sums
}

/// Large reads and writes of what is in memory: file to pipe to socket, and back. By `send = "copy"` they are copied, which
/// the same counting sees.
#[test]
fn what_is_spliced_does_not_pass_through_the_server() {
    const PIECE: usize = 512 << 10;
    const PIECES: u64 = 8;
    const ALL: u64 = PIECES * PIECE as u64;
    need!("strace");
    let Some(folder) = Folder::in_memory() else {
        skipped("there is no /dev/shm");
        return;
    };
    // What a server wants at least, of which each user but root has so much (`pipe-user-pages-soft`).
    let pipe = rustix::pipe::pipe().unwrap();
    if rustix::pipe::fcntl_setpipe_size(&pipe.1, PIECE).is_err() {
        skipped("no pipe of 512 KiB is to be had");
        return;
    }
    drop(pipe);
    let logs = Folder::new();
    let log = logs.file("log");
    let log = log.to_str().unwrap();
    let calls = "trace=splice,vmsplice,read,pread64,readv,preadv,preadv2,write,pwrite64,writev,pwritev,pwritev2,\
                 recvfrom,recvmsg,sendto,sendmsg";
    let strace = ["strace", "-f", "-qq", "-o", log, "-e", calls];
    let tried = std::process::Command::new(strace[0]).args(&strace[1..]).arg("true").output();
    if !tried.unwrap().status.success() {
        skipped("strace may not look at what it starts");
        return;
    }
    let data = serve_safety::block(5, PIECE);
    for send in ["splice", "copy"] {
        let how = format!("--send={send}");
        // What a ring is told to receive, strace does not see.
        let words = [&*how, "--uring=off"];
        let mut server = serve_safety::Server::start_as(folder.path(), 0, &strace, &words);
        let mut client = Client::ready(server.port, SMB_2_1).unwrap();
        client.signs_no_more();
        let file = client.open(send).unwrap();
        for writes in [true, false] {
            let before = moved(log);
            for offset in (0..PIECES).map(|piece| piece * PIECE as u64) {
                if writes {
                    client.write(file, offset, &data, false).unwrap();
                } else {
                    let read = client.read(file, offset, u32::try_from(PIECE).unwrap()).unwrap();
                    assert!(read == data, "{send}: what came back is another");
                }
            }
            let (mut spliced, mut copied) = (0, 0);
            until("all of it is in the log", LIMIT, || {
                let after = moved(log);
                (spliced, copied) = (after.0 - before.0, after.1 - before.1);
                spliced + copied >= ALL / 8 * 15
            });
            if send == "splice" {
                // Into a pipe and out of it, but for what of a write comes along with its head.
                assert!(copied < ALL / 8, "{copied} bytes beside {spliced}, writes: {writes}");
            } else {
                assert!(spliced == 0, "{spliced}, {copied}, writes: {writes}");
            }
        }
        server.must_live();
    }
}

#[test]
fn it_serves_without_any_rights() {
    need!("smbclient");
    if !rustix::process::geteuid().is_root() {
        skipped("to give rights up one must have some: this needs root");
        return;
    }
    let place = Place::new("rights");
    fs::set_permissions(place.path("files"), fs::Permissions::from_mode(0o777)).unwrap();
    // A copy, since nobody may not look into our directories.
    let program = place.path("shunt");
    e2e::run::copy_program(built("shunt"), &program);
    let mut command = std::process::Command::new(&program);
    command.args([
        "serve",
        "--config",
        "/dev/null",
        "--listen",
        "127.0.0.1:0",
        "--control",
        "none",
    ]);
    command.args(["--user", "ann:first", "--share", &format!("all={}", place.word("files"))]);
    // Without groups, as setuid(2) by the standard library has it.
    command.env("HOME", "/").env_remove("XDG_CONFIG_HOME").uid(NOBODY).gid(NOBODY);
    let server = Server::start(command);
    assert!(server.port >= 1024);
    fs::write(place.path("sent"), vec![7; 300_000]).unwrap();
    let there = format!("put {} file; ls; get file {}", place.word("sent"), place.word("back"));
    let (good, said) = server.client("ann%first", "all", &there);
    assert!(good, "{said}");
    contains(&said, &["  file ", " 300000 "]);
    assert!(fs::read(place.path("back")).unwrap() == [7; 300_000], "what came back is another");
    let owner =
        std::os::unix::fs::MetadataExt::uid(&fs::metadata(place.path("files/file")).unwrap());
    assert_eq!(owner, NOBODY, "whose file it is");
}

#[test]
fn what_clients_hold_is_told_while_they_hold_it() {
    let (folder, place) = (Folder::new(), Place::new("held"));
    let control = place.word("control");
    let server = serve_safety::Server::start_as(folder.path(), 0, &[], &["--control", &control]);
    let open = |name: &str| {
        let json = place.done(&["stat", "smb", "--json", "--control", &control], "");
        let stat: serde_json::Value = serde_json::from_str(&json).unwrap();
        let opens = stat["opens"].as_array().unwrap().clone();
        opens.into_iter().find(|open| open["path"] == name)
    };
    let mut client = Client::ready(server.port, SMB_2_1).unwrap();
    let key = LeaseKey([5; 16]);
    let lease = Lease { key, state: LeaseState::all(), ..Lease::default() };
    let contexts = Requested { lease: Some(lease), ..Requested::default() };
    let wish = Wish { oplock: OplockLevel::Lease, contexts, ..Wish::file("held.txt") };
    let (file, _) = client.create(&wish).unwrap();
    let told = open("held.txt").unwrap();
    assert_eq!((&told["caching"], &told["locks"]), (&"lease RHW".into(), &0.into()), "{told}");
    assert_eq!((&told["user"], &told["share"]), (&"smbtest".into(), &"tmp".into()), "{told}");
    let lock = |client: &mut Client, flags| {
        let mut element = Vec::new();
        lock::Element { offset: 10, length: 20, flags }.encode(&mut element);
        let elements = lock::Elements::new(&element);
        client.ask(Command::Lock, 1, &lock::Request { sequence: 0, file, elements }).unwrap();
    };
    lock(&mut client, lock::Flags::EXCLUSIVE | lock::Flags::FAIL_IMMEDIATELY);
    assert_eq!(open("held.txt").unwrap()["locks"], 1);
    lock(&mut client, lock::Flags::UNLOCK);
    assert_eq!(open("held.txt").unwrap()["locks"], 0);
    client.close(file).unwrap();
    assert_eq!(open("held.txt"), None);
}
