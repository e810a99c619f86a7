//! The small values by which hosts, links and buffers are named on the wire.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Who a host, or rather one SMC stack on it, is (RFC 7609 A.2.1): two bytes that tell instances apart and
/// a MAC address. Link groups are looked up by it, so two stacks on one address must not share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SystemId(pub [u8; 8]);

impl SystemId {
    /// From two bytes drawn at random when the stack starts, and a MAC address of the host.
    #[must_use]
    pub const fn new(instance: [u8; 2], mac: Mac) -> Self {
        let ([i, j], [a, b, c, d, e, f]) = (instance, mac.0);
        Self([i, j, a, b, c, d, e, f])
    }

    /// Whether it names anybody: Linux sends zeros in a proposal of SMC-Rv2.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.0[2..] != [0; 6]
    }
}

/// Address of a RoCE port. For RoCEv2 over IPv4 it is the IPv4 address, mapped into IPv6.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Of RoCEv2 over IPv4.
    #[must_use]
    pub const fn v4(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }

    /// The IPv4 address that it stands for, if any.
    #[must_use]
    pub fn to_v4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// Ethernet address of a RoCE port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

macro_rules! bits24 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $name {
            /// Of the low 24 bits.
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self(value & 0xff_ffff)
            }

            /// As a number below 2^24.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }
        }
    };
}

bits24! {
    /// Number of a queue pair, 24 bits.
    Qpn
}
bits24! {
    /// Number of a packet, 24 bits.
    Psn
}

/// What lets a peer write into a registered buffer, on one link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RKey(pub u32);

/// Which connection of a link group a CDC message is for (RFC 7609 A.2.3, "RMBE alert token"). Given by the
/// one who receives; 0 names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u32);

/// Size of a receive buffer as it stands on the wire (RFC 7609 A.2.3): 16 KiB times 2^n, n from 0 to 15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SizeClass(u8);

impl SizeClass {
    /// What every peer understands: 512 KiB (RFC 7609; Linux before 6.11).
    pub const WIDELY_KNOWN_MAX: Self = Self(5);
    /// 512 MiB.
    pub const MAX: Self = Self(15);

    /// Of 16 KiB times 2^`n`; only the low four bits of `n` count.
    #[must_use]
    pub const fn new(n: u8) -> Self {
        Self(n & 15)
    }

    /// The smallest class of at least so many bytes; the largest there is if all are smaller.
    #[must_use]
    pub const fn holding(bytes: u64) -> Self {
        let mut class = Self(0);
        while (class.bytes() as u64) < bytes && class.0 < 15 {
            class.0 += 1;
        }
        class
    }

    /// n.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Bytes; a power of two from 16 KiB to 512 MiB.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        16_384 << self.0
    }
}

/// Largest payload of a RoCE packet, as a number from 1 to 5 (InfiniBand 9.3.3; RFC 7609 A.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mtu(u8);

impl Mtu {
    /// 1024 bytes, what fits into Ethernet's 1500.
    pub const BYTES_1024: Self = Self(3);
    /// 4096 bytes.
    pub const BYTES_4096: Self = Self(5);

    /// As it stands on the wire; only the low four bits of `code` count.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 15)
    }

    /// The number on the wire.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Bytes, 256 to 4096. `None`: the number is reserved, which is a reason to decline.
    #[must_use]
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_they_say() {
        let cases = [(0, 0), (1, 0), (16_384, 0), (16_385, 1), (65_536, 2), (512 << 10, 5)];
        for (bytes, class) in cases {
            assert_eq!(SizeClass::holding(bytes).get(), class, "{bytes}");
        }
        assert_eq!(SizeClass::holding(u64::MAX), SizeClass::MAX);
        assert_eq!(SizeClass::MAX.bytes(), 512 << 20);
    }

    #[test]
    fn reserved_mtu_has_no_size() {
        let sizes: Vec<_> = (0..=16).map(|code| Mtu::new(code).bytes()).collect();
        assert_eq!(sizes[1..6], [256, 512, 1024, 2048, 4096].map(Some));
        assert!(sizes[6..].iter().chain(&sizes[..1]).all(Option::is_none));
    }

    #[test]
    fn a_gid_of_v4_is_mapped() {
        let gid = Gid::v4(Ipv4Addr::new(10, 99, 0, 1));
        assert_eq!(gid.to_string(), "::ffff:10.99.0.1");
        assert_eq!(gid.to_v4(), Some(Ipv4Addr::new(10, 99, 0, 1)));
        assert_eq!(Gid([0xfe; 16]).to_v4(), None);
    }
}
