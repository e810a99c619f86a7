//! Whether the next peer of an event loop is on our CPU for good, before there is one to ask.
//!
//! Connections that carry one request each are gone before much is known of them, but the next one mostly leads to where
//! the last one did. What a loop knows of that is kept here, with each of its event sets.

use sys::sync::{AtomicU32, Ordering};

use crate::conn::Conn;
use crate::spin::UNKNOWN;
use crate::world::World;

/// Where the next peer is expected.
#[derive(Debug)]
pub struct Beside {
    /// Its CPU.
    cpu: AtomicU32,
    /// 1: it is ours, and neither of us can leave it. See [`World::is_beside`].
    is_ours: AtomicU32,
}

impl Default for Beside {
    fn default() -> Self {
        Self { cpu: AtomicU32::new(UNKNOWN), is_ours: AtomicU32::new(0) }
    }
}

impl Beside {
    /// A connection was offered to whoever listens there.
    pub fn offered(&self, w: &World, conn: &Conn) {
        self.expect(conn.listener_cpu(w), conn.is_beside_listener(w));
    }

    /// A connection has left the event set, most likely for good: the next one most likely comes from there as well.
    /// Whether that is so is the answer; where not, its record, which the next one gets, tells more than we know.
    pub fn ended(&self, w: &World, conn: &Conn) -> bool {
        let Some((_, peer)) = conn.halves(w) else { return false };
        let beside = w.is_beside(peer);
        if beside {
            self.expect(peer.cpu.load(Ordering::Relaxed), true);
        } else {
            // Where the next one will be, whoever offers it says.
            self.is_ours.store(0, Ordering::Relaxed);
        }
        beside
    }

    fn expect(&self, cpu: u32, is_ours: bool) {
        self.cpu.store(cpu, Ordering::Relaxed);
        self.is_ours.store(u32::from(is_ours), Ordering::Relaxed);
    }

    /// Where the peer of the connection that was active last runs, or else that of the next one.
    #[must_use]
    pub fn cpu(&self, w: &World, last: Option<&Conn>) -> u32 {
        let Some(conn) = last else { return self.cpu.load(Ordering::Relaxed) };
        match conn.halves(w) {
            Some((_, peer)) => peer.cpu.load(Ordering::Relaxed),
            // Its record serves another connection by now, which has no peer yet.
            None if self.is_ours.load(Ordering::Relaxed) != 0 => self.cpu.load(Ordering::Relaxed),
            None => UNKNOWN,
        }
    }

    /// Whether that one is on our CPU for good.
    #[must_use]
    pub fn is_so(&self, w: &World, last: Option<&Conn>) -> bool {
        match last.and_then(|conn| conn.halves(w)) {
            Some((_, peer)) => w.is_beside(peer),
            // Unless we were let go to other CPUs meanwhile.
            None => self.is_ours.load(Ordering::Relaxed) != 0 && w.bound_to().is_some(),
        }
    }

    /// Whether it is, and all that a yield to it could find would come by the kernel: connections carry one request each,
    /// and so has the one that was active last, which is taken for the one that is waited for; unless the program has
    /// just asked another one, as a proxy does that was asked by a short one and has a long one to a server behind it.
    #[must_use]
    pub fn is_brief(&self, w: &World, last: Option<&Conn>) -> bool {
        w.is_brief()
            && last.is_none_or(|conn| conn.is_brief(w))
            && !w.awaits_another_answer()
            && self.is_so(w, last)
    }
}
