//! Connections within the host, which need no pacing.
//!
//! BBR, where it is the system's congestion control, sends at a rate of its own: after each burst of at most 64 KiB
//! the kernel sets a timer, and goes on when that has fired. On a network that keeps queues short. Between two
//! processes of one host there are none, and the timers cost more than copying the data: in a virtual machine, each
//! is an exit to the host.
//!
//! A connection that has begun with BBR stays paced, whatever is chosen for it later. So listeners get Reno, which
//! their connections inherit, and connections from elsewhere get back what the system has before anything is sent on
//! them. Where the system has something else than BBR, nothing is touched.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// In every kernel, for everybody to use, and without pacing of its own.
const UNPACED: &str = "reno";
/// What the names of those that pace begin with: `bbr`, `bbr2`, `bbr3`.
const PACED: &str = "bbr";

/// What a listener's connections from other hosts are to have.
#[derive(Debug)]
pub(super) struct Pacing {
    system: String,
}

impl Pacing {
    /// Has connections of `listener`, which does not listen yet, begin unpaced. `None` if there is no need, or no
    /// way: it is a matter of speed only.
    pub(super) fn take_from(listener: &OwnedFd) -> Option<Self> {
        Self::instead_of(system().ok()?, listener)
    }

    fn instead_of(system: String, listener: &OwnedFd) -> Option<Self> {
        if !system.starts_with(PACED) {
            return None;
        }
        sockopt::set_tcp_congestion(listener, UNPACED).ok()?;
        Some(Self { system })
    }

    /// Gives a connection of that listener what the system has.
    pub(super) fn give_back(&self, connection: impl AsFd) {
        // It is allowed to everybody. If it fails nevertheless, Reno is a congestion control, too.
        let _ = sockopt::set_tcp_congestion(connection, &self.system);
    }
}

/// The congestion control that new sockets get.
fn system() -> io::Result<String> {
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    Ok(sockopt::tcp_congestion(&socket)?)
}

/// Whether who has address `peer` on a connection is on the host that has `local`.
#[must_use]
pub fn is_same_host(peer: IpAddr, local: IpAddr) -> bool {
    let (peer, local) = (peer.to_canonical(), local.to_canonical());
    peer.is_loopback() || peer == local
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::serve::runtime::bound_socket;

    #[test]
    fn connections_begin_unpaced_and_those_from_elsewhere_are_as_the_system_has_them() {
        let socket = bound_socket("127.0.0.1:0".parse().unwrap()).unwrap();
        if sockopt::set_tcp_congestion(&socket, PACED).is_err() {
            return println!("skipped: no BBR here");
        }
        let pacing = Pacing::instead_of(PACED.into(), &socket).unwrap();
        net::listen(&socket, 1).unwrap();
        let listener = TcpListener::from(socket);
        listener.set_nonblocking(false).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (connection, _) = listener.accept().unwrap();
        assert_eq!(sockopt::tcp_congestion(&connection).unwrap(), UNPACED);
        pacing.give_back(&connection);
        assert_eq!(sockopt::tcp_congestion(&connection).unwrap(), PACED);
    }

    #[test]
    fn what_does_not_pace_is_left_alone() {
        let socket = bound_socket("127.0.0.1:0".parse().unwrap()).unwrap();
        let before = sockopt::tcp_congestion(&socket).unwrap();
        assert!(Pacing::instead_of("cubic".into(), &socket).is_none());
        assert_eq!(sockopt::tcp_congestion(&socket).unwrap(), before);
    }

    #[test]
    fn who_is_here_is_told_by_the_address() {
        for (peer, local, same) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("::1", "::1", true),
            ("::ffff:127.0.0.2", "::ffff:127.0.0.1", true),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("fe80::1", "fe80::2", false),
        ] {
            assert_eq!(is_same_host(peer.parse().unwrap(), local.parse().unwrap()), same, "{peer}");
        }
    }
}
