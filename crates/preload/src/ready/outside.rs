//! Sets whose descriptor somebody looks at from outside: another set, `poll`, `select`.
//!
//! The kernel says of such a set that it is ready where a doorbell is unread, or where one of the program's own descriptors
//! is. What else there is to tell of connections in memory, it is told by the descriptor that is always ready ([`Set::kick`]),
//! whose one event is gone with the next wait: bytes that came while nobody had to ring for them, and room.

use super::*;

/// Whether there was ever such a set in this process.
static ANY: AtomicBool = AtomicBool::new(false);

/// Bytes of a connection were taken: sets that showed them need not any more.
#[inline]
pub(crate) fn has_read(w: &'static World, conn: &'static Conn) {
    if ANY.load(Ordering::Relaxed) {
        registrations(conn).for_each(|(_, set)| set.hides(w));
    }
}

impl Set {
    /// Somebody looks from now on.
    pub(super) fn is_looked_at(&'static self, w: &'static World) {
        ANY.store(true, Ordering::Relaxed);
        self.looked_at.store(true, Ordering::SeqCst);
        self.go_cold(w);
        self.shows(w);
    }

    /// Has the kernel say that there is something to tell, if it does not know.
    #[inline]
    pub(super) fn shows(&self, w: &'static World) {
        if self.looked_at.load(Ordering::SeqCst) && self.has_what_is_unknown(w) {
            let errno = crate::real::errno();
            self.shown.store(true, Ordering::SeqCst);
            self.kick(w);
            crate::real::set_errno(errno);
        }
    }

    /// Takes that back, if there is nothing any more.
    #[cold]
    fn hides(&self, w: &'static World) {
        // Who waits may have been interrupted for another reason, and not know it yet.
        if self.shown.load(Ordering::SeqCst)
            && self.waiting.load(Ordering::SeqCst) == 0
            && !self.has_what_is_unknown(w)
        {
            self.shown.store(false, Ordering::SeqCst);
            let _ =
                call::epoll_ctl(self.epfd(), libc::EPOLL_CTL_MOD, kick::kick_fd(), ONESHOT, KICK);
        }
    }

    fn has_what_is_unknown(&self, w: &'static World) -> bool {
        // `None`: this thread is at the lists, and a handler of its own has interrupted it.
        let Some(members) = self.members.lock() else { return false };
        members.warm.iter().any(|member| {
            let conn = member.conn;
            let Some(e) = ends(w, conn) else { return false };
            let due = due(w, conn, &conn.sets[member.which]).events;
            let rung =
                e.mine.drained.load(Ordering::Relaxed) != e.peer.bells.load(Ordering::Acquire);
            // Of the peer's end the kernel knows.
            let known = rung || end_flags(e.peer) != 0;
            due & (OUT | WRNORM) != 0 || due & (IN | RDNORM) != 0 && !known
        })
    }
}
