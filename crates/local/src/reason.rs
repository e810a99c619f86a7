//! Why a connection is on TCP: the numbers that `shunt stat` prints, with their words.
//!
//! Like the fallback reason codes of `smcss`: a number never changes its meaning.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal, $words:literal;)+) => {
        /// Why a connection stayed on TCP, or went back to it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum Reason { $($(#[doc = $doc])+ $name = $code,)+ }

        impl Reason {
            /// Each reason there is.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The reason with this number.
            #[must_use]
            pub const fn from_code(code: u32) -> Option<Self> {
                match code { $($code => Some(Self::$name),)+ _ => None }
            }

            /// The number.
            #[must_use]
            pub const fn code(self) -> u32 {
                self as u32
            }

            /// In words, for people.
            #[must_use]
            pub const fn words(self) -> &'static str {
                match self { $(Self::$name => $words,)+ }
            }
        }
    };
}

impl Reason {
    /// Whether somebody who knows nothing of rings reads the socket from then on.
    #[must_use]
    pub const fn is_for_others(self) -> bool {
        matches!(self, Self::Exec | Self::Passed | Self::Stdio | Self::IoUring)
    }
}

reasons! {
    /// There was no offer of the peer's: it is not under Shunt, or on another host, or has withdrawn it because it had ended
    /// one direction before we looked.
    PeerNotShunt = 1, "peer does not run under shunt, or ended first";
    /// Nobody under Shunt listens on that port.
    NoListener = 2, "no listener under shunt on that port";
    /// A rule of the configuration excludes it.
    Excluded = 3, "excluded by configuration";
    /// The offer does not belong to the socket at the other end.
    ForgedOffer = 4, "offer does not match the peer's socket";
    /// Bytes moved on the socket that the library did not see.
    BytesUnseen = 5, "program moved bytes past the library";
    /// No memory for a ring: the limit, or the file system of the board.
    NoMemory = 6, "no shared memory left";
    /// No free process slot on the board.
    NoSlot = 7, "no free process slot";
    /// The kernel did not answer who is at the other end.
    NoDiag = 8, "kernel does not confirm the peer (sock_diag)";
    /// The offer table had no room.
    OffersFull = 9, "offer table full";
    /// The program made a stdio stream of the socket.
    Stdio = 10, "program uses stdio on the socket";
    /// The program passed the socket to another process.
    Passed = 11, "socket passed to another process";
    /// A program without the library took the socket over.
    Exec = 12, "socket inherited by another program";
    /// Urgent data.
    Urgent = 13, "urgent data (MSG_OOB)";
    /// Kernel TLS.
    KernelTls = 14, "kernel TLS";
    /// `SO_ZEROCOPY`.
    ZeroCopy = 15, "SO_ZEROCOPY";
    /// Signal-driven I/O.
    SignalIo = 16, "signal-driven I/O (O_ASYNC)";
    /// io_uring works on descriptors past the library.
    IoUring = 17, "io_uring";
    /// An option that only the kernel's stack can honour.
    Option = 18, "socket option that needs the kernel";
    /// In more event sets than are followed.
    EventSets = 19, "in too many event sets";
    /// The peer asked for TCP.
    PeerAsked = 20, "peer asked for TCP";
    /// The process forked in the middle of a stream and both go on.
    Shared = 21, "shared by processes before it was attached";
    /// `splice` took bytes of the socket before it was attached.
    Splice = 22, "splice";
    /// Peer's rings made no sense.
    PeerBroken = 23, "peer wrote nonsense into its ring";
    /// One end had shut down or closed before they had met.
    Short = 24, "ended before it was attached";
    /// Switched off.
    Off = 25, "switched off";
    /// Offered, and the peer has not taken it (yet).
    Waiting = 26, "offered, not taken";
    /// The peer, on another host, did not answer the SMC option of the handshake.
    PeerNotSmc = 27, "peer on another host does not speak SMC";
    /// The engine refused the connection, or is gone.
    NoEngine = 28, "engine does not take the connection";
    /// Connections to that destination have been so short of late, or declined by the peer so often, or streams that TCP
    /// carries as well, that SMC cost more than it brought; left out for now by the engine (its setting `spare_short`).
    TooShort = 29, "connections to there gain nothing by SMC: too short, or streams";
    /// The engine has the connection, perhaps, but did not say so in time: nobody can use it any more.
    EngineSilent = 30, "engine did not answer in time";
    /// The engines could not agree beforehand that they share the connection, which the TCP handshake does not
    /// say without the option; `shunt engine status` counts why.
    NotMet = 31, "the peer's engine did not take the connection";
    /// The descriptor is above the limit that the program has set itself meanwhile, so that the engine's socket cannot
    /// take its place.
    AboveLimit = 32, "descriptor above the program's own limit (RLIMIT_NOFILE)";
    /// The program has as many descriptors as it may have, so that the engine's socket cannot come to it.
    NoDescriptor = 33, "no descriptor left for the engine's socket (RLIMIT_NOFILE)";
    /// The peer is in another network namespace, and how the connection began does not say that it is this one: it came by a
    /// router or a proxy (`routed`), time stamps are switched off, or the first segment was sent twice or is not kept.
    NoSyn = 34, "not known to be the peer in another network namespace (routed, or tcp_timestamps is off)";
    /// Connections of this process to that destination have been so short of late that they gained nothing: for now most of
    /// them are left to TCP (`spare_short`).
    Spared = 35, "connections to there have been too short of late to gain anything";
    /// The listener that it came to began to listen when there was no engine, so that its clients on other hosts are not told
    /// that it speaks SMC.
    NotAsked = 36, "from another host, and the server began to listen before the engine ran: start it again";
    /// A forked child in another namespace of processes uses it too: who of the two holds a lock neither can know of the other.
    Namespace = 37, "shared with a child in another namespace of processes (container)";
    /// The program, or whoever rules over it, has chosen the way that its packets take: they would leave by another one where
    /// the engine sends them.
    ChosenWay = 38, "bound to an interface or marked (SO_BINDTODEVICE, a VRF, SO_MARK)";
    /// The program has its own system calls filtered (seccomp), and may be ended for those that shared memory needs.
    Filtered = 39, "program may be ended for calls of the library (seccomp)";
    /// Somebody has switched off what programs on this board could do together (`shunt off`), for now.
    SwitchedOff = 40, "switched off for now, for all programs here (shunt off)";
    /// The engine is to end once the connections that it has are gone, and takes no others.
    Draining = 41, "engine takes no new connections, because it is to end (shunt engine drain)";
}
