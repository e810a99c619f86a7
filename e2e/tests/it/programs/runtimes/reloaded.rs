//! Servers in Python and Node that replace their workers one by one, as gunicorn and pm2 do, while clients go on.
//!
//! Who was being served when the signal came is served to the end, by the old worker; nobody sees an error.

use super::killed::assert_passed_on;
use super::*;
use crate::programs::killed::{Scene, Sides, assert_shared, ways};

/// Three workers. SIGHUP: as many new ones, and the old ones take no more connections and end with their last one.
/// One that dies is replaced.
const PREFORK: &str = r#"
import os, select, signal, socket, sys
listener = socket.socket(); listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1]))); listener.listen(128); listener.setblocking(False)
SIGNALS = {signal.SIGHUP, signal.SIGCHLD}
def work():
    ending = []; signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS | {signal.SIGTERM})
    ep = select.epoll(); ep.register(listener, select.EPOLLIN | select.EPOLLEXCLUSIVE); held = {}; accepts = True
    while accepts or held:
        if ending and accepts: ep.unregister(listener); accepts = False
        for fd, _ in ep.poll(0.1):
            if fd == listener.fileno():
                try: s, _ = listener.accept()
                except BlockingIOError: continue
                s.setblocking(False); ep.register(s, select.EPOLLIN); held[s.fileno()] = s
                continue
            s = held[fd]
            try:
                data = s.recv(65536)
                s.setblocking(True); s.sendall(data); s.setblocking(False)
            except BlockingIOError: continue
            except ConnectionError: data = b""
            if not data: ep.unregister(s); s.close(); del held[fd]
    os._exit(0)
workers = set()
def start():
    pid = os.fork()
    if pid == 0: work()
    workers.add(pid)
# Blocked, so that a worker that is told to end before it has looked at a signal is told so all the same.
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS | {signal.SIGTERM})
for _ in range(3): start()
while True:
    if signal.sigwait(SIGNALS) == signal.SIGHUP:
        old = set(workers); workers.clear()
        for _ in range(3): start()
        for pid in old: os.kill(pid, signal.SIGTERM)
    while True:
        try: pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError: break
        if pid == 0: break
        if pid in workers: workers.discard(pid); start()
"#;

/// SIGUSR2: for each worker a new one, and when that listens the old one takes no more.
const CLUSTER: &str = r#"
const cluster = require('cluster'), net = require('net');
if (cluster.isPrimary) {
  const more = () => new Promise(good => cluster.fork().once('listening', good));
  for (let n = 0; n < 3; n++) cluster.fork();
  process.on('SIGUSR2', async () => {
    for (const old of Object.values(cluster.workers)) { await more(); old.disconnect(); }
  });
} else {
  net.createServer(s => { s.on('error', () => {}); s.pipe(s); }).listen(+process.argv[2], '127.0.0.1');
}
"#;

/// Six connections at a time, and each time one is done, another. What is sent comes back. A line for each that went
/// well; SIGTERM ends it when those that there are are done. With another word, connections may break.
const CLIENT: &str = r#"
import signal, socket, sys, threading
port, may_break = int(sys.argv[1]), len(sys.argv) > 2
stop, wrong, broken = threading.Event(), [], []
signal.signal(signal.SIGTERM, lambda *_: stop.set())
def session(n, k):
    with socket.create_connection(("127.0.0.1", port)) as s:
        for i in range(40):
            text = (b"%d-%d-%d;" % (n, k, i)) * (1 + (i * i + n) % 700)
            s.sendall(text); got = b""
            while len(got) < len(text):
                part = s.recv(65536)
                if not part: raise ConnectionError("end")
                got += part
            assert got == text, "other bytes"
def client(n):
    k = 0
    while not stop.is_set() and not wrong:
        k += 1
        try: session(n, k); sys.stdout.write("served\n"); sys.stdout.flush()
        except ConnectionError as e: broken.append(repr(e))
        except Exception as e: wrong.append(repr(e))
        if broken and not may_break: return
threads = [threading.Thread(target=client, args=(n,)) for n in range(6)]
for t in threads: t.start()
for t in threads:
    while t.is_alive(): t.join(0.1)
print("broken", len(broken), broken[:3], "wrong", wrong)
sys.exit(bool(wrong or broken and not may_break))
"#;

const WORKERS: usize = 3;
const RELOADS: usize = 3;
fn workers(primary: &Guest) -> Vec<i32> {
    let children = format!("/proc/{0}/task/{0}/children", primary.pid());
    let children = fs::read_to_string(children).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// A server whose workers a signal replaces, under load, with Shunt at each side, at one, and at none. `path`: asserts
/// which way the bytes have gone.
#[track_caller]
fn reloaded(
    name: &str,
    (runtime, python): (&Path, &Path),
    server: (&str, &str),
    signal: i32,
    path: impl Fn(&BoardDir, Sides),
) {
    for (n, sides) in ways() {
        let (place, dir) = (Place::new(&format!("reloaded-{name}-{n}")), BoardDir::new());
        let scene = Scene { sides, place: &place, dir: &dir, port: free_port() };
        let (script, client) = (place.file(server.0, server.1), place.file("client.py", CLIENT));
        let port = scene.port.to_string();
        let mut command = scene.server(runtime);
        let primary = serve(command.arg(script).arg(&port), place.path(), scene.port);
        eventually("all workers are there", || workers(&primary).len() == WORKERS);
        let mut load = scene.under_load(scene.client(python).arg(client).arg(&port));
        scene.goes_on(&mut load);
        for _ in 0..RELOADS {
            let old = workers(&primary);
            primary.signal(signal);
            eventually(&format!("{sides:?}: others have taken their place"), || {
                assert!(load.ended().is_none(), "{sides:?}: the load ended: {}", scene.load_said());
                let now = workers(&primary);
                now.len() == WORKERS && !now.iter().any(|pid| old.contains(pid))
            });
            scene.goes_on(&mut load);
        }
        scene.ends_well(&mut load);
        path(&dir, sides);
    }
}

#[test]
fn python_prefork_reloaded() {
    let python = need!("python3");
    let server = ("server.py", PREFORK);
    reloaded("prefork", (&python, &python), server, libc::SIGHUP, assert_shared);
}

/// The workers have the listener from their primary, and accept by themselves.
#[test]
fn node_cluster_whose_workers_accept_reloaded() {
    let (node, python) = (need!("node"), need!("python3"));
    let server = format!("{WORKERS_ACCEPT}{CLUSTER}");
    let server = ("server.js", server.as_str());
    reloaded("accepting", (&node, &python), server, libc::SIGUSR2, assert_shared);
}

#[test]
fn node_cluster_reloaded() {
    let (node, python) = (need!("node"), need!("python3"));
    let server = ("server.js", CLUSTER);
    reloaded("cluster", (&node, &python), server, libc::SIGUSR2, |dir, sides| {
        assert_passed_on(dir, sides.server);
    });
}

/// One worker is killed, again and again: its clients hear of it, those of the others are served on, and whoever
/// comes then is served by its successor.
#[test]
fn python_prefork_worker_killed() {
    let python = need!("python3");
    for (n, sides) in ways() {
        let (place, dir) = (Place::new(&format!("worker-{n}")), BoardDir::new());
        let scene = Scene { sides, place: &place, dir: &dir, port: free_port() };
        let (script, client) = (place.file("server.py", PREFORK), place.file("client.py", CLIENT));
        let port = scene.port.to_string();
        let mut command = scene.server(&python);
        let primary = serve(command.arg(script).arg(&port), place.path(), scene.port);
        eventually("all workers are there", || workers(&primary).len() == WORKERS);
        let words = [port.as_str(), "may break"];
        let mut load = scene.under_load(scene.client(&python).arg(client).args(words));
        scene.goes_on(&mut load);
        for round in 0..2 * WORKERS {
            let old = workers(&primary);
            let victim = old[round % WORKERS];
            e2e::calls::kill(victim, libc::SIGKILL).unwrap();
            eventually(&format!("{sides:?}: it has a successor"), || {
                let now = workers(&primary);
                now.len() == WORKERS && !now.contains(&victim)
            });
            scene.goes_on(&mut load);
        }
        scene.ends_well(&mut load);
        // Six clients and three workers: each of the killed had somebody, or nearly.
        assert!(
            !scene.load_said().contains("broken 0 "),
            "{sides:?}: nobody noticed: {}",
            scene.load_said()
        );
        assert_shared(&dir, sides);
    }
}
