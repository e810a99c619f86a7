//! Tells the peer in the TCP handshake that a socket speaks SMC, and hears whether the peer does
//! (RFC 7609, 2.1: a TCP option of experiments, in SYN and SYN-ACK only).
//!
//! The sockets are the kernel's, so the kernel has to write the option: [`TcpOption`] gives it programs
//! for the sockets of a cgroup. Sockets outside of it are as ever. Inside, a socket takes part that asks
//! to before it connects or listens ([`ask`], which needs no privilege), or whose port has a [`Rule`] that
//! says so. When the connection is there, [`answer`] tells what the peer said.
//!
//! Where anything is in the way, the option is not sent and the connection is plain TCP: no room in the
//! header, TCP Fast Open, signed segments, a SYN-ACK that is a cookie (the accepted socket could not know
//! what the SYN said). The two ends never disagree.

mod program;

use std::os::fd::{AsFd, AsRawFd};

use sys::bpf::{GroupLink, Hook, NumberMap, Program, Refused, SocketStorage};
use sys::call::{self, Failure};
use sys::cgroup::Group;

/// The level of our two socket options. The kernel has none of this number.
pub const LEVEL: i32 = 0x534d;

/// Names the two socket options of one [`TcpOption`]: `setsockopt`, an `int`, 1 to take part and 0 not to;
/// `getsockopt`, an `int`, a number of [`Answer`]. Several may be at work on one socket, for users that know
/// nothing of each other; who asks one of them is heard by that one only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name(i32);

impl Name {
    /// One of 2^31 - 1, to be drawn at random.
    #[must_use]
    pub const fn new(word: u32) -> Self {
        let number = (word >> 1).cast_signed();
        Self(if number == 0 { 1 } else { number })
    }

    /// As the system calls take it.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0
    }
}

/// Ports that may have a rule of their own.
pub const RULES_MAX: u32 = 1024;

const UNKNOWN: i32 = 0;
const SPOKEN: i32 = 1;
const SILENT: i32 = 2;
const OFFERED: i32 = 3;

const WHEN_ASKED: i32 = 0;
const ALWAYS: i32 = 1;
const NEVER: i32 = 2;

/// What is known of a socket's peer. The numbers never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Answer {
    /// The socket takes no part, or has not begun to connect or listen.
    Unknown = UNKNOWN,
    /// Both ends sent the option: the next bytes are SMC's.
    Spoken = SPOKEN,
    /// The connection is plain TCP.
    Silent = SILENT,
    /// The socket listens, or the handshake is not over.
    Offered = OFFERED,
}

/// Which sockets of a port take part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Those that ask to.
    #[default]
    WhenAsked,
    /// All of them.
    Always,
    /// None, whatever they ask.
    Never,
}

impl Choice {
    const fn bits(self) -> u32 {
        let bits = match self {
            Self::WhenAsked => WHEN_ASKED,
            Self::Always => ALWAYS,
            Self::Never => NEVER,
        };
        bits.cast_unsigned()
    }
}

/// What holds for a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// For sockets that connect to the port of another host.
    pub connect: Choice,
    /// For sockets that listen on the port here.
    pub listen: Choice,
}

impl Rule {
    const fn bits(self) -> u32 {
        self.connect.bits() | self.listen.bits() << 2
    }
}

/// Why the kernel does not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// We may not.
    #[error("{0}; the TCP option needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN")]
    NotPermitted(Failure),
    /// It cannot: an old kernel, or one that was built without.
    #[error("{0}; the TCP option needs Linux 5.10 or later, with CONFIG_CGROUP_BPF")]
    OldKernel(Failure),
    /// What was given is no cgroup of version 2.
    #[error("{0}: not a cgroup of version 2")]
    NotAGroup(Failure),
    /// It would not have the program, which is a mistake of ours.
    #[error("{failure}; the kernel's verifier says: {log}")]
    Refused {
        /// The step and its errno.
        failure: Failure,
        /// The verifier's words.
        log: String,
    },
    /// Something else went wrong.
    #[error("{0}")]
    Failed(Failure),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure.errno {
            EPERM | EACCES => Self::NotPermitted(failure),
            EINVAL | ENOSYS | EOPNOTSUPP | ENOTSUPP => Self::OldKernel(failure),
            EBADF => Self::NotAGroup(failure),
            _ => Self::Failed(failure),
        }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        let Refused { failure, log } = refused;
        match failure.errno {
            EPERM => Self::NotPermitted(failure),
            // Arithmetic with pointers, which is what CAP_PERFMON is for.
            EACCES if log.contains("prohibited for !root") => Self::NotPermitted(failure),
            // What an older kernel says to a program that calls what it does not have.
            EINVAL if log.contains("unknown func") || log.contains("invalid func") => {
                Self::OldKernel(failure)
            }
            _ => Self::Refused { failure, log },
        }
    }
}

const EPERM: i32 = 1;
const EBADF: i32 = 9;
const EACCES: i32 = 13;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const ENOPROTOOPT: i32 = 92;
const EOPNOTSUPP: i32 = 95;
/// Not of user space, but `bpf(2)` says it.
const ENOTSUPP: i32 = 524;

/// The option at work on a cgroup. It ends when this is dropped, also if the process is killed; no
/// connection is harmed by that.
#[derive(Debug)]
pub struct TcpOption {
    ports: NumberMap,
    _sockets: SocketStorage,
    /// Writes the option, and hears it.
    operations: Option<GroupLink>,
    /// By which sockets ask for it, and are told what the peer said.
    _options: [GroupLink; 2],
}

impl TcpOption {
    /// Puts it to work on the sockets that processes of this group make from now on. `netns`: on those of the network
    /// namespace of this number (`SO_NETNS_COOKIE`), where the kernel can tell (Linux 5.15).
    ///
    /// # Errors
    ///
    /// What stands in the way, for people to read.
    pub fn attach(group: &Group, name: Name, netns: Option<u64>) -> Result<Self, Error> {
        let ports = NumberMap::new(RULES_MAX)?;
        let sockets = SocketStorage::new()?;
        let maps = program::Maps { ports: ports.number(), sockets: sockets.number() };
        let link = |hook, instructions: &[_]| -> Result<GroupLink, Error> {
            let program = Program::load(hook, instructions)?;
            Ok(GroupLink::attach(&program, group)?)
        };
        let operations = |netns| link(Hook::SocketOps, &program::socket_operations(maps, netns));
        let operations = match operations(netns) {
            Err(Error::OldKernel(_)) if netns.is_some() => operations(None),
            done => done,
        };
        // Who can ask is heard: the options come last.
        let operations = Some(operations?);
        let options = [
            link(Hook::GetOption, &program::answer(maps, name))?,
            link(Hook::SetOption, &program::ask(maps, name))?,
        ];
        Ok(Self { ports, _sockets: sockets, operations, _options: options })
    }

    /// From now on nobody's peer is told anything. What was promised is [answered](answer) for still, except where the
    /// handshake was not over.
    pub fn promise_no_more(&mut self) {
        self.operations = None;
    }

    /// From now on this holds for sockets that begin to connect or listen on the port.
    ///
    /// # Errors
    ///
    /// `E2BIG` if [`RULES_MAX`] ports have one.
    pub fn set_rule(&self, port: u16, rule: Rule) -> Result<(), Failure> {
        self.ports.set(u32::from(port), rule.bits())
    }

    /// From now on this holds for ports that have no rule of their own. In the beginning sockets take
    /// part when asked.
    ///
    /// # Errors
    ///
    /// As [`Self::set_rule`].
    pub fn set_default(&self, rule: Rule) -> Result<(), Failure> {
        self.set_rule(0, rule)
    }

    /// From now on the port has no rule of its own.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn remove_rule(&self, port: u16) -> Result<(), Failure> {
        self.ports.remove(u32::from(port)).map(drop)
    }
}

/// Asks that this socket take part. Whether it does is decided when it connects or listens.
///
/// # Errors
///
/// The errno: `ENOPROTOOPT` or `EOPNOTSUPP` if the socket belongs to no group with the option or is not
/// TCP, `EPERM` if it connects or listens already.
pub fn ask(socket: &impl AsFd, name: Name) -> Result<(), i32> {
    call::setsockopt(socket.as_fd().as_raw_fd(), LEVEL, name.0, 1i32)
}

/// What is known of this socket's peer.
///
/// # Errors
///
/// The errno, where no connection can have the option; a socket of no group with the option has the
/// answer [`Answer::Unknown`].
pub fn answer(socket: &impl AsFd, name: Name) -> Result<Answer, i32> {
    match call::getsockopt(socket.as_fd().as_raw_fd(), LEVEL, name.0) {
        Ok(SPOKEN) => Ok(Answer::Spoken),
        Ok(SILENT) => Ok(Answer::Silent),
        Ok(OFFERED) => Ok(Answer::Offered),
        Ok(_) | Err(ENOPROTOOPT | EOPNOTSUPP) => Ok(Answer::Unknown),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_two_bits_for_each_direction() {
        let rule = Rule { connect: Choice::Never, listen: Choice::Always };
        assert_eq!(rule.bits(), 0b0110);
        assert_eq!(Rule::default().bits(), 0);
    }

    #[test]
    fn the_kernel_takes_the_programs() {
        let maps = NumberMap::new(1).and_then(|ports| Ok((ports, SocketStorage::new()?)));
        let (ports, sockets) = match maps {
            Ok(maps) => maps,
            Err(e) => return println!("skipped: {e}"),
        };
        let maps = program::Maps { ports: ports.number(), sockets: sockets.number() };
        for (hook, instructions) in [
            (Hook::SocketOps, program::socket_operations(maps, None)),
            (Hook::SocketOps, program::socket_operations(maps, Some(0x1234_5678_9abc_def0))),
            (Hook::GetOption, program::answer(maps, Name::new(7))),
            (Hook::SetOption, program::ask(maps, Name::new(7))),
        ] {
            let refused = Program::load(hook, &instructions).err();
            assert!(refused.is_none(), "{hook:?}: {}", refused.map_or_else(String::new, |r| r.log));
        }
    }

    #[test]
    fn what_goes_wrong_is_told_apart() {
        let at = |errno| Error::from(Failure { step: "try", errno });
        assert!(matches!(at(EPERM), Error::NotPermitted(_)));
        assert!(matches!(at(EINVAL), Error::OldKernel(_)));
        assert!(matches!(at(EBADF), Error::NotAGroup(_)));
        assert!(matches!(at(28), Error::Failed(_)));
        let refused = |log: &str| {
            let failure = Failure { step: "load", errno: EINVAL };
            Error::from(Refused { failure, log: log.to_owned() })
        };
        assert!(matches!(refused("invalid func unknown#142"), Error::OldKernel(_)));
        assert!(matches!(refused("R1 type=ctx expected=fp"), Error::Refused { .. }));
        let log = "R7 has pointer with unsupported alu operation, pointer arithmetic with it prohibited for !root";
        let failure = Failure { step: "load", errno: EACCES };
        let without = Error::from(Refused { failure, log: log.to_owned() });
        assert!(matches!(without, Error::NotPermitted(_)));
    }
}
