//! What threads do with a board at the same time.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;

use super::*;

const SOL_SOCKET: i32 = 1;
const SO_COOKIE: i32 = 57;

/// Each thread gets the kernel's answer to what it has asked, and not that to another one.
#[test]
fn threads_that_ask_who_somebody_is() {
    let dir = std::env::temp_dir().join(format!("shunt-asking-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    let board = Board::join(dir.to_str(), 600).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = |_| TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let clients: Vec<TcpStream> = (0..4).map(connect).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            let board = &board;
            scope.spawn(move || {
                let fd = client.as_raw_fd();
                let [local, remote] = [false, true].map(|peer| call::name(fd, peer).unwrap());
                let cookie: u64 = call::getsockopt(fd, SOL_SOCKET, SO_COOKIE).unwrap();
                for n in 0..2000 {
                    let found = board.who_is(local.unwrap(), remote.unwrap());
                    let its = found.map(|found| found.map(|found| found.cookie));
                    assert_eq!(its, Ok(Some(cookie)), "time {n}");
                }
            });
        }
    });
    std::fs::remove_dir_all(&dir).unwrap();
}
