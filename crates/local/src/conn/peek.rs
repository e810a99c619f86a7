//! Looking at bytes without taking them, wherever the stream has put them; and taking them where they lie.

use super::{
    Buffers, Conn, Got, Half, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, Ordering, Phase, World, add32,
    add64, call, flag, is_own, lock, note_cpu, ring, room, switch,
};

const SIOCATMARK: u64 = 0x8905;
const SIOCINQ: u64 = 0x541b;
/// How far a look goes over what is not to be seen.
const LOOK_MAX: usize = 1 << 20;

impl Conn {
    /// What `MSG_PEEK` shows: bytes of TCP before the switch, of the rings, and of TCP after the way
    /// back, as the one stream that they are. Where there are none, what [`Self::recv`] says.
    pub fn peek(&'static self, w: &World, fd: i32, to: &mut Buffers<'_>, flags: i32) -> Got {
        let Some((mine, peer)) = self.halves(w) else { return Got::Kernel };
        self.note_fork(w, mine);
        let begin = to.clone();
        let seen = {
            let held = lock::lock_of(&mine.rx_lock, &mine.lent);
            let Some(_held) = held.or_else(|| self.lock_if_left(w, &mine.rx_lock, &mine.lent))
            else {
                return Got::Empty;
            };
            let fd = self.descriptor(fd);
            if self.phase() != Phase::Attached || fd < 0 {
                return self.elsewhere();
            }
            self.answer_demotion(w, fd, mine, peer);
            self.look_ahead(w, fd, mine, peer, to, flags & MSG_TRUNC)
        };
        if seen > 0 {
            return Got::Bytes(seen);
        }
        *to = begin;
        self.recv(w, fd, to, flags)
    }

    /// Copies what is there; answers how much.
    fn look_ahead(
        &self,
        w: &World,
        fd: i32,
        mine: &Half,
        peer: &Half,
        to: &mut Buffers<'_>,
        trunc: i32,
    ) -> usize {
        let flags = peer.flags.load(Ordering::Acquire);
        let frozen = mine.flags.load(Ordering::Relaxed) & flag::WANT_DOWN != 0;
        if frozen && flags & flag::DOWN == 0 {
            // What is in the ring comes again by TCP.
            return 0;
        }
        if flags & flag::UP == 0 {
            return 0;
        }
        let taken = mine.tcp_rx.load(Ordering::Relaxed);
        let before = peer.up_at.load(Ordering::Relaxed).saturating_sub(taken);
        let before = usize::try_from(before).unwrap_or(usize::MAX);
        let mut seen = 0;
        if before > 0 {
            let most = before.min(to.left());
            if !is_queued(fd) {
                return 0;
            }
            seen = to.receive(fd, most, MSG_PEEK | trunc).unwrap_or(0);
            if seen < before {
                return seen;
            }
        }
        let mut at = mine.head.load(Ordering::Relaxed);
        let tail = ring::tail(&peer.tail);
        let down = (flags & flag::DOWN != 0).then(|| peer.down_at.load(Ordering::Relaxed));
        while to.left() > 0 && at != tail && down != Some(at) {
            // A place that makes no sense is found by the receive that follows.
            let Some((loc, there)) = self.peer_ring(w, peer, at, tail) else { return seen };
            let until = down.map_or(u64::MAX, |down| down.wrapping_sub(at));
            let n = there.min(to.left()).min(usize::try_from(until).unwrap_or(usize::MAX));
            if n == 0 {
                break;
            }
            if trunc == 0 {
                to.from_ring(w.board.map.ring(loc), at, n);
            } else {
                to.discard(n);
            }
            seen += n;
            at = at.wrapping_add(n as u64);
        }
        if to.left() > 0 && down == Some(at) {
            seen += self.look_behind(fd, mine, peer, to, trunc, before, seen);
        }
        seen
    }

    /// The part of the stream that comes by TCP again. `before`: bytes of TCP that come before the ring.
    #[expect(clippy::too_many_arguments, reason = "one call site")]
    fn look_behind(
        &self,
        fd: i32,
        mine: &Half,
        peer: &Half,
        to: &mut Buffers<'_>,
        trunc: i32,
        before: usize,
        seen: usize,
    ) -> usize {
        let announced = peer.bells.load(Ordering::Acquire);
        let bells = announced.wrapping_sub(mine.drained.load(Ordering::Relaxed)) as usize;
        let skip = before + bells;
        if !is_queued(fd) {
            return 0;
        }
        if skip == 0 {
            if seen > 0 && call::ioctl_int(fd, SIOCATMARK) == Ok(1) {
                // A look stops at urgent data.
                return 0;
            }
            return to.receive(fd, to.left(), MSG_PEEK | trunc).unwrap_or(0);
        }
        if skip > LOOK_MAX {
            return 0;
        }
        let mut all = vec![0u8; skip + to.left().min(LOOK_MAX)];
        let there = call::recv(fd, &mut all, MSG_DONTWAIT | MSG_PEEK).unwrap_or(0);
        let Some(behind) = all[..there].get(skip..) else { return 0 };
        if trunc == 0 {
            return to.fill(behind);
        }
        to.discard(behind.len());
        behind.len()
    }

    /// Hands bytes that have come to `take`, in up to two pieces where the ring ends between them, and at most `max`;
    /// it answers how many it has used, and these are received. The peer may write them meanwhile.
    ///
    /// # Errors
    ///
    /// What `take` says of the first piece, as [`Got::Failed`]: nothing is received then. [`Got::Kernel`] when the
    /// next byte is not in the ring, or not there at all, or the connection was given up: [`Conn::recv`] knows what
    /// there is.
    pub fn recv_with(
        &'static self,
        w: &World,
        fd: i32,
        max: usize,
        mut take: impl FnMut(*const [u8]) -> Result<usize, i32>,
    ) -> Result<usize, Got> {
        let (mine, peer) = self.halves(w).ok_or(Got::Kernel)?;
        self.note_fork(w, mine);
        let _held = lock::lock_own(&mine.rx_lock, &mine.lent, is_own(mine)).ok_or(Got::Kernel)?;
        let fd = self.descriptor(fd);
        let head = mine.head.load(Ordering::Relaxed);
        let tail = ring::tail(&peer.tail);
        if self.phase() != Phase::Attached
            || fd < 0
            || mine.flags.load(Ordering::Relaxed) & (flag::CLOSED | flag::WANT_DOWN) != 0
            || tail == head
            || !self.in_ring(mine, peer)
            || switch::fallen(&peer.flags, &peer.down_at).is_some()
        {
            return Err(Got::Kernel);
        }
        let Some((loc, there)) = self.peer_ring(w, peer, head, tail) else {
            return Err(self.broken(w, fd, mine));
        };
        let capacity = loc.bytes();
        let mut used = 0;
        for (at, len) in ring::pieces(head, there.min(max), capacity) {
            if len == 0 {
                break;
            }
            match take(w.board.map.ring(loc).piece(at, len)) {
                Ok(n) => {
                    used += n.min(len);
                    if n < len {
                        break;
                    }
                }
                Err(errno) if used == 0 => return Err(Got::Failed(errno)),
                Err(_) => break,
            }
        }
        let new_head = head.wrapping_add(used as u64);
        ring::give_back(&mine.head, new_head);
        note_cpu(mine);
        add64(&mine.bytes_rx, used as u64);
        add32(&mine.n_rx, 1);
        if room::is_wanted(&peer.room_wait) && (capacity - (there - used)) * 3 >= capacity {
            self.notify(w, fd, mine, peer);
        }
        if new_head == tail {
            self.drained(mine, peer, fd, new_head);
        }
        Ok(used)
    }
}

/// Whether bytes wait in a socket: then a look does not take an error that waits behind them.
fn is_queued(fd: i32) -> bool {
    call::ioctl_int(fd, SIOCINQ).is_ok_and(|n| n > 0)
}
