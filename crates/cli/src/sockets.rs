//! What the kernel knows of the sockets behind the ends of connections: programs are not asked for it, and do not ask.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The TCP sockets of this network namespace that lead to somebody: by what is known of every end, those of which
/// this may be said.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    by_peer: HashMap<(u16, IpAddr, u16), Vec<Socket>>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    /// Its own address.
    pub(crate) local: IpAddr,
    /// Its inode number; never 0.
    pub(crate) inode: u32,
}

impl Sockets {
    /// Those that there are now; none where the kernel does not say (`/proc` is not mounted). The kernel shows its table a
    /// page at a time, and may pass over one while others come and go.
    pub(crate) fn read() -> Self {
        let mut sockets = Self::default();
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            sockets.add(&std::fs::read_to_string(table).unwrap_or_default());
        }
        sockets
    }

    /// Adds a table in the kernel's format (`Documentation/networking/proc_net_tcp.rst`).
    fn add(&mut self, table: &str) {
        for line in table.lines().skip(1) {
            let Some((local_port, remote, socket)) = parse(line) else { continue };
            self.by_peer.entry((local_port, remote.0, remote.1)).or_default().push(socket);
        }
    }

    /// The socket from `local` (unspecified: any address) and `local_port` to `peer` and `peer_port`. `None` if there is
    /// none, or there are several.
    pub(crate) fn find(
        &self,
        (local, local_port): (IpAddr, u16),
        (peer, peer_port): (IpAddr, u16),
    ) -> Option<Socket> {
        let all = self.by_peer.get(&(local_port, peer, peer_port))?;
        let mut fitting = all.iter().filter(|s| local.is_unspecified() || s.local == local);
        fitting.next().copied().filter(|_| fitting.next().is_none())
    }
}

/// The local port, the peer and the rest of a line. A socket that nobody holds (TIME_WAIT, or not accepted yet) has no
/// inode, and is left out.
fn parse(line: &str) -> Option<(u16, (IpAddr, u16), Socket)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, local_port) = address(words.next()?)?;
    let peer = address(words.next()?)?;
    let inode = words.nth(6)?.parse().ok().filter(|inode| *inode != 0)?;
    (peer.1 != 0).then_some((local_port, peer, Socket { local, inode }))
}

/// `0100007F:1F90`: words of the address as the machine reads them, and the port.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (digits, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(digits.get(at..at + 8)?, 16).ok();
    let ip = if digits.len() == 8 {
        IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes()))
    } else {
        let mut bytes = [0; 16];
        for (part, at) in bytes.chunks_mut(4).zip((0..).step_by(8)) {
            part.copy_from_slice(&word(at)?.to_ne_bytes());
        }
        Ipv6Addr::from(bytes).to_canonical()
    };
    Some((ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0
   1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0 20 4 30 10 -1
   2: 0200007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 20 4 30 10 -1
   3: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 14 1 0 20 4 30 10 -1
   4: 0100007F:9C41 0100007F:1F90 06 00000000:00000000 03:000016C7 00000000     0        0 0 3 0
   5: nonsense
";
    const TABLE6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000001000000:0050 00000000000000000000000001000000:9C42 01 00000000:00000000 00:00000000 00000000     0        0 21 1 0 20 4 30 10 -1
   1: 0000000000000000FFFF00000100007F:0050 0000000000000000FFFF00000100007F:9C43 01 00000000:00000000 00:00000000 00000000     0        0 22 1 0 20 4 30 10 -1
";

    #[test]
    #[cfg(target_endian = "little")]
    fn an_end_is_found_by_what_is_known_of_it() {
        let mut sockets = Sockets::default();
        sockets.add(TABLE);
        sockets.add(TABLE6);
        let end = |ip: &str, port| (ip.parse::<IpAddr>().unwrap(), port);
        let find = |local: (&str, u16), peer: (&str, u16)| {
            let found = sockets.find(end(local.0, local.1), end(peer.0, peer.1))?;
            Some((found.local.to_string(), found.inode))
        };
        let is = |ip: &str, inode| Some((ip.to_owned(), inode));
        let client = ("127.0.0.1", 40000);
        assert_eq!(find(("127.0.0.1", 8080), client), is("127.0.0.1", 12));
        assert_eq!(find(("127.0.0.2", 8080), client), is("127.0.0.2", 13));
        assert_eq!(find(("0.0.0.0", 8080), client), None, "it may be either");
        assert_eq!(find(client, ("127.0.0.1", 8080)), is("127.0.0.1", 14));
        assert_eq!(find(("0.0.0.0", 40000), ("127.0.0.1", 8080)), is("127.0.0.1", 14));
        assert_eq!(find(("127.0.0.1", 40001), ("127.0.0.1", 8080)), None, "nobody holds it");
        assert_eq!(find(("::", 80), ("::1", 40002)), is("::1", 21));
        assert_eq!(find(("::", 80), ("127.0.0.1", 40003)), is("127.0.0.1", 22));
        assert_eq!(find(("0.0.0.0", 8080), ("0.0.0.0", 0)), None, "a listener leads to nobody");
    }

    #[test]
    fn our_own_sockets_are_there() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(at).unwrap();
        let (server, _) = listener.accept().unwrap();
        let of = |s: &std::net::TcpStream| {
            let (local, peer) = (s.local_addr().unwrap(), s.peer_addr().unwrap());
            let wild = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), local.port());
            // Other tests open and close many meanwhile: see `read`.
            let look = |_| Sockets::read().find(wild, (peer.ip(), peer.port()));
            (0..100).find_map(look).unwrap()
        };
        let (one, other) = (of(&client), of(&server));
        assert_eq!([one.local, other.local], [at.ip(); 2]);
        assert_ne!(one.inode, other.inode);
    }
}
