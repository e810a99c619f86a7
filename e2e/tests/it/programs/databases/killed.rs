//! redis, memcached and PostgreSQL, and their clients, killed.

use super::*;
use crate::programs::killed::{Bereft, Play, killed, killed_on_each_side, ways};

#[test]
fn redis_or_its_load() {
    let (server, bench) = (need!("redis-server"), need!("redis-benchmark"));
    killed_on_each_side(
        "redis",
        &Play {
            server: |scene: &Scene<'_>| redis(scene, &server),
            load: |scene: &Scene<'_>| {
                let words = ["-c", "20", "-P", "4", "-n", "1000000000", "-t", "set"];
                redis_load(scene, &bench, &words)
            },
            probe: |scene: &Scene<'_>| {
                let before: u64 =
                    ask(scene, scene.port, &["incrby", "n", "0"]).parse().unwrap_or(0);
                for depth in ["1", "8"] {
                    let words = ["-c", "5", "-P", depth, "-n", "4000", "incr", "n"];
                    scene.must(&mut redis_load(scene, &bench, &words));
                }
                // Each was done exactly once.
                let now: u64 = ask(scene, scene.port, &["get", "n"]).parse().unwrap();
                assert_eq!(now, before + 8000, "{:?}", scene.sides);
            },
            bereft: Bereft::Unfit,
        },
    );
}

/// Pipelines of sets on eight connections, without end.
const REDIS_ENDLESS: &str = r#"
import socket, sys, threading
wrong = []
def client(n):
    try:
        s = socket.create_connection(("127.0.0.1", int(sys.argv[1]))); i = 0
        while True:
            i += 1
            key, value = b"key:%d" % (i % 500), b"%d-%d " % (n, i) * 20
            text = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value)
            s.sendall(text * 5); got = b""
            while len(got) < 25:
                part = s.recv(4096)
                if not part: raise EOFError("end")
                got += part
            assert got == b"+OK\r\n" * 5, got
    except Exception as e: wrong.append(repr(e))
threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(wrong); sys.exit(1)
"#;

/// A master is killed under load and comes again: the replica, which is its client here, finds it and has
/// what it has.
#[test]
fn redis_master() {
    let (server, bench) = (need!("redis-server"), need!("redis-benchmark"));
    let python = need!("python3");
    for (n, sides) in ways() {
        let (dir, port) = (BoardDir::new(), free_port());
        let (master_place, place) =
            (Place::new(&format!("master-{n}")), Place::new(&format!("follows-{n}")));
        let scene = Scene { sides, place: &master_place, dir: &dir, port: free_port() };
        let mut master = redis(&scene, &server);
        let mut replica = replica(&scene, &server, (&place, port));
        let link = || {
            let said = ask(&scene, port, &["info", "replication"]);
            if said.contains("master_link_status:up") { "up" } else { "down" }
        };
        eventually(&format!("{sides:?}: the replica has found its master"), || link() == "up");
        let mut load = scene.client(&python);
        load.arg(place.file("endless.py", REDIS_ENDLESS)).arg(scene.port.to_string());
        let mut load = scene.under_shared_load(&mut load);
        scene.kill(&mut master);
        let ended = load.wait(LIMIT).unwrap_or_else(|why| panic!("{sides:?}: {why}"));
        assert!(!ended.success(), "{sides:?}: the load did not notice");
        eventually(&format!("{sides:?}: the replica has heard of it"), || link() == "down");
        master = redis(&scene, &server);
        let fill = ["-c", "10", "-n", "2000", "-r", "1000", "-t", "set"];
        scene.must(&mut redis_load(&scene, &bench, &fill));
        eventually(&format!("{sides:?}: the replica has what its master has"), || {
            let digest = |port| ask(&scene, port, &["debug", "digest"]);
            link() == "up" && digest(scene.port) == digest(port)
        });
        assert!(master.ended().is_none() && replica.ended().is_none());
    }
}

const ENDLESS: &str = r#"
import socket, sys, threading, os
port, rounds, wrong = int(sys.argv[1]), int(sys.argv[2]), []
def client(n):
    try:
        s = socket.create_connection(("127.0.0.1", port)); f = s.makefile("rb")
        i = 0
        while i != rounds:
            i += 1
            value = (b"%d-%d " % (n, i)) * (1 + i * 7 % 400)
            s.sendall(b"set k%d 0 0 %d\r\n%s\r\n" % (n, len(value), value))
            assert f.readline() == b"STORED\r\n", "set"
            s.sendall(b"get k%d\r\n" % n)
            f.readline()
            assert f.read(len(value) + 2) == value + b"\r\n" and f.readline() == b"END\r\n", "get"
    except Exception as e: wrong.append(repr(e))
threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print("wrong:", wrong); sys.exit(bool(wrong))
"#;

#[test]
fn memcached_or_its_client() {
    let (memcached, python) = (need!("memcached"), need!("python3"));
    let client = |scene: &Scene<'_>, rounds: &str| {
        let script = scene.place.file("endless.py", ENDLESS);
        let mut command = scene.client(&python);
        command.arg(script).arg(scene.port.to_string()).arg(rounds);
        command
    };
    killed_on_each_side(
        "memcached",
        &Play {
            server: |scene: &Scene<'_>| {
                let mut server = scene.server(&memcached);
                let port = scene.port.to_string();
                server.args(["-u", "root", "-l", "127.0.0.1", "-t", "2", "-p", &port]);
                serve(&mut server, scene.place.path(), scene.port)
            },
            load: |scene: &Scene<'_>| client(scene, "-1"),
            probe: |scene: &Scene<'_>| drop(scene.must(&mut client(scene, "40"))),
            bereft: Bereft::Ends,
        },
    );
}

impl Postgres {
    /// Starts the server over its data, which another may have left in a hurry.
    fn again(&self, under: bool) -> Guest {
        let begin = Instant::now();
        loop {
            let mut command = self.command("postgres", under);
            let data = self.place.path().join("data");
            command.arg("-D").arg(data).args(["-h", "127.0.0.1", "-p", &self.port, "-k", ""]);
            command.args(["-c", "fsync=off", "-c", "max_connections=64"]);
            let log = self.place.path().join("log");
            let log = fs::File::options().create(true).append(true).open(log).unwrap();
            command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
            let mut server = Guest::start(&mut command);
            // While processes of the last one are about, a new one ends at once.
            let words = ["-h", "127.0.0.1", "-p", &self.port, "-At", "-c", "select 1", "postgres"];
            while server.ended().is_none() {
                let answers = outcome(self.command("psql", false).args(words), LIMIT).ok();
                if answers && server.ended().is_none() {
                    return server;
                }
                thread::sleep(Duration::from_millis(20));
            }
            assert!(begin.elapsed() < LIMIT, "the database does not start again");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn bench(&self, under: bool, words: &[&str]) -> Command {
        let mut command = self.command("pgbench", under);
        command.args(["-h", "127.0.0.1", "-p", &self.port]).args(words).arg("postgres");
        command
    }
}

/// Whoever has lost its postmaster ends, with its clients; what was committed is there afterwards. Then it
/// reads its settings again under load.
#[test]
fn postgres_or_pgbench() {
    let Some(mut pg) = Postgres::start("killed") else { return };
    pg.must(
        "pgbench",
        true,
        &["-h", "127.0.0.1", "-p", &pg.port, "-i", "-s", "1", "-q", "postgres"],
    );
    pg.server = None;
    for (_, sides) in ways() {
        let port = pg.port.parse().unwrap();
        let scene = Scene { sides, place: &pg.place, dir: &pg.dir, port };
        let attached = pg.dir.attached();
        let probe = |scene: &Scene<'_>| {
            let words = ["-c", "4", "-j", "2", "-n", "-t", "25"];
            scene.must(&mut pg.bench(scene.sides.client, &words));
            assert_eq!(pg.books(), "t|t", "{:?}", scene.sides);
        };
        let load = ["-c", "8", "-j", "2", "-n", "-T", "600"];
        let server = killed(
            &scene,
            &Play {
                server: |scene: &Scene<'_>| pg.again(scene.sides.server),
                load: |scene: &Scene<'_>| pg.bench(scene.sides.client, &load),
                probe,
                bereft: Bereft::Ends,
            },
        );
        let mut brief = pg.bench(sides.client, &["-c", "8", "-j", "2", "-n", "-t", "200"]);
        let brief = thread::scope(|scope| {
            let running = scope.spawn(move || outcome(&mut brief, LIMIT));
            while !running.is_finished() {
                server.signal(libc::SIGHUP);
                thread::sleep(Duration::from_millis(50));
            }
            running.join().unwrap()
        });
        assert_ok(&format!("{sides:?}: while it reads its settings"), &brief, &pg.dir);
        assert!(!sides.both() || plain_only() || pg.dir.attached() > attached);
    }
}

impl Postgres {
    /// `t|t` if what the transactions did adds up.
    fn books(&self) -> String {
        let text = "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from \
             pgbench_history), (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) \
             from pgbench_branches)";
        self.must(
            "psql",
            false,
            &["-h", "127.0.0.1", "-p", &self.port, "-At", "-c", text, "postgres"],
        )
    }
}
