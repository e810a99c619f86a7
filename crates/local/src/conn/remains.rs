//! What is left to read of a connection whose peer has gone.
//!
//! It lies in the ring, and a program without this library is about to read the socket, in which there is nothing, or a
//! doorbell. Nobody is there to send it again. So another TCP connection, of this host with itself, is filled with it and
//! ended as the peer has ended: one end of it then takes the place of the socket.

use sys::handler::Blocked;
use sys::loopback;
use sys::sync::full_fence;

use super::attach::is_closed;
use super::closing::OTHERS_NS;
use super::{
    Conn, EAGAIN_RETRY, Got, Half, MSG_DONTWAIT, MSG_NOSIGNAL, Ordering, Phase, World, call, flag,
    half_state, kernel, lock, ring, switch,
};

/// More than that does not surely find room in a connection that nobody reads: by default a socket sends 4 MiB, and this
/// does not count what it needs for itself.
const REMAINS_MAX: usize = 3 << 20;
const AF_INET6: i32 = 10;
const SOL_SOCKET: i32 = 1;
const SO_ERROR: i32 = 4;
const SO_LINGER: i32 = 13;
const FIONREAD: u64 = 0x541b;
const SIOCOUTQ: u64 = 0x5411;

/// How the stream ends behind the bytes that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// As by `close`.
    Clean,
    /// By a reset, which is an error to whoever reads on.
    Reset,
    /// By a reset whose error has been told.
    Told,
}

/// A connection on its way to another socket: others of this process wait, and no handler of a signal runs on this thread.
#[derive(Debug)]
pub struct Moving {
    conn: &'static Conn,
    socket: i32,
    _quiet: Blocked,
}

impl Moving {
    /// The socket that is to take the place of the connection's descriptors; closed on exec, and not blocking.
    #[must_use]
    pub fn socket(&self) -> i32 {
        self.socket
    }

    /// It has: the connection is TCP from now on.
    pub fn placed(self, w: &World) {
        if let Some((_, mine)) = self.conn.my_half(w) {
            mine.state.store(half_state::TCP, Ordering::Release);
        }
    }

    /// It could not: what is left is lost, and the connection over, which this descriptor leads to, if any does.
    pub fn lost(self, w: &World, fd: Option<i32>) {
        if let Some(fd) = fd {
            let _ = call::shutdown(fd, 2);
        }
        self.placed(w);
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.conn.set_phase(Phase::Tcp);
        let _ = call::close(self.socket);
    }
}

impl Conn {
    /// Whether the peer has closed in order, as far as we know without asking the kernel, and nobody waits for the
    /// connection in an event set.
    #[must_use]
    pub fn is_plainly_deserted(&self, w: &World) -> bool {
        let trouble = kernel::HUP | kernel::ERR | kernel::RESET | kernel::TOLD;
        self.phase() == Phase::Attached
            && self.sets.iter().all(|set| set.set.load(Ordering::Relaxed) == 0)
            && self.kernel.load(Ordering::Relaxed) & trouble == 0
            && self.halves(w).is_some_and(|(mine, peer)| {
                Self::closed_cleanly(peer.flags.load(Ordering::Acquire))
                    && mine.flags.load(Ordering::Relaxed) & (flag::SHUT | flag::SHUT_RD) == 0
                    && !self.sent_after(mine)
            })
    }

    /// Whether the peer may have gone, as far as we know without asking the kernel.
    #[must_use]
    pub fn seems_deserted(&self, w: &World) -> bool {
        let gone = kernel::RDHUP | kernel::HUP | kernel::ERR;
        self.phase() == Phase::Attached
            && self.halves(w).is_some_and(|(_, peer)| {
                peer.flags.load(Ordering::Acquire) & flag::CLOSED != 0
                    || self.kernel.load(Ordering::Relaxed) & gone != 0
            })
    }

    /// If nobody will send again what is unread, and no other process reads it, answers a socket from which it can be
    /// read. `None`: there is nothing of the kind, or no such socket is to be had, and nothing has changed.
    #[must_use]
    pub fn leave_remains(&'static self, w: &World, fd: i32) -> Option<Moving> {
        let (mine, peer) = self.halves(w)?;
        if self.is_used_by_others(w)
            || !Self::is_deserted(fd, mine, peer)
            || !Self::is_needed(fd, mine, peer)
        {
            return None;
        }
        let shut = mine.flags.load(Ordering::Relaxed) & flag::SHUT != 0;
        self.moving(fd, (peer, shut), |theirs| {
            let _held = lock::lock_of(&mine.rx_lock, &mine.lent)?;
            // Who forks counts himself first, and then waits for who is busy. Another thread may have read it meanwhile.
            full_fence();
            if self.is_used_by_others(w) || !Self::is_needed(fd, mine, peer) {
                return None;
            }
            self.remains(w, fd, mine, peer, theirs)
        })
    }

    /// The connection cannot be handed to a program that would find doorbells in it, or miss what is in the ring: it ends
    /// with a reset. Answers a socket that says so.
    #[must_use]
    pub fn cut_off(&'static self, w: &World, fd: i32) -> Option<Moving> {
        let (mine, peer) = self.halves(w)?;
        self.moving(fd, (peer, false), |_| {
            mine.flags.fetch_or(flag::CLOSED | flag::RESET | flag::SHUT, Ordering::Release);
            Self::rouse(w, mine, peer);
            let _ = call::setsockopt(fd, SOL_SOCKET, SO_LINGER, [1i32, 0]);
            Some(End::Reset)
        })
    }

    /// A socket like `fd` that has been reset, closed on exec.
    #[must_use]
    pub fn reset_socket(fd: i32) -> Option<i32> {
        let [ours, theirs] = pair_like(fd)?;
        end(theirs, End::Reset, false);
        Some(ours)
    }

    /// Makes another socket; `fill` writes what is to be read from it, and says how that ends. `shut`: our own direction has
    /// ended. `None`: not now.
    fn moving(
        &'static self,
        fd: i32,
        (peer, shut): (&Half, bool),
        fill: impl FnOnce(i32) -> Option<End>,
    ) -> Option<Moving> {
        let quiet = Blocked::new();
        let [ours, theirs] = pair_like(fd)?;
        let how = self.swap_phase(Phase::Attached, Phase::Busy).then(|| fill(theirs));
        let ended = peer.flags.load(Ordering::Acquire) & flag::SHUT != 0;
        match how {
            Some(Some(how)) => {
                end(theirs, how, ended);
                if shut {
                    let _ = call::shutdown(ours, 1);
                }
                if how == End::Told {
                    let _ = call::getsockopt::<i32>(ours, SOL_SOCKET, SO_ERROR);
                }
                if !self.stands_in() {
                    self.keeps_its_names(is_v6(fd));
                }
                Some(Moving { conn: self, socket: ours, _quiet: quiet })
            }
            other => {
                if other.is_some() {
                    self.set_phase(Phase::Attached);
                }
                let _ = call::close(ours);
                let _ = call::close(theirs);
                None
            }
        }
    }

    /// A descriptor of the connection is about to be closed, and others lead to it: waits while another socket takes its
    /// place, for who does that goes by the number.
    pub fn await_placement(&self) {
        let from = Phase::Attached as u32;
        let moving =
            || self.phase() == Phase::Busy && self.busy_from.load(Ordering::Relaxed) == from;
        if moving() {
            let deadline = call::now_ns() + OTHERS_NS;
            while moving() && call::now_ns() < deadline {
                call::sched_yield();
            }
        }
    }

    /// Before another program reads the socket in which nobody will put anything more: takes the doorbells out, so that it
    /// finds an end there. What is in the ring is for those who use it with us.
    pub fn clear_of_bells(&self, w: &World, fd: i32) {
        if let Some((mine, peer)) = self.halves(w)
            && self.phase() == Phase::Attached
            && Self::is_deserted(fd, mine, peer)
            && let Some(_held) = lock::lock_of(&mine.rx_lock, &mine.lent)
        {
            self.drain_bells(mine, peer, fd);
        }
    }

    /// Whether a reader that is frozen will not be sent what is in the ring: who has frozen it, a sender that was about to
    /// go back to TCP, was killed. It is thawed then.
    #[cold]
    pub(super) fn is_frozen_in_vain(&self, fd: i32, mine: &Half, peer: &Half) -> bool {
        let vain = ring::tail(&peer.tail) != mine.head.load(Ordering::Relaxed)
            && mine.again.load(Ordering::Relaxed) == 0
            && Self::is_deserted(fd, mine, peer);
        if vain {
            mine.flags.fetch_and(!flag::WANT_DOWN, Ordering::Release);
        }
        vain
    }

    /// What a receive that came for the ring is told when the connection is not attached any more.
    #[cold]
    pub(super) fn elsewhere(&self) -> Got {
        if self.phase() == Phase::Busy {
            // What is left is on its way to another socket: not from this one meanwhile.
            call::sched_yield();
            return Got::Failed(EAGAIN_RETRY);
        }
        Got::Kernel
    }

    /// Whether there is no peer any more: it has closed, or was killed, or the kernel has ended both directions.
    pub(super) fn is_deserted(fd: i32, mine: &Half, peer: &Half) -> bool {
        let flags = peer.flags.load(Ordering::Acquire);
        flags & flag::CLOSED != 0
            // Not merely hung up, which our own shutdown makes it.
            || is_closed(fd)
            // The kernel's end comes when the peer closes or dies, not when it shuts down, but by TCP.
            || flags & flag::DOWN == 0
                && flags & (flag::SHUT | flag::UP) != flag::SHUT
                && mine.flags.load(Ordering::Relaxed) & flag::SHUT_RD == 0
                && call::ended(fd)
    }

    /// Whether whoever reads the socket would get something else than what is left of the stream.
    fn is_needed(fd: i32, mine: &Half, peer: &Half) -> bool {
        let flags = peer.flags.load(Ordering::Acquire);
        if flags & flag::UP == 0 {
            return false;
        }
        let bells = peer.bells.load(Ordering::Acquire) != mine.drained.load(Ordering::Relaxed);
        Self::until(peer) != mine.head.load(Ordering::Relaxed)
            || bells && Self::before(mine, peer) > 0
            || Self::is_gone(mine, peer)
            // An unread doorbell of its own has made a reset of the peer's close.
            || Self::closed_cleanly(flags) && call::readable(fd).1
    }

    /// Up to where the stream lies in the ring.
    fn until(peer: &Half) -> u64 {
        switch::fallen(&peer.flags, &peer.down_at).unwrap_or_else(|| ring::tail(&peer.tail))
    }

    fn remains(
        &'static self,
        w: &World,
        fd: i32,
        mine: &Half,
        peer: &Half,
        theirs: i32,
    ) -> Option<End> {
        let in_tcp = usize::try_from(call::ioctl_int(fd, FIONREAD).ok()?).ok()?;
        let head = mine.head.load(Ordering::Relaxed);
        let until = Self::until(peer);
        let in_ring = usize::try_from(until.wrapping_sub(head)).ok()?;
        if in_tcp.checked_add(in_ring)? > REMAINS_MAX {
            return None;
        }
        // What may fail comes before anything is taken.
        let from_ring = self.copied(w, peer, head, until)?;
        let mut all = if Self::is_gone(mine, peer) { Self::again(w, mine)? } else { Vec::new() };
        self.hear_the_end(fd, mine, peer);
        let before = usize::try_from(Self::before(mine, peer)).unwrap_or(usize::MAX).min(in_tcp);
        all.extend(self.taken(fd, before));
        mine.tcp_rx.fetch_add(before as u64, Ordering::Relaxed);
        all.extend(from_ring);
        ring::give_back(&mine.head, until);
        self.drain_bells(mine, peer, fd);
        if peer.flags.load(Ordering::Acquire) & flag::DOWN != 0 {
            all.extend(self.taken(fd, REMAINS_MAX));
        }
        let how = self.how_it_ends(fd, mine, peer);
        let whole = all.is_empty()
            || call::send(theirs, &all, MSG_DONTWAIT | MSG_NOSIGNAL) == Ok(all.len());
        // A stream that is cut short must not look like a whole one.
        Some(if whole { how } else { End::Reset })
    }

    /// Asks the kernel how the connection has ended, before anything of it is taken.
    fn hear_the_end(&self, fd: i32, mine: &Half, peer: &Half) {
        let says = [
            (call::ended(fd), kernel::RDHUP),
            (call::hung_up(fd), kernel::HUP),
            (call::readable(fd).1, kernel::ERR),
        ];
        for (_, bit) in says.into_iter().filter(|(is, _)| *is) {
            self.kernel.fetch_or(bit, Ordering::Relaxed);
        }
        self.judge_end(mine, peer);
    }

    /// What can be read of the socket, at most `most` bytes.
    fn taken(&self, fd: i32, most: usize) -> Vec<u8> {
        let mut all = Vec::new();
        let mut chunk = [0u8; 4096];
        while all.len() < most {
            let n = chunk.len().min(most - all.len());
            match call::recv(fd, &mut chunk[..n], MSG_DONTWAIT) {
                Ok(0) | Err(11) => break,
                Ok(got) => all.extend_from_slice(&chunk[..got]),
                Err(4) => {}
                Err(errno) => {
                    self.take_error(errno);
                    break;
                }
            }
        }
        all
    }

    /// What lies in the ring, which stays there; `None`: the peer has said nonsense.
    fn copied(&self, w: &World, peer: &Half, head: u64, until: u64) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        let mut at = head;
        while at != until {
            let (loc, there) = self.peer_ring(w, peer, at, until)?;
            if there == 0 || all.len() + there > REMAINS_MAX {
                return None;
            }
            let start = all.len();
            all.resize(start + there, 0);
            w.board.map.copy_out(loc, at, &mut all[start..]);
            at = at.wrapping_add(there as u64);
        }
        Some(all)
    }

    /// As the library would have gone on to say it, and the kernel with it.
    fn how_it_ends(&self, fd: i32, mine: &Half, peer: &Half) -> End {
        let flags = peer.flags.load(Ordering::Acquire);
        let hints = self.kernel.load(Ordering::Relaxed);
        let after = self.sent_after(mine);
        if (Self::closed_cleanly(flags) || hints & kernel::CLEAN != 0) && !after {
            return End::Clean;
        }
        let reset = (flags & flag::RESET != 0 || hints & kernel::RESET != 0) && !after;
        if !reset && hints & kernel::HUP == 0 && !call::hung_up(fd) {
            return End::Clean;
        }
        let waits = if reset {
            !self.is_told(mine)
        } else {
            hints & kernel::ERR != 0
                || self.error.load(Ordering::Relaxed) != 0
                || call::readable(fd).1
        };
        if waits { End::Reset } else { End::Told }
    }
}

/// Two connected sockets of the same family as `fd`; `None`: they are not to be had.
fn pair_like(fd: i32) -> Option<[i32; 2]> {
    loopback::pair(is_v6(fd)).ok()
}

fn is_v6(fd: i32) -> bool {
    call::name_and_family(fd, false).is_ok_and(|(_, family)| family == AF_INET6)
}

/// Closes the end that has been written to: in such a way that the other one hears of it, though a process that is forked at
/// this moment has it too. `ended`: the stream had ended before the reset, which is a broken pipe then.
fn end(theirs: i32, how: End, ended: bool) {
    // What is on its way would go with a reset of which nobody is told, as if the stream had ended there.
    let under_way = call::ioctl_int(theirs, SIOCOUTQ).is_ok_and(|n| n > 0);
    let how = if how == End::Told && under_way { End::Clean } else { how };
    if how == End::Clean || ended {
        let _ = call::shutdown(theirs, 1);
    }
    if how != End::Clean {
        let _ = call::setsockopt(theirs, SOL_SOCKET, SO_LINGER, [1i32, 0]);
        let _ = call::disconnect(theirs);
    }
    let _ = call::close(theirs);
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// An end whose error was told already must not cut off what a socket that nobody has read yet could not take at once.
    #[test]
    fn all_that_is_left_comes_before_an_end_of_which_nobody_is_told() {
        const LEN: usize = 1 << 20;
        let like = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for how in [End::Clean, End::Told] {
            for len in [100, LEN] {
                let [ours, theirs] = pair_like(like.as_raw_fd()).unwrap();
                let sent = call::send(theirs, &vec![7; len], MSG_DONTWAIT | MSG_NOSIGNAL);
                end(theirs, how, true);
                // What `moving` does.
                let _ = call::getsockopt::<i32>(ours, SOL_SOCKET, SO_ERROR);
                let (mut got, mut room) = (0, vec![0; 1 << 16]);
                while let Ok(n) = call::recv(ours, &mut room, 0)
                    && n > 0
                {
                    got += n;
                }
                assert_eq!(Ok(got), sent, "{how:?}, {len} bytes");
                call::close(ours).unwrap();
            }
        }
    }
}
