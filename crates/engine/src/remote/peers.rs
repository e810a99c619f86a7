//! Which hosts may have an engine that ours should get to know: addresses and networks, as people write them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// Networks that a setting may name.
pub const NETWORKS_MAX: usize = 64;

/// The hosts of an address and a length of prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// As it was written.
    first: IpAddr,
    bits: u8,
}

/// What is no network: said in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an address, or a network as in 192.0.2.0/24 or 2001:db8::/32")]
pub struct BadNetwork;

impl FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Self, BadNetwork> {
        let (ip, bits) = text.split_once('/').map_or((text, None), |(ip, bits)| (ip, Some(bits)));
        let first: IpAddr = ip.trim().parse().map_err(|_| BadNetwork)?;
        // An address of IPv4 is one, however it is written.
        let first = if bits.is_none() { first.to_canonical() } else { first };
        let most = if first.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.trim().parse().ok().filter(|bits| *bits <= most),
            None => Some(most),
        };
        Ok(Self { first, bits: bits.ok_or(BadNetwork)? })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

impl Network {
    /// The host, if it is one.
    #[must_use]
    pub fn only(&self) -> Option<IpAddr> {
        let most = if self.first.is_ipv4() { 32 } else { 128 };
        (self.bits == most).then_some(self.first)
    }

    /// Whether a host belongs to it. IPv4 and IPv6 are not mixed, but for IPv4 that is mapped into IPv6.
    #[must_use]
    pub fn has(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        if ip.is_ipv4() != self.first.is_ipv4() {
            return false;
        }
        let (one, other, bits) = (number(self.first), number(ip), u32::from(self.bits));
        let bits = if ip.is_ipv4() { bits + 96 } else { bits };
        // All of them for a prefix of nothing: a shift by the whole width has no result.
        (one ^ other).checked_shr(128 - bits).unwrap_or(0) == 0
    }
}

fn number(ip: IpAddr) -> u128 {
    let ip: Ipv6Addr = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    ip.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_the_hosts_of_its_prefix() {
        let cases = [
            ("192.0.2.0/24", "192.0.2.255", true),
            ("192.0.2.0/24", "192.0.3.0", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("192.0.2.0/31", "192.0.2.1", true),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("192.0.2.0/24", "::ffff:192.0.2.9", true),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::/0", "2001:db9::1", true),
            ("::/0", "192.0.2.1", false),
        ];
        for (network, ip, has) in cases {
            let network: Network = network.parse().unwrap();
            assert_eq!(network.has(ip.parse().unwrap()), has, "{network} {ip}");
            assert_eq!(network.to_string().parse(), Ok(network));
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in ["", "host", "192.0.2.0/33", "2001:db8::/129", "192.0.2.0/-1", "1.2.3/8", "/8"]
        {
            assert_eq!(text.parse::<Network>(), Err(BadNetwork), "{text}");
        }
    }
}
