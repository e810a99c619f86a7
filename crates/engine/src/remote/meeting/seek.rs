//! When to look for engines of hosts that are named by their addresses, so that even the first connection to one finds it
//! known. Hosts of a network are too many for that: they are looked for when a guest wants to get there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use sys::interface;

use super::super::peers::Network;
use super::PORT;

/// From one time to the next while somebody is not there: twice as long each time, up to the second.
pub(super) const SOON_NS: u64 = 1_000_000_000;
const LATE_NS: u64 = 30_000_000_000;
/// Hosts that are looked for at one time.
const AT_ONCE: usize = 8;

/// The hosts, and when their next turn is.
#[derive(Debug)]
pub(super) struct Seek {
    hosts: Vec<IpAddr>,
    /// Whose turn is next.
    next: usize,
    at: u64,
    gap: u64,
}

impl Seek {
    pub(super) fn new(networks: &[Network]) -> Self {
        let hosts = networks.iter().filter_map(Network::only).collect();
        Self { hosts, next: 0, at: 0, gap: SOON_NS }
    }

    /// When [`Self::turn`] is to be called.
    pub(super) fn due(&self) -> Option<u64> {
        (!self.hosts.is_empty()).then_some(self.at)
    }

    /// Hosts to look for now, of those that are not known.
    pub(super) fn turn(&mut self, now: u64, is_known: impl Fn(IpAddr) -> bool) -> Vec<IpAddr> {
        if self.due().is_none_or(|at| now < at) {
            return Vec::new();
        }
        let all = self.hosts.iter().cycle().skip(self.next).take(self.hosts.len()).copied();
        let absent: Vec<IpAddr> = all.filter(|host| !is_known(*host)).take(AT_ONCE).collect();
        if let Some(last) = absent.last() {
            let at = self.hosts.iter().position(|host| host == last);
            self.next = at.map_or(0, |at| (at + 1) % self.hosts.len());
        }
        self.at = now.saturating_add(self.gap);
        if absent.len() < AT_ONCE {
            // Each has had its turn.
            self.gap = (self.gap * 2).min(LATE_NS);
        }
        absent
    }

    /// One is not known any more: it may be back soon.
    pub(super) fn lost(&mut self, host: IpAddr, now: u64) {
        if self.hosts.contains(&host) {
            (self.at, self.gap) = (self.at.min(now.saturating_add(SOON_NS)), SOON_NS);
        }
    }
}

/// The address from which this host reaches another one; `None`: it does not, or it is this one.
pub(super) fn source(remote: IpAddr) -> Option<IpAddr> {
    let any = match remote {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    // Nothing is sent.
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    socket.connect(SocketAddr::new(remote, PORT)).ok()?;
    let local = socket.local_addr().ok()?.ip();
    // An address of our own may be one that nothing is sent from by itself. Whether a socket may have it says nothing where
    // the administrator lets sockets have any (`ip_nonlocal_bind`).
    let is_own = local == remote || interface::is_own(remote) == Some(true);
    (!is_own).then_some(local)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seek(networks: &str) -> Seek {
        let networks: Vec<Network> =
            networks.split(' ').map(|text| text.parse().unwrap()).collect();
        Seek::new(&networks)
    }

    fn host(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    #[test]
    fn hosts_of_a_network_are_not_looked_for() {
        let mut none = seek("192.0.2.0/24 2001:db8::/32");
        assert_eq!((none.due(), none.turn(5, |_| false)), (None, vec![]));
        let mut two = seek("192.0.2.1 192.0.2.0/24 2001:db8::1/128");
        assert_eq!(two.turn(5, |_| false), [host(1), "2001:db8::1".parse().unwrap()]);
    }

    #[test]
    fn who_is_not_there_is_looked_for_more_and_more_rarely() {
        let mut one = seek("192.0.2.1");
        let mut now = 0;
        let mut gaps = Vec::new();
        for _ in 0..8 {
            assert_eq!(one.turn(now, |_| false), [host(1)]);
            assert!(one.turn(now, |_| false).is_empty(), "its turn has been");
            let next = one.due().unwrap();
            gaps.push((next - now) / SOON_NS);
            now = next;
        }
        assert_eq!(gaps, [1, 2, 4, 8, 16, 30, 30, 30]);
        let due = one.due();
        one.lost(host(9), now);
        assert_eq!(one.due(), due, "of a host that is not looked for");
        one.lost(host(1), now - 40 * SOON_NS);
        one.lost(host(1), now);
        assert_eq!(one.due(), Some(now - 39 * SOON_NS), "never later than before");
    }

    #[test]
    fn each_has_its_turn_where_many_are_absent() {
        let words: Vec<String> = (0..20).map(|n| format!("192.0.2.{n}")).collect();
        let mut many = seek(&words.join(" "));
        let mut seen = Vec::new();
        let mut now = 0;
        for _ in 0..3 {
            seen.extend(many.turn(now, |host| host == self::host(3)));
            now = many.due().unwrap();
        }
        let rest = (0..20).filter(|n| *n != 3).map(host);
        assert_eq!(seen[..19], rest.collect::<Vec<_>>());
        assert_eq!(seen[19..], [0, 1, 2, 4, 5].map(host));
    }

    #[test]
    fn this_host_is_not_another_one() {
        for own in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::from([127, 0, 0, 2])] {
            assert_eq!(source(own), None);
        }
    }

    /// Routers that fail over have it set (keepalived, HAProxy).
    #[test]
    fn another_host_is_another_one_where_sockets_may_have_any_address() {
        const MARK: &str = "SHUNT_TEST_ANY_ADDRESS";
        const TEST: &str = "remote::meeting::seek::tests::another_host_is_another_one_where_sockets_may_have_any_address";
        if std::env::var_os(MARK).is_some() {
            assert!(UdpSocket::bind((host(7), 0)).is_ok());
            assert_eq!(source(host(7)), Some(host(1)));
            for own in [host(1), IpAddr::from([127, 0, 0, 2])] {
                assert_eq!(source(own), None);
            }
            return;
        }
        // A network of its own, from whose address another host is reached, or would be.
        const NETWORK: &str = "
            ip link set lo up && ip address add 192.0.2.1/32 dev lo && ip route add 192.0.2.7 dev lo &&
            echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind || { echo 'no network' >&2; exit; }
            exec \"$0\" \"$@\"";
        let output = std::process::Command::new("unshare")
            .args(["--map-root-user", "--net", "sh", "-c", NETWORK])
            .arg(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--nocapture"])
            .env(MARK, "1")
            .output();
        let Ok(output) = output else { return println!("skipped: no unshare") };
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        if said.starts_with("unshare: ") || said.contains("no network") {
            return println!("skipped: {said}");
        }
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}
