//! What lines for people call a connection: a descriptor is another one's a moment later, in a log of many processes.

use std::fmt;
use std::net::{IpAddr, SocketAddrV6};

use sys::abi::Half;
use sys::call;
use sys::sync::Ordering;

use super::Conn;
use super::attach::{is_nowhere, plain};

/// A connection as people find it in other lists: its descriptor, and both ends as far as they are known.
#[derive(Clone, Copy, Debug)]
pub struct Called {
    fd: i32,
    local: Option<SocketAddrV6>,
    remote: Option<SocketAddrV6>,
}

struct End(Option<SocketAddrV6>);

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at) => match at.ip().to_canonical() {
                IpAddr::V4(v4) => write!(f, "{v4}:{}", at.port()),
                IpAddr::V6(v6) => write!(f, "[{v6}]:{}", at.port()),
            },
            None => f.write_str("?"),
        }
    }
}

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fd {}, {} -> {}", self.fd, End(self.local), End(self.remote))
    }
}

impl Conn {
    /// What it is called. The kernel is asked for what is not known; at most for both addresses.
    #[must_use]
    pub fn called(&self, fd: i32) -> Called {
        let whole = |at: &SocketAddrV6| at.port() != 0 && !is_nowhere(*at.ip());
        let known = self.ends.lock().and_then(|ends| *ends);
        let ask = |peer| call::name(fd, peer).ok().flatten().map(plain);
        // The descriptor of one to another host leads to the engine.
        let ask = |peer| if self.stands_in() { None } else { ask(peer) };
        let local = known.map(|ends| ends.local).filter(whole).or_else(|| ask(false));
        let remote = known.map(|ends| ends.remote).filter(whole).or_else(|| ask(true));
        Called { fd, local, remote }
    }

    #[cold]
    pub(super) fn says_that_it_is_attached(&self, half: &Half) {
        let name = self.called(self.own_fd(half));
        if self.stands_in() {
            // Whether it goes by SMC-R is known to the engine alone, and told by `shunt stat`.
            return crate::log::line(format_args!("{name}: handed to the engine"));
        }
        let (sent, taken) = (self.tx.sent(), half.tcp_rx.load(Ordering::Relaxed));
        crate::log::line(format_args!("{name}: attached after {sent} bytes out, {taken} in"));
    }

    /// [`Self::called`], of one that the program has begun to connect to there, which may have been another one before.
    #[must_use]
    pub fn called_to(&self, fd: i32, remote: SocketAddrV6) -> Called {
        let local = call::name(fd, false).ok().flatten().map(plain);
        Called { fd, local, remote: Some(plain(remote)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_as_people_write_them() {
        let at = |text: &str| match text.parse().unwrap() {
            std::net::SocketAddr::V4(v4) => {
                Some(SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0))
            }
            std::net::SocketAddr::V6(v6) => Some(v6),
        };
        let named = |local, remote| Called { fd: 7, local, remote }.to_string();
        let four = named(at("127.0.0.1:40000"), at("10.0.0.1:80"));
        assert_eq!(four, "fd 7, 127.0.0.1:40000 -> 10.0.0.1:80");
        assert_eq!(named(at("[::1]:1"), None), "fd 7, [::1]:1 -> ?");
    }
}
