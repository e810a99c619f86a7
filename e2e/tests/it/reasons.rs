//! Why a connection is on TCP: each reason is brought about by a program, and stands on the board then, or is said by
//! `shunt stat` where nothing has been decided yet. Those of connections to other hosts are in `remote`.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::io::{BufRead, BufReader, Write};
use std::mem::offset_of;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use e2e::board::Board;
use e2e::built;
use e2e::calls::filter::{killed_for, without_netlink};
use e2e::calls::uring::Liburing;
use e2e::run::{BoardDir, Guest, Outcome, Under, command, library, outcome, plain_only, skipped};
use local::Reason;
use serde_json::Value;
use sys::abi::{BUCKETS, HALF_BYTES, Half, OFFERS_AT, half_flags};

const LIMIT: Duration = Duration::from_secs(120);

/// How often all processes of a board gave a reason.
fn counted(dir: &BoardDir, reason: Reason) -> u32 {
    let processes = dir.board().map_or_else(Vec::new, |board| board.processes());
    processes.iter().map(|p| p.reasons[reason.code() as usize]).sum()
}

#[track_caller]
pub(super) fn assert_counted(dir: &BoardDir, reason: Reason, what: &str) {
    assert!(
        counted(dir, reason) > 0 || plain_only(),
        "{what}: reason {} ({}) was not given:\n{}",
        reason.code(),
        reason.words(),
        dir.summary()
    );
}

/// Runs a case of the oracle with both ends under Shunt, ours being this one.
fn run_case(case: &str, role: &str, dir: &BoardDir) -> Outcome {
    let mut command = command(env!("CARGO_BIN_EXE_oracle-guest"), Under::Shunt(dir));
    command.args([case, role]).env("SHUNT_DIR", dir.path()).env_remove("E2E_PEER_PRELOAD");
    if !plain_only() {
        command.env("E2E_PEER_PRELOAD", library()).env("E2E_ATTACH_BOARD", dir.path());
    }
    let got = outcome(&mut command, LIMIT);
    assert!(got.ok(), "{case}: exit {}\n{}{}{:?}", got.code, got.out, got.err, got.hung);
    got
}

/// Runs a case as [`run_case`] does, as a client; its connections must have been attached.
fn after_case(case: &str) -> BoardDir {
    let dir = BoardDir::new();
    let _ = run_case(case, "client", &dir);
    assert!(dir.attached() >= 2 || plain_only(), "{case}: never left TCP\n{}", dir.summary());
    dir
}

/// What a program does on a connection that is attached, and the reason that is to be given for it.
fn given(case: &str, reason: Reason) {
    let dir = after_case(case);
    assert_counted(&dir, reason, case);
}

macro_rules! each_action {
    ($($test:ident: $case:literal $reason:ident;)*) => {
        $(#[test]
        fn $test() {
            given($case, Reason::$reason);
        })*
    };
}

each_action! {
    stdio: "fdopen_stream" Stdio;
    passed_over_a_socket: "pass_in_flight" Passed;
    exec_of_a_program_without_the_library: "exec_by_itself_without_library" Exec;
    urgent_data: "urgent" Urgent;
    kernel_tls: "kernel_tls_refused_or_not" KernelTls;
    zero_copy: "zero_copy_sending" ZeroCopy;
    signal_driven: "async_io" SignalIo;
    low_water_mark: "low_water_mark" Option;
    asynchronous_io: "asynchronous" Option;
    time_stamps: "time_stamps" Option;
}

/// Who may send without copies, and does not until the end, is in memory until then.
#[test]
fn zero_copies_that_are_not_asked_for() {
    let dir = after_case("zero_copy_unasked");
    assert_counted(&dir, Reason::ZeroCopy, "the one send that asks for it");
}

/// Who asks for time stamps and has no room for them loses nothing by it.
#[test]
fn time_stamps_that_are_never_looked_at() {
    let dir = after_case("time_stamps_unseen");
    assert_eq!(counted(&dir, Reason::Option), 0, "{}", dir.summary());
}

/// The tests of this binary, but for comments: who writes about a reason does not bring it about.
fn tests() -> String {
    let mut text = String::new();
    let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests"))];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let source = std::fs::read_to_string(&path).unwrap();
                let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
                code.for_each(|line| text += &format!("{line}\n"));
            }
        }
    }
    text
}

/// Whether a source asserts that a reason is given: by one of the functions here that do, or in the table above.
fn is_asserted(source: &str, name: &str) -> bool {
    let path = format!("Reason::{name}");
    let by_call = |line: &str| {
        let says = ["assert_counted(", "assert_given(", "assert_said(", "assert_said_of("];
        line.match_indices(&path).any(|(at, _)| {
            let ends = line[at + path.len()..].starts_with([',', ')']);
            ends && says.iter().any(|call| line[..at].contains(call))
        })
    };
    let in_table = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], [test, _, reason] if test.ends_with(':') && reason == format!("{name};"))
    };
    source.lines().any(|line| by_call(line) || in_table(line))
}

/// Reasons that no program can bring about, and why they are there.
const GIVEN_BY_NONE: &[(Reason, &str)] = &[(
    Reason::Off,
    "a process that is switched off has no part in a board on which that could stand (`switched_off`)",
)];

#[test]
fn each_reason_is_brought_about() {
    let tests = tests();
    for reason in Reason::ALL {
        let excused = GIVEN_BY_NONE.iter().find(|(excused, _)| excused == reason);
        let name = format!("{reason:?}");
        match (is_asserted(&tests, &name), excused) {
            (true, None) | (false, Some(_)) => {}
            (false, None) => panic!("no test brings about {}: {}", reason.code(), reason.words()),
            (true, Some((_, why))) => panic!("{name} is brought about, and listed because {why}"),
        }
    }
}

#[test]
fn io_uring_of_a_library() {
    if Liburing::find().is_none() {
        return skipped("liburing is not installed");
    }
    let dir = after_case("io_uring_by_library");
    assert_counted(&dir, Reason::IoUring, "liburing");
}

/// A ring for files is no reason.
#[test]
fn io_uring_for_files() {
    let dir = after_case("io_uring_for_files");
    assert_eq!(counted(&dir, Reason::IoUring), 0, "{}", dir.summary());
    assert_eq!(counted(&dir, Reason::PeerAsked), 0, "{}", dir.summary());
}

/// No ring, no reason: the connection stays where it is.
#[test]
fn io_uring_refused() {
    let dir = after_case("io_uring_is_refused");
    assert_eq!(counted(&dir, Reason::IoUring), 0, "{}", dir.summary());
    assert_eq!(counted(&dir, Reason::PeerAsked), 0, "{}", dir.summary());
}

const GUEST: &str = env!("CARGO_BIN_EXE_load-guest");

/// A server and its port.
fn server(words: &[&str], under: Under<'_>, settings: &[(&str, &str)]) -> (Guest, u16) {
    let mut command = command(GUEST, under);
    command.args(words).stdout(Stdio::piped()).envs(settings.iter().copied());
    let mut guest = Guest::start(&mut command);
    let mut lines = BufReader::new(guest.take_stdout().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    // Whatever else it says must find a reader.
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    let port = first.trim().strip_prefix("port ").and_then(|p| p.parse().ok());
    (guest, port.unwrap_or_else(|| panic!("the server said {first:?}")))
}

/// `count` connections, of which none may be attached if `attached` is false.
#[track_caller]
fn connect(
    [client, serving]: [Under<'_>; 2],
    dir: &BoardDir,
    settings: &[(&str, &str)],
    attached: bool,
) {
    let (_server, port) = server(&["serve-many"], serving, settings);
    let mut command = command(GUEST, client);
    command.args(["many", &port.to_string(), "40", "10"]).envs(settings.iter().copied());
    let got = outcome(&mut command, LIMIT);
    assert!(got.ok() && got.out.trim() == "all 40", "{} {}{:?}", got.out, got.err, got.hung);
    assert!(dir.attached() > 0 || !attached || plain_only(), "{}", dir.summary());
    assert!(dir.attached() == 0 || attached, "{}", dir.summary());
}

#[test]
fn excluded() {
    let dir = BoardDir::new();
    let both = [Under::Shunt(&dir), Under::Shunt(&dir)];
    connect(both, &dir, &[("SHUNT_EXCLUDE", "addr:127.0.0.0/8")], false);
    assert_counted(&dir, Reason::Excluded, "exclude by address");
}

/// Clients are as if they were not under Shunt: the accepting end finds nobody there.
#[test]
fn excluded_as_clients() {
    let dir = BoardDir::new();
    let both = [Under::Shunt(&dir), Under::Shunt(&dir)];
    connect(both, &dir, &[("SHUNT_EXCLUDE", "end:client")], false);
    assert_counted(&dir, Reason::PeerNotShunt, "exclude the connecting ends");
}

/// A process that takes part in no connection that it accepts has no port on the board, when it listens or later: no
/// client offers one, and nobody has to look.
#[test]
fn excluded_as_servers() {
    let dir = BoardDir::new();
    let both = [Under::Shunt(&dir), Under::Shunt(&dir)];
    connect(both, &dir, &[("SHUNT_EXCLUDE", "end:server")], false);
    for reason in [Reason::Excluded, Reason::PeerNotShunt] {
        assert_eq!(counted(&dir, reason), 0, "{}\n{}", reason.words(), dir.summary());
    }
}

/// Nothing is there of a process that is switched off: no board, and so no reason on it.
#[test]
fn switched_off() {
    let dir = BoardDir::new();
    let both = [Under::Shunt(&dir), Under::Shunt(&dir)];
    connect(both, &dir, &[("SHUNT_ENABLED", "off")], false);
    assert!(dir.board().is_none(), "{}", dir.summary());
}

#[test]
fn not_included() {
    let dir = BoardDir::new();
    let both = [Under::Shunt(&dir), Under::Shunt(&dir)];
    connect(both, &dir, &[("SHUNT_INCLUDE", "addr:10.0.0.0/8")], false);
    assert_counted(&dir, Reason::Excluded, "include of others");
}

#[test]
fn a_client_without_shunt() {
    let dir = BoardDir::new();
    connect([Under::Tcp, Under::Shunt(&dir)], &dir, &[], false);
    assert_counted(&dir, Reason::PeerNotShunt, "a client that is not under Shunt");
}

/// The client takes part in the board because of its own listener.
#[test]
fn a_server_without_shunt() {
    let dir = BoardDir::new();
    let (_server, port) = server(&["serve-many"], Under::Tcp, &[]);
    let mut command = command(env!("CARGO_BIN_EXE_load-guest"), Under::Shunt(&dir));
    command.args(["listening", &port.to_string(), "40", "10"]);
    let got = outcome(&mut command, LIMIT);
    assert!(got.ok() && got.out.trim() == "all 40", "{} {}{:?}", got.out, got.err, got.hung);
    assert_counted(&dir, Reason::NoListener, "a server that is not under Shunt");
    assert_eq!(dir.attached(), 0, "{}", dir.summary());
}

/// A server and a client that has connected, which is offered, and has sent nothing yet.
struct Poised<'a> {
    dir: &'a BoardDir,
    server: Guest,
    ended: BufReader<ChildStdout>,
    client: Guest,
    go_on: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl<'a> Poised<'a> {
    const LEN: u64 = 3 << 20;

    fn new(dir: &'a BoardDir, change: fn(&mut Command) -> &mut Command) -> Self {
        let mut serve = command(GUEST, Under::Shunt(dir));
        let mut server = Guest::start(change(serve.arg("serve").stdout(Stdio::piped())));
        let mut ended = BufReader::new(server.take_stdout().unwrap());
        let port = next_line(&mut ended);
        let port = port.strip_prefix("port ").unwrap_or_else(|| panic!("the server said {port:?}"));
        let mut poised = command(GUEST, Under::Shunt(dir));
        poised.args(["poised", port, "0", "7", &Self::LEN.to_string()]);
        let piped = poised.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = Guest::start(change(piped));
        let go_on = client.take_stdin().unwrap();
        let mut said = BufReader::new(client.take_stdout().unwrap());
        assert_eq!(next_line(&mut said), "connected");
        Self { dir, server, ended, client, go_on, said }
    }

    /// The client's half on the board, and the board for writing.
    fn offer(&self) -> (Board, usize) {
        let board = Board::find(self.dir.path(), true).unwrap().unwrap();
        let pid = i64::from(self.client.pid());
        let slot = board.processes().iter().find(|p| i64::from(p.pid) == pid).map(|p| p.slot);
        let offers = slot.map_or_else(Vec::new, |slot| board.offers_of(slot));
        assert_eq!(offers.len(), 1, "{}", self.dir.summary());
        (board, offers[0])
    }

    /// The client goes on: each byte arrives at both ends, on TCP.
    #[track_caller]
    fn moves_by_tcp(mut self, what: &str) {
        writeln!(self.go_on, "go on").unwrap();
        let ended = self.client.wait(LIMIT);
        assert!(ended.is_ok(), "{what}: {ended:?}\n{}", self.dir.summary());
        let done = format!("sent={0} received={0} status=done", Self::LEN);
        assert_eq!(next_line(&mut self.said), done, "{what}\n{}", self.dir.summary());
        assert_eq!(next_line(&mut self.ended), "began");
        assert_eq!(next_line(&mut self.ended), format!("ended {done}"), "{what}");
        assert!(self.server.ended().is_none(), "{what}: the server died");
        assert_eq!(self.dir.attached(), 0, "{what}: attached\n{}", self.dir.summary());
    }
}

fn next_line(from: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// An offer whose cookie is that of another socket: one that some process made for a connection that is not its own,
/// or left behind.
#[test]
fn an_offer_for_another_socket() {
    if plain_only() {
        return skipped("nothing is offered on kernel TCP");
    }
    let dir = BoardDir::new();
    let poised = Poised::new(&dir, |plain| plain);
    let (board, half) = poised.offer();
    let cookie = half + offset_of!(Half, cookie);
    board.scribble(cookie, &(board.word64(cookie) + 1).to_le_bytes()).unwrap();
    poised.moves_by_tcp("a forged offer");
    assert_counted(&dir, Reason::ForgedOffer, "a forged offer");
}

/// A container that refuses netlink sockets: the kernel cannot be asked who is at the other end, so nobody is
/// believed.
#[test]
fn a_container_without_netlink() {
    let dir = BoardDir::new();
    Poised::new(&dir, without_netlink).moves_by_tcp("no netlink");
    assert_counted(&dir, Reason::NoDiag, "no netlink");
}

/// What the kernel has counted of a server's bytes is not what the library has seen of them.
#[test]
fn bytes_past_the_library() {
    let dir = BoardDir::new();
    let _ = run_case("bytes_taken_past_us", "server", &dir);
    assert_counted(&dir, Reason::BytesUnseen, "bytes past the library");
    assert_eq!(dir.attached(), 0, "{}", dir.summary());
}

/// Before the first byte nothing is decided: the client's connection is offered, and nobody has taken it. (Its number
/// is made where it is shown, and counted nowhere.)
#[test]
fn offered_and_not_taken_yet() {
    let dir = BoardDir::new();
    let mut poised = Poised::new(&dir, |plain| plain);
    assert_given(&dir, poised.client.pid(), Reason::Waiting, "offered, not taken");
    assert_eq!(counted(&dir, Reason::Waiting), 0, "{}", dir.summary());
    writeln!(poised.go_on, "go on").unwrap();
    poised.client.wait(LIMIT).unwrap_or_else(|e| panic!("{e}\n{}", dir.summary()));
    assert!(dir.attached() >= 2 || plain_only(), "{}", dir.summary());
}

/// A client that has shut its direction before the ends have met.
#[test]
fn ended_before_it_was_attached() {
    let dir = BoardDir::new();
    let (_server, port) = server(&["serve-many"], Under::Shunt(&dir), &[]);
    let mut client = Pausing::start(&dir, &["odd", &port.to_string(), "short"]);
    client.says("done");
    assert_given(&dir, client.guest.pid(), Reason::Short, "ended before it was attached");
    assert_counted(&dir, Reason::Short, "an end before anything");
    assert_eq!(dir.attached(), 0, "{}", dir.summary());
    client.ends();
}

/// Offers of connections that live fill the line of the table where an offer of ours belongs.
#[test]
fn no_room_for_an_offer() {
    if plain_only() {
        return skipped("nothing is offered on kernel TCP");
    }
    let dir = BoardDir::new();
    let first = Poised::new(&dir, |plain| plain);
    let (board, half) = first.offer();
    let word = (half / HALF_BYTES + 1) as u64;
    let full: Vec<u8> = std::iter::repeat_n(word.to_le_bytes(), BUCKETS).flatten().collect();
    board.scribble(OFFERS_AT, &full).unwrap();
    let second = Poised::new(&dir, |plain| plain);
    let theirs = board.processes();
    let theirs = theirs.iter().find(|p| i64::from(p.pid) == i64::from(second.client.pid()));
    let refused = theirs.map(|p| p.reasons[Reason::OffersFull.code() as usize]);
    assert_eq!(refused, Some(1), "{}", dir.summary());
    assert_counted(&dir, Reason::OffersFull, "a full table");
    second.moves_by_tcp("a full table");
}

/// More processes than can take part: who comes too late says so once and is on TCP, and who comes when others
/// have gone takes part.
#[test]
fn more_processes_than_places() {
    let dir = BoardDir::new();
    let mut command_line = command(GUEST, Under::Shunt(&dir));
    command_line.args(["crowd", &sys::abi::SLOTS.to_string()]);
    let mut crowd = Guest::start(command_line.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let until_end = crowd.take_stdin();
    let mut said = String::new();
    BufReader::new(crowd.take_stdout().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said.trim(), "ready", "{}", dir.summary());

    let late = || {
        let (_server, port) = server(&["serve-many"], Under::Shunt(&dir), &[]);
        let mut command = command(GUEST, Under::Shunt(&dir));
        let got = outcome(command.args(["listening", &port.to_string(), "40", "10"]), LIMIT);
        assert!(got.ok() && got.out.trim() == "all 40", "{} {}{:?}", got.out, got.err, got.hung);
        got.err
    };
    assert_said(late(), Reason::NoSlot);
    assert_eq!(dir.attached(), 0, "{}", dir.summary());

    drop(until_end);
    crowd.wait(LIMIT).unwrap();
    assert!(!late().contains(Reason::NoSlot.words()), "there is room again");
    assert!(dir.attached() > 0 || plain_only(), "{}", dir.summary());
}

/// Somebody without a place on the board has said so once.
#[track_caller]
fn assert_said(said: String, reason: Reason) {
    let lines = said.lines().filter(|line| line.contains(reason.words())).count();
    assert!(lines == 1 || plain_only(), "said {lines} times: {said}");
}

/// `shunt stat --json` says this of a connection.
#[track_caller]
pub(super) fn assert_said_of(connection: &Value, reason: Reason) {
    let said = (&connection["reason"], &connection["reason_words"]);
    assert_eq!(said, (&reason.code().into(), &reason.words().into()), "{connection}");
}

/// Halves that are attached, have sent by a ring, and send by TCP again for this reason.
fn went_back(dir: &BoardDir, reason: Reason) -> usize {
    let Some(board) = dir.board() else { return 0 };
    let is_one = |half: &usize| {
        let flags = board.word32(half + offset_of!(Half, flags));
        let both = half_flags::UP | half_flags::DOWN;
        flags & both == both && board.word32(half + offset_of!(Half, reason)) == reason.code()
    };
    let slots = board.processes().into_iter().map(|process| process.slot);
    slots.flat_map(|slot| board.halves_of(slot)).filter(is_one).count()
}

/// The limit of a process: some connections find room in it. Who had left TCP and finds no room for what it sends
/// next goes back to it in mid-stream.
#[test]
fn memory_limit() {
    let dir = BoardDir::new();
    let settings = [("SHUNT_MEMORY_MAX", "1M")];
    let (_server, port) = server(&["serve-many"], Under::Shunt(&dir), &settings);
    let mut command = command(GUEST, Under::Shunt(&dir));
    command.args(["unread", &port.to_string(), "400", "10000"]).envs(settings);
    let mut client = Guest::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let (mut orders, lines) = (client.take_stdin().unwrap(), client.take_stdout().unwrap());
    let mut lines = BufReader::new(lines).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("all sent"), "{}", dir.summary());
    // Or all of both ends have attached, so that whoever found no room had left TCP.
    let all = dir.attached() == 800 && counted(&dir, Reason::NoMemory) > 0;
    let back = all || went_back(&dir, Reason::NoMemory) > 0;
    assert!(back || plain_only(), "none went back to TCP:\n{}", dir.summary());
    orders.write_all(b"go on\n").unwrap();
    client.wait(LIMIT).unwrap_or_else(|e| panic!("{e}\n{}", dir.summary()));
    assert_eq!(lines.next().as_deref(), Some("all 400"), "{}", dir.summary());
    assert!(dir.attached() > 0 || plain_only(), "{}", dir.summary());
    assert_counted(&dir, Reason::NoMemory, "a limit of 1 MiB");
}

/// Somebody else's file fills the file system of the board while bytes move: what is attached goes on
/// in the rings that it has or by TCP, each byte in its place, and what comes later stays on TCP.
#[test]
fn file_system_filled_in_mid_stream() {
    let dir = match BoardDir::small("48M") {
        Ok(dir) => dir,
        Err(e) => {
            skipped(&format!("cannot mount a tmpfs: {}", e2e::show::errno_name(e)));
            return;
        }
    };
    let (_server, port) = server(&["serve"], Under::Shunt(&dir), &[]);
    let mut command = command(GUEST, Under::Shunt(&dir));
    command.args(["squeezed", &port.to_string(), "12", "400"]).stdin(Stdio::piped());
    let mut client = Guest::start(command.stdout(Stdio::piped()));
    let (mut orders, lines) = (client.take_stdin().unwrap(), client.take_stdout().unwrap());
    let mut lines = BufReader::new(lines);
    let mut said = String::new();
    lines.read_line(&mut said).unwrap();
    assert_eq!(said.trim(), "in use", "{}", dir.summary());
    let attached = dir.attached();
    assert!(attached >= 2 || plain_only(), "never left TCP:\n{}", dir.summary());
    assert_eq!(counted(&dir, Reason::NoMemory), 0, "full too early:\n{}", dir.summary());

    fill(&dir);
    orders.write_all(b"go on\n").unwrap();
    said.clear();
    let ended = client.wait(LIMIT).unwrap_or_else(|e| panic!("{e}\n{}", dir.summary()));
    lines.read_line(&mut said).unwrap();
    assert_eq!(said.trim(), "all 412", "{ended}: {}", dir.summary());
    assert_counted(&dir, Reason::NoMemory, "a full file system");
}

/// Takes all the room that is left on the board's file system.
pub(super) fn fill(dir: &BoardDir) {
    let mut file = std::fs::File::create(dir.path().join("filler")).unwrap();
    for size in [1 << 20, 4096] {
        let block = vec![1u8; size];
        while file.write_all(&block).is_ok() {}
    }
}

/// A guest that does something, says so, and waits for a line before it goes on.
pub(super) struct Pausing {
    guest: Guest,
    go_on: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Pausing {
    pub(super) fn start(dir: &BoardDir, words: &[&str]) -> Self {
        Self::of(command(GUEST, Under::Shunt(dir)).args(words))
    }

    fn of(command: &mut Command) -> Self {
        let mut guest = Guest::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let go_on = guest.take_stdin().unwrap();
        let said = BufReader::new(guest.take_stdout().unwrap());
        Self { guest, go_on, said }
    }

    #[track_caller]
    pub(super) fn says(&mut self, line: &str) {
        assert_eq!(next_line(&mut self.said), line);
    }

    pub(super) fn pid(&self) -> i32 {
        self.guest.pid()
    }

    /// What follows this word in its next line.
    #[track_caller]
    pub(super) fn told(&mut self, word: &str) -> String {
        let line = next_line(&mut self.said);
        let rest = line.strip_prefix(word).unwrap_or_else(|| panic!("{line:?}"));
        rest.trim().to_owned()
    }

    pub(super) fn goes_on(&mut self) {
        writeln!(self.go_on, "go on").unwrap();
    }

    /// It goes on to its end, having found nothing wrong.
    #[track_caller]
    pub(super) fn ends(mut self) {
        // Unless it has gone on by itself.
        let _ = writeln!(self.go_on, "go on");
        let ended = self.guest.wait(LIMIT).unwrap_or_else(|e| panic!("{e}"));
        assert!(ended.success(), "{ended}");
    }
}

/// What `shunt stat` says of the only connection of a process: which way its bytes go, and why, as a number and in words,
/// both for programs and for people.
#[track_caller]
pub(super) fn assert_shown(dir: &BoardDir, pid: i32, way: &str, reason: u64, words: &str) {
    if plain_only() {
        return;
    }
    let stat = |words: &[&str]| {
        let mut stat = command(built("shunt"), Under::Tcp);
        outcome(stat.arg("stat").args(words).env("SHUNT_DIR", dir.path()), LIMIT).out
    };
    let all: Value = serde_json::from_str(&stat(&["--json"])).unwrap();
    let of_it = all["connections"].as_array().unwrap().iter().filter(|c| c["pid"] == pid);
    let shown: Vec<_> = of_it.map(|c| (&c["mode"], &c["reason"], &c["reason_words"])).collect();
    let want = (&Value::from(way), &Value::from(reason), &Value::from(words));
    assert_eq!(shown, [want], "{all:#}");
    let table = stat(&[]);
    let line = format!("{way} {reason} ({words})");
    let shown =
        table.lines().any(|shown| shown.contains(&line) && shown.contains(&format!(" {pid}/")));
    assert!(shown, "{table}");
}

/// [`assert_shown`] of a connection on TCP.
#[track_caller]
fn assert_given(dir: &BoardDir, pid: i32, reason: Reason, words: &str) {
    assert_shown(dir, pid, "TCP", reason.code().into(), words);
}

/// More event sets than are followed: the end that is in them asks for TCP, and the other one says so.
#[test]
fn more_event_sets_than_are_followed() {
    let dir = BoardDir::new();
    let (server, port) = server(&["serve-many"], Under::Shunt(&dir), &[]);
    let mut client = Pausing::start(&dir, &["odd", &port.to_string(), "sets"]);
    client.says("done");
    assert!(dir.attached() >= 2 || plain_only(), "{}", dir.summary());
    assert_shown(&dir, client.guest.pid(), "TCP", 19, "in too many event sets");
    assert_given(&dir, server.pid(), Reason::PeerAsked, "peer asked for TCP");
    assert_counted(&dir, Reason::EventSets, "three event sets");
    client.ends();
}

/// A pipe takes a connection's bytes, or gives them, before anybody has taken its offer.
#[test]
fn spliced_before_it_was_attached() {
    let dir = BoardDir::new();
    let (_server, port) = server(&["serve-many"], Under::Shunt(&dir), &[]);
    let mut client = Pausing::start(&dir, &["odd", &port.to_string(), "splice"]);
    client.says("done");
    assert_shown(&dir, client.guest.pid(), "TCP", 22, "splice");
    assert_counted(&dir, Reason::Splice, "splice");
    assert_eq!(dir.attached(), 0, "{}", dir.summary());
    client.ends();
}

/// Whoever has started the program has it killed for what only debuggers do, as systemd's `@system-service`: so the part of
/// a peer that does not answer is not done for it.
#[test]
fn a_filter_that_kills_who_borrows_descriptors() {
    let dir = BoardDir::new();
    let (server, port) = server(&["serve-many"], Under::Shunt(&dir), &[]);
    let mut client = command(GUEST, Under::Shunt(&dir));
    let client = killed_for(&mut client, &[libc::SYS_pidfd_getfd]);
    let mut client = Pausing::of(client.args(["odd", &port.to_string(), "handed"]));
    client.says("in use");
    assert!(dir.attached() == 2 || plain_only(), "stayed on TCP:\n{}", dir.summary());
    server.signal(libc::SIGSTOP);
    client.goes_on();
    // Long enough for it to try.
    std::thread::sleep(Duration::from_millis(300));
    server.signal(libc::SIGCONT);
    client.says("exit status: 0");
    client.ends();
}

/// A program that has itself killed for calls that it does not make lives on TCP from then on.
#[test]
fn a_filter_of_its_own() {
    let dir = BoardDir::new();
    let (_server, port) = server(&["serve-many"], Under::Shunt(&dir), &[]);
    let mut client = Pausing::start(&dir, &["odd", &port.to_string(), "filtered"]);
    client.says("done");
    let words = "program may be ended for calls of the library (seccomp)";
    assert_shown(&dir, client.pid(), "TCP", 39, words);
    assert_counted(&dir, Reason::Filtered, "a filter");
    client.ends();
    // Those that refuse calls end nobody, nor do questions.
    let dir = BoardDir::new();
    let (_server, port) = server(&["serve-many"], Under::Shunt(&dir), &[]);
    let mut client = Pausing::start(&dir, &["odd", &port.to_string(), "refused"]);
    client.says("done");
    assert_eq!(counted(&dir, Reason::Filtered), 0, "{}", dir.summary());
    assert!(dir.attached() == 4 || plain_only(), "{}", dir.summary());
    client.ends();
}

/// The peer's ring says that there is more in it than it holds: the connection ends with a reset.
#[test]
fn a_peer_that_writes_nonsense() {
    if plain_only() {
        return skipped("there are no rings on kernel TCP");
    }
    let dir = BoardDir::new();
    let (server, port) = server(&["serve-many"], Under::Shunt(&dir), &[]);
    let mut client = Pausing::start(&dir, &["odd", &port.to_string(), "broken"]);
    client.says("in use");
    let board = Board::find(dir.path(), true).unwrap().unwrap();
    let its = board.processes().into_iter().find(|p| i64::from(p.pid) == i64::from(server.pid()));
    let halves = board.halves_of(its.unwrap().slot);
    assert_eq!(halves.len(), 1, "{}", dir.summary());
    let tail = halves[0] + offset_of!(Half, tail);
    board.scribble(tail, &(board.word64(tail) + (1 << 40)).to_le_bytes()).unwrap();
    client.goes_on();
    client.says("ECONNRESET");
    let words = "peer wrote nonsense into its ring";
    assert_shown(&dir, client.guest.pid(), "TCP", 23, words);
    assert_counted(&dir, Reason::PeerBroken, "nonsense");
    client.ends();
}

/// Two servers, and a client that asks the first one for something many times, each time by a connection of its own, and
/// then the second one once: how long that took, in seconds.
const SHORT: &str = r#"
import os, socket, sys, time
count = int(sys.argv[1])
listeners = [socket.create_server(("127.0.0.1", 0), backlog=64) for _ in range(2)]
if os.fork() == 0:
    for listener, n in zip(listeners, (count, 1)):
        for _ in range(n):
            peer, _ = listener.accept()
            while (got := peer.recv(100)):
                peer.sendall(got * 2)
            peer.close()
    os._exit(0)
def ask(listener, times):
    peer = socket.create_connection(listener.getsockname())
    for n in range(times):
        peer.sendall(b"x" * 10)
        got = b""
        while len(got) < 20:
            got += peer.recv(100)
    peer.close()
begun = time.time()
for _ in range(count):
    ask(listeners[0], 1)
print(time.time() - begun)
ask(listeners[1], 10)
assert os.wait()[1] == 0
"#;

/// Where each connection carries one request, and the answer has to be rung for, nothing is gained: after many of them most
/// go by TCP. Those to other destinations do not, nor any where the setting says so.
#[test]
fn connections_that_have_been_too_short() {
    const COUNT: u32 = 600;
    let run = |spare: &str| {
        let dir = BoardDir::new();
        let mut program = command("python3", Under::Shunt(&dir));
        // Nobody sees an answer come by memory, or sleeps there until it comes.
        program.envs([("SHUNT_SPIN_US", "0"), ("SHUNT_NAP_US", "0"), ("SHUNT_SPARE_SHORT", spare)]);
        let got = outcome(program.args(["-c", SHORT, &COUNT.to_string()]), LIMIT);
        assert!(got.ok(), "exit {}\n{}{}{:?}", got.code, got.out, got.err, got.hung);
        (dir, got.out.trim().parse::<f64>().unwrap())
    };
    let (dir, seconds) = run("on");
    // What is seldom is not left out: a machine that does other things makes them seldom.
    if seconds < 3.0 {
        assert_counted(&dir, Reason::Spared, "many short connections");
        assert!(counted(&dir, Reason::Spared) < COUNT, "each is tried now and then");
    } else {
        skipped(&format!("{COUNT} connections took {seconds:.1} s: too seldom to be left out"));
    }
    let (all, _) = run("off");
    assert_eq!(counted(&all, Reason::Spared), 0, "{}", all.summary());
    assert!(all.attached() >= u64::from(COUNT) || plain_only(), "{}", all.summary());
}

/// Connections that end together, and have carried little, but have lasted: those that follow may last as well.
const POOL: &str = r#"
import os, socket, time
listener = socket.create_server(("127.0.0.1", 0), backlog=256)
count = 100
if os.fork() == 0:
    for _ in range(2):
        peers = [listener.accept()[0] for _ in range(count)]
        while peers:
            for peer in list(peers):
                got = peer.recv(100)
                if got:
                    peer.sendall(got)
                else:
                    peers.remove(peer)
    os._exit(0)
for turns in (1, 5):
    pool = [socket.create_connection(listener.getsockname()) for _ in range(count)]
    for _ in range(turns):
        for peer in pool:
            peer.sendall(b"x")
            assert peer.recv(100) == b"x"
    time.sleep(0.3)
    for peer in pool:
        peer.close()
assert os.wait()[1] == 0
"#;

#[test]
fn pools_are_not_taken_for_short_connections() {
    let dir = BoardDir::new();
    let mut program = command("python3", Under::Shunt(&dir));
    program.envs([("SHUNT_SPIN_US", "0"), ("SHUNT_NAP_US", "0")]).args(["-c", POOL]);
    let got = outcome(&mut program, LIMIT);
    assert!(got.ok(), "exit {}\n{}{}{:?}", got.code, got.out, got.err, got.hung);
    assert_eq!(counted(&dir, Reason::Spared), 0, "{}", dir.summary());
    assert!(dir.attached() >= 400 || plain_only(), "{}", dir.summary());
}
