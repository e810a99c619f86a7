//! Servers and clients in Python, Node and Java, killed.

use local::reason::Reason;

use super::*;
use crate::programs::killed::{Bereft, Play, Scene, killed_on_each_side, ways};

/// Eight connections that send and want it back: so many times, or for ever.
const PYTHON_CLIENT: &str = r#"
import socket, sys, threading
port, rounds, wrong = int(sys.argv[1]), int(sys.argv[2]), []
def client(n):
    try:
        s = socket.create_connection(("127.0.0.1", port)); i = 0
        while i != rounds:
            i += 1
            text = (b"%d-%d;" % (n, i)) * (1 + i * 13 % 900) + b"\n"
            s.sendall(text); got = b""
            while len(got) < len(text):
                part = s.recv(65536)
                if not part: raise EOFError("end")
                got += part
            assert got == text, "other bytes"
        s.close()
    except Exception as e: wrong.append(repr(e))
threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print("all right" if not wrong else wrong); sys.exit(bool(wrong))
"#;

const NODE_CLIENT: &str = r#"
const http = require('http');
const [port, rounds] = [+process.argv[2], +process.argv[3]];
const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
function once(n) {
  const text = Buffer.alloc(1 + n * n * 37 % 60000, 'n' + n + ';');
  return new Promise((good, bad) => {
    const q = http.request({ agent, port, host: '127.0.0.1', method: 'POST' }, a => {
      const parts = []; a.on('data', d => parts.push(d)); a.on('error', bad);
      a.on('end', () => Buffer.concat(parts).equals(text) ? good() : bad(new Error('answer ' + n)));
    });
    q.on('error', bad); q.end(text);
  });
}
(async () => {
  for (let round = 0; round != rounds; round++)
    await Promise.all([...Array(8).keys()].map(n => once(n + round % 100)));
  console.log('all right'); process.exit(0);
})().catch(e => { console.error(e); process.exit(1); });
"#;

const JAVA_CLIENT: &str = r#"
import java.io.*; import java.net.*; import java.util.*;
public class Client {
  static void one(int port, int n, int rounds) throws Exception {
    try (Socket s = new Socket("127.0.0.1", port)) {
      var out = s.getOutputStream(); var in = new DataInputStream(s.getInputStream());
      for (int i = 0; i != rounds; i++) {
        byte[] text = ("n" + n + "i" + i + ";").repeat(1 + Math.floorMod(i * 41, 900)).getBytes();
        out.write(text); byte[] got = new byte[text.length]; in.readFully(got);
        if (!Arrays.equals(text, got)) throw new IOException("differs " + n + " " + i);
      }
    }
  }
  public static void main(String[] a) throws Exception {
    int port = Integer.parseInt(a[0]), rounds = Integer.parseInt(a[1]);
    var wrong = Collections.synchronizedList(new ArrayList<String>()); var all = new ArrayList<Thread>();
    for (int n = 0; n < 8; n++) {
      int m = n;
      all.add(new Thread(() -> { try { one(port, m, rounds); } catch (Exception e) { wrong.add(e.toString()); } }));
    }
    for (var t : all) t.start();
    for (var t : all) t.join();
    System.out.println(wrong.isEmpty() ? "all right" : wrong); System.exit(wrong.isEmpty() ? 0 : 1);
  }
}
"#;

/// A server and a client, scripts of one runtime: the client takes a port and the number of its rounds.
#[track_caller]
fn scripts(name: &str, runtime: &Path, server: (&str, &str), client: (&str, &str)) {
    let client = |scene: &Scene<'_>, rounds: &str| {
        let script = scene.place.file(client.0, client.1);
        let mut command = scene.client(runtime);
        command.arg(script).args([scene.port.to_string().as_str(), rounds]);
        command
    };
    killed_on_each_side(
        name,
        &Play {
            server: |scene: &Scene<'_>| {
                let script = scene.place.file(server.0, server.1);
                let mut command = scene.server(runtime);
                serve(
                    command.arg(script).arg(scene.port.to_string()),
                    scene.place.path(),
                    scene.port,
                )
            },
            load: |scene: &Scene<'_>| client(scene, "-1"),
            probe: |scene: &Scene<'_>| {
                assert_eq!(scene.must(&mut client(scene, "15")).trim(), "all right");
            },
            bereft: Bereft::Ends,
        },
    );
}

#[test]
fn python_asyncio_killed() {
    let python = need!("python3");
    scripts("asyncio", &python, ("server.py", ASYNCIO_SERVER), ("endless.py", PYTHON_CLIENT));
}

#[test]
fn python_prefork_killed() {
    let python = need!("python3");
    scripts("prefork", &python, ("server.py", PREFORK_SERVER), ("endless.py", PYTHON_CLIENT));
}

#[test]
fn node_http_killed() {
    let node = need!("node");
    scripts("node", &node, ("server.js", NODE_SERVER), ("endless.js", NODE_CLIENT));
}

/// The primary is killed, then one of the workers: the other, or its successor, serves.
#[test]
fn node_cluster_killed() {
    let node = need!("node");
    for (n, sides) in ways() {
        let (place, dir) = (Place::new(&format!("cluster-{n}")), BoardDir::new());
        let scene = Scene { sides, place: &place, dir: &dir, port: free_port() };
        let (server, client) =
            (place.file("server.js", NODE_CLUSTER), place.file("endless.js", NODE_CLIENT));
        let start = || {
            let mut command = scene.server(&node);
            serve(command.arg(&server).arg(scene.port.to_string()), place.path(), scene.port)
        };
        let client = |rounds: &str| {
            let mut command = scene.client(&node);
            command.arg(&client).args([scene.port.to_string().as_str(), rounds]);
            command
        };
        let probe = || assert_eq!(scene.must(&mut client("15")).trim(), "all right", "{sides:?}");
        let mut primary = start();
        probe();
        let mut load = scene.under_load(&mut client("-1"));
        primary.signal(libc::SIGKILL);
        // Workers end when they have lost their primary, and the load with them.
        assert!(!load.wait(LIMIT).unwrap().success(), "{sides:?}: the load did not notice");
        scene.kill(&mut primary);
        primary = start();
        let mut load = scene.under_load(&mut client("-1"));
        let children = format!("/proc/{0}/task/{0}/children", primary.pid());
        let children = fs::read_to_string(children).unwrap();
        let worker = children.split_whitespace().next().unwrap();
        e2e::calls::kill(worker.parse().unwrap(), libc::SIGKILL).unwrap();
        eventually("its primary has noticed", || !Path::new("/proc").join(worker).exists());
        // The other serves. Whose connections were with the dead one has ended, and not well.
        probe();
        assert!(load.ended().is_none_or(|ended| !ended.success()), "{sides:?}: it did not notice");
        load.kill_all();
        probe();
        assert_passed_on(&dir, sides.server);
    }
}

/// The primary accepts, and hands each connection to a worker: that takes it to TCP before it was attached,
/// and for this reason.
#[track_caller]
pub(super) fn assert_passed_on(dir: &BoardDir, under: bool) {
    assert_eq!(dir.attached(), 0, "somebody attached:\n{}", dir.summary());
    let passed = usize::try_from(Reason::Passed.code()).unwrap();
    let processes = dir.board().map_or_else(Vec::new, |board| board.processes());
    let passed: u32 = processes.iter().map(|process| process.reasons[passed]).sum();
    assert!(passed > 0 || !under || plain_only(), "none was passed on:\n{}", dir.summary());
}

#[test]
fn java_nio_killed() {
    let (java, javac) = (need!("java"), need!("javac"));
    let (place, dir) = (Place::new("classes"), BoardDir::new());
    let sources = [place.file("Server.java", JAVA_SERVER), place.file("Client.java", JAVA_CLIENT)];
    let mut compile = command(javac, Under::Tcp);
    compile.current_dir(place.path()).args(["-d", "."]).args(sources);
    assert_ok("javac", &outcome(&mut compile, LIMIT), &dir);
    let run = |mut command: Command, words: &[&str]| {
        command.args(["-Xshare:auto", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp"]);
        command.arg(place.path()).args(words);
        command
    };
    killed_on_each_side(
        "java",
        &Play {
            server: |scene: &Scene<'_>| {
                let port = scene.port.to_string();
                let mut server = run(scene.server(&java), &["Server", &port]);
                serve(&mut server, scene.place.path(), scene.port)
            },
            load: |scene: &Scene<'_>| {
                run(scene.client(&java), &["Client", &scene.port.to_string(), "-1"])
            },
            probe: |scene: &Scene<'_>| {
                let words = ["Client", &scene.port.to_string(), "15"];
                let said = scene.must(&mut run(scene.client(&java), &words));
                assert_eq!(said.trim(), "all right");
            },
            bereft: Bereft::Ends,
        },
    );
}

/// What makes its own system calls is on TCP at both ends, and hears of the other's death there.
#[test]
fn go_killed() {
    let go = need!("go");
    let place = Place::new("go-killed");
    let guest = go_guest(&go, &place, false);
    for (n, sides) in ways() {
        let (place, dir) = (Place::new(&format!("go-killed-{n}")), BoardDir::new());
        let scene = Scene { sides, place: &place, dir: &dir, port: free_port() };
        let port = scene.port.to_string();
        let start = || serve(scene.server(&guest).args(["serve", &port]), place.path(), scene.port);
        let probe = || {
            let said = scene.must(scene.client(&guest).args(["post", &port]));
            assert_eq!(said.trim(), "all right", "{sides:?}");
        };
        let load = || scene.under_load(scene.client(&guest).args(["post", &port, "for ever"]));
        let mut server = start();
        load().kill_all();
        eventually(&format!("{sides:?}: the server is rid of its client"), || scene.held() == 0);
        probe();
        let mut load = load();
        scene.kill(&mut server);
        assert!(!load.wait(LIMIT).unwrap().success(), "{sides:?}: the load did not notice");
        let _server = start();
        probe();
        assert_eq!(dir.attached(), 0, "{sides:?}: something attached:\n{}", dir.summary());
    }
}
