//! Bits of [`super::Conn::options`]: what the program believes of its socket, where doorbells need it otherwise.

/// `TCP_NODELAY` is off for the program.
pub const NAGLE: u32 = 1;
/// `TCP_CORK` is on for the program.
pub const CORK: u32 = 2;
/// Doorbells were freed from waiting.
pub const FREE: u32 = 4;
/// `SO_LINGER` is on with a time of 0: close means reset.
pub const ABORT: u32 = 8;
/// `SO_RCVTIMEO` was set: a stand-in must have it too. So with the others of [`CARRIED`]. What another
/// process sets on a socket that it shares with us, after the fork, is not seen.
pub const RCVTIMEO: u32 = 16;
/// `SO_SNDTIMEO`.
pub const SNDTIMEO: u32 = 32;
/// `SO_LINGER`.
pub const LINGER: u32 = 64;
/// `SO_OOBINLINE`.
pub const OOBINLINE: u32 = 128;
/// `SO_KEEPALIVE`.
pub const KEEPALIVE: u32 = 256;
/// `TCP_NODELAY`.
pub const NODELAY: u32 = 512;
/// Of a listener: we have it keep what its connections began with (of those: it is kept), and the program does
/// not look at that itself. See `syn`.
pub const SYN_KEPT: u32 = 1024;
/// The program has asked for what its connections begin with.
pub const SYN_ASKED: u32 = 2048;
/// The kernel was asked to tell when bytes came. It does so in control data alone: who never has room for that is served
/// as anybody.
pub const STAMPED: u32 = 4096;
/// `TCP_INQ` is on: a receive with room for control data tells how much is left.
pub const INQ: u32 = 8192;
/// The number of that option, and of what it tells, both of `IPPROTO_TCP` (linux/tcp.h).
pub const TCP_INQ: i32 = 36;
/// `SO_ZEROCOPY` is on: a send that asks for it (`MSG_ZEROCOPY`) is the kernel's.
pub const ZEROCOPY: u32 = 16384;
/// Its listener has not asked the engine, which is there now, to tell clients that it speaks SMC.
pub const NOT_ASKED: u32 = 32768;
/// Its listener is bound to an interface, or marked for a route of its own: the engine does not speak for it.
pub const CHOSEN_WAY: u32 = 131_072;
/// A `connect` has begun to connect it, and the kernel has not told the program yet how that went.
pub const BEGUN: u32 = 262_144;
/// `TCP_USER_TIMEOUT` was set: how long who waits for room may wait for a peer that reads nothing.
pub const USER_TIMEOUT: u32 = 65536;
/// All that a stand-in has if the program has set it; accepted sockets have their listener's.
pub const CARRIED: u32 =
    RCVTIMEO | SNDTIMEO | LINGER | OOBINLINE | KEEPALIVE | NODELAY | INQ | ZEROCOPY | USER_TIMEOUT;
