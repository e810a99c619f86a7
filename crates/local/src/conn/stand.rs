//! A connection to another host, whose payload goes through the engine: see [`crate::relay`].

use std::net::SocketAddrV6;

use super::attach::plain;
use super::links::link;
use super::{
    Conn, Ends, Half, Loc, Ordering, Phase, Reason, WaitWord, World, call, half_state, wait,
};
use crate::relay::{self, Given, Hello, NO_HALF, Welcome};

const AF_INET6: i32 = 10;

/// Values of `Conn::stands_in`.
const V4: u32 = 1;
const V6: u32 = 2;

impl Conn {
    /// A connection that may turn out to be the engine's: it was begun with the SMC option, or came to a
    /// listener that answers it.
    pub fn ask_later(&self) {
        self.set_phase(Phase::Asked);
    }

    /// Leaves [`Phase::Asked`]; `false`: another thread has.
    #[must_use]
    pub fn leave_asked(&self) -> bool {
        self.swap_phase(Phase::Asked, Phase::Busy)
    }

    /// The two ends that the program believes in: those of the connection to the other host, where a
    /// stand-in has other ones.
    #[must_use]
    pub fn far_ends(&self) -> Option<Ends> {
        if !self.stands_in() {
            return None;
        }
        self.ends.lock().and_then(|e| *e)
    }

    /// Whether the descriptor is a stand-in.
    #[inline]
    #[must_use]
    pub fn stands_in(&self) -> bool {
        self.stands_in.load(Ordering::Relaxed) != 0
    }

    /// Another socket takes the place of this one, whose ends the program goes on to believe in.
    pub(super) fn keeps_its_names(&self, v6: bool) {
        self.stands_in.store(if v6 { V6 } else { V4 }, Ordering::Relaxed);
    }

    /// The socket `fd` is about to take the place of this one's.
    pub fn gives_place(&self, fd: i32) {
        self.placed.store(cookie(fd).unwrap_or(0), Ordering::Relaxed);
    }

    /// Whether `fd` leads to the connection's socket, as the kernel says: in a child that borrows our memory a number may
    /// lead elsewhere.
    #[must_use]
    pub fn is_socket(&self, fd: i32) -> bool {
        if self.stands_in() {
            // Its names are those of another.
            let placed = self.placed.load(Ordering::Relaxed);
            return placed != 0 && cookie(fd) == Some(placed);
        }
        let name = |peer| call::name(fd, peer).ok().flatten().map(|at| (*at.ip(), at.port()));
        let known = self.ends.lock().and_then(|ends| *ends);
        known.is_some_and(|ends| {
            name(false) == Some((*ends.local.ip(), ends.local.port()))
                && name(true) == Some((*ends.remote.ip(), ends.remote.port()))
        })
    }

    /// Whether the program made an IPv6 socket, where there is a stand-in now.
    #[must_use]
    pub fn was_v6(&self) -> bool {
        self.stands_in.load(Ordering::Relaxed) == V6
    }

    /// Guest: hands the TCP connection behind `fd` to the engine. [`Self::stand_in`] must follow once the stand-in
    /// has taken its place. `promised`: see [`Hello::promised`].
    ///
    /// # Errors
    ///
    /// Why the engine does not take it. If the other host has been promised SMC nobody can use this connection
    /// any more, since nobody has told it ([`Given::Declined`]); else it is TCP as before.
    pub fn hand_over(
        &'static self,
        w: &World,
        fd: i32,
        client: bool,
        promised: bool,
    ) -> Result<Given, Reason> {
        let (local, family) = call::name_and_family(fd, false).map_err(|_| Reason::PeerNotSmc)?;
        let remote = call::name(fd, true).map_err(|_| Reason::PeerNotSmc)?;
        let (Some(local), Some(remote)) = (local.map(plain), remote.map(plain)) else {
            return Err(Reason::PeerNotSmc);
        };
        let v6 = family == AF_INET6;
        let index = match self.new_half(w, fd, Ends { local, remote }) {
            Ok(index) => index,
            Err(reason) if promised => return have_declined(w, fd, client, reason),
            Err(reason) => return Err(reason),
        };
        let half = w.board.map.half_known(index);
        half.client.store(u32::from(client), Ordering::Relaxed);
        self.arm_cold(w, half);
        half.state.store(half_state::OFFERED, Ordering::Release);
        let generation = half.generation.load(Ordering::Relaxed);
        let hello = Hello { half: index, generation, client, promised };
        let asked = w.with_engine(|engine| relay::ask(engine, hello, fd));
        if matches!(asked, Ok(Given::StandIn(..))) {
            self.stands_in.store(if v6 { V6 } else { V4 }, Ordering::Relaxed);
            // Not before: a child that is forked meanwhile would take its share in a half that another connection
            // may have by then, if the engine declines.
            self.half.store(index + 1, Ordering::Relaxed);
        } else {
            if let Some(mut arena) = w.arena.lock() {
                arena.free_half(&w.board, index);
            }
        }
        asked
    }

    /// Guest: the stand-in is in place of what `fd` was. The connection is attached, from its first byte.
    ///
    /// # Errors
    ///
    /// [`Reason::PeerBroken`] if the engine's half is none, [`Reason::Short`] if it is another connection's by now: this one
    /// has ended, because of the other host.
    pub fn stand_in(&'static self, w: &World, welcome: Welcome) -> Result<(), Reason> {
        let (_, half) = self.my_half(w).ok_or(Reason::PeerBroken)?;
        let peer = w.board.map.half(welcome.half).ok_or(Reason::PeerBroken)?;
        let is_engine = Some(peer.slot.load(Ordering::Relaxed)) == w.board.engine_slot();
        if !is_engine || peer.generation.load(Ordering::Acquire) != welcome.generation {
            return Err(Reason::Short);
        }
        half.peer_generation.store(welcome.generation, Ordering::Relaxed);
        self.kernel.store(0, Ordering::Relaxed);
        self.error.store(0, Ordering::Relaxed);
        self.tx.reset();
        self.tcp_rx.store(0, Ordering::Relaxed);
        self.forks.store(w.forks.load(Ordering::Relaxed), Ordering::Relaxed);
        self.join(w, half, welcome.half, 0, 0);
        self.attached(w, half);
        let _ = self.go_up(w, half);
        Ok(())
    }

    /// Engine: attaches a guest's connection, whose stand-in has its other end in `fd`. Answers our half,
    /// its generation, and the ring that the guest reads.
    pub(crate) fn take_over(
        &'static self,
        w: &World,
        fd: i32,
        hello: &Hello,
        order: u32,
        waiter: u32,
    ) -> Result<(u32, u32, Loc), Reason> {
        let guest = w.board.map.half(hello.half).ok_or(Reason::PeerBroken)?;
        let is_right = guest.generation.load(Ordering::Acquire) == hello.generation
            && guest.state.load(Ordering::Acquire) == half_state::OFFERED
            && guest.peer.load(Ordering::Relaxed) == 0;
        if !is_right {
            return Err(Reason::PeerBroken);
        }
        let ends = Ends::read(guest).mirrored();
        self.fd.store(fd.cast_unsigned(), Ordering::Relaxed);
        // It does not block.
        self.nonblock.store(2, Ordering::Relaxed);
        let index = self.new_half(w, fd, ends)?;
        let half = w.board.map.half_known(index);
        let rmb = w.arena.lock().ok_or(Reason::NoMemory).and_then(|mut arena| {
            let ring = arena.block(&w.board, order, w.memory_max())?;
            arena.keep(index, ring);
            Ok(ring)
        });
        let rmb = match rmb {
            Ok(rmb) => rmb,
            Err(reason) => {
                if let Some(mut arena) = w.arena.lock() {
                    arena.free_half(&w.board, index);
                }
                return Err(reason);
            }
        };
        half.loc.store(rmb.emit(), Ordering::Relaxed);
        half.client.store(u32::from(!hello.client), Ordering::Relaxed);
        // By which a program that inherits the stand-in finds what it stands for: see `Board::far_ends`.
        half.cookie.store(cookie(fd).unwrap_or(0), Ordering::Relaxed);
        half.peer_generation.store(hello.generation, Ordering::Relaxed);
        // The guest rings when our loop sleeps.
        wait::arm(&half.wait, WaitWord::Warm(waiter));
        link(w, half, guest);
        link(w, guest, half);
        self.half.store(index + 1, Ordering::Relaxed);
        self.join(w, half, hello.half, 0, 0);
        self.attached(w, half);
        let _ = self.tx.rise(&half.flags, &half.up_at, &half.users, || None);
        Ok((index, half.generation.load(Ordering::Relaxed), rmb))
    }
}

/// What the kernel calls a socket, in all processes that have it.
fn cookie(fd: i32) -> Option<u64> {
    const SOL_SOCKET: i32 = 1;
    const SO_COOKIE: i32 = 57;
    call::getsockopt(fd, SOL_SOCKET, SO_COOKIE).ok()
}

/// Guest: has no memory for its own end of a connection whose peer was promised SMC. The engine tells the peer.
fn have_declined(w: &World, fd: i32, client: bool, reason: Reason) -> Result<Given, Reason> {
    let hello = Hello { half: NO_HALF, generation: 0, client, promised: true };
    match w.with_engine(|engine| relay::ask(engine, hello, fd)) {
        Ok(Given::Declined(_)) => Ok(Given::Declined(reason)),
        Ok(Given::StandIn(stand_in, _)) => {
            let _ = call::close(stand_in);
            Err(reason)
        }
        _ => Err(reason),
    }
}

impl Ends {
    /// What a half says of its ends.
    #[must_use]
    pub fn read(half: &Half) -> Self {
        let ports = half.ports.load(Ordering::Relaxed).to_le_bytes();
        let port = |i: usize| u16::from_le_bytes([ports[i], ports[i + 1]]);
        let ip = |at: &[sys::sync::AtomicU64; 2]| {
            let high = u128::from(at[0].load(Ordering::Relaxed));
            (high << 64 | u128::from(at[1].load(Ordering::Relaxed))).into()
        };
        Self {
            local: SocketAddrV6::new(ip(&half.local_addr), port(0), 0, 0),
            remote: SocketAddrV6::new(ip(&half.remote_addr), port(2), 0, 0),
        }
    }
}
