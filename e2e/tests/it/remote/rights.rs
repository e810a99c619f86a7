//! Programs that give up their rights once they have begun, as servers do: they reach their user's engine all the same.

use super::programs::Pages;
use super::*;
use crate::programs::need;

/// A server and a client that have no rights and an empty root directory before they meet; each says who it is then.
const BARE: &str = r"
import encodings.idna, os, socket, sys
what, address, port, empty = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
def bare():
    os.chroot(empty)
    os.chdir('/')
    os.setgid(65534)
    os.setuid(65534)
    assert os.listdir('/') == [] and os.getuid() == 65534
if what == 'server':
    listener = socket.create_server((address, port), backlog=64)
    bare()
    print('ready', flush=True)
    while True:
        peer, _ = listener.accept()
        while (got := peer.recv(65536)):
            peer.sendall(got)
        peer.close()
else:
    bare()
    for n in range(int(sys.argv[5])):
        peer = socket.create_connection((address, port))
        for size in (1, 1000, 50000):
            peer.sendall(b'.' * size)
            while size:
                size -= len(peer.recv(65536))
        peer.shutdown(socket.SHUT_WR)
        assert peer.recv(1) == b''
        peer.close()
    print('done')
";

#[test]
fn an_nginx_worker_of_another_user_speaks_smc_also_with_an_engine_that_came_later() {
    let (nginx, wrk) = (need!("nginx"), need!("wrk"));
    let Some(pair) = Pair::with(Hosts::new(), &ALL_BY_SMC) else { return };
    let pages = Pages::serve_as("daemon", &pair, &nginx);
    let fetches = || {
        pair.must_carry([10 << 10, 400], || pages.fetch(&wrk, &["-c20"], "1k"));
        pair.must_carry([5 << 10, 200], || {
            pages.fetch(&wrk, &["-c8", "-H", "Connection: close"], "1k");
        });
    };
    fetches();
    pair.engines[0].signal(libc::SIGKILL);
    eventually("the engine has gone", || {
        let mut asked = pair.plain(Side::Server, &pair.program());
        !outcome(asked.args(["engine", "status"]), LIMIT).ok()
    });
    let _engine = pair.engine(Side::Server, &ALL_BY_SMC);
    fetches();
}

#[test]
fn programs_without_rights_or_a_root_directory_speak_smc() {
    let Some(python) = python() else { return };
    let Some(pair) = Pair::with(Hosts::new(), &ALL_BY_SMC) else { return };
    let empty = std::env::temp_dir().join(format!("shunt-remote-root-{}", std::process::id()));
    std::fs::create_dir_all(&empty).unwrap();
    let bare = |side, what| {
        let mut command = pair.shunt(side, &python);
        command.args(["-c", BARE, what, &pair.address(), "7100"]).arg(&empty);
        command
    };
    let server = pair.ready(&mut bare(Side::Server, "server"), 7100);
    pair.must_carry([4 * 51_001; 2], || {
        let got = outcome(bare(Side::Client, "client").arg("5"), LIMIT);
        assert!(got.ok() && got.out.trim() == "done", "{got:?}");
    });
    drop(server);
    std::fs::remove_dir(&empty).unwrap();
}
