//! Who shares a board though they are not one user in one network namespace: the users of a group, in a directory that root
//! has opened to them, and programs of several namespaces, as containers are, in one that says so.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::installed;
use e2e::run::{BoardDir, Guest, library, outcome, plain_only, skipped};
use local::Reason;
use testkit::hosts::{self, Host, Hosts};

use crate::reasons::assert_counted;
use crate::trust::{A, B, Public, can_be_others, moved};

const LIMIT: Duration = Duration::from_secs(60);
/// A group that no system has, and of which both users are.
const GROUP: u32 = 61_100;
/// Who is not of it.
const C: u32 = 61_003;

/// A directory as root makes it for the users of a group.
fn shared() -> BoardDir {
    let dir = BoardDir::new();
    chown(dir.path(), Some(0), Some(GROUP)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o3770)).unwrap();
    dir
}

/// Says that the board in a directory is for all network namespaces.
fn across(dir: &BoardDir) {
    fs::write(dir.path().join("all-namespaces"), "").unwrap();
}

fn can_make_hosts() -> bool {
    match hosts::possible() {
        Ok(()) => true,
        Err(e) => {
            skipped(&format!("network namespaces cannot be made: {e}"));
            false
        }
    }
}

/// The guest as a user of the group.
fn member(public: &Public, user: u32, dir: &Path, before: &[&str]) -> Command {
    let groups = format!("--groups={GROUP}");
    public.guest_of(user, &groups, Some(dir), before)
}

#[track_caller]
fn assert_met(dir: &BoardDir) {
    assert!(dir.attached() >= 2 || plain_only(), "stayed on TCP:\n{}", dir.summary());
}

/// Whoever of them makes the board, and whatever it keeps from others by its mask, all of them meet on it.
#[test]
fn users_of_a_group() {
    if !can_be_others() {
        return;
    }
    let public = Public::new("group");
    let closed = ["sh", "-c", "umask 077; exec \"$0\" \"$@\""];
    for (server, client) in [(A, B), (B, A), (A, A), (0, B), (A, 0)] {
        for before in [&[][..], &closed] {
            let dir = shared();
            let guest = |user| member(&public, user, dir.path(), before);
            let (client_said, server_said) = moved(guest(server), guest(client));
            let said = format!("{}{server_said}", client_said.err);
            assert_eq!(said, "", "{server} and {client}");
            assert_met(&dir);
            // Nothing is left of how it was made, and nobody else may open it.
            let all: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().collect();
            assert_eq!(all.len(), usize::from(!plain_only()), "{all:?}");
            for file in all {
                let about = file.metadata().unwrap();
                assert_eq!([about.mode() & 0o7777, about.gid()], [0o660, GROUP]);
            }
        }
    }
}

/// They all come at once: one of them makes it, and none is refused.
#[test]
fn users_of_a_group_at_once() {
    if !can_be_others() {
        return;
    }
    let public = Public::new("at-once");
    for _ in 0..10 {
        let dir = shared();
        std::thread::scope(|scope| {
            for (server, client) in [(A, B), (B, A), (A, A), (B, B)] {
                let guest = |user| member(&public, user, dir.path(), &[]);
                let (server, client) = (guest(server), guest(client));
                scope.spawn(move || {
                    let (client, server) = moved(server, client);
                    assert_eq!(format!("{}{server}", client.err), "");
                });
            }
        });
        // Who comes last may have the place of who has gone.
        let processes = dir.board().map(|board| board.processes()).unwrap_or_default();
        let met = processes.iter().all(|process| process.attached > 0) && processes.len() > 1;
        assert!(met || plain_only(), "stayed on TCP:\n{}", dir.summary());
    }
}

/// Who is not of the group stays on TCP and says why, and so does everybody where the directory is one that others can
/// enter, or that root has not made.
#[test]
fn users_who_share_nothing() {
    if !can_be_others() {
        return;
    }
    let public = Public::new("nothing");
    let tcp = |server: Command, client: Command, dir: &BoardDir, words: &str| {
        let (client, server) = moved(server, client);
        let told = [&client.err, &server].map(|said| said.lines().count());
        assert!(client.err.contains(words) || plain_only(), "{}", client.err);
        assert!(told[0] <= 1, "said once: {}", client.err);
        assert_eq!(dir.attached(), 0, "{}", dir.summary());
    };
    let dir = shared();
    let (guest, other) =
        (member(&public, A, dir.path(), &[]), public.guest(C, Some(dir.path()), &[]));
    tcp(guest, other, &dir, "open the board: Permission denied");
    for (owner, mode) in
        [(0, 0o2777), (0, 0o2775), (0, 0o2771), (0, 0o2750), (A, 0o2770), (C, 0o770)]
    {
        let dir = shared();
        chown(dir.path(), Some(owner), Some(GROUP)).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        let guest = |user| member(&public, user, dir.path(), &[]);
        tcp(guest(A), guest(B), &dir, "belongs to another user or is open to others");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{owner} {mode:o}");
    }
}

/// Words before a guest's on a host: it listens at this address, and connects to that one.
fn on(host: &Host, here: IpAddr, there: IpAddr) -> Vec<String> {
    let mut words: Vec<String> =
        host.prefix().into_iter().map(|word| word.into_string().unwrap()).collect();
    words.extend(["env".into(), format!("E2E_HOST={here}"), format!("E2E_THERE={there}")]);
    words
}

/// The server on one host and the client on the other, as these users, and the other way round: the boards. `is_across`: the directory says that its board is for all namespaces.
fn meet(
    hosts: &Hosts,
    public: &Public,
    is_across: bool,
    v6: bool,
    users: [u32; 2],
) -> [BoardDir; 2] {
    let address = |host: &Host| -> IpAddr {
        if v6 { host.address_v6().into() } else { host.address().into() }
    };
    [(&hosts.server, &hosts.client), (&hosts.client, &hosts.server)].map(|(near, far)| {
        let dir = shared();
        if is_across {
            across(&dir);
        }
        let guest = |host, other, user| {
            let before = on(host, address(host), address(other));
            let before: Vec<&str> = before.iter().map(String::as_str).collect();
            member(public, user, dir.path(), &before)
        };
        let _ = moved(guest(near, far, users[0]), guest(far, near, users[1]));
        dir
    })
}

/// Two containers on one network, as one user or as two, by IPv4 and IPv6.
#[test]
fn network_namespaces() {
    if !can_be_others() || !can_make_hosts() {
        return;
    }
    let (public, hosts) = (Public::new("containers"), Hosts::new().unwrap());
    for (v6, users) in [(false, [A, A]), (false, [A, B]), (true, [0, B])] {
        let met = meet(&hosts, &public, true, v6, users).map(|dir| dir.attached());
        assert_eq!(met, if plain_only() { [0; 2] } else { [2; 2] }, "{users:?}");
        // Without that word each namespace has its own board.
        let met = meet(&hosts, &public, false, v6, users).map(|dir| dir.attached());
        assert_eq!(met, [0; 2], "{users:?}");
    }
}

/// Without time stamps the kernel does not say that it is the same connection.
#[test]
fn network_namespaces_without_time_stamps() {
    if !can_be_others() || !can_make_hosts() {
        return;
    }
    let (public, hosts) = (Public::new("stamps"), Hosts::new().unwrap());
    for host in [&hosts.server, &hosts.client] {
        let words = ["-c", "echo 0 > /proc/sys/net/ipv4/tcp_timestamps"];
        assert!(host.command("sh").args(words).status().unwrap().success());
    }
    for dir in meet(&hosts, &public, true, false, [A, B]) {
        assert_eq!(dir.attached(), 0, "{}", dir.summary());
        assert_counted(&dir, Reason::NoSyn, "without time stamps");
    }
}

/// An echo of its own name; and who asks from one port, says so, waits, and asks again.
const NAMES: &str = r#"
import socket, sys, time
what, here, there, port, name, first, hold, go = sys.argv[1:9]
if what == "server":
    listener = socket.create_server((here, int(port)))
    print("ready", flush=True)
    while True:
        peer, _ = listener.accept()
        peer.settimeout(20)
        try:
            while (got := peer.recv(100)):
                peer.sendall(f"{name}{len(got)} ".encode())
        except OSError:
            pass
peer = socket.socket()
peer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
peer.bind((here, int((sys.argv + ["5555"])[9])))
while time.time() < float(go):
    pass
peer.connect((there, int(port)))
peer.settimeout(20)
def ask(n):
    peer.sendall(b"x" * n)
    got = b""
    while not got.endswith(b" "):
        some = peer.recv(100)
        assert some, "the end"
        got += some
    assert got == f"{name}{n} ".encode(), (got, name, n)
for n in range(int(first)):
    ask(n + 1)
print("connected", flush=True)
time.sleep(float(hold))
for n in range(1, 40):
    ask(n)
print("right", flush=True)
"#;

/// A program of [`NAMES`] on a host; under Shunt with this board.
fn named(host: &Host, under: Option<&BoardDir>, words: &[&str]) -> Guest {
    let mut command = host.command("env");
    command.env_remove("LD_PRELOAD");
    if let Some(dir) = under.filter(|_| !plain_only()) {
        command.arg(format!("LD_PRELOAD={}", library().display()));
        command.arg(format!("SHUNT_DIR={}", dir.path().display()));
    }
    command.args(["python3", "-c", NAMES]).args(words);
    Guest::start(command.stdout(Stdio::piped()))
}

fn says(lines: &mut impl BufRead, want: &str) {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), want);
}

/// One end of each is under Shunt, so that an offer of the one connection fits what the other has accepted.
#[test]
fn the_same_ends_in_other_networks() {
    same_ends(&[(false, false); 4]);
}

#[test]
fn the_same_ends_in_other_networks_at_once() {
    same_ends(&[(false, true); 4]);
}

/// They find each other.
#[test]
fn the_same_ends_in_other_networks_all_under_shunt() {
    same_ends(&[(true, false), (true, true), (true, false), (true, true)]);
}

/// Two networks that know nothing of each other have the same addresses, and a connection with the same ends at the same
/// time. In each round, `is_all`: both ends of both are under Shunt, on one board, else one of each; `is_together`: the
/// connections begin at the same time, else at different ones.
fn same_ends(rounds: &[(bool, bool)]) {
    if !can_be_others() || !can_make_hosts() || installed("python3").is_none() {
        return;
    }
    let networks = [Hosts::new().unwrap(), Hosts::new().unwrap()];
    let [at, from] =
        [networks[0].server.address(), networks[0].client.address()].map(|a| a.to_string());
    for (round, &(is_all, is_together)) in rounds.iter().enumerate() {
        let dir = BoardDir::new();
        across(&dir);
        let port = (7100 + round).to_string();
        // The second server alone is under Shunt, and the first client.
        let other = is_all.then_some(&dir);
        let unders = [[other, Some(&dir)], [Some(&dir), other]];
        let mut guests = Vec::new();
        for (n, ([server, _], hosts)) in unders.iter().zip(&networks).enumerate() {
            let name = format!("s{n}");
            let words = ["server", &at, &at, &port, &name, "0", "0", "0"];
            let mut guest = named(&hosts.server, *server, &words);
            says(&mut BufReader::new(guest.take_stdout().unwrap()), "ready");
            guests.push(guest);
        }
        let soon = std::time::UNIX_EPOCH.elapsed().unwrap() + Duration::from_millis(300);
        let go = if is_together { soon.as_secs_f64().to_string() } else { "0".into() };
        let mut clients = Vec::new();
        for (n, ([_, client], hosts)) in unders.iter().zip(&networks).enumerate() {
            // The first has moved data, so that its offer may be taken, when the second asks.
            let (name, first) = (format!("s{n}"), ["1", "0"][n]);
            let hold = ["0.5", if is_together { "0.2" } else { "0" }][n];
            let words = ["client", &from, &at, &port, &name, first, hold, &go];
            let mut guest = named(&hosts.client, *client, &words);
            let mut lines = BufReader::new(guest.take_stdout().unwrap());
            if !is_together {
                says(&mut lines, "connected");
            }
            clients.push((guest, lines));
        }
        for (mut guest, mut lines) in clients {
            if is_together {
                says(&mut lines, "connected");
            }
            says(&mut lines, "right");
            assert!(guest.wait(LIMIT).unwrap().success());
        }
        let met = if is_all && !plain_only() { 4 } else { 0 };
        assert_eq!(dir.attached(), met, "{round}: {}", dir.summary());
        guests.iter_mut().for_each(Guest::kill_all);
    }
}

/// What a host translates: services of addresses of their own, as Kubernetes has them; ports of its own and of its loopback, as
/// containers publish them; and what the server sees of clients whose address is this host's alone.
const TRANSLATE: &str = r#"
ip route add 198.18.99.0/24 via $0
ip address add 10.77.77.77/32 dev lo
sysctl -q -w net.ipv4.conf.all.route_localnet=1
nft -f - <<END
table ip t {
    chain o {
        type nat hook output priority -100;
        ip daddr 198.18.99.9 tcp dport 80 dnat to $0:7301
        ip daddr 198.18.99.9 tcp dport 81 dnat to $0:7302
        ip daddr 198.18.99.10 tcp dport 80 dnat to $0:7302
        ip daddr { 127.0.0.1, 10.77.77.77, $1 } tcp dport 8088 dnat to $0:7301
    }
    chain p {
        type nat hook postrouting priority 100;
        ip saddr { 127.0.0.1, 10.77.77.77 } oifname != "lo" masquerade
    }
}
END
"#;

/// Two hosts, of which the client's translates addresses, and does that besides; and its own address. `None`: that cannot be, and
/// was said.
fn translating(besides: &str) -> Option<(Hosts, String)> {
    if !can_be_others() || !can_make_hosts() || installed("python3").is_none() {
        return None;
    }
    if installed("nft").is_none() {
        skipped("addresses are translated by nft, which is not here");
        return None;
    }
    let hosts = Hosts::new().unwrap();
    let [at, from] = [&hosts.server, &hosts.client].map(|host| host.address().to_string());
    let all = format!("{TRANSLATE}\n{besides}");
    let done = hosts.client.command("sh").args(["-ec", &all, &at, &from]).status().unwrap();
    if !done.success() {
        skipped("this kernel translates no addresses for us");
        return None;
    }
    Some((hosts, from))
}

/// A client that goes by [translated](TRANSLATE) addresses.
fn translated(host: &Host, dir: &BoardDir, networks: &str, words: &[&str]) -> Command {
    let mut command = host.command("env");
    command.env_remove("LD_PRELOAD").env("SHUNT_ROUTED", networks);
    if !plain_only() {
        command.arg(format!("LD_PRELOAD={}", library().display()));
        command.arg(format!("SHUNT_DIR={}", dir.path().display()));
    }
    command.args(["python3", "-c"]).args(words);
    command
}

/// The server sees its own address and port where the client sees the service's, and perhaps another client.
#[test]
fn translated_addresses() {
    translated_to(|from| format!("198.18.99.0/24,127.0.0.0/8,10.77.77.77,{from}"), true);
}

#[test]
fn translated_addresses_of_which_nothing_was_said() {
    translated_to(|_| String::new(), false);
}

#[test]
fn translated_addresses_where_others_were_named() {
    translated_to(|_| "10.0.0.0/32".into(), false);
}

/// Clients by each kind of translated address, to which `networks` lead as they are told; whether they meet then.
fn translated_to(networks: impl FnOnce(&str) -> String, meets: bool) {
    let Some((hosts, from)) = translating("") else { return };
    let networks = networks(&from);
    let ends = [
        (from.as_str(), "198.18.99.9", "80", "s0"),
        (&from, "198.18.99.10", "80", "s1"),
        ("10.77.77.77", "198.18.99.9", "80", "s0"),
        (&from, &from, "8088", "s0"),
        ("127.0.0.1", "127.0.0.1", "8088", "s0"),
        ("10.77.77.77", "10.77.77.77", "8088", "s0"),
    ];
    for (from, address, port, name) in ends {
        let (dir, mut servers) = services(&hosts);
        // Any port: translation changes one that it has seen of late.
        let words = [NAMES, "client", from, address, port, name, "0", "0", "0", "0"];
        let said = outcome(&mut translated(&hosts.client, &dir, &networks, &words), LIMIT);
        assert_eq!(said.out, "connected\nright\n", "{}", said.err);
        let met = if meets && !plain_only() { 2 } else { 0 };
        assert_eq!(dir.attached(), met, "{networks}, {address}: {}", dir.summary());
        servers.iter_mut().for_each(Guest::kill_all);
    }
}

/// Where the kernel adds no secret to time stamps, whatever began at the same moment has the same one.
#[test]
fn translated_addresses_without_secrets() {
    const OPEN: &str = "echo 2 >/proc/sys/net/ipv4/tcp_timestamps";
    let Some((hosts, from)) = translating(OPEN) else { return };
    let (dir, mut servers) = services(&hosts);
    let words = [NAMES, "client", &from, "198.18.99.9", "80", "s0", "0", "0", "0", "0"];
    let said = outcome(&mut translated(&hosts.client, &dir, "198.18.99.0/24", &words), LIMIT);
    assert_eq!(said.out, "connected\nright\n", "{}", said.err);
    assert_eq!(dir.attached(), 0, "{}", dir.summary());
    assert_counted(&dir, Reason::NoSyn, "without secrets");
    servers.iter_mut().for_each(Guest::kill_all);
}

/// Two servers, and their board.
fn services(hosts: &Hosts) -> (BoardDir, [Guest; 2]) {
    let (dir, at) = (BoardDir::new(), hosts.server.address().to_string());
    across(&dir);
    let servers = [("7301", "s0"), ("7302", "s1")].map(|(port, name)| {
        let words = ["server", &at, &at, port, name, "0", "0", "0"];
        let mut guest = named(&hosts.server, Some(&dir), &words);
        says(&mut BufReader::new(guest.take_stdout().unwrap()), "ready");
        guest
    });
    (dir, servers)
}

/// From one port to two services at once: their addresses tell them apart, but two ports of one address do not.
#[test]
fn translated_addresses_from_one_port() {
    let Some((hosts, from)) = translating("") else { return };
    for (second, port, met) in [("198.18.99.10", "80", Some(4)), ("198.18.99.9", "81", None)] {
        let (dir, mut servers) = services(&hosts);
        for _ in 0..5 {
            let pair = TWO.replace("HERE", &from).replace("SECOND", second).replace("PORT", port);
            let mut client = translated(&hosts.client, &dir, "198.18.99.0/24", &[&pair]);
            let said = outcome(&mut client, LIMIT);
            assert_eq!(said.out, "right\n", "{}", said.err);
        }
        // Those that begin milliseconds apart are told apart all the same.
        if let Some(met) = met.filter(|_| !plain_only()) {
            assert!(dir.attached() >= met, "{second}: {}", dir.summary());
        }
        servers.iter_mut().for_each(Guest::kill_all);
    }
}

/// Two connections from one port, to two services, both of which are held before either moves anything.
const TWO: &str = r#"
import socket
class Peer(socket.socket):
    to = None
peers = []
for to in [("198.18.99.9", 80), ("SECOND", PORT)]:
    peer = Peer()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    peer.bind(("HERE", 0 if not peers else peers[0].getsockname()[1]))
    peers.append(peer)
    peer.to = to
for peer in peers:
    peer.connect(peer.to)
    peer.settimeout(20)
for n in range(1, 20):
    for name, peer in zip(["s0", "s1"], peers):
        peer.sendall(b"x" * n)
        want, got = f"{name}{n} ".encode(), b""
        while len(got) < len(want):
            some = peer.recv(100)
            assert some, "the end"
            got += some
        assert got == want, (got, want)
print("right")
"#;

/// A server that hands its connection to another program, in two ways, and a client that sends and is busy then.
const HANDS: &str = r#"
import os, socket, subprocess, sys, time
what, port = sys.argv[1:3]
if what != "client":
    listener = socket.create_server(("127.0.0.1", int(port)))
    print("ready", flush=True)
    peer, _ = listener.accept()
    for n in range(3):
        peer.sendall(peer.recv(100))
    time.sleep(0.3)
    if what == "input":
        print(subprocess.run(["wc", "-c"], stdin=peer, capture_output=True).stdout.decode().strip())
        sys.exit()
    os.dup2(peer.fileno(), 9, inheritable=True)
    peer.close()
    os.execvp("sh", ["sh", "-c", "wc -c <&9"])
peer = socket.create_connection(("127.0.0.1", int(port)))
for n in range(3):
    peer.sendall(b"x")
    assert peer.recv(100) == b"x"
peer.sendall(b"y" * 3000)
peer.shutdown(socket.SHUT_WR)
# Without a call that the library sees.
os.system("exec env -u LD_PRELOAD sleep 1")
assert peer.recv(100) == b""
print("right", flush=True)
"#;

/// The kernel lets nobody do the part of another user's process when a connection goes back to TCP: that one is waited for.
#[test]
fn handed_to_a_program_while_another_user_is_busy() {
    if !can_be_others() || installed("python3").is_none() {
        return;
    }
    let public = Public::new("handed");
    for (what, port) in [("input", "7401"), ("exec", "7402")] {
        let dir = shared();
        let guest = |user, words: &[&str]| {
            let mut command =
                public.program_of(user, &format!("--groups={GROUP}"), Some(dir.path()), &[]);
            command.args(["python3", "-c", HANDS]).args(words).stdout(Stdio::piped());
            Guest::start(&mut command)
        };
        let mut server = guest(A, &[what, port]);
        let mut lines = BufReader::new(server.take_stdout().unwrap());
        says(&mut lines, "ready");
        let mut client = guest(B, &["client", port]);
        let mut client_lines = BufReader::new(client.take_stdout().unwrap());
        says(&mut lines, "3000");
        says(&mut client_lines, "right");
        assert!(client.wait(LIMIT).unwrap().success());
        assert!(dir.attached() >= 1 || plain_only(), "{what}: {}", dir.summary());
    }
}

/// The loopback address is each namespace's own, on a board that both have: the same ends, at the same time, and both
/// pairs meet.
#[test]
fn the_loopback_of_each_namespace() {
    if !can_be_others() || !can_make_hosts() || installed("python3").is_none() {
        return;
    }
    let dir = BoardDir::new();
    across(&dir);
    let hosts = Hosts::new().unwrap();
    let (both, here) = ([&hosts.server, &hosts.client], "127.0.0.1");
    let mut guests = Vec::new();
    for (n, host) in both.iter().enumerate() {
        let mut guest = named(
            host,
            Some(&dir),
            &["server", here, here, "7200", &format!("s{n}"), "0", "0", "0"],
        );
        says(&mut BufReader::new(guest.take_stdout().unwrap()), "ready");
        guests.push(guest);
    }
    let clients = [0, 1].map(|n| {
        // Who has offered first asks last.
        let words = ["client", here, here, "7200", &format!("s{n}"), "0", ["0.6", "0.1"][n], "0"];
        let mut guest = named(both[n], Some(&dir), &words);
        let mut lines = BufReader::new(guest.take_stdout().unwrap());
        says(&mut lines, "connected");
        (guest, lines)
    });
    for (mut guest, mut lines) in clients {
        says(&mut lines, "right");
        assert!(guest.wait(LIMIT).unwrap().success());
    }
    assert!(dir.attached() >= 4 || plain_only(), "stayed on TCP:\n{}", dir.summary());
    guests.iter_mut().for_each(Guest::kill_all);
}
