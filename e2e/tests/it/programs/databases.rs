//! redis, memcached, PostgreSQL.

use std::mem::offset_of;

use e2e::calls;
use sys::abi::Half;

use super::killed::{Scene, Sides, in_each_way, in_one_way};
use super::*;

mod killed;
mod restarted;

fn redis(scene: &Scene<'_>, program: &Path) -> Guest {
    let mut command = scene.server(program);
    command.args(["--port", &scene.port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"]);
    command.arg("--dir").arg(scene.place.path());
    serve(&mut command, scene.place.path(), scene.port)
}

/// A redis at the client's end, with a place and a port of its own: it makes the connection to its master.
fn replica(scene: &Scene<'_>, program: &Path, (place, port): (&Place, u16)) -> Guest {
    let mut command = scene.client(program);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--enable-debug-command", "yes", "--dir"]).arg(place.path());
    command.args(["--replicaof", "127.0.0.1", &scene.port.to_string()]);
    serve(&mut command, place.path(), port)
}

fn redis_load(scene: &Scene<'_>, program: &Path, words: &[&str]) -> Command {
    let mut command = scene.client(program);
    command.args(["-p", &scene.port.to_string(), "-q"]).args(words);
    command
}

/// What the client's end hears from its server.
#[track_caller]
fn cli(scene: &Scene<'_>, words: &[&str]) -> String {
    let program = installed("redis-cli").expect("comes with redis-benchmark");
    let mut command = scene.client(program);
    scene.must(command.args(["-p", &scene.port.to_string()]).args(words)).trim().to_owned()
}

/// What a client that knows nothing of Shunt hears.
#[track_caller]
fn ask(scene: &Scene<'_>, port: u16, words: &[&str]) -> String {
    let mut command = command("redis-cli", Under::Tcp);
    scene.must(command.args(["-p", &port.to_string()]).args(words)).trim().to_owned()
}

/// Fewer where all goes by TCP.
fn requests(scene: &Scene<'_>) -> String {
    if e2e::quick() || !scene.sides.both() { "20000" } else { "100000" }.to_owned()
}

#[test]
fn redis_with_and_without_pipelining() {
    let (server, bench) = (need!("redis-server"), need!("redis-benchmark"));
    in_each_way("redis", |scene| {
        let _server = redis(scene, &server);
        let (one, n) = (if scene.sides.both() { "20000" } else { "5000" }, requests(scene));
        for words in [
            &["-c", "1", "-n", one, "incr", "one"][..],
            &["-c", "50", "-n", &n, "incr", "fifty"],
            &["-c", "50", "-P", "16", "-n", &n, "incr", "deep"],
            &["-c", "200", "--threads", "2", "-n", &n, "incr", "threads"],
            &["-c", "20", "-d", "20000", "-n", "400", "-t", "set,get,lrange_100"],
        ] {
            scene.must(&mut redis_load(scene, &bench, words));
        }
        // Each request was done exactly once.
        assert_eq!(cli(scene, &["get", "one"]), one, "{:?}", scene.sides);
        for key in ["fifty", "deep", "threads"] {
            assert_eq!(cli(scene, &["get", key]), n, "{key}, {:?}", scene.sides);
        }
    });
}

/// How often a process yields its CPU meanwhile, as strace sees it; `None`: strace may not look, which was said.
fn yields(pid: i32, place: &Place, meanwhile: impl FnOnce()) -> Option<usize> {
    if installed("strace").is_none() {
        skipped("there is no strace");
        return None;
    }
    let log = place.path().join("strace");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", "trace=sched_yield", "-p", &pid.to_string(), "-o"]);
    let mut strace = Guest::start(command.arg(&log).stderr(Stdio::null()));
    let is_traced = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
    };
    let deadline = Instant::now() + PATIENCE;
    while !fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().all(is_traced) {
        if strace.ended().is_some() || Instant::now() > deadline {
            skipped("strace may not look at the server");
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
    meanwhile();
    Some(fs::read_to_string(&log).unwrap().lines().filter(|line| line.contains("yield")).count())
}

/// On one CPU, a server of connections that carry one request each waits for them in the kernel: nearly all that it waits
/// for comes from there. It took more than a yield for each.
#[test]
fn redis_yields_to_no_short_connections_on_its_cpu() {
    let (server, bench) = (need!("redis-server"), need!("redis-benchmark"));
    calls::cpus::pin(calls::cpus::allowed()[0]).unwrap();
    in_one_way("short", (0, Sides::BOTH), |scene| {
        let redis = redis(scene, &server);
        let short = |n| {
            let words = ["-k", "0", "-c", "1", "-n", n, "incr", "short"];
            scene.must(&mut redis_load(scene, &bench, &words));
        };
        short("50");
        let yields = yields(redis.pid(), scene.place, || short("1000"));
        assert_eq!(cli(scene, &["get", "short"]), if yields.is_some() { "1050" } else { "50" });
        let attached = scene.dir.attached_by_program("redis-server");
        assert!(attached >= 50, "{}", scene.dir.summary());
        // Until enough of them have gone to know; the benchmark's own first connection carries more than one request.
        assert!(yields.is_none_or(|n| n < 250), "{yields:?} yields");
    });
}

#[test]
fn redis_saves_in_a_fork() {
    let (server, bench) = (need!("redis-server"), need!("redis-benchmark"));
    in_each_way("bgsave", |scene| {
        let _server = redis(scene, &server);
        let fill =
            ["-c", "20", "-P", "8", "-n", "50000", "-r", "1000000", "-d", "500", "-t", "set"];
        scene.must(&mut redis_load(scene, &bench, &fill));
        let n = requests(scene);
        let words = ["-c", "50", "-n", &n, "incr", "during"];
        thread::scope(|scope| {
            let load = scope.spawn(|| scene.must(&mut redis_load(scene, &bench, &words)));
            for _ in 0..3 {
                cli(scene, &["bgsave", "schedule"]);
                thread::sleep(Duration::from_millis(300));
            }
            load.join().unwrap();
        });
        assert_eq!(cli(scene, &["get", "during"]), n, "{:?}", scene.sides);
        let persistence = || cli(scene, &["info", "persistence"]);
        eventually("the save has ended", || !persistence().contains("rdb_bgsave_in_progress:1"));
        let said = persistence();
        assert!(said.contains("rdb_last_bgsave_status:ok"), "{said}");
        assert!(scene.place.path().join("dump.rdb").exists());
    });
}

/// How long a replica may take to have all that its master has: seconds, on a machine that does nothing else.
const CATCH_UP: Duration = Duration::from_secs(150);

/// The replica connects: it is at the client's end.
#[test]
fn redis_replicates() {
    let (server, bench) = (need!("redis-server"), need!("redis-benchmark"));
    in_each_way("replicated", |scene| {
        let _master = redis(scene, &server);
        let own = free_port();
        let place = Place::new(&format!("replica-{own}"));
        let fill = ["-c", "20", "-P", "4", "-n", "50000", "-r", "100000", "-d", "300", "-t", "set"];
        let filled = || drop(scene.must(&mut redis_load(scene, &bench, &fill)));
        let digest = |port| ask(scene, port, &["debug", "digest"]);
        let has_all = |who: &str| {
            until(&format!("{who} has all, {:?}", scene.sides), CATCH_UP, || {
                digest(scene.port) == digest(own)
            });
        };
        filled();
        let first = replica(scene, &server, (&place, own));
        filled();
        has_all("the replica");
        // The replica dies; the master goes on; a new one catches up.
        first.signal(libc::SIGKILL);
        filled();
        assert_eq!(cli(scene, &["ping"]), "PONG");
        drop(first);
        let second = replica(scene, &server, (&place, own));
        has_all("the second replica");
        // The link between the two, which the replica has opened.
        let to_master = || {
            let board = scene.dir.board()?;
            let pid = i64::from(second.pid());
            let slot = board.processes().iter().find(|p| i64::from(p.pid) == pid)?.slot;
            let leads_to = |half: usize| board.word32(half + offset_of!(Half, ports)) >> 16;
            let attached: Vec<u32> = board.halves_of(slot).into_iter().map(leads_to).collect();
            Some(attached.contains(&u32::from(scene.port)))
        };
        if scene.sides.both() && !plain_only() {
            eventually("the replica's link is in shared memory", || to_master() == Some(true));
        }
    });
}

#[test]
fn redis_client_killed() {
    let (server, bench) = (need!("redis-server"), need!("redis-benchmark"));
    in_one_way("clients", (0, Sides::BOTH), |scene| {
        let _server = redis(scene, &server);
        for _ in 0..5 {
            let words = ["-c", "50", "-n", "10000000", "-t", "set"];
            let mut load = redis_load(scene, &bench, &words);
            let mut load = Guest::start(load.stdout(Stdio::null()));
            thread::sleep(Duration::from_millis(250));
            load.kill_all();
            assert_eq!(cli(scene, &["ping"]), "PONG");
        }
        eventually("dead clients are gone", || {
            // One is redis-cli itself.
            let clients = cli(scene, &["info", "clients"]);
            clients.contains("connected_clients:1\r") || clients.contains("connected_clients:1\n")
        });
    });
}

const MEMCACHED_CLIENT: &str = r#"
import socket, sys, threading
port = int(sys.argv[1])
wrong = []
def client(n):
    s = socket.create_connection(("127.0.0.1", port)); f = s.makefile("rb")
    for i in range(150):
        value = (b"%d-%d " % (n, i)) * (1 + i * 7 % 400)
        s.sendall(b"set k%d-%d 0 0 %d\r\n%s\r\n" % (n, i % 20, len(value), value))
        if f.readline() != b"STORED\r\n": wrong.append(("set", n, i)); return
        s.sendall(b"get k%d-%d\r\n" % (n, i % 20))
        head = f.readline()
        body = f.read(len(value) + 2); end = f.readline()
        if body != value + b"\r\n" or end != b"END\r\n": wrong.append((n, i, head)); return
threads = [threading.Thread(target=client, args=(n,)) for n in range(24)]
[t.start() for t in threads]; [t.join() for t in threads]
print("wrong:", wrong); sys.exit(bool(wrong))
"#;

#[test]
fn memcached_with_threads() {
    let (memcached, python) = (need!("memcached"), need!("python3"));
    in_each_way("memcached", |scene| {
        let port = scene.port.to_string();
        let mut server = scene.server(&memcached);
        server.args(["-u", "root", "-l", "127.0.0.1", "-t", "2", "-p", &port]);
        let _server = serve(&mut server, scene.place.path(), scene.port);
        let script = scene.place.file("client.py", MEMCACHED_CLIENT);
        for _ in 0..2 {
            scene.must(scene.client(&python).arg(&script).arg(&port));
        }
        // Beside them one that has nothing to do with Shunt.
        let mut plain = command(&python, Under::Tcp);
        assert_ok("plain client", &outcome(plain.arg(&script).arg(&port), LIMIT), scene.dir);
    });
}

/// PostgreSQL refuses to be root: everything of it runs as its own user, with a board of that user.
struct Postgres {
    /// Held for its life.
    server: Option<Guest>,
    /// Whether the server is under Shunt.
    under: bool,
    port: String,
    place: Place,
    dir: BoardDir,
    bin: PathBuf,
}

impl Postgres {
    /// A command as the user, without the library if `under` is `false`.
    fn command(&self, program: &str, under: bool) -> Command {
        let mut as_user = command("runuser", Under::Tcp);
        as_user.args(["-u", "postgres", "--", "env"]).current_dir(self.place.path());
        if under && !plain_only() {
            as_user.arg(format!("LD_PRELOAD={}", self.library().display()));
            as_user.arg(format!("SHUNT_DIR={}", self.dir.path().display()));
        }
        as_user.arg(self.bin.join(program));
        as_user
    }

    /// A copy of the library that this user may read.
    fn library(&self) -> PathBuf {
        self.place.path().join("libshunt_preload.so")
    }

    #[track_caller]
    fn must(&self, program: &str, under: bool, words: &[&str]) -> String {
        let got = outcome(self.command(program, under).args(words), LIMIT);
        assert_ok(&format!("{program} {words:?}"), &got, &self.dir);
        got.out.trim().to_owned()
    }

    fn query(&self, text: &str) -> String {
        let port = self.port.as_str();
        self.must("psql", true, &["-h", "127.0.0.1", "-p", port, "-At", "-c", text, "postgres"])
    }

    /// Under Shunt. `None` where it cannot run, with the reason printed.
    fn start(name: &str) -> Option<Self> {
        Self::start_under(name, true)
    }

    /// [`Self::start`], under Shunt or not.
    fn start_under(name: &str, under: bool) -> Option<Self> {
        let Some(postgres) = installed("postgres") else {
            skipped("postgres is not installed");
            return None;
        };
        if calls::geteuid() != 0 || installed("runuser").is_none() {
            skipped("PostgreSQL runs as its own user here: needs root and runuser");
            return None;
        }
        let (place, dir, port) = (Place::new(name), BoardDir::new(), free_port());
        // The path may be a link beside which the other programs are not.
        let bin = fs::canonicalize(postgres).unwrap().parent().unwrap().to_owned();
        let mut this = Self { server: None, under, port: port.to_string(), place, dir, bin };
        fs::copy(e2e::run::library(), this.library()).unwrap();
        for path in [this.place.path(), this.dir.path()] {
            let got = outcome(Command::new("chown").args(["-R", "postgres"]).arg(path), LIMIT);
            assert_ok("chown", &got, &this.dir);
        }
        let data = this.place.path().join("data");
        let data = data.to_str().unwrap();
        this.must("initdb", false, &["-D", data, "-A", "trust", "--no-sync"]);
        let mut server = this.command("postgres", this.under);
        server.args(["-D", data, "-h", "127.0.0.1", "-p", &this.port, "-k", ""]);
        server.args(["-c", "fsync=off", "-c", "max_connections=64"]);
        this.server = Some(serve(&mut server, this.place.path(), port));
        this.await_start();
        Some(this)
    }

    /// It accepts connections before it answers them.
    #[track_caller]
    fn await_start(&self) {
        let words = ["-h", "127.0.0.1", "-p", &self.port, "-At", "-c", "select 1", "postgres"];
        let begin = Instant::now();
        loop {
            let got = outcome(self.command("psql", false).args(words), LIMIT);
            if got.ok() {
                return;
            }
            assert!(begin.elapsed() < LIMIT, "the database does not start: {}", got.err);
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A process for each connection: the books must balance afterwards.
#[test]
fn postgres_with_pgbench() {
    let Some(pg) = Postgres::start("pgbench") else { return };
    let at = ["-h", "127.0.0.1", "-p", &pg.port];
    let bench = |more: &[&str]| pg.must("pgbench", true, &[&at[..], more, &["postgres"]].concat());
    bench(&["-i", "-s", "1", "-q"]);
    let time = seconds().to_string();
    for words in [&["-c", "1"][..], &["-c", "8", "-j", "2"], &["-S", "-c", "32", "-j", "2"]] {
        // -n: keep the history, which is checked below.
        bench(&[words, &["-n", "-T", &time]].concat());
    }
    bench(&["-C", "-c", "4", "-n", "-T", &time]);
    let sums = pg.query(
        "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from \
         pgbench_history), (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) \
         from pgbench_branches)",
    );
    assert_eq!(sums, "t|t");
    // Large results, in both directions.
    let copied =
        pg.query("select md5(string_agg(md5(i::text), '')) from generate_series(1, 100000) i");
    let rows = pg.query("select md5(i::text) from generate_series(1, 100000) i");
    assert_eq!(rows.lines().count(), 100_000);
    assert_eq!(copied.len(), 32);
    assert_any_attached(&pg.dir);
}

/// One end alone is under Shunt: all is as it is by TCP, and nothing is in shared memory.
#[test]
fn postgres_with_pgbench_at_one_end() {
    for server in [true, false] {
        let Some(pg) = Postgres::start_under("pgbench-one", server) else { return };
        let at = ["-h", "127.0.0.1", "-p", &pg.port];
        let bench =
            |more: &[&str]| pg.must("pgbench", !server, &[&at[..], more, &["postgres"]].concat());
        bench(&["-i", "-s", "1", "-q"]);
        bench(&["-c", "8", "-j", "2", "-n", "-T", "1"]);
        bench(&["-C", "-c", "4", "-n", "-T", "1"]);
        let sums = "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from \
                    pgbench_history)";
        let words = ["-h", "127.0.0.1", "-p", &pg.port, "-At", "-c", sums, "postgres"];
        assert_eq!(pg.must("psql", !server, &words), "t");
        assert_eq!(pg.dir.attached(), 0, "server {server}:\n{}", pg.dir.summary());
    }
}

/// A backend is killed under load: the server restarts its processes and serves again.
#[test]
fn postgres_backend_killed() {
    let Some(pg) = Postgres::start("backend") else { return };
    let at = ["-h", "127.0.0.1", "-p", &pg.port];
    pg.must("pgbench", true, &[&at[..], &["-i", "-s", "1", "-q", "postgres"]].concat());
    let mut load = pg.command("pgbench", true);
    load.args(at).args(["-c", "8", "-j", "2", "-T", "60", "postgres"]);
    let mut load = Guest::start(load.stdout(Stdio::null()).stderr(Stdio::null()));
    thread::sleep(Duration::from_millis(700));
    // All have come by then, mostly, and certainly a little later.
    let mut pid = None;
    eventually("a backend serves the load", || {
        let query = "select pid from pg_stat_activity where application_name = 'pgbench' limit 1";
        pid = pg.query(query).parse().ok();
        pid.is_some()
    });
    calls::kill(pid.unwrap(), libc::SIGKILL).unwrap();
    // Every client of the server is cut off, notices, and ends with an error.
    let ended = load.wait(Duration::from_secs(25)).unwrap();
    assert!(!ended.success(), "pgbench did not notice");
    eventually("the database is back", || {
        let mut psql = pg.command("psql", true);
        outcome(psql.args(at).args(["-At", "-c", "select 1", "postgres"]), LIMIT).ok()
    });
}
