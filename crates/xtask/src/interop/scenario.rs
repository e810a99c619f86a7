//! What is tried with whom, and what has to come of it.
//!
//! A case is tried with each pair of peers that it is about. What a kernel does with a kernel is tried,
//! too: it shows that the stage is right and the expectation true.

/// Who is at one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// A program in a guest over AF_SMC: the kernel's own SMC.
    Kernel,
    /// A program in a guest over plain TCP.
    KernelTcp,
    /// A program on the host under `shunt run`, with `shunt engine`.
    Shunt,
    /// A program on the host over plain TCP.
    HostTcp,
}

impl Peer {
    pub(super) const fn in_guest(self) -> bool {
        matches!(self, Self::Kernel | Self::KernelTcp)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::KernelTcp => "kernel-tcp",
            Self::Shunt => "shunt",
            Self::HostTcp => "host-tcp",
        }
    }
}

/// Which way the bytes have to go, by what the kernels at the ends say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// Over RDMA, in so many link groups; with an engine of several vectors, in at least so many.
    Smc { groups: usize },
    /// Over TCP, since one end does not offer SMC.
    NoOption,
    /// Over TCP, since the client has nothing to propose: its reason.
    NotProposed(u32),
    /// Over TCP, since the server declined: its reason, which it tells the client.
    Declined(u32),
}

/// What happens when the connections are there, before the client goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    None,
    /// The client's processes are killed, after a while.
    KillClient,
    /// The server's are.
    KillServer,
    /// The RDMA device of one guest is removed, and with it, without a word, the link.
    RemoveDevice,
    /// The cable of one guest's first card is pulled; it stays so until the case is over.
    PullCable,
    /// It is pulled, and plugged in again once the kernel has lost its link; the kernel's card does not notice. Then there
    /// must be two links again.
    PlugAgain,
    /// `shunt engine` is asked to stop, while its program is connected.
    StopEngine,
    /// `shunt engine` is killed.
    KillEngine,
    /// When the client is done the kernel of one guest forgets its link groups, and says so to its
    /// peer. Then all is done once more.
    Forget,
}

/// How a program has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// All bytes were right.
    Done,
    /// The connection broke, and it was told so.
    Broken,
    /// Either, but it did not wait for ever.
    Over,
}

/// In which runs a case is tried: in those that have more time, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum When {
    /// With the tests, each time.
    Smoke,
    /// When there is little time.
    Quick,
    /// In a whole run.
    Whole,
}

/// Who has sent a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    Client,
    Server,
    /// Both have sent such packets.
    Each,
    /// Either has.
    Any,
}

/// What has to be in the capture: packets that a filter lets pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packets {
    pub(super) from: From,
    pub(super) filter: &'static str,
}

const fn of_client(filter: &'static str) -> Packets {
    Packets { from: From::Client, filter }
}

const fn of_server(filter: &'static str) -> Packets {
    Packets { from: From::Server, filter }
}

const fn of_each(filter: &'static str) -> Packets {
    Packets { from: From::Each, filter }
}

const fn of_any(filter: &'static str) -> Packets {
    Packets { from: From::Any, filter }
}

/// One thing to try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) pairs: &'static [[Peer; 2]],
    /// Options of `smcpeer visit`.
    pub(super) visit: &'static str,
    /// Options of `smcpeer serve`.
    pub(super) serve: &'static str,
    /// Options of `shunt engine`, where one end is Shunt.
    pub(super) engine: &'static [&'static str],
    /// Bytes of the buffer that a kernel's peer that is Shunt must have for what comes, where the case is about that.
    pub(super) rmb: Option<u32>,
    /// Enterprise ids of client and server.
    pub(super) eids: [Option<&'static str>; 2],
    /// Seconds of silence after which links are tested.
    pub(super) test_link_s: u32,
    /// Network cards, and with them links of a group, 1 or 2.
    pub(super) links: usize,
    pub(super) path: Path,
    pub(super) event: Event,
    pub(super) client: Ending,
    pub(super) server: Ending,
    pub(super) packets: &'static [Packets],
    /// Of how many packets of RoCEv2 one is lost, each way, by chance; 0: none is.
    pub(super) loses_one_of: u32,
    pub(super) limit_s: u64,
    pub(super) when: When,
    /// When there is little time also between two kernels, to show that the stage is right.
    pub(super) proof: bool,
}

const EID: &str = "SHUNT.INTEROP";
const OTHER_EID: &str = "SOMEBODY.ELSE";
/// No device that fits: no common id, or none at all.
const NO_DEVICE: u32 = 0x0303_0000;

/// All link groups with a peer are those of one vector.
pub(super) const ONE_VECTOR: &[&str] = &["--vectors", "1"];

const SPEAKERS: &[[Peer; 2]] =
    &[[Peer::Kernel, Peer::Kernel], [Peer::Kernel, Peer::Shunt], [Peer::Shunt, Peer::Kernel]];

const SHUNT_AND_KERNEL: &[[Peer; 2]] = &[[Peer::Kernel, Peer::Shunt], [Peer::Shunt, Peer::Kernel]];

/// What most cases have in common.
const USUAL: Case = Case {
    name: "",
    pairs: SPEAKERS,
    visit: "",
    serve: "",
    engine: &[],
    rmb: None,
    eids: [Some(EID); 2],
    test_link_s: 30,
    links: 1,
    path: Path::Smc { groups: 1 },
    event: Event::None,
    client: Ending::Done,
    server: Ending::Done,
    packets: &[],
    loses_one_of: 0,
    limit_s: 60,
    when: When::Quick,
    proof: false,
};

// Filters by place, since not every version of Wireshark knows these messages: the payload of a RoCE
// packet that is an RC SEND ONLY begins at byte 54.
const CONFIRM_LINK: &str = "udp.dstport == 4791 && frame[42] == 04 && frame[54] == 21";
const ADD_LINK: &str = "udp.dstport == 4791 && frame[42] == 04 && frame[54] == 22";
const REQUEST_ADD_LINK: &str = "udp.dstport == 4791 && frame[42] == 04 && frame[54] == 25";
const DELETE_LINK: &str = "udp.dstport == 4791 && frame[42] == 04 && frame[54] == 24";
const TEST_LINK: &str = "udp.dstport == 4791 && frame[42] == 04 && frame[54] == 27";
const CDC: &str = "udp.dstport == 4791 && frame[42] == 04 && frame[54] == fe";
/// With SENDING_DONE among the flags of the connection.
const SENDING_DONE: &str =
    "udp.dstport == 4791 && frame[42] == 04 && frame[54] == fe && frame[79] & 80";
const ABORT: &str = "udp.dstport == 4791 && frame[42] == 04 && frame[54] == fe && frame[79] & 20";
/// The first message of a connection on the link that is left (RFC 7609 4.6.1).
const FAILOVER: &str =
    "udp.dstport == 4791 && frame[42] == 04 && frame[54] == fe && frame[78] & 08";
const URGENT: &str = "udp.dstport == 4791 && frame[42] == 04 && frame[54] == fe && frame[78] & 60";
const BLOCKED: &str = "udp.dstport == 4791 && frame[42] == 04 && frame[54] == fe && frame[78] & 80";
/// ACKNOWLEDGE whose syndrome says that a packet is missing (IBTA 9.7.5.2.8).
const NOT_ACKNOWLEDGED: &str = "udp.dstport == 4791 && frame[42] == 11 && frame[54] == 60";
/// TCP segments with the option of SMC.
const OPTION: &str = "tcp.flags.syn == 1 && tcp.options.experimental.exid == 0xe2d4";

/// The cable of one of two links is pulled.
const FAILOVER_CASE: Case = Case {
    name: "failover to a second link",
    pairs: &[[Peer::Kernel, Peer::Kernel]],
    visit: "--rounds 60 --pause-ms 100 --bytes 1000",
    test_link_s: 2,
    links: 2,
    event: Event::PullCable,
    packets: &[of_each(ADD_LINK), of_any(FAILOVER)],
    ..USUAL
};

/// It is plugged in again.
const LOST_LINK: Case = Case {
    name: "a lost link, which the server adds",
    pairs: &[[Peer::Kernel, Peer::Shunt]],
    visit: "--rounds 450 --pause-ms 100 --bytes 1000",
    test_link_s: 6,
    event: Event::PlugAgain,
    limit_s: 120,
    when: When::Whole,
    ..FAILOVER_CASE
};

/// The engine says to its peers that it ends.
const STOPPED: Case = Case {
    name: "engine stopped",
    pairs: &[[Peer::Kernel, Peer::Shunt]],
    visit: "--rounds 1000 --pause-ms 100",
    event: Event::StopEngine,
    client: Ending::Broken,
    // A kernel's program that reads sees an end.
    server: Ending::Over,
    packets: &[of_server(DELETE_LINK)],
    ..USUAL
};

/// All that is tried, in this order.
pub(super) const CASES: &[Case] = &[
    Case {
        name: "echo",
        visit: "--purpose echo",
        packets: &[of_each(OPTION), of_each(CONFIRM_LINK), of_each(CDC), of_client(SENDING_DONE)],
        when: When::Smoke,
        proof: true,
        ..USUAL
    },
    Case { name: "one byte to the server", visit: "--purpose sink --bytes 1", ..USUAL },
    Case { name: "one byte to the client", visit: "--purpose source --bytes 1", ..USUAL },
    Case {
        name: "1 MB to the server",
        visit: "--purpose sink --bytes 1048576",
        when: When::Whole,
        ..USUAL
    },
    Case {
        name: "1 MB to the client",
        visit: "--purpose source --bytes 1048576",
        when: When::Whole,
        ..USUAL
    },
    Case {
        name: "1 MB both ways",
        visit: "--purpose both --bytes 1048576",
        when: When::Smoke,
        ..USUAL
    },
    // Not a multiple of anything, so that the ring's end is met at every offset.
    Case { name: "odd sizes to and fro", visit: "--bytes 7919 --rounds 50", ..USUAL },
    Case {
        name: "64 MB to the server",
        visit: "--purpose sink --bytes 67108864",
        limit_s: 240,
        when: When::Whole,
        ..USUAL
    },
    Case {
        name: "64 MB to the client",
        visit: "--purpose source --bytes 67108864",
        limit_s: 240,
        when: When::Whole,
        ..USUAL
    },
    Case {
        name: "64 MB both ways",
        visit: "--purpose both --bytes 67108864",
        limit_s: 480,
        when: When::Whole,
        ..USUAL
    },
    Case {
        name: "half close",
        // The server sends all of it after it has seen the end.
        visit: "--purpose after --bytes 300000 --delay-ms 500",
        packets: &[of_client(SENDING_DONE)],
        when: When::Smoke,
        ..USUAL
    },
    Case {
        name: "abort",
        visit: "--purpose abort",
        packets: &[of_server(ABORT)],
        when: When::Smoke,
        ..USUAL
    },
    Case {
        name: "abort by the client",
        // What it has asked for comes, and it does not read it.
        visit: "--purpose source --bytes 300000 --abort",
        server: Ending::Over,
        packets: &[of_client(ABORT)],
        when: When::Whole,
        ..USUAL
    },
    Case {
        name: "urgent byte",
        visit: "--purpose urgent --bytes 1000",
        packets: &[of_client(URGENT)],
        when: When::Smoke,
        ..USUAL
    },
    Case {
        name: "small buffers",
        visit: "--purpose both --bytes 500000 --send-buffer 16384 --receive-buffer 16384",
        serve: "--send-buffer 16384 --receive-buffer 16384",
        engine: &["--send-buffer", "16K", "--receive-buffer", "16K"],
        rmb: Some(16384),
        packets: &[of_each(BLOCKED)],
        ..USUAL
    },
    Case {
        name: "slow reader",
        visit: "--purpose sink --bytes 300000 --delay-ms 1500",
        packets: &[of_client(BLOCKED)],
        ..USUAL
    },
    Case {
        name: "1 of 100 packets lost",
        visit: "--purpose both --bytes 4194304",
        loses_one_of: 100,
        packets: &[of_each(NOT_ACKNOWLEDGED)],
        limit_s: 120,
        ..USUAL
    },
    Case {
        name: "1 of 20 packets lost, to and fro",
        visit: "--bytes 7919 --rounds 100",
        loses_one_of: 20,
        limit_s: 120,
        when: When::Whole,
        ..USUAL
    },
    Case { name: "ten connections", visit: "--connections 10 --bytes 1000", ..USUAL },
    Case {
        name: "300 connections",
        visit: "--connections 300 --bytes 1000",
        // A link group takes 255: with one vector two are needed, and no more.
        engine: ONE_VECTOR,
        path: Path::Smc { groups: 2 },
        limit_s: 180,
        when: When::Whole,
        ..USUAL
    },
    Case {
        name: "idle past the link test",
        visit: "--rounds 2 --pause-ms 6000",
        test_link_s: 2,
        packets: &[of_each(TEST_LINK)],
        ..USUAL
    },
    Case {
        name: "link deleted, then again",
        visit: "--bytes 100000",
        event: Event::Forget,
        packets: &[of_each(DELETE_LINK)],
        ..USUAL
    },
    Case {
        name: "device removed",
        visit: "--rounds 1000 --pause-ms 100",
        test_link_s: 2,
        event: Event::RemoveDevice,
        client: Ending::Broken,
        server: Ending::Over,
        ..USUAL
    },
    FAILOVER_CASE,
    // The kernel finds out after us: where its link test runs out as it is asked to delete the link, its server may say
    // nothing more.
    Case { pairs: SHUNT_AND_KERNEL, test_link_s: 6, ..FAILOVER_CASE },
    Case {
        pairs: &[[Peer::Shunt, Peer::Kernel]],
        name: "a lost link, which the client asks for",
        packets: &[of_each(ADD_LINK), of_any(FAILOVER), of_client(REQUEST_ADD_LINK)],
        ..LOST_LINK
    },
    LOST_LINK,
    Case {
        name: "client killed",
        visit: "--rounds 1000 --pause-ms 100",
        event: Event::KillClient,
        client: Ending::Broken,
        server: Ending::Over,
        ..USUAL
    },
    Case {
        name: "server killed",
        visit: "--rounds 1000 --pause-ms 100",
        event: Event::KillServer,
        client: Ending::Broken,
        server: Ending::Over,
        ..USUAL
    },
    STOPPED,
    Case { pairs: &[[Peer::Shunt, Peer::Kernel]], packets: &[of_client(DELETE_LINK)], ..STOPPED },
    Case {
        name: "engine killed",
        pairs: SHUNT_AND_KERNEL,
        visit: "--rounds 1000 --pause-ms 100",
        test_link_s: 2,
        event: Event::KillEngine,
        client: Ending::Broken,
        server: Ending::Over,
        ..USUAL
    },
    Case {
        name: "client without EID",
        visit: "--bytes 100000",
        eids: [None, Some(EID)],
        path: Path::NotProposed(NO_DEVICE),
        ..USUAL
    },
    Case {
        name: "server without EID",
        visit: "--bytes 100000",
        eids: [Some(EID), None],
        path: Path::Declined(NO_DEVICE),
        ..USUAL
    },
    Case {
        name: "server with another EID",
        visit: "--bytes 100000",
        eids: [Some(EID), Some(OTHER_EID)],
        path: Path::Declined(NO_DEVICE),
        when: When::Smoke,
        proof: true,
        ..USUAL
    },
    Case {
        name: "SMC to plain TCP",
        pairs: &[
            [Peer::Kernel, Peer::KernelTcp],
            [Peer::Kernel, Peer::HostTcp],
            [Peer::Shunt, Peer::KernelTcp],
        ],
        visit: "--bytes 100000",
        path: Path::NoOption,
        ..USUAL
    },
    Case {
        name: "plain TCP to SMC",
        pairs: &[
            [Peer::KernelTcp, Peer::Kernel],
            [Peer::HostTcp, Peer::Kernel],
            [Peer::KernelTcp, Peer::Shunt],
        ],
        visit: "--bytes 100000",
        path: Path::NoOption,
        ..USUAL
    },
];

impl Case {
    /// Whether the case is tried with the pair in such a run.
    pub(super) fn is_due(&self, pair: [Peer; 2], run: When) -> bool {
        let of_us = pair.contains(&Peer::Shunt);
        self.when <= run
            && match run {
                When::Smoke => of_us,
                When::Quick => self.proof || pair != [Peer::Kernel; 2],
                When::Whole => true,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_can_be_told_from_others() {
        // One may be another case with other peers.
        let name =
            |case: &'static Case| case.pairs.iter().map(|pair| (case.name, pair.map(Peer::name)));
        let mut names: Vec<_> = CASES.iter().flat_map(name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(CASES.iter().all(|case| !case.pairs.is_empty()));
    }

    #[test]
    fn two_peers_are_never_both_on_the_host() {
        let pairs = CASES.iter().flat_map(|case| case.pairs);
        assert!(pairs.clone().all(|pair| pair.iter().any(|peer| peer.in_guest())));
        assert!(pairs.clone().any(|pair| pair.contains(&Peer::Shunt)));
    }
}
