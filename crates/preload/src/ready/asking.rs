//! One look of a wait: at the connections in memory, and at what only the kernel knows, so that neither starves.

use super::*;

impl Set {
    /// What there is to report now, each connection once.
    pub(super) fn looks_once(
        &'static self,
        w: &'static World,
        out: &mut Out<'_>,
        limit: Option<u64>,
    ) {
        if self.passed_over.load(Ordering::Relaxed)
            && self.passed_over.swap(false, Ordering::Relaxed)
        {
            self.scan(w, out);
            if out.n > 0 {
                return;
            }
        }
        // Others than ours first, and not more than half of the room, so that neither starves.
        // Connections are scanned once: none is reported twice in one answer.
        let strangers = self.others.load(Ordering::Relaxed) > 0
            || self.plain.load(Ordering::Relaxed)
            || self.rung.load(Ordering::Relaxed);
        let others = strangers
            || self.asks_by_itself()
            || self.mixed.load(Ordering::Relaxed) && self.mixed.swap(false, Ordering::Relaxed);
        let crowded = strangers
            && self.crowded.load(Ordering::Relaxed)
            && self.crowded.swap(false, Ordering::Relaxed);
        // With nothing to report the wait that follows asks.
        let long_ago = || call::now_ns() - self.asked.load(Ordering::Relaxed) > self.patience() / 2;
        if limit == Some(0) || (crowded || others && long_ago()) && self.any(w) {
            let room = out.events.len().div_ceil(2).max(1);
            self.ask_kernel(w, out, room);
            // With room for one there is no half of it.
            if out.is_full() && self.any(w) {
                self.passed_over.store(true, Ordering::Relaxed);
            }
        }
        self.scan(w, out);
    }

    /// Asks the kernel without waiting.
    pub(super) fn ask_kernel(&'static self, w: &'static World, out: &mut Out<'_>, room: usize) {
        self.asked.store(call::now_ns(), Ordering::Relaxed);
        let room = (out.events.len() - out.n).min(room).min(64);
        if room == 0 {
            return;
        }
        let mut some = [epoll_event { events: 0, u64: 0 }; 64];
        let dull = self.dull.load(Ordering::Relaxed);
        match call::epoll_wait(self.epfd(), &mut some[..room], 0) {
            Ok(n) if n > 0 => {
                self.dull.store(0, Ordering::Relaxed);
                self.absorb(w, &some[..n], out);
            }
            _ => self.dull.store((dull + 1).min(DULL_MAX), Ordering::Relaxed),
        }
    }

    /// How long the kernel need not be asked, nanoseconds.
    pub(super) fn patience(&self) -> u64 {
        KERNEL_NS << self.dull.load(Ordering::Relaxed)
    }
}
