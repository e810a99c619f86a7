//! Python, Node, Java and Go: servers and clients written in them.

use super::*;

mod killed;
mod reloaded;
mod restarted;

/// Runs `server` and then `client PORT`, both scripts of one runtime: the client checks the answers.
fn pair(
    place: &Place,
    runtime: &Path,
    words: &[&str],
    scripts: (&Path, &Path),
    sides: (Under<'_>, Under<'_>),
) -> Outcome {
    let port = free_port();
    let mut server = command(runtime, sides.0);
    server.args(words).arg(scripts.0).arg(port.to_string());
    let _server = serve(&mut server, place.path(), port);
    let mut client = command(runtime, sides.1);
    outcome(client.args(words).arg(scripts.1).arg(port.to_string()), LIMIT)
}

/// Both sides under Shunt, then each alone; `attach`: shared memory is expected with both.
fn three_ways(name: &str, runtime: &Path, words: &[&str], texts: [(&str, &str); 2], attach: bool) {
    let (place, dir) = (Place::new(name), BoardDir::new());
    let [server, client] = texts.map(|(file, text)| place.file(file, text));
    let scripts = (server.as_path(), client.as_path());
    let log = || fs::read_to_string(place.path().join("log")).unwrap_or_default();
    for (sides, what) in [
        ((Under::Shunt(&dir), Under::Shunt(&dir)), "both"),
        ((Under::Shunt(&dir), Under::Tcp), "server only"),
        ((Under::Tcp, Under::Shunt(&dir)), "client only"),
    ] {
        let got = pair(&place, runtime, words, scripts, sides);
        assert_ok(&format!("{name}, {what}; server: {}", log()), &got, &dir);
        assert_eq!(got.out.trim(), "all right", "{name}, {what}: {}", got.err);
        if attach && what == "both" {
            assert_any_attached(&dir);
        }
    }
}

const ASYNCIO_SERVER: &str = r#"
import asyncio, sys
async def serve(reader, writer):
    while data := await reader.readline():
        writer.write(data); await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), limit=1 << 20)
    await server.serve_forever()
asyncio.run(main())
"#;

const ASYNCIO_CLIENT: &str = r#"
import asyncio, sys
async def one(n):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]), limit=1 << 20)
    for i in range(60):
        line = (b"%d:%d " % (n, i)) * (1 + i * i * 11 % 9000) + b"\n"
        writer.write(line); await writer.drain()
        got = await reader.readline()
        assert got == line, (n, i, len(got), len(line))
    writer.close(); await writer.wait_closed()
async def main():
    await asyncio.wait_for(asyncio.gather(*(one(n) for n in range(40))), 60)
    print("all right")
asyncio.run(main())
"#;

#[test]
fn python_asyncio() {
    let python = need!("python3");
    let texts = [("server.py", ASYNCIO_SERVER), ("client.py", ASYNCIO_CLIENT)];
    three_ways("asyncio", &python, &[], texts, true);
}

const PREFORK_SERVER: &str = r#"
import os, select, socket, sys
listener = socket.socket(); listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1]))); listener.listen(128)
for _ in range(4):
    if os.fork() == 0:
        listener.setblocking(False)
        ep = select.epoll(); ep.register(listener, select.EPOLLIN | (1 << 28)); open_ = {}
        while True:
            for fd, _ in ep.poll():
                if fd == listener.fileno():
                    try: s, _ = listener.accept()
                    except BlockingIOError: continue
                    s.setblocking(False); ep.register(s, select.EPOLLIN | select.EPOLLET); open_[s.fileno()] = s
                    continue
                s = open_[fd]
                while True:
                    try:
                        data = s.recv(4096)
                        s.setblocking(True); s.sendall(data); s.setblocking(False)
                    except BlockingIOError: break
                    except ConnectionError: data = b""
                    if not data:
                        ep.unregister(s); s.close(); del open_[fd]; break
os.wait()
"#;

const PREFORK_CLIENT: &str = r#"
import socket, sys, threading
port, wrong = int(sys.argv[1]), []
def client(n):
    for session in range(5):
        s = socket.create_connection(("127.0.0.1", port))
        for i in range(30):
            text = (b"%d-%d-%d;" % (n, session, i)) * (1 + i * 13 % 300)
            s.sendall(text); got = b""
            while len(got) < len(text):
                part = s.recv(65536)
                if not part: wrong.append((n, session, i, "end")); return
                got += part
            if got != text: wrong.append((n, session, i)); return
        s.close()
threads = [threading.Thread(target=client, args=(n,)) for n in range(16)]
[t.start() for t in threads]; [t.join() for t in threads]
print("all right" if not wrong else wrong)
"#;

#[test]
fn python_prefork() {
    let python = need!("python3");
    let texts = [("server.py", PREFORK_SERVER), ("client.py", PREFORK_CLIENT)];
    three_ways("prefork", &python, &[], texts, true);
}

/// Idle connections are kept: one that is ended in the moment in which the client uses it again is an error to it, and
/// that moment is a long one on a machine with other work.
const NODE_SERVER: &str = r#"
const http = require('http');
http.createServer((q, a) => {
  const parts = []; q.on('data', d => parts.push(d));
  q.on('end', () => { const body = Buffer.concat(parts); a.setHeader('x-length', body.length); a.end(body); });
}).listen(+process.argv[2], '127.0.0.1').keepAliveTimeout = 600000;
"#;

const NODE_CLUSTER: &str = r#"
const cluster = require('cluster');
if (cluster.isPrimary) { cluster.fork(); cluster.fork(); } else {
  const http = require('http');
  http.createServer((q, a) => {
    const parts = []; q.on('data', d => parts.push(d));
    q.on('end', () => { const body = Buffer.concat(parts); a.setHeader('x-length', body.length); a.end(body); });
  }).listen(+process.argv[2], '127.0.0.1').keepAliveTimeout = 600000;
}
"#;

const NODE_CLIENT: &str = r#"
const http = require('http');
const agent = new http.Agent({ keepAlive: true, maxSockets: 20 });
function once(n) {
  const text = Buffer.alloc(1 + n * n * 37 % 200000, 'n' + n + ';');
  return new Promise((good, bad) => {
    const q = http.request({ agent, port: +process.argv[2], host: '127.0.0.1', method: 'POST' }, a => {
      const parts = []; a.on('data', d => parts.push(d));
      a.on('end', () => Buffer.concat(parts).equals(text) ? good() : bad(new Error('answer ' + n)));
    });
    q.on('error', bad); q.end(text);
  });
}
(async () => {
  for (let round = 0; round < 10; round++)
    await Promise.all([...Array(60).keys()].map(n => once(n + round)));
  console.log('all right'); process.exit(0);
})().catch(e => { console.error(e); process.exit(1); });
"#;

#[test]
fn node_http() {
    let node = need!("node");
    let texts = [("server.js", NODE_SERVER), ("client.js", NODE_CLIENT)];
    three_ways("node", &node, &[], texts, true);
}

/// The primary accepts and passes connections to its workers.
#[test]
fn node_cluster() {
    let node = need!("node");
    let texts = [("server.js", NODE_CLUSTER), ("client.js", NODE_CLIENT)];
    three_ways("cluster", &node, &[], texts, false);
}

/// What NODE_CLUSTER_SCHED_POLICY=none says: the primary passes the listener, and no connection.
const WORKERS_ACCEPT: &str =
    "require('cluster').schedulingPolicy = require('cluster').SCHED_NONE;\n";

#[test]
fn node_cluster_whose_workers_accept() {
    let node = need!("node");
    let server = format!("{WORKERS_ACCEPT}{NODE_CLUSTER}");
    let texts = [("server.js", server.as_str()), ("client.js", NODE_CLIENT)];
    three_ways("accepting", &node, &[], texts, true);
}

const NODE_CLIENT_ONE_EACH: &str = r#"
const http = require('http');
function once(n, agent) {
  const text = Buffer.alloc(1 + n * 37 % 3000, 'n' + n + ';');
  return new Promise((good, bad) => {
    const q = http.request({ agent, port: +process.argv[2], host: '127.0.0.1', method: 'POST' }, a => {
      const parts = []; a.on('data', d => parts.push(d));
      a.on('end', () => Buffer.concat(parts).equals(text) ? good() : bad(new Error('answer ' + n)));
    });
    q.on('error', bad); q.end(text);
  });
}
(async () => {
  for (let round = 0; round < 45; round++)
    await Promise.all([...Array(20).keys()].map(n => once(n + round, false)));
  const kept = new http.Agent({ keepAlive: true, maxSockets: 100 });
  await Promise.all([...Array(100).keys()].map(n => once(n, kept)));
  console.log('all right'); process.kill(process.pid, 'SIGKILL');
})().catch(e => { console.error(e); process.exit(1); });
"#;

/// A thousand connections, a hundred of them open when the client is killed, leave nothing behind: no descriptor in
/// the primary, which passes them on, none in its workers, and nothing on the board.
#[test]
fn node_cluster_keeps_no_connection() {
    let node = need!("node");
    let place = Place::new("cluster-kept");
    let texts = [("server.js", NODE_CLUSTER), ("client.js", NODE_CLIENT_ONE_EACH)];
    let [server, client] = texts.map(|(file, text)| place.file(file, text));
    for client_too in [true, false] {
        let dir = BoardDir::new();
        let port = free_port();
        let mut under = command(&node, Under::Shunt(&dir));
        let primary = serve(under.arg(&server).arg(port.to_string()), place.path(), port);
        let all = || -> Vec<i32> {
            let children = format!("/proc/{0}/task/{0}/children", primary.pid());
            let children = fs::read_to_string(children).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
            std::iter::once(primary.pid()).chain(children).collect()
        };
        let open = |pid: i32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        let halves = || -> usize {
            let Some(board) = dir.board() else { return 0 };
            let of = |pid: &i32| {
                let here = board
                    .processes()
                    .into_iter()
                    .filter(|p| p.live && p.pid == pid.cast_unsigned());
                here.map(|p| board.halves_of(p.slot).len()).sum::<usize>()
            };
            all().iter().map(of).sum()
        };
        for _ in 0..2 {
            let side = if client_too { Under::Shunt(&dir) } else { Under::Tcp };
            let got = outcome(command(&node, side).arg(&client).arg(port.to_string()), LIMIT);
            assert_eq!(got.out.trim(), "all right", "{}", got.err);
            assert_eq!(all().len(), 3, "a primary and its workers");
            assert!(dir.board().is_some(), "the server is under Shunt");
            // Each has about 25 of its own, and has had 500 connections.
            eventually("what the killed client held is closed", || {
                all().into_iter().map(open).all(|n| n < 50)
            });
            eventually("the board holds nothing of it", || halves() == 0);
        }
    }
}

const JAVA_SERVER: &str = r#"
import java.net.*; import java.nio.*; import java.nio.channels.*;
public class Server {
  public static void main(String[] a) throws Exception {
    Selector sel = Selector.open(); ServerSocketChannel l = ServerSocketChannel.open();
    l.bind(new InetSocketAddress("127.0.0.1", Integer.parseInt(a[0])), 128);
    l.configureBlocking(false); l.register(sel, SelectionKey.OP_ACCEPT);
    while (true) {
      sel.select();
      var it = sel.selectedKeys().iterator();
      while (it.hasNext()) {
        SelectionKey k = it.next(); it.remove();
        if (k.isAcceptable()) {
          SocketChannel s = l.accept(); if (s == null) continue;
          s.configureBlocking(false); s.register(sel, SelectionKey.OP_READ, ByteBuffer.allocate(65536)); continue;
        }
        SocketChannel s = (SocketChannel) k.channel(); ByteBuffer b = (ByteBuffer) k.attachment();
        try {
          if (k.isReadable() && s.read(b) < 0) { s.close(); continue; }
          b.flip(); s.write(b); b.compact();
          int ops = b.position() > 0 ? SelectionKey.OP_WRITE : 0;
          if (b.hasRemaining()) ops |= SelectionKey.OP_READ;
          k.interestOps(ops);
        } catch (java.io.IOException e) { s.close(); }
      }
    }
  }
}
"#;

const JAVA_CLIENT: &str = r#"
import java.io.*; import java.net.*; import java.util.*; import java.util.concurrent.*;
public class Client {
  static void one(int port, int n) throws Exception {
    try (Socket s = new Socket("127.0.0.1", port)) {
      s.setSoTimeout(20000);
      var out = s.getOutputStream(); var in = new DataInputStream(s.getInputStream());
      for (int i = 0; i < 80; i++) {
        byte[] text = ("n" + n + "i" + i + ";").repeat(1 + i * 41 % 3000).getBytes();
        out.write(text); byte[] got = new byte[text.length]; in.readFully(got);
        if (!Arrays.equals(text, got)) throw new Exception("differs " + n + " " + i);
      }
    }
  }
  public static void main(String[] a) throws Exception {
    int port = Integer.parseInt(a[0]); var pool = Executors.newFixedThreadPool(12);
    var all = new ArrayList<Future<?>>();
    for (int n = 0; n < 24; n++) { int m = n; all.add(pool.submit(() -> { one(port, m); return null; })); }
    for (var f : all) f.get(60, TimeUnit.SECONDS);
    System.out.println("all right"); System.exit(0);
  }
}
"#;

#[test]
fn java_nio() {
    let java = need!("java");
    if installed("javac").is_none() {
        skipped("javac is not installed: java cannot run a source file");
        return;
    }
    let texts = [("Server.java", JAVA_SERVER), ("Client.java", JAVA_CLIENT)];
    three_ways("java", &java, &["-Xshare:auto", "-Xmx256m"], texts, true);
}

const GO_PROGRAM: &str = r#"
package main
import ("bytes"; "fmt"; "io"; "net/http"; "os"; "sync")
func main() {
	if os.Args[1] == "serve" {
		http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { b, _ := io.ReadAll(r.Body); w.Write(b) })
		panic(http.ListenAndServe("127.0.0.1:"+os.Args[2], nil))
	}
	var wg sync.WaitGroup
	bad := make(chan error, 1000)
	for n := 0; n < 16; n++ {
		wg.Add(1)
		go func(n int) {
			defer wg.Done()
			for i := 0; i < 50 || len(os.Args) > 3; i++ {
				text := bytes.Repeat([]byte(fmt.Sprint(n, i, ";")), 1+i*i*17%20000)
				var r *http.Response; var err error
				if os.Args[1] == "get" { r, err = http.Get("http://127.0.0.1:" + os.Args[2] + "/small")
				} else { r, err = http.Post("http://127.0.0.1:"+os.Args[2], "text/plain", bytes.NewReader(text)) }
				if err != nil { bad <- err; return }
				got, err := io.ReadAll(r.Body); r.Body.Close()
				if err != nil || (os.Args[1] == "post" && !bytes.Equal(got, text)) { bad <- fmt.Errorf("differs %d %d %v", n, i, err); return }
			}
		}(n)
	}
	wg.Wait()
	select { case err := <-bad: fmt.Println(err); os.Exit(1); default: fmt.Println("all right") }
}
"#;

/// What makes a Go program one that the dynamic loader loads: a line of C. (Its `net` then asks libc for names.)
const GO_C_PART: &str = r#"
package main
// #include <stdlib.h>
import "C"
func init() { if C.abs(-1) != 1 { panic("C") } }
"#;

/// [`GO_PROGRAM`], built in a place: static, or with libc (`cgo`).
#[track_caller]
fn go_guest(go: &Path, place: &Place, cgo: bool) -> PathBuf {
    place.file("main.go", GO_PROGRAM);
    let mut build = command(go, Under::Tcp);
    build.args(["build", "-o", "guest", "main.go"]).current_dir(place.path());
    build.env("GO111MODULE", "off").env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0");
    if cgo {
        place.file("c.go", GO_C_PART);
        build.arg("c.go").env("CGO_ENABLED", "1");
    }
    assert_ok("go build", &outcome(&mut build, Duration::from_secs(600)), &BoardDir::new());
    place.path().join("guest")
}

/// Python's server of files, with room for all clients to wait: beyond the five that it has room for, the kernel
/// resets connections at times.
const PYTHON_FILES: &str = r"
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer, test
ThreadingHTTPServer.request_queue_size = 128
test(SimpleHTTPRequestHandler, ThreadingHTTPServer, port=int(sys.argv[1]), bind='127.0.0.1')
";

/// Go makes its own system calls: it stays on TCP, under Shunt and against peers under Shunt.
#[test]
fn go_stays_on_tcp_unharmed() {
    let go = need!("go");
    let place = Place::new("go");
    let guest = go_guest(&go, &place, false);
    // Which is what people are told before they start it.
    let told = doctor(&guest);
    assert_eq!(told.code, 1, "{}{}", told.out, told.err);
    let said = told.out.lines().any(|line| line.starts_with("no ") && line.contains("static"));
    assert!(said, "{}", told.out);
    assert_unharmed(&guest, &place, false);
}

/// The same with C in it: the library is loaded, and sees none of the calls that the runtime makes without libc.
#[test]
fn go_with_libc_stays_on_tcp_unharmed() {
    let go = need!("go");
    let _ = need!("gcc");
    let place = Place::new("cgo");
    let guest = go_guest(&go, &place, true);
    let told = doctor(&guest);
    assert_eq!(told.code, 1, "{}{}", told.out, told.err);
    let said = told.out.lines().any(|line| line.starts_with("no ") && line.contains("Go"));
    assert!(said, "{}", told.out);
    assert_unharmed(&guest, &place, true);
}

fn doctor(program: &Path) -> Outcome {
    let dir = BoardDir::new();
    let mut doctor = command(e2e::built("shunt"), Under::Tcp);
    outcome(doctor.arg("doctor").arg(program).env("SHUNT_DIR", dir.path()), LIMIT)
}

/// A guest of Go serves and asks, under Shunt and beside peers under Shunt; `loads`: the library comes into it.
#[track_caller]
fn assert_unharmed(guest: &Path, place: &Place, loads: bool) {
    let dir = BoardDir::new();
    let start = |under| {
        let port = free_port();
        let mut server = command(guest, under);
        (serve(server.args(["serve", &port.to_string()]), place.path(), port), port.to_string())
    };
    let (server, port) = start(Under::Shunt(&dir));
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap();
    let loaded = maps.contains("libshunt_preload.so");
    assert!(loaded == loads || plain_only(), "is the library loaded: {loaded}\n{maps}");
    let (_plain, plain) = start(Under::Tcp);
    for (port, under) in
        [(&port, Under::Shunt(&dir)), (&port, Under::Tcp), (&plain, Under::Shunt(&dir))]
    {
        let got = outcome(command(guest, under).args(["post", port]), LIMIT);
        assert_ok("Go client", &got, &dir);
        assert_eq!(got.out.trim(), "all right");
    }
    if let Some(curl) = installed("curl") {
        let mut curl = command(curl, Under::Shunt(&dir));
        let url = format!("http://127.0.0.1:{port}/");
        let got = outcome(curl.args(["-sSf", "-d", "from curl", &url]), LIMIT);
        assert_ok("curl", &got, &dir);
        assert_eq!(got.out, "from curl");
    }
    // A Go client and a server under Shunt.
    if let Some(python) = installed("python3") {
        let port = free_port();
        place.file("small", "small file");
        let mut server = command(python, Under::Shunt(&dir));
        server.args(["-c", PYTHON_FILES, &port.to_string()]);
        let _server = serve(server.current_dir(place.path()), place.path(), port);
        let got =
            outcome(command(guest, Under::Shunt(&dir)).args(["get", &port.to_string()]), LIMIT);
        assert_ok("Go client of Python", &got, &dir);
    }
    assert_eq!(dir.attached(), 0, "something attached:\n{}", dir.summary());
}
