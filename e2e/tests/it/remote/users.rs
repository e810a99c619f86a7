//! One engine for the programs of several users: each reaches it, and none of them can end it or disturb the others.

use std::mem::offset_of;
use std::os::unix::fs::{FileExt, PermissionsExt};

use sys::abi::{DATA_AT, EXTENT_BYTES, HALF_BYTES, OWNERS_AT};

use super::*;

/// The first of these users is no other test's, and nobody else's.
const FIRST: u32 = 1_000_000;

/// What all of them run: a server of echoes, and clients of it.
const ECHO: &str = r#"
import os, socket, sys, threading, time
what, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
def serve(peer):
    try:
        while (got := peer.recv(65536)):
            peer.sendall(got)
    except OSError:
        pass
    peer.close()
if what == "server":
    listener = socket.create_server((address, port), backlog=64)
    try:
        print("ready", flush=True)
    except BrokenPipeError:
        # Started again, and nobody waits for it.
        os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
seconds, patience = float(sys.argv[4]), float(sys.argv[5])
# Who is patient is to see no other error; who is not, any.
errors = ConnectionError if patience > 10 else Exception
end = time.monotonic() + seconds
rounds = resets = 0
while rounds == 0 or time.monotonic() < end:
    try:
        peer = socket.create_connection((address, port))
        peer.settimeout(patience)
        for size in (1, 1000, 200000):
            sent = os.urandom(size)
            threading.Thread(target=lambda: peer.sendall(sent), daemon=True).start()
            got = b""
            while len(got) < size:
                some = peer.recv(65536)
                assert some, "the end, in the middle"
                got += some
            assert got == sent, "other bytes"
        peer.close()
    except errors:
        resets += 1
    rounds += 1
print("rounds", rounds, "resets", resets)
"#;

/// Does harm with all that a user can do: to its own board, and to who listens there. Words: what, and the board's folder.
const HARM: &str = r#"
import array, glob, mmap, os, random, socket, struct, sys, time
what, folder, netns = sys.argv[1:4]
board = glob.glob(f"{folder}/board-{netns}-v*")[0]
door = glob.glob(f"{folder}/engine-{netns}-v*")
door = [path for path in door if not path.endswith("-control")]
if what == "shorter":
    # Also while it is opened again.
    end = time.monotonic() + float(sys.argv[4])
    while time.monotonic() < end:
        os.truncate(board, 0)
elif what == "scribble":
    fd = os.open(board, os.O_RDWR)
    size = os.fstat(fd).st_size
    memory = mmap.mmap(fd, size)
    owners, data, half, extent = map(int, sys.argv[6:10])
    chance = random.Random(int(sys.argv[4]))
    def pages():
        found, at = [], 0
        while True:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:
                return found
            until = os.lseek(fd, at, os.SEEK_HOLE)
            found += range(at, until, 4096)
            at = until
    words = [0, 1, 2, 0xffffffff, 0x5a5a5a5a, 0xffffffffffffffff, 1 << 63, 4096, 1 << 22]
    end = time.monotonic() + float(sys.argv[5])
    while time.monotonic() < end:
        places = pages()
        extents = sorted({at // extent for at in places if at >= data})
        for _ in range(40):
            which = chance.random()
            if extents and which < 0.2:
                # Who has which memory: as if nobody had it, mostly.
                at, word = owners + 4 * chance.choice(extents), 0 if which < 0.15 else chance.getrandbits(32)
                memory[at:at + 4] = struct.pack("<I", word)
                continue
            if extents and which < 0.6:
                # A word of a half, of which the first ones are in use; or what stands there in another one.
                place = lambda: chance.choice(extents) * extent + half * chance.randrange(64)
                field = 8 * chance.randrange(half // 8)
                at, other = place() + field, place() + field
                if chance.random() < 0.5:
                    memory[at:at + 8] = memory[other:other + 8]
                    continue
            else:
                at = chance.choice(places) + 8 * chance.randrange(512)
            if chance.random() < 0.5:
                word = chance.choice(words)
            else:
                word = chance.getrandbits(chance.choice((8, 16, 33, 64)))
            memory[at:at + 8] = struct.pack("<Q", word)
        # Its programs are started again meanwhile, and get to the engine.
        time.sleep(0.2)
else:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(door[0])
    def give(message, given):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [given]))]
        link.sendmsg([message], rights)
    if what == "no socket":
        hello = struct.pack("<4s5I", b"SHNT", 2, 1, 3, 5, 3)
        give(hello, os.open("/dev/null", os.O_RDONLY))
        assert len(link.recv(64)) == 24, "it is refused"
    else:
        # Closing it takes an hour, for who closes it last.
        listener = socket.create_server(("127.0.0.1", 0))
        near = socket.create_connection(listener.getsockname())
        near.setblocking(False)
        try:
            while True:
                near.send(b"." * 65536)
        except BlockingIOError:
            pass
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
        if os.fork() == 0:
            # The other end stays, and reads nothing.
            os.close(near.detach())
            os.setsid()
            os.close(1)
            os.close(2)
            while os.path.exists(folder):
                time.sleep(0.02)
            os._exit(0)
        time.sleep(0.1)
        give(b"nonsense", near.fileno())
        # Who ends waits for nothing, where who closes would, if the engine had done so already.
        print("done", flush=True)
        os._exit(0)
print("done")
"#;

/// What a client of the kernel's (AF_SMC) does that connects within its host. Words: the port, the name of the socket option,
/// and a Proposal.
const KERNEL_CLIENT: &str = r#"
import socket, struct, sys
port, name, proposal = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
peer = socket.socket()
peer.settimeout(60)
peer.setsockopt(0x534d, name, 1)
peer.connect(("127.0.0.1", port))
assert peer.getsockopt(0x534d, name) == 1, "the server does not say that it speaks SMC"
peer.sendall(proposal)
def take(size):
    got = b""
    while len(got) < size:
        some = peer.recv(size - len(got))
        assert some, "the end"
        got += some
    return got
head = take(8)
body = take(struct.unpack(">H", head[5:7])[0] - len(head))
print("type", head[4], "diagnosis", body[8:12].hex())
peer.sendall(b"hello")
print(take(5))
"#;

/// Two hosts, each with one engine for several users.
struct Crowd {
    pair: Pair,
    place: PathBuf,
    users: [u32; 2],
}

impl Crowd {
    /// Both have engines for these users.
    fn new() -> Option<(Self, PathBuf)> {
        Self::with(None)
    }

    /// The client's host has one for others.
    fn with(clients: Option<&str>) -> Option<(Self, PathBuf)> {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let python = python_for_all()?;
        let hosts = match hosts::possible().and_then(|()| Hosts::new()) {
            Ok(hosts) => hosts,
            Err(why) => {
                skipped(&format!("{why:#}"));
                return None;
            }
        };
        if hosts.server.group().is_none() {
            skipped("there is no cgroup hierarchy of version 2");
            return None;
        }
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let number = u32::try_from(count).unwrap();
        let first = FIRST + std::process::id() * 16 + 2 * number;
        let users = [first, first + 1];
        let name = format!("shunt-remote-users-{}-{count}", std::process::id());
        let place = std::env::temp_dir().join(name);
        std::fs::create_dir(&place).unwrap();
        std::fs::set_permissions(&place, PermissionsExt::from_mode(0o755)).unwrap();
        for program in ["shunt", "libshunt_preload.so"] {
            e2e::run::copy_program(built(program), place.join(program));
        }
        let kind = Kind::default();
        let boards = [BoardDir::new(), BoardDir::new()];
        let pair = Pair { engines: Vec::new(), boards, hosts, kind, copies: None };
        let mut crowd = Self { pair, place, users };
        let listed = users.map(|uid| uid.to_string()).join(",");
        let clients = clients.unwrap_or(&listed);
        for (side, users) in [(Side::Server, listed.as_str()), (Side::Client, clients)] {
            let engine = crowd.engine(side, users);
            crowd.pair.engines.push(engine);
        }
        Some((crowd, python))
    }

    fn engine(&self, side: Side, users: &str) -> Guest {
        let host = self.pair.host(side);
        let mut command = self.command(side, 0);
        command.args(["engine", "--users", users, "--eid", EID, "--spare-short", "off"]);
        command.args(["--address", &host.address().to_string()]);
        command.arg("--cgroup").arg(host.group().unwrap());
        let log = std::fs::File::create(self.log(side)).unwrap();
        command.stdout(Stdio::piped()).stdin(Stdio::null()).stderr(log);
        let mut engine = Guest::start(&mut command);
        let mut said = BufReader::new(engine.take_stdout().unwrap());
        let mut line = String::new();
        while !line.contains("ready") {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "it ends: {}", self.said(side));
        }
        std::thread::spawn(move || said.read_to_end(&mut Vec::new()));
        engine
    }

    fn log(&self, side: Side) -> PathBuf {
        self.place.join(format!("{side:?}"))
    }

    /// What the engine of a host has said of what has gone wrong.
    fn said(&self, side: Side) -> String {
        std::fs::read_to_string(self.log(side)).unwrap()
    }

    /// A program of a user on a host: the program `shunt` so far. Its board is where a user's is.
    fn command(&self, side: Side, uid: u32) -> Command {
        let words = self.pair.host(side).prefix();
        let mut command = e2e::run::command(&words[0], e2e::run::Under::Tcp);
        command.args(&words[1..]);
        if uid != 0 {
            command.args(["setpriv", "--clear-groups", "--no-new-privs"]);
            command.args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--"]);
        }
        command.arg(self.place.join("shunt")).current_dir("/");
        command
    }

    /// A script of such a user, under Shunt or not.
    fn script(&self, side: Side, uid: u32, script: (&Path, &str), words: &[&str]) -> Command {
        let mut command = self.command(side, uid);
        command.args(["run", "--"]).arg(script.0).args(["-c", script.1]).args(words);
        command
    }

    #[track_caller]
    fn server(&self, python: &Path, uid: u32, port: u16) -> Guest {
        let words = ["server", &self.pair.address(), &port.to_string()];
        let mut command = self.script(Side::Server, uid, (python, ECHO), &words);
        self.pair.ready(&mut command, port)
    }

    /// What a client has to say that connects for so many seconds, again and again.
    fn client(&self, python: &Path, uid: u32, port: u16, seconds: u64) -> Outcome {
        self.client_with(python, uid, port, [seconds, 100])
    }

    /// The same of one that waits for so many seconds, and is told of errors of any kind after a few.
    fn client_with(&self, python: &Path, uid: u32, port: u16, times: [u64; 2]) -> Outcome {
        let [seconds, patience] = times.map(|time| time.to_string());
        let words = ["client", &self.pair.address(), &port.to_string(), &seconds, &patience];
        outcome(&mut self.script(Side::Client, uid, (python, ECHO), &words), LIMIT)
    }

    fn status(&self, side: Side) -> serde_json::Value {
        let got = outcome(self.command(side, 0).args(["engine", "status", "--json"]), LIMIT);
        assert!(got.ok(), "{got:?}");
        serde_json::from_str(&got.out).unwrap()
    }

    /// Connections that the engine of a host ever carried by SMC-R.
    fn carried(&self, side: Side) -> u64 {
        let status = self.status(side);
        let count = |vector: &serde_json::Value| vector["connections_total"].as_u64().unwrap();
        status["vectors"].as_array().unwrap().iter().map(count).sum()
    }

    /// Has a client of a user be served, by SMC-R on both hosts.
    #[track_caller]
    fn must_carry(&self, python: &Path, uid: u32, port: u16) {
        let sides = [Side::Server, Side::Client];
        for _ in 0..5 {
            let before = sides.map(|side| self.carried(side));
            let got = self.client(python, uid, port, 0);
            assert!(got.ok() && got.out.contains("resets 0"), "{got:?}");
            let after = sides.map(|side| self.carried(side));
            if after.iter().zip(before).all(|(after, before)| *after > before) {
                return;
            }
        }
        panic!("user {uid} does not get SMC:\n{:#}", self.status(Side::Client));
    }

    /// Does harm as a user, on the server's host.
    #[track_caller]
    fn harm(&self, python: &Path, uid: u32, what: &str, words: &[&str]) {
        let netns = self.netns(python);
        let folder = format!("/dev/shm/shunt-{uid}");
        let mut command = self.command(Side::Server, uid);
        // Not under Shunt: it is a process of the user like any other.
        command.args(["run", "--off", "--"]).arg(python).args(["-c", HARM, what, &folder, &netns]);
        let got = outcome(command.args(words), LIMIT);
        assert!(got.ok() && got.out.contains("done"), "{got:?}");
    }

    /// The number of the server's network, as boards have it in their names.
    fn netns(&self, python: &Path) -> String {
        let words = self.pair.host(Side::Server).prefix();
        let mut command = e2e::run::command(&words[0], e2e::run::Under::Tcp);
        let cookie = "import socket, struct; s = socket.socket(); \
                      print('%x' % struct.unpack('Q', s.getsockopt(socket.SOL_SOCKET, 71, 8)))";
        let got = outcome(command.args(&words[1..]).arg(python).args(["-c", cookie]), LIMIT);
        assert!(got.ok(), "{got:?}");
        got.out.trim().to_owned()
    }

    /// By which name a user's sockets ask for the TCP option on the server's host.
    fn option_name(&self, python: &Path, uid: u32) -> u32 {
        let begin = format!("board-{}-", self.netns(python));
        let files = std::fs::read_dir(format!("/dev/shm/shunt-{uid}")).unwrap();
        let is_board =
            |file: &PathBuf| file.file_name().unwrap().to_string_lossy().starts_with(&begin);
        let board = files.map(|file| file.unwrap().path()).find(is_board).unwrap();
        let mut word = [0; 4];
        let at = offset_of!(sys::abi::Header, engine_option) as u64;
        std::fs::File::open(board).unwrap().read_exact_at(&mut word, at).unwrap();
        u32::from_le_bytes(word)
    }

    /// What the engine of the server's host says of a user.
    fn user(&self, uid: u32) -> serde_json::Value {
        let status = self.status(Side::Server);
        let users = status["users"].as_array().unwrap();
        users.iter().find(|user| user["uid"] == uid).cloned().unwrap_or_default()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.pair.engines.clear();
        let _ = std::fs::remove_dir_all(&self.place);
        for uid in self.users {
            let _ = std::fs::remove_dir_all(format!("/dev/shm/shunt-{uid}"));
        }
    }
}

/// A Python that anybody may run.
fn python_for_all() -> Option<PathBuf> {
    let may_run = |python: &PathBuf| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(python);
        command.args(["-c", "import socket, mmap"]).stdin(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let all = installed("python3").into_iter().chain([PathBuf::from("/usr/bin/python3")]);
    let found = all.into_iter().find(may_run);
    if found.is_none() {
        skipped("there is no python3 that anybody may run");
    }
    found
}

#[test]
fn programs_of_all_users_speak_smc_by_one_engine() {
    let Some((crowd, python)) = Crowd::new() else { return };
    let [one, other] = crowd.users;
    let _servers =
        [(one, 7300), (other, 7301), (0, 7302)].map(|(uid, port)| crowd.server(&python, uid, port));
    for (uid, port) in [(one, 7300), (one, 7301), (other, 7300), (other, 7302), (0, 7301)] {
        crowd.must_carry(&python, uid, port);
    }
    for uid in [0, one, other] {
        let user = crowd.user(uid);
        assert!(user["is_served"] == true && user["problem"].is_null(), "{user:#}");
    }
    // Who is not root is told whom to ask.
    let got = outcome(crowd.command(Side::Server, one).args(["engine", "status"]), LIMIT);
    assert!(!got.ok() && got.err.contains("is root's"), "{got:?}");
    let got = outcome(crowd.command(Side::Server, one).args(["doctor", "true"]), LIMIT);
    assert!(got.out.contains("of user 0, takes connections to other hosts"), "{got:?}");
    let got = outcome(crowd.command(Side::Server, one).args(["stat", "--json"]), LIMIT);
    let stat: serde_json::Value = serde_json::from_str(&got.out).unwrap();
    let processes = stat["processes"].as_array().unwrap();
    assert!(processes.iter().any(|p| p["uid"] == 0 && p["program"] == "shunt"), "{stat:#}");
}

/// The kernel offers SMC to whatever address a program connects, and a listener does not know whose: no engine of several users
/// takes a connection within its host.
#[test]
fn a_client_of_the_kernels_on_the_same_host_goes_on_by_tcp() {
    let Some((crowd, python)) = Crowd::new() else { return };
    let words = ["server", "127.0.0.1", "7330"];
    let mut command = crowd.script(Side::Server, crowd.users[0], (&python, ECHO), &words);
    let _server = crowd.pair.ready(&mut command, 7330);
    let name = crowd.option_name(&python, crowd.users[0]).to_string();
    let captured = include_str!("../../../../crates/smc/tests/vectors/clc.txt");
    let mut messages = captured.lines().filter_map(|line| Some(line.split_once(' ')?.1));
    let proposal = messages.find(|bytes| bytes.starts_with("e2d4c3d901")).unwrap();
    let mut command = crowd.command(Side::Server, crowd.users[1]);
    command.args(["run", "--off", "--"]).arg(&python);
    let got = outcome(command.args(["-c", KERNEL_CLIENT, "7330", &name, proposal]), LIMIT);
    // A Decline: there is no device there.
    assert_eq!(got.out, "type 4 diagnosis 03030000\nb'hello'\n", "{got:?}");
    let status = crowd.status(Side::Server);
    let for_memory = [&status["no_memory_total"], &status["no_memory_reset_total"]];
    assert!(for_memory.iter().all(|count| **count == 0), "{status:#}");
}

/// Where nobody is named, whoever has an account and a board is served; a name that somebody else has made is not one.
#[test]
fn whoever_comes_is_served_if_all_are() {
    /// Who has an account everywhere, and no board in other tests.
    const NOBODY: u32 = 65_534;
    const ODD: u32 = 1 << 30;
    let Some((crowd, python)) = Crowd::with(Some("all")) else { return };
    let account = outcome(Command::new("id").args(["-u", "nobody"]), LIMIT);
    if account.out.trim() != NOBODY.to_string() {
        return skipped("nobody has another number here");
    }
    let [one, other] = crowd.users;
    // No account, and not its own folder.
    let odd = format!("/dev/shm/shunt-{}", other + ODD);
    std::fs::create_dir(&odd).unwrap();
    let _server = crowd.server(&python, one, 7305);
    crowd.must_carry(&python, NOBODY, 7305);
    let status = crowd.status(Side::Client);
    let users = status["users"].as_array().unwrap().iter().map(|user| user["uid"].as_u64());
    let users: Vec<u32> = users.map(|uid| u32::try_from(uid.unwrap()).unwrap()).collect();
    assert!(users.contains(&NOBODY) && !users.contains(&(other + ODD)), "{users:?}");
    let _ = std::fs::remove_dir_all(format!("/dev/shm/shunt-{NOBODY}"));
    std::fs::remove_dir(odd).unwrap();
}

#[test]
fn an_engine_started_again_serves_all_of_them_again() {
    let Some((mut crowd, python)) = Crowd::new() else { return };
    let [one, other] = crowd.users;
    let _server = crowd.server(&python, one, 7310);
    crowd.must_carry(&python, other, 7310);
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        crowd.pair.engines[0].signal(signal);
        eventually("the engine has gone", || crowd.pair.engines[0].ended().is_some());
        crowd.pair.engines[0] = crowd.engine(Side::Server, &format!("{one}"));
        crowd.must_carry(&python, other, 7310);
    }
}

#[test]
fn a_user_who_spoils_its_board_harms_nobody_else() {
    let Some((crowd, python)) = Crowd::new() else { return };
    let [one, other] = crowd.users;
    let _server = crowd.server(&python, other, 7321);
    // It is started again whatever has ended it.
    let server = ["server", &crowd.pair.address(), "7320"];
    let again = "while :; do \"$@\" 2>/dev/null; sleep 0.02; done";
    let mut command = crowd.command(Side::Server, one);
    command.args(["run", "--", "sh", "-c", again, "sh"]).arg(&python).args(["-c", ECHO]);
    let _again = crowd.pair.ready(command.args(server), 7320);
    crowd.must_carry(&python, one, 7320);
    let engine = crowd.status(Side::Server)["pid"].clone();
    let number = |name, usual| {
        let set = std::env::var(name).ok();
        set.map_or(usual, |text: String| text.parse::<u64>().unwrap())
    };
    let (seconds, seed) = (number("SHUNT_SOAK_SECONDS", 6), number("SHUNT_SEED", 1));
    std::thread::scope(|scope| {
        let undisturbed = scope.spawn(|| crowd.client(&python, other, 7321, seconds + 8));
        // Their connections come and go all the while, whatever becomes of them.
        let disturbed = [(); 3]
            .map(|()| scope.spawn(|| crowd.client_with(&python, one, 7320, [seconds + 2, 1])));
        let (seed, span) = (seed.to_string(), seconds.to_string());
        let places = [OWNERS_AT, DATA_AT, HALF_BYTES, EXTENT_BYTES].map(|at| at.to_string());
        let places = places.iter().map(String::as_str);
        let words: Vec<&str> = [&*seed, &span].into_iter().chain(places).collect();
        crowd.harm(&python, one, "scribble", &words);
        crowd.harm(&python, one, "shorter", &["2"]);
        eventually("that is noticed", || {
            crowd.said(Side::Server).contains("is not served any more: the")
        });
        for disturbed in disturbed {
            println!("the user's own: {}", disturbed.join().unwrap().out.trim());
        }
        let got = undisturbed.join().unwrap();
        assert!(got.ok() && got.out.contains("resets 0"), "{got:?}");
    });
    // Its door has to close what it is given, for an hour: no other door has.
    crowd.harm(&python, one, "lingers", &[]);
    crowd.harm(&python, other, "no socket", &[]);
    // It is the same engine, and serves who comes.
    let _server = crowd.server(&python, 0, 7322);
    crowd.must_carry(&python, other, 7322);
    assert_eq!(crowd.status(Side::Server)["pid"], engine);
}
