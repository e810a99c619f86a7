//! Connections of a `poll` that are not attached yet, while the kernel waits for them.
//!
//! Another thread may attach them meanwhile, by its next call. From then on bytes come by the ring, and the sleeper
//! must be rung for as one that sleeps on the connection.

use super::*;

/// Such a connection, and its descriptor in the list.
pub(crate) struct Unmet {
    pub(crate) conn: &'static Conn,
    fd: c_int,
}

impl Unmet {
    /// Whether it is attached by now. Only that ends a wait which nothing else has ended.
    fn is_attached(&self, w: &'static World) -> bool {
        let taken = self.conn.phase() == Phase::Offered
            && self.conn.is_taken(w)
            && io::settle(w, self.conn, self.conn.descriptor(self.fd), false);
        taken || matches!(self.conn.phase(), Phase::Attached | Phase::Busy)
    }
}

/// How long the kernel waits at most where a connection may be attached without anybody ringing for us: it is not
/// asked for bytes.
const UNRUNG_NS: u64 = 10_000_000;
/// The same while another thread is attaching one.
const BUSY_NS: u64 = 1_000_000;

/// Runs `sleep`, the kernel's wait, for at most `left` nanoseconds. `ours`: the connections of the list that were
/// attached when the caller looked. `None`: others have been attached before it or meanwhile, or may have been, and
/// what there is to say of them is to be looked at.
pub(super) fn asleep(
    w: &'static World,
    fds: &mut [pollfd],
    ours: &[Ours],
    left: Option<u64>,
    sleep: Sleep<'_>,
) -> Option<c_int> {
    if left == Some(0) {
        return Some(sleep(fds, left));
    }
    let (mut list, mut most) = (Vec::new(), u64::MAX);
    let mut known = ours.iter().map(|o| o.at).peekable();
    for (at, p) in fds.iter().enumerate() {
        let is_known = known.next_if_eq(&at).is_some();
        let Some(fds::Entry::Conn(conn)) = fds::look(p.fd) else { continue };
        match conn.phase() {
            Phase::Attached if !is_known && conn.halves(w).is_some() => return None,
            Phase::Busy => most = most.min(BUSY_NS),
            // A doorbell wakes who waits for bytes, and nobody else.
            Phase::Server | Phase::Offered if p.events & (libc::POLLIN | libc::POLLRDNORM) != 0 => {
                list.push(Unmet { conn, fd: p.fd });
            }
            Phase::Server | Phase::Offered => most = most.min(UNRUNG_NS),
            _ => {}
        }
    }
    let is_short = most < left.unwrap_or(u64::MAX);
    let limit = if is_short { Some(most) } else { left };
    let mut sleep = |fds: &mut [pollfd]| {
        let n = sleep(fds, limit);
        if n == 0 && is_short { None } else { Some(n) }
    };
    if list.is_empty() {
        return sleep(fds);
    }
    let mark = left::begin_inside(handler::here());
    let mut begun = 0;
    for u in list.iter().take_while(|u| u.conn.hold()) {
        u.conn.begins_to_wait();
        begun += 1;
        mark.now(Wait::Unmet(list.as_ptr(), begun));
    }
    let asleep = Finally(|| {
        for (n, u) in list[..begun].iter().enumerate().rev() {
            mark.now(Wait::Unmet(list.as_ptr(), n));
            end(w, u);
        }
    });
    if begun < list.len() {
        // Closed by another thread: what its number is now is another matter.
        return None;
    }
    // Either whoever attaches sees us, or we see it here. Who has armed for less than a doorbell before that is
    // overruled.
    let met = list.iter().fold(false, |met, u| {
        if u.conn.phase() == Phase::Offered {
            let _ = ready::ring_for_offer(w, u.conn);
        }
        u.is_attached(w) || met
    });
    let n = if met { None } else { sleep(fds) };
    let errno = real::errno();
    let met = met || n.is_some_and(|n| n >= 0) && list.iter().any(|u| u.is_attached(w));
    drop(asleep);
    drop(mark);
    real::set_errno(errno);
    if met { None } else { n }
}

/// A wait for one of them has ended.
pub(crate) fn end(w: &'static World, u: &Unmet) {
    u.conn.waits_no_more();
    io::received(w, u.conn);
    io::release(w, u.conn);
}
