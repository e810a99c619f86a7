//! UDP port 4791: which socket, and so which vector, a packet comes to.

use std::net::{IpAddr, SocketAddr};

use sys::bpf::Classic;
use sys::call::Failure;
use sys::udp::{Options, Socket};

/// The port of RoCEv2 (IBTA annex A17).
pub(super) const PORT: u16 = 4791;

/// More than all windows together, as a rule; the kernel grants what it may.
const BYTES: u32 = 8 << 20;

/// How many low bits of a queue pair's number say its vector.
pub(super) const fn vector_bits(vectors: u32) -> u8 {
    let bits = u32::BITS - vectors.saturating_sub(1).leading_zeros();
    bits.to_le_bytes()[0]
}

/// Sockets of one address, one for each vector, in their order. A packet comes to that of the vector that
/// its queue pair belongs to. `segments`: see [`Options`].
///
/// # Errors
///
/// The step and its errno: `EADDRINUSE` if another RoCEv2 stack has the port, as `rdma_rxe` of the kernel
/// has once it is loaded, or another engine.
pub(super) fn open(address: IpAddr, vectors: u32, segments: bool) -> Result<Vec<Socket>, Failure> {
    let at = SocketAddr::new(address, PORT);
    // Ours share the port, and would with those of another engine of the same user, which then got half of our packets.
    let first = Socket::bind_first(at, options(segments));
    let others = (1..vectors).map(|_| Socket::bind(at, options(segments)));
    let sockets: Vec<Socket> = std::iter::once(first).chain(others).collect::<Result<_, _>>()?;
    if let [first, _, ..] = &sockets[..] {
        first.steer(&steering(vector_bits(vectors)))?;
    }
    Ok(sockets)
}

const fn options(segments: bool) -> Options {
    Options { receive_bytes: BYTES, send_bytes: BYTES, segments }
}

/// Looks whether there could be such sockets of an address, at some other port: one who looks is in nobody's way, and an
/// engine that has this one is none to it.
///
/// # Errors
///
/// The step and its errno: `EADDRNOTAVAIL` if this host has no such address.
pub(super) fn try_out(address: IpAddr) -> Result<(), Failure> {
    Socket::bind_first(SocketAddr::new(address, 0), options(false)).map(drop)
}

/// The first of these addresses that another RoCEv2 stack speaks from already, and how that shows.
pub(super) fn taken(addresses: impl IntoIterator<Item = IpAddr>) -> Option<(IpAddr, Failure)> {
    let try_out = |address| match open(address, 1, false) {
        Err(failure) if failure.errno == EADDRINUSE => Some((address, failure)),
        _ => None,
    };
    addresses.into_iter().find_map(try_out)
}

const EADDRINUSE: i32 = 98;

/// Answers the low bits of the destination queue pair: bytes 5 to 7 of the BTH.
fn steering(bits: u8) -> [Classic; 3] {
    [
        // A = the word at byte 4
        Classic { code: 0x20, yes: 0, no: 0, k: 4 },
        // A &= mask
        Classic { code: 0x54, yes: 0, no: 0, k: (1 << bits) - 1 },
        // return A
        Classic { code: 0x16, yes: 0, no: 0, k: 0 },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    use sys::udp::{Outgoing, Received};

    /// `None`, with the reason printed: there can be none here.
    fn opened(address: IpAddr, vectors: u32) -> Option<Vec<Socket>> {
        open(address, vectors, false).map_err(|failure| println!("skipped: {failure}")).ok()
    }

    #[test]
    fn a_packet_comes_to_the_vector_of_its_queue_pair() {
        // Some address of our own, so that nobody else is in the way.
        let address: IpAddr = "127.47.91.1".parse().unwrap();
        let Some(sockets) = opened(address, 4) else { return };
        let mut batch = Outgoing::new(1 << 20);
        for qpn in 0x0012_3400..0x0012_3440u32 {
            let mut bth = [0; 12];
            bth[4..8].copy_from_slice(&(qpn | 0xab00_0000).to_be_bytes());
            batch.push((address, PORT).into(), &bth);
        }
        sockets[0].send(&mut batch).unwrap();
        for (vector, socket) in (0u8..).zip(&sockets) {
            let mut received = Received::new(64, 64);
            assert_eq!(socket.receive(&mut received), Ok(16));
            for (_, bytes) in received.iter() {
                assert_eq!(bytes[7] & 3, vector, "{bytes:x?}");
            }
        }
    }

    #[test]
    fn an_engine_has_the_port_of_an_address_alone() {
        let address: IpAddr = "127.47.91.2".parse().unwrap();
        let Some(sockets) = opened(address, 2) else { return };
        let refused = open(address, 2, false).unwrap_err();
        assert_eq!(refused.errno, EADDRINUSE, "{refused}");
        let other: IpAddr = "127.47.91.3".parse().unwrap();
        assert!(open(other, 2, false).is_ok(), "another address");
        assert_eq!(taken([other, address]).map(|(address, _)| address), Some(address));
        assert!(taken([other]).is_none());
        drop(sockets);
        assert!(taken([other, address]).is_none());
        assert!(open(address, 2, false).is_ok());
    }

    #[test]
    fn bits_hold_all_vectors() {
        assert_eq!([1, 2, 3, 4, 5, 64].map(vector_bits), [0, 1, 2, 2, 3, 6]);
    }
}
