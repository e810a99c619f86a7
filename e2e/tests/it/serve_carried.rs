//! `shunt run -- shunt serve`: clients on the same host are served through shared memory, with the same bytes and
//! the same safety as over TCP.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use e2e::run::{BoardDir, Guest, Outcome, Under, command, outcome, plain_only, skipped, until};
use e2e::{built, installed};

use super::serve_safety::client::{Client, PASSWORD, SHARE, USER};
use super::serve_safety::{Folder, Server, block};

const LIMIT: Duration = Duration::from_secs(120);
/// Bytes of each client's file: more than a ring has.
const SIZE: &str = "16M";

/// Long enough for one operation at least, however busy the machine is.
const SHORT: &str = "--secs 2 --warmup 0";

/// A server under `shunt run`, as people start it.
struct Place {
    folder: Folder,
    board: BoardDir,
    port: u16,
    server: Server,
}

impl Place {
    fn new() -> Self {
        Self::of(Folder::new())
    }

    fn of(folder: Folder) -> Self {
        let board = BoardDir::new();
        let server = Self::serve(&folder, &board, 0);
        Self { folder, board, port: server.port, server }
    }

    fn serve(folder: &Folder, board: &BoardDir, port: u16) -> Server {
        let shunt = built("shunt").display().to_string();
        let dir = format!("SHUNT_DIR={}", board.path().display());
        Server::start_as(folder.path(), port, &["env", &dir, &shunt, "run", "--"], &[])
    }

    /// A load of smbload's, under Shunt too.
    fn load(&self, words: &str) -> Command {
        let mut load = command(built("smbload"), Under::Shunt(&self.board));
        load.args(words.split_whitespace());
        load.args(["--addr", &format!("127.0.0.1:{}", self.port), "--share", SHARE]);
        load.args(["--user", USER, "--pass", PASSWORD, "--size", SIZE]);
        load
    }

    fn loaded(&self, words: &str) -> Outcome {
        let ended = outcome(&mut self.load(words), LIMIT);
        assert!(ended.ok(), "{words}: {ended:?}\n{}\n{}", self.server.said(), self.board.summary());
        ended
    }

    /// Connections that the server has in shared memory now, as `shunt stat --json` says it.
    fn in_memory(&self) -> usize {
        let mut stat = command(built("shunt"), Under::Tcp);
        stat.env("SHUNT_DIR", self.board.path()).args(["stat", "--json"]);
        let said = outcome(&mut stat, LIMIT);
        let said: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_default();
        let ends = said["connections"].as_array().cloned().unwrap_or_default();
        let of_server = |end: &&serde_json::Value| {
            end["mode"] == "SHM"
                && end["pid"] == self.server.guest.pid()
                && end["state"] == "ACTIVE"
        };
        ends.iter().filter(of_server).count()
    }

    /// A client in this process, which is not under Shunt.
    fn by_tcp(&self) {
        let mut client =
            Client::ready(self.port, smb::wire::negotiate::dialect::SMB_3_1_1).unwrap();
        let (file, bytes) = (client.open("by-tcp").unwrap(), block(7, 50_000));
        client.write(file, 0, &bytes, false).unwrap();
        assert!(client.read(file, 0, 50_000).unwrap() == bytes);
    }
}

/// Bytes of files are checked by smbload against a pattern that is another one at each offset.
#[test]
fn data_is_what_it_was_whichever_way_it_is_protected() {
    all_ways(&Place::new());
}

/// There data goes between the file and shared memory without a buffer.
#[test]
fn data_in_memory_is_what_it_was_whichever_way_it_is_protected() {
    match Folder::in_memory() {
        Some(folder) => all_ways(&Place::of(folder)),
        None => skipped("there is no /dev/shm"),
    }
}

fn all_ways(place: &Place) {
    place.loaded("prepare --clients 2");
    for load in ["read", "write"] {
        for how in [
            "--io 256K",
            "--io 64K --qd 16",
            "--io 8M --qd 1",
            "--io 256K --sign gmac",
            "--io 256K --sign cmac",
            "--io 256K --enc 256",
            "--io 256K --channels 3 --clients 2",
        ] {
            let before = place.board.attached_by_program("shunt");
            place.loaded(&format!("{load} --verify {SHORT} {how}"));
            let carried = place.board.attached_by_program("shunt") > before;
            assert!(carried || plain_only(), "{load} {how}: by TCP\n{}", place.board.summary());
        }
    }
    for load in ["openclose", "stat", "readsmall", "createdel", "session", "randread --io 4K"] {
        place.loaded(&format!("{load} {SHORT}"));
    }
    // And whoever has no Shunt is served as ever.
    place.by_tcp();
}

#[test]
fn what_is_in_shared_memory_is_said() {
    let place = Place::new();
    place.loaded("prepare");
    if plain_only() {
        return;
    }
    assert!(place.server.said().contains("shared memory"), "{}", place.server.said());
    let mut load = place.load("read --secs 60");
    let mut client = Guest::start(load.stdout(Stdio::null()).stderr(Stdio::null()));
    until("the connection is in shared memory", LIMIT, || place.in_memory() == 1);
    assert!(client.ended().is_none());
}

/// What a ring of the kernel's does to a socket goes past the library: who insists on one hears that at once.
#[test]
fn with_io_uring_alone_it_does_not_start() {
    let (folder, board) = (Folder::new(), BoardDir::new());
    let mut serve = command(built("shunt"), Under::Shunt(&board));
    serve.args(["serve", "--listen", "127.0.0.1:0", "--uring", "on"]);
    serve.args(["--user", &format!("{USER}:{PASSWORD}")]).arg(folder.path());
    if plain_only() {
        return;
    }
    let ended = outcome(&mut serve, LIMIT);
    assert!(!ended.ok() && ended.hung.is_none(), "{ended:?}");
    assert!(ended.err.contains("under `shunt run` there is no io_uring"), "{ended:?}");
}

/// What the kernel would refuse to copy from a mapping would end a server that copies by itself.
#[test]
fn a_file_that_is_cut_while_it_is_sent_ends_nobody() {
    let mut place = Place::new();
    place.loaded("prepare");
    let path = place.folder.file("smbload_c0.dat");
    let whole = fs::read(&path).unwrap();
    for _ in 0..10 {
        let mut load = place.load("read --io 8M --qd 4 --secs 1 --warmup 0");
        let mut client = Guest::start(load.stdout(Stdio::null()).stderr(Stdio::null()));
        let began = Instant::now();
        // The client ends by itself, sooner where what it gets is shorter than what it asked for.
        while client.ended().is_none() {
            assert!(began.elapsed() < LIMIT);
            let file = fs::File::options().write(true).open(&path).unwrap();
            for len in [0, 5_000_000, 16 << 20] {
                file.set_len(len).unwrap();
                std::thread::sleep(Duration::from_millis(3));
            }
        }
    }
    place.server.must_live();
    fs::write(&path, &whole).unwrap();
    place.loaded(&format!("read --io 256K --verify {SHORT}"));
}

/// What is written by way of a mapping, by the server's own instructions, meets pages that are gone.
#[test]
fn a_file_that_is_cut_while_it_is_written_ends_nobody() {
    let Some(folder) = Folder::in_memory() else {
        skipped("there is no /dev/shm");
        return;
    };
    let mut place = Place::of(folder);
    place.loaded("prepare");
    let path = place.folder.file("smbload_w0.dat");
    for protection in ["", "--enc 128", "--sign gmac"] {
        let mut load = place.load(&format!("write --io 1M --secs 4 --warmup 0 {protection}"));
        let mut client = Guest::start(load.stdout(Stdio::null()).stderr(Stdio::null()));
        let began = Instant::now();
        let mut lengths = [4096, 5_000_000, 12_345_678].into_iter().cycle();
        let ended = loop {
            if let Some(ended) = client.ended() {
                break ended;
            }
            assert!(began.elapsed() < LIMIT);
            // Between two cuts all of it is written over, and so mapped.
            std::thread::sleep(Duration::from_millis(200));
            if let Ok(file) = fs::File::options().write(true).open(&path) {
                for len in lengths.by_ref().take(3) {
                    file.set_len(len).unwrap();
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        };
        // Each WRITE was answered, with all of its bytes.
        assert!(ended.success(), "{protection}: {ended:?}\n{}", place.server.said());
        place.server.must_live();
    }
    place.loaded(&format!("write --io 256K --verify {SHORT}"));
}

#[test]
fn clients_that_are_killed_cost_the_server_nothing() {
    let mut place = Place::new();
    place.loaded("prepare");
    for words in ["write --secs 60", "read --secs 60", "read --secs 60 --sink copy --channels 3"] {
        let before = place.board.attached_by_program("shunt");
        let mut load = place.load(words);
        let mut client = Guest::start(load.stdout(Stdio::null()).stderr(Stdio::null()));
        let is_under_way = || place.board.attached_by_program("shunt") > before || plain_only();
        until("the load is under way", LIMIT, is_under_way);
        std::thread::sleep(Duration::from_millis(100));
        client.signal(libc::SIGKILL);
        client.wait(LIMIT).unwrap();
        place.server.must_live();
        place.loaded(&format!("read --io 256K --verify {SHORT}"));
        place.loaded(&format!("write --io 256K --verify {SHORT}"));
    }
    until("all are gone", LIMIT, || place.in_memory() == 0);
}

#[test]
fn a_server_that_is_killed_is_noticed_and_another_one_takes_its_place() {
    let mut place = Place::new();
    place.loaded("prepare");
    for words in ["write --secs 60", "read --secs 60"] {
        let mut load = place.load(words);
        let mut client = Guest::start(load.stdout(Stdio::null()).stderr(Stdio::null()));
        let in_memory = || place.in_memory() > 0 || plain_only();
        until("the connection is in shared memory", LIMIT, in_memory);
        place.server.guest.signal(libc::SIGKILL);
        place.server.guest.wait(LIMIT).unwrap();
        let ended = client.wait(LIMIT).unwrap();
        assert!(!ended.success(), "{words}: who serves it?");
        place.server = Place::serve(&place.folder, &place.board, place.port);
        place.loaded(&format!("read --io 256K --verify {SHORT}"));
    }
}

#[test]
fn smbclient_gets_what_it_has_put() {
    let Some(smbclient) = installed("smbclient") else {
        skipped("there is no smbclient");
        return;
    };
    let (mut place, at) = (Place::new(), Folder::new());
    let bytes = block(1, 9_000_001);
    fs::write(at.file("there"), &bytes).unwrap();
    for protocol in ["SMB2_10", "SMB3_11"] {
        for protection in ["off", "sign", "encrypt"] {
            if (protocol, protection) == ("SMB2_10", "encrypt") {
                continue;
            }
            let mut typed = command(&smbclient, Under::Shunt(&place.board));
            typed.current_dir(at.path()).args([&format!("//127.0.0.1/{SHARE}"), "-m", protocol]);
            typed.args(["-p", &place.port.to_string(), "-U", &format!("{USER}%{PASSWORD}")]);
            typed.arg(format!("--client-protection={protection}"));
            typed.args(["-c", "put there f; get f back; allinfo f; del f"]);
            let before = place.board.attached_by_program("shunt");
            let ended = outcome(&mut typed, LIMIT);
            assert!(ended.ok(), "{protocol}, {protection}: {ended:?}");
            assert!(fs::read(at.file("back")).unwrap() == bytes, "{protocol}, {protection}");
            fs::remove_file(at.file("back")).unwrap();
            let carried = place.board.attached_by_program("shunt") > before;
            assert!(carried || plain_only(), "by TCP: {}", place.board.summary());
            place.server.must_live();
        }
    }
}
