//! The program in the kernel that takes fragments out of its way, and what it is told as time passes.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use sys::bpf::{self, AddressSet, SocketMap};
use sys::call::Failure;
use sys::interface::{self, Interface};

use super::exchange::End;
use super::redirect::{self, Takes};

/// Addresses of the host that the program may know. Fragments to those that find no room stay the kernel's.
const ADDRESSES_MAX: u32 = 4096;

/// It goes when this does.
pub(super) struct Gate {
    pub(super) link: bpf::Link,
    map: SocketMap,
    /// To whom fragments are that it takes.
    address: [u8; 6],
    /// If only the host's own are taken.
    own: Option<Own>,
    end: Arc<End>,
}

impl Gate {
    /// At an interface, in front of the sockets of a map. `own_only`: not all fragments to the interface are taken, but
    /// those to unicast addresses of the host. `end`: that of the workers, which is told when it is closed.
    pub(super) fn before(
        map: SocketMap,
        interface: &Interface,
        own_only: bool,
        end: Arc<End>,
    ) -> Result<Self, Failure> {
        let mut own = own_only.then(Own::none).transpose()?;
        if let Some(own) = &mut own {
            own.follow(&interface::addresses()?);
        }
        let address = interface.address;
        let link = bpf::Link::attach(&program(&map, address, own.as_ref())?, interface.index)?;
        Ok(Self { link, map, address, own, end })
    }

    /// Whether the program is where it was put; yes, if that cannot be told.
    pub(super) fn is_there(&self) -> bool {
        self.link.is_attached().unwrap_or(true)
    }

    /// Takes nothing any more: what comes from now on is the kernel's, and workers may come to an end. The program stays: a
    /// driver that is told to do without may drop what it has at that moment, and must not before all is read.
    pub(super) fn close(&self) {
        // It is refused for no reason that could be here; or workers are not told, and end when their time is up.
        if self.map.clear().is_ok() {
            self.end.close();
        }
    }

    /// The interface has this address now, and the host what it has. If that cannot be told the kernel, fragments to the
    /// new ones are its own as they were, and it is asked again.
    pub(super) fn follow(&mut self, address: [u8; 6]) {
        if let Some(own) = &mut self.own
            && let Ok(addresses) = interface::addresses()
        {
            own.follow(&addresses);
        }
        if address == self.address {
            return;
        }
        let new = program(&self.map, address, self.own.as_ref());
        if new.and_then(|new| self.link.replace(&new)).is_ok() {
            self.address = address;
        }
    }
}

impl Drop for Gate {
    /// Also where not all workers could be started: those that were are not to wait for the end.
    fn drop(&mut self) {
        self.close();
    }
}

fn program(map: &SocketMap, address: [u8; 6], own: Option<&Own>) -> Result<bpf::Program, Failure> {
    let takes = own.map_or(Takes::Interfaces, |own| Takes::HostsOwn(own.set.number()));
    let code = redirect::fragments(map.number(), address, takes);
    bpf::Program::load(bpf::Hook::Xdp, &code).map_err(|refused| refused.failure)
}

/// Addresses by which packets reach the host whatever interface they come in on, as the program knows them.
struct Own {
    set: AddressSet,
    known: HashSet<Ipv6Addr>,
}

impl Own {
    fn none() -> Result<Self, Failure> {
        Ok(Self { set: AddressSet::new(ADDRESSES_MAX)?, known: HashSet::new() })
    }

    /// These are the host's now. Those that have gone make room first.
    fn follow(&mut self, addresses: &[IpAddr]) {
        let now: HashSet<_> = addresses.iter().copied().filter_map(everywhere).collect();
        let set = &self.set;
        self.known.retain(|known| now.contains(known) || set.remove(*known).is_err());
        let new = now.into_iter().filter(|new| !self.known.contains(new));
        let new: Vec<_> = new.filter(|new| set.add(*new).is_ok()).collect();
        self.known.extend(new);
    }
}

/// An address as the program has it, if it is good on all interfaces.
fn everywhere(address: IpAddr) -> Option<Ipv6Addr> {
    match address {
        IpAddr::V4(v4) => (!v4.is_loopback()).then(|| v4.to_ipv6_mapped()),
        IpAddr::V6(v6) => (!v6.is_loopback() && !v6.is_unicast_link_local()).then_some(v6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_link_or_of_none_are_not_among_them() {
        let of = |text: &str| everywhere(text.parse().unwrap()).map(|found| found.to_string());
        assert_eq!(of("10.0.0.1").as_deref(), Some("::ffff:10.0.0.1"));
        assert_eq!(of("fd00::1").as_deref(), Some("fd00::1"));
        for other in ["127.0.0.1", "127.3.0.1", "::1", "fe80::1", "febf::1"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn what_has_gone_makes_room() {
        let set = match AddressSet::new(2) {
            Ok(set) => set,
            Err(e) => return println!("skipped: {e}"),
        };
        let mut own = Own { set, known: HashSet::new() };
        let mut knows = |addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            own.follow(&addresses);
            let mut known: Vec<_> = own.known.iter().map(|known| known.to_string()).collect();
            known.sort();
            known
        };
        assert_eq!(knows(&["fd00::1", "::1", "fd00::2"]), ["fd00::1", "fd00::2"]);
        assert_eq!(knows(&["fd00::2", "fd00::1"]), ["fd00::1", "fd00::2"]);
        assert_eq!(knows(&["fd00::3", "fd00::2"]), ["fd00::2", "fd00::3"]);
        assert_eq!(knows(&["fd00::3", "fd00::2", "fd00::4"]), ["fd00::2", "fd00::3"], "full");
        assert_eq!(knows(&[]), [""; 0]);
        assert_eq!(knows(&["fd00::4"]), ["fd00::4"]);
    }
}
