//! redis, told to save and to end under load, and started again over what it has saved.

use super::*;

/// Eight clients that each count a key of their own up, and connect again when the server is away. What was acknowledged
/// is there afterwards; what was under way when the connection ended may be. A line for each hundred; SIGTERM ends it.
const COUNTING: &str = r#"
import signal, socket, sys, threading, time
stop, wrong = threading.Event(), []
signal.signal(signal.SIGTERM, lambda *_: stop.set())
def client(n):
    last = unsure = 0
    while not stop.is_set() and not wrong:
        try:
            with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
                f = s.makefile("rb")
                while not stop.is_set():
                    s.sendall(b"INCR key:%d\r\n" % n); unsure += 1
                    said = f.readline()
                    if not said.endswith(b"\r\n"): raise ConnectionError("end")
                    if said.startswith(b"-LOADING"): unsure -= 1; continue
                    now = int(said[1:])
                    assert last < now <= last + unsure, (n, last, unsure, now)
                    last, unsure = now, 0
                    if now % 100 == 0: sys.stdout.write("served\n"); sys.stdout.flush()
        except ConnectionError: time.sleep(0.01)
        except Exception as e: wrong.append(repr(e))
threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
for t in threads: t.start()
for t in threads:
    while t.is_alive(): t.join(0.1)
print("wrong", wrong); sys.exit(bool(wrong))
"#;

#[test]
fn redis_restarted() {
    let (server, python) = (need!("redis-server"), need!("python3"));
    let _ = need!("redis-cli");
    in_each_way("redis-anew", |scene| {
        let mut old = redis(scene, &server);
        let script = scene.place.file("counting.py", COUNTING);
        let mut load = scene.client(&python);
        load.arg(script).arg(scene.port.to_string());
        let mut load = scene.under_shared_load(&mut load);
        scene.goes_on(&mut load);
        for _ in 0..2 {
            ask(scene, scene.port, &["shutdown", "save"]);
            let ended = old.wait(LIMIT).unwrap_or_else(|why| panic!("{:?}: {why}", scene.sides));
            assert!(ended.success(), "{:?}: the old server: {ended}", scene.sides);
            old = redis(scene, &server);
            scene.goes_on(&mut load);
        }
        scene.ends_well(&mut load);
    });
}
