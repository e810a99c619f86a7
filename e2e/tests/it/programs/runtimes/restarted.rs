//! Servers of one process that are restarted under load: each serves whom it has to the end, takes nobody more, and ends;
//! then a new one comes to its port.
//!
//! Who comes in between is refused, or reset in the queue of a listener that was closed: TCP's rules. Whoever has been
//! answered once is answered to the end.

use super::*;
use crate::programs::killed::{Scene, in_each_way};

const ASYNCIO: &str = r#"
import asyncio, signal, sys
async def serve(reader, writer):
    while data := await reader.read(65536):
        writer.write(data); await writer.drain()
    writer.close()
async def main():
    told = asyncio.Event(); asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await told.wait(); server.close()
    # Each connection is a task, from its accept on.
    while len(asyncio.all_tasks()) > 1: await asyncio.sleep(0.01)
asyncio.run(main())
"#;

/// What closes the server is the close of `net`: that of `http` would also end connections that are idle, on which a
/// request may be under way.
const NODE: &str = r#"
const http = require('http'), net = require('net');
let closing = false;
const server = http.createServer((q, a) => {
  const parts = []; q.on('data', d => parts.push(d));
  q.on('end', () => { if (closing) a.setHeader('Connection', 'close'); a.end(Buffer.concat(parts)); });
});
server.keepAliveTimeout = 600000; server.listen(+process.argv[2], '127.0.0.1');
process.on('SIGTERM', () => { closing = true; net.Server.prototype.close.call(server, () => process.exit(0)); });
"#;

const JAVA: &str = r#"
import java.net.*; import java.nio.*; import java.nio.channels.*;
public class Restarted {
  static volatile boolean told = false;
  public static void main(String[] a) throws Exception {
    Selector sel = Selector.open(); ServerSocketChannel l = ServerSocketChannel.open();
    sun.misc.Signal.handle(new sun.misc.Signal("TERM"), s -> { told = true; sel.wakeup(); });
    l.bind(new InetSocketAddress("127.0.0.1", Integer.parseInt(a[0])), 128);
    l.configureBlocking(false); l.register(sel, SelectionKey.OP_ACCEPT);
    while (true) {
      if (told) l.close();
      // Which is when keys of what is closed go.
      sel.selectNow();
      if (sel.keys().isEmpty()) return;
      sel.select();
      var it = sel.selectedKeys().iterator();
      while (it.hasNext()) {
        SelectionKey k = it.next(); it.remove();
        if (!k.isValid()) continue;
        if (k.isAcceptable()) {
          SocketChannel s = l.accept(); if (s == null) continue;
          s.configureBlocking(false); s.register(sel, SelectionKey.OP_READ, ByteBuffer.allocate(65536)); continue;
        }
        SocketChannel s = (SocketChannel) k.channel(); ByteBuffer b = (ByteBuffer) k.attachment();
        try {
          if (k.isReadable() && s.read(b) < 0) { s.close(); continue; }
          b.flip(); s.write(b); b.compact();
          k.interestOps((b.position() > 0 ? SelectionKey.OP_WRITE : 0) | (b.hasRemaining() ? SelectionKey.OP_READ : 0));
        } catch (java.io.IOException e) { s.close(); }
      }
    }
  }
}
"#;

/// Six connections at a time, and each time one is done, another. What is sent comes back. A line for each that went
/// well; SIGTERM ends it when those that there are are done.
const CLIENT: &str = r#"
import http.client, signal, socket, sys, threading, time
port = int(sys.argv[1])
stop, wrong = threading.Event(), []
signal.signal(signal.SIGTERM, lambda *_: stop.set())
def text(n, k, i): return (b"%d-%d-%d;" % (n, k, i)) * (1 + (i * i + n) % 700)
def raw(n, k):
    with socket.create_connection(("127.0.0.1", port)) as s:
        for i in range(40):
            want, got = text(n, k, i), b""
            s.sendall(want)
            while len(got) < len(want):
                part = s.recv(65536)
                if not part: raise ConnectionError("end")
                got += part; yield
            assert got == want, "other bytes"
def web(n, k):
    c = http.client.HTTPConnection("127.0.0.1", port)
    for i in range(40):
        c.request("POST", "/", text(n, k, i)); r = c.getresponse()
        assert r.read() == text(n, k, i), "other bytes"
        yield
        if r.will_close: break
    c.close()
speak = {"raw": raw, "web": web}[sys.argv[2]]
def session(n, k):
    answers = 0
    try:
        for _ in speak(n, k): answers += 1
        return True
    except ConnectionError as e:
        assert answers == 0, "cut off after %d answers: %r" % (answers, e)
        return False
def client(n):
    k = 0
    while not stop.is_set() and not wrong:
        k += 1
        try:
            if session(n, k): sys.stdout.write("served\n"); sys.stdout.flush()
            else: time.sleep(0.01)
        except Exception as e: wrong.append(repr(e))
threads = [threading.Thread(target=client, args=(n,)) for n in range(6)]
for t in threads: t.start()
for t in threads:
    while t.is_alive(): t.join(0.1)
print("wrong", wrong)
sys.exit(bool(wrong))
"#;

const RESTARTS: usize = 2;

/// A server that ends gracefully by SIGTERM, in each way.
#[track_caller]
fn restarted(name: &str, speaks: &str, server: impl Fn(&Scene<'_>) -> Command) {
    let python = need!("python3");
    in_each_way(name, |scene| {
        let start = || serve(&mut server(scene), scene.place.path(), scene.port);
        let mut old = start();
        let script = scene.place.file("client.py", CLIENT);
        let mut load = scene.client(&python);
        load.arg(script).args([scene.port.to_string().as_str(), speaks]);
        let mut load = scene.under_shared_load(&mut load);
        scene.goes_on(&mut load);
        for _ in 0..RESTARTS {
            old.signal(libc::SIGTERM);
            let ended = old.wait(LIMIT).unwrap_or_else(|why| panic!("{:?}: {why}", scene.sides));
            assert!(ended.success(), "{:?}: the old server: {ended}", scene.sides);
            old = start();
            scene.goes_on(&mut load);
        }
        scene.ends_well(&mut load);
    });
}

/// A script of a runtime, with the scene's port.
fn script(scene: &Scene<'_>, runtime: &Path, (name, text): (&str, &str)) -> Command {
    let mut command = scene.server(runtime);
    command.arg(scene.place.file(name, text)).arg(scene.port.to_string());
    command
}

#[test]
fn python_asyncio_restarted() {
    let python = need!("python3");
    restarted("asyncio-anew", "raw", |scene| script(scene, &python, ("server.py", ASYNCIO)));
}

#[test]
fn node_http_restarted() {
    let node = need!("node");
    restarted("node-anew", "web", |scene| script(scene, &node, ("server.js", NODE)));
}

#[test]
fn java_nio_restarted() {
    let (java, javac) = (need!("java"), need!("javac"));
    let place = Place::new("restarted-class");
    let mut compile = command(javac, Under::Tcp);
    compile.current_dir(place.path()).args(["-nowarn", "-d", "."]);
    compile.arg(place.file("Restarted.java", JAVA));
    assert_ok("javac", &outcome(&mut compile, LIMIT), &BoardDir::new());
    restarted("java-anew", "raw", |scene| {
        let mut server = scene.server(&java);
        server.args(["-Xshare:auto", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp"]);
        server.arg(place.path()).args(["Restarted", &scene.port.to_string()]);
        server
    });
}
