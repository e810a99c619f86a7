//! How many handshakes each host may have at a time: as many as are left for others.
//!
//! So half of all is one host's at most, a third where two want more than there are, and somebody who has none may
//! always begin one while a host that would take them all is held back. Those that are beyond it do not count: they wait
//! for nothing but the peer's first message, to be told that their bytes go by TCP.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// Handshakes of a vector, by whom they are with.
#[derive(Debug, Default)]
pub(super) struct Shares {
    all: u32,
    each: HashMap<IpAddr, u32>,
}

impl Shares {
    /// One more with `peer`, of `most` at one time. Whether there may be one.
    pub(super) fn take(&mut self, peer: IpAddr, most: u32) -> bool {
        let Some(left) = most.checked_sub(self.all + 1) else { return false };
        let has = self.each.get(&host(peer)).copied().unwrap_or(0);
        if has > 0 && has + 1 > left {
            return false;
        }
        self.add(peer);
        true
    }

    /// One more, which there is already.
    pub(super) fn add(&mut self, peer: IpAddr) {
        self.all += 1;
        *self.each.entry(host(peer)).or_insert(0) += 1;
    }

    /// One that counted is over.
    pub(super) fn give_back(&mut self, peer: IpAddr) {
        self.all = self.all.saturating_sub(1);
        let peer = host(peer);
        let Some(has) = self.each.get_mut(&peer) else { return };
        *has -= 1;
        if *has == 0 {
            self.each.remove(&peer);
        }
    }

    /// How many there are.
    pub(super) const fn all(&self) -> usize {
        self.all as usize
    }
}

/// What all addresses of a host have in common: in IPv6 its network, in which it may have any; but on a link, which is one
/// network for everybody, an address.
pub(super) fn host(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) if !v6.is_unicast_link_local() => {
            Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into()
        }
        whole => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// How many it gets when it wants more than there are.
    fn takes(shares: &mut Shares, from: &str, most: u32) -> usize {
        (0..most).filter(|_| shares.take(peer(from), most)).count()
    }

    #[test]
    fn nobody_takes_what_is_left_for_others() {
        let mut shares = Shares::default();
        assert_eq!(takes(&mut shares, "192.0.2.1", 1024), 512);
        assert_eq!(takes(&mut shares, "192.0.2.2", 1024), 256);
        assert_eq!(takes(&mut shares, "2001:db8::1", 1024), 128);
        // Another address of the same network is no other host.
        assert_eq!(takes(&mut shares, "2001:db8::ffff", 1024), 0);
        assert_eq!(takes(&mut shares, "2001:db8:0:1::1", 1024), 64);
        assert_eq!(shares.all(), 960);
        // What is over is there again.
        (0..128).for_each(|_| shares.give_back(peer("2001:db8::2")));
        (0..512).for_each(|_| shares.give_back(peer("192.0.2.1")));
        assert_eq!(takes(&mut shares, "192.0.2.3", 1024), 352);
        assert!(!shares.each.contains_key(&peer("192.0.2.1")));
    }

    #[test]
    fn one_has_one_where_there_is_one_alone() {
        let mut shares = Shares::default();
        assert!(shares.take(peer("192.0.2.1"), 1));
        assert!(!shares.take(peer("192.0.2.1"), 1) && !shares.take(peer("192.0.2.2"), 1));
        // The door has begun it before anybody could say no.
        shares.add(peer("192.0.2.2"));
        shares.give_back(peer("192.0.2.1"));
        assert!(!shares.take(peer("192.0.2.1"), 1));
        shares.give_back(peer("192.0.2.2"));
        assert!(shares.take(peer("192.0.2.1"), 1));
    }
}
