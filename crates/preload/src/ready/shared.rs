//! Events of connections that another process has registered in a set that we share with it.

use super::*;

/// An event of a connection that this process does not hold: another process registered it in a
/// set that we share. Its halves say what there is.
/// `false`: there is nothing to report.
pub(super) fn stranger(
    w: &World,
    half: &Half,
    which: usize,
    kernel_mask: u32,
    out: &mut Out<'_>,
) -> bool {
    let Some(data) = half.set_data.get(which) else { return false };
    let user = half.set_events[which].load(Ordering::Relaxed);
    let mut now = kernel_mask & !(IN | RDNORM);
    if let Some(peer) =
        half.peer.load(Ordering::Relaxed).checked_sub(1).and_then(|p| w.board.map.half(p))
        && (ring::tail(&peer.tail) != half.head.load(Ordering::Relaxed) || end_flags(peer) != 0)
    {
        now |= IN;
    }
    let now = now & (user | ERR | HUP);
    if now != 0 && !out.is_full() {
        out.push(now, data.load(Ordering::Relaxed));
    }
    now != 0
}

/// A doorbell of a shared connection whose ring is empty by now: out of the socket, and armed anew.
pub(super) fn quiet_stranger(w: &'static World, half: &Half) {
    let fd = half.fd.load(Ordering::Relaxed).cast_signed();
    let Some(conn) = fds::conn(fd) else { return };
    let Some(e) = ends(w, conn) else { return };
    if !std::ptr::eq(e.mine, half) {
        return;
    }
    if let Some(_held) = lock::lock(&e.mine.rx_lock)
        && ring::tail(&e.peer.tail) == e.mine.head.load(Ordering::Relaxed)
    {
        conn.drain_bells(e.mine, e.peer, fd);
        conn.arm_cold(e.mine);
    }
}

/// The half and the registration that a tag of ours leads to; `None`: the data is the program's.
pub(super) fn tagged(w: &'static World, tag: u64) -> Option<(&'static Half, usize)> {
    if tag & TAG_MASK != TAG {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    let half = w.board.map.half(tag as u32)?;
    let generation = u64::from(half.generation.load(Ordering::Relaxed)) & 0x7fff;
    (tag >> 32 & 0x7fff == generation).then_some((half, usize::from(tag & TAG_SECOND != 0)))
}
