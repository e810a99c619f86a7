//! Who is at the other end of a TCP connection on this host: one `NETLINK_SOCK_DIAG` look-up.

use std::net::SocketAddrV6;

use crate::call;
use crate::sync::{AtomicU32, Ordering};

/// What the kernel knows of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its `SO_COOKIE`.
    pub cookie: u64,
    /// User id of its creator.
    pub uid: u32,
    /// Its inode number.
    pub inode: u32,
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST_BYTES: usize = 72;

/// Opens a socket for [`peer`].
///
/// # Errors
///
/// The errno: refused by a security policy, or no descriptor left.
pub fn open() -> Result<i32, i32> {
    call::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG)
}

/// Looks up the socket whose local address is `local` and whose peer is `remote`. One thread at a time may ask by a
/// socket; answers to others, who have not waited for them, are passed over.
///
/// # Errors
///
/// `ENOENT` if there is none in this network namespace; else the errno of the conversation.
pub fn peer(netlink: i32, local: SocketAddrV6, remote: SocketAddrV6) -> Result<Peer, i32> {
    /// Requests so far: the kernel puts the number of each into its answer.
    static ASKED: AtomicU32 = AtomicU32::new(0);
    // A connection between IPv6 sockets with mapped addresses is known as IPv4 to some kernels and
    // as IPv6 to others, by what the socket itself is; the exact look-up takes either, but wants
    // the family that the addresses have in its tables.
    let both_v4 = local.ip().to_ipv4_mapped().is_some() && remote.ip().to_ipv4_mapped().is_some();
    let number = ASKED.fetch_add(1, Ordering::Relaxed);
    let mut request = request(local, remote, both_v4);
    request[8..12].copy_from_slice(&number.to_ne_bytes());
    call::send(netlink, &request, libc::MSG_DONTWAIT)?;
    let mut answer = [0u8; 1024];
    loop {
        let n = call::recv(netlink, &mut answer, libc::MSG_DONTWAIT)?;
        if word(&answer[..n], 8) == Some(number)
            && let Some(result) = parse(&answer[..n])
        {
            return result;
        }
    }
}

fn request(local: SocketAddrV6, remote: SocketAddrV6, v4: bool) -> [u8; REQUEST_BYTES] {
    let mut m = [0u8; REQUEST_BYTES];
    // nlmsghdr: length, type, flags, sequence, port.
    #[expect(clippy::cast_possible_truncation, reason = "72")]
    m[0..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    m[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    #[expect(clippy::cast_possible_truncation, reason = "a flag of 16 bits")]
    m[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // inet_diag_req_v2: family, protocol, extensions, pad, states, id.
    #[expect(clippy::cast_possible_truncation, reason = "2 and 10")]
    let (v4_family, v6_family) = (libc::AF_INET as u8, libc::AF_INET6 as u8);
    m[16] = if v4 { v4_family } else { v6_family };
    m[17] = 6; // IPPROTO_TCP
    m[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    m[24..26].copy_from_slice(&local.port().to_be_bytes());
    m[26..28].copy_from_slice(&remote.port().to_be_bytes());
    for (at, addr) in [(28, local), (44, remote)] {
        let bytes = addr.ip().octets();
        if v4 {
            m[at..at + 4].copy_from_slice(&bytes[12..]);
        } else {
            m[at..at + 16].copy_from_slice(&bytes);
        }
    }
    // No interface, no cookie: INET_DIAG_NOCOOKIE.
    m[64..72].copy_from_slice(&[0xff; 8]);
    m
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// `None`: not our answer, read on.
fn parse(answer: &[u8]) -> Option<Result<Peer, i32>> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    #[expect(clippy::cast_possible_truncation, reason = "2")]
    let error = libc::NLMSG_ERROR as u16;
    if kind == error {
        let errno = word(answer, 16)?.cast_signed().wrapping_neg();
        return Some(Err(if errno == 0 { libc::ENOENT } else { errno }));
    }
    if kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    // inet_diag_msg: 4 bytes, id (48 bytes: ports 4, addresses 32, interface 4, cookie 8), expires,
    // rqueue, wqueue, uid, inode.
    let msg = answer.get(16..)?;
    let cookie = u64::from(word(msg, 44)?) | u64::from(word(msg, 48)?) << 32;
    Some(Ok(Peer { cookie, uid: word(msg, 64)?, inode: word(msg, 68)? }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn finds_the_other_end() {
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(bind).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            let cookie: u64 =
                call::getsockopt(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE).unwrap();
            let ours = call::name(server.as_raw_fd(), false).unwrap().unwrap();
            let theirs = call::name(server.as_raw_fd(), true).unwrap().unwrap();
            let netlink = open().unwrap();
            let found = peer(netlink, theirs, ours).unwrap();
            assert_eq!(found.cookie, cookie);
            assert_eq!(found.uid, call::geteuid());
            drop(client);
            let _ = call::close(netlink);
        }
    }

    #[test]
    fn an_answer_that_nobody_waited_for_is_passed_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let clients = [0, 1].map(|_| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let ends = |client: &TcpStream| {
            let fd = client.as_raw_fd();
            [false, true].map(|peer| call::name(fd, peer).unwrap().unwrap())
        };
        let netlink = open().unwrap();
        // Asked by one who was then interrupted for good; its number is 0, and not the next one's.
        let _ = peer(netlink, ends(&clients[0])[0], ends(&clients[0])[1]);
        let asked = request(ends(&clients[0])[0], ends(&clients[0])[1], true);
        call::send(netlink, &asked, libc::MSG_DONTWAIT).unwrap();
        let [local, remote] = ends(&clients[1]);
        let fd = clients[1].as_raw_fd();
        let cookie: u64 = call::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE).unwrap();
        assert_eq!(peer(netlink, local, remote).unwrap().cookie, cookie);
        let _ = call::close(netlink);
    }

    #[test]
    fn nobody_there_is_said() {
        let netlink = open().unwrap();
        let a = "[::ffff:127.0.0.1]:1".parse().unwrap();
        let b = "[::ffff:127.0.0.1]:2".parse().unwrap();
        assert!(peer(netlink, a, b).is_err());
        let _ = call::close(netlink);
    }

    #[test]
    fn a_short_answer_is_not_read_past_its_end() {
        for n in 0..90 {
            let mut bytes = vec![0u8; n];
            if n >= 6 {
                bytes[4] = 20;
            }
            let _ = parse(&bytes);
        }
    }
}
