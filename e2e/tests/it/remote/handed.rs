//! Connections to another host that one program hands to another: as `inetd` does, as shells do, by `fork` and `exec`. No
//! byte is lost, none is added, and the end is where it was.

use super::*;

/// A server that hands each connection to a program, in one of several ways.
const SERVER: &str = r#"
import os, socket, subprocess, sys, time
address, mode = sys.argv[1], sys.argv[2]
listener = socket.create_server((address, 7200), backlog=64)
null = subprocess.DEVNULL
bare = {"PATH": "/usr/bin:/bin"}
print("ready", flush=True)
while True:
    peer, _ = listener.accept()
    if mode.startswith("cat"):
        # Its input and output are the connection.
        if "read" in mode:
            assert peer.recv(6) == b"START\n"
            peer.sendall(b"READY\n")
        env = bare if "bare" in mode else None
        subprocess.Popen(["cat"], stdin=peer, stdout=peer, env=env)
    elif mode.startswith("writes"):
        # Its output is; what was said before, and who closes first, differ.
        assert peer.recv(5) == b"hello"
        if "said" in mode:
            peer.sendall(b"0" * 1000)
            time.sleep(0.1)
        child = subprocess.Popen(["head", "-c", "3000000", "/dev/zero"], stdin=null, stdout=peer)
        if "waits" in mode:
            child.wait()
    elif mode == "names":
        # What it is told of its ends is what its access control goes by.
        names = "import socket,sys; s = socket.socket(fileno=0); print(*s.getpeername(), *s.getsockname(), flush=True)"
        subprocess.Popen([sys.executable, "-c", names], stdin=peer, stdout=peer)
    elif mode == "forks":
        # A child that has not become another program.
        if os.fork() == 0:
            while (got := peer.recv(65536)):
                peer.sendall(got)
            os._exit(0)
    else:
        got = b""
        while not got.endswith(b"END"):
            got += peer.recv(65536)
        # What was not sent would be seen here: a byte too many, or too few.
        peer.sendall(b"%d %s " % (len(got), got) + b"." * 50000)
    peer.close()
"#;

/// What a client says of what it got.
const CLIENT: &str = r#"
import os, socket, subprocess, sys, threading
address, mode = sys.argv[1], sys.argv[2]
for n in range(6):
    if mode == "reads, and stdio writes":
        script = 'exec 3<>/dev/tcp/%s/7200; printf "hello END" >&3; cat <&3' % address
        got = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE).stdout
        assert got == b"9 hello END " + b"." * 50000, (n, len(got), got[:30])
        continue
    peer = socket.create_connection((address, 7200))
    size = 10 if n % 2 else 300000
    if mode.startswith("cat") or mode == "forks":
        if "read" in mode:
            peer.sendall(b"START\n")
            assert peer.recv(6) == b"READY\n"
        sent = os.urandom(size)
        def send():
            peer.sendall(sent)
            peer.shutdown(socket.SHUT_WR)
        thread = threading.Thread(target=send)
        thread.start()
        got = b""
        while (some := peer.recv(65536)):
            got += some
        thread.join()
        assert got == sent, (n, len(got), size)
    elif mode == "names":
        got = peer.makefile().readline()
        ends = [*peer.getsockname(), *peer.getpeername()]
        assert got.split() == [str(part) for part in ends], (got, ends)
    elif mode.startswith("writes"):
        peer.sendall(b"hello")
        count = 0
        while (some := peer.recv(65536)):
            count += len(some)
        assert count == 3000000 + (1000 if "said" in mode else 0), (n, count)
    else:
        # The answer is another program's to read.
        peer.sendall(b"hello END")
        got = subprocess.run(["cat"], stdin=peer, stdout=subprocess.PIPE).stdout
        assert got == b"9 hello END " + b"." * 50000, (n, len(got), got[:30])
    peer.close()
print("done")
"#;

#[test]
fn by_either_end_in_any_way() {
    let Some(python) = python() else { return };
    let Some(pair) = Pair::with(Hosts::new(), &ALL_BY_SMC) else { return };
    for mode in [
        "cat",
        "cat, read before",
        "cat, bare",
        "cat, bare, read before",
        "writes",
        "writes, said before",
        "writes, waits",
        "writes, said before, waits",
        "forks",
        "names",
        "reads",
        "reads, and stdio writes",
    ] {
        let mut command = pair.shunt(Side::Server, &python);
        command.args(["-c", SERVER, &pair.address(), mode]);
        let mut server = pair.ready(&mut command, 7200);
        pair.must_carry([0; 2], || {
            let mut command = pair.shunt(Side::Client, &python);
            let got = outcome(command.args(["-c", CLIENT, &pair.address(), mode]), LIMIT);
            assert!(got.ok() && got.out.trim() == "done", "{mode}: {got:?}");
            assert_eq!(got.err, "", "{mode}");
        });
        server.kill_all();
    }
}

/// A server whose listener comes to be another program's, which goes on with it: as where one is upgraded in place.
const LISTENER: &str = r#"
import array, os, socket, sys
address, mode, script = sys.argv[1], sys.argv[2], sys.argv[3]
def serve(listener):
    print("ready", flush=True)
    while True:
        peer, _ = listener.accept()
        while (got := peer.recv(65536)):
            peer.sendall(got)
        peer.close()
if mode == "goes on":
    serve(socket.socket(fileno=int(address)))
listener = socket.create_server((address, 7300), backlog=64)
if mode == "passed":
    # To a process that was not forked from whoever has made it.
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        os.set_inheritable(theirs.fileno(), True)
        code = "import socket,sys;exec(open(sys.argv[3]).read().split('if mode')[0])\n" \
               "serve(socket.socket(fileno=socket.recv_fds(socket.socket(fileno=%d), 1, 1)[1][0]))" % theirs.fileno()
        listener.close()
        os.execv(sys.executable, [sys.executable, "-c", code, "-", "passed on", script])
    socket.send_fds(ours, [b"."], [listener.fileno()])
    listener.close()
    os.wait()
else:
    listener.set_inheritable(True)
    env = {"PATH": "/usr/bin:/bin"} if mode == "bare" else dict(os.environ)
    words = [sys.executable, script, str(listener.fileno()), "goes on", script]
    os.execve(sys.executable, words, env)
"#;

const ASKS: &str = r"
import socket, sys
for n in range(10):
    peer = socket.create_connection((sys.argv[1], 7300))
    peer.sendall(b'.' * 5000)
    peer.shutdown(socket.SHUT_WR)
    got = b''
    while (some := peer.recv(65536)):
        got += some
    assert got == b'.' * 5000, (n, got[:20], len(got))
print('done')
";

#[test]
fn a_listener_that_another_program_goes_on_with_is_served_by_smc() {
    let Some(python) = python() else { return };
    let Some(pair) = Pair::with(Hosts::new(), &ALL_BY_SMC) else { return };
    let script = std::env::temp_dir().join(format!("shunt-handed-{}.py", std::process::id()));
    std::fs::write(&script, LISTENER).unwrap();
    for mode in ["kept", "bare", "passed"] {
        let mut command = pair.shunt(Side::Server, &python);
        command.arg(&script).args([&pair.address(), mode]).arg(&script);
        let mut server = pair.ready(&mut command, 7300);
        pair.must_carry([5000; 2], || {
            let mut command = pair.shunt(Side::Client, &python);
            let got = outcome(command.args(["-c", ASKS, &pair.address()]), LIMIT);
            assert!(got.ok() && got.out.trim() == "done", "{mode}: {got:?}");
            assert_eq!(got.err, "", "{mode}");
        });
        server.kill_all();
    }
    std::fs::remove_file(&script).unwrap();
}
