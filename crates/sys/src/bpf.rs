//! Programs that the kernel runs on packets and sockets. What they mean is their author's business;
//! the kernel verifies them before it runs them, so a wrong one is refused and nothing worse.

mod map;

pub use map::{AddressSet, NumberMap, SocketStorage};

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::call::{self, Failure};
use crate::interface::own;

/// An instruction of the old machine (classic BPF), for filters and fanout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Classic {
    /// What to do.
    pub code: u16,
    /// Instructions to skip if a comparison is true.
    pub yes: u8,
    /// And if it is not.
    pub no: u8,
    /// Its number.
    pub k: u32,
}

/// How the kernel is given a classic program.
#[derive(Clone, Copy)]
#[repr(C)]
struct ClassicProgram {
    len: u16,
    instructions: *const Classic,
}

/// Gives a classic program to a socket, by the option `level`, `name`.
pub(crate) fn set_classic(
    socket: &OwnedFd,
    level: i32,
    name: i32,
    program: &[Classic],
) -> Result<(), i32> {
    let len = u16::try_from(program.len()).map_err(|_| libc::E2BIG)?;
    // The kernel copies the instructions before the call returns.
    let program = ClassicProgram { len, instructions: program.as_ptr() };
    call::setsockopt(socket.as_raw_fd(), level, name, program)
}

/// An instruction of the new machine (eBPF).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// What to do.
    pub code: u8,
    /// Destination register in the low half, source in the high half.
    pub registers: u8,
    /// Offset of a jump or an access.
    pub offset: i16,
    /// Its number.
    pub k: i32,
}

const MAP_CREATE: u32 = 0;
const MAP_UPDATE_ELEM: u32 = 2;
const PROG_LOAD: u32 = 5;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const LINK_CREATE: u32 = 28;
const LINK_UPDATE: u32 = 29;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const PROG_TYPE_SOCK_OPS: u32 = 13;
const PROG_TYPE_CGROUP_SOCKOPT: u32 = 25;
const ATTACH_SOCK_OPS: u32 = 3;
const ATTACH_GETSOCKOPT: u32 = 21;
const ATTACH_SETSOCKOPT: u32 = 22;
const ATTACH_XDP: u32 = 37;
const XDP_SKB_MODE: u32 = 1 << 1;
const XDP_DRV_MODE: u32 = 1 << 2;
const LOG_BYTES: usize = 64 << 10;

/// A map from a receive queue to the AF_XDP socket that its packets go to.
#[derive(Debug)]
pub struct SocketMap {
    fd: OwnedFd,
    queues: u32,
}

/// How the kernel is told of a map; what is zero is as usual.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
    inner: u32,
    node: u32,
    name: [u32; 4],
    interface: u32,
    types: u32,
    key_type: u32,
    value_type: u32,
    rest: [u32; 3],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct MapUpdate {
    map: u32,
    padding: u32,
    key: *const u32,
    value: *const i32,
    flags: u64,
}

impl SocketMap {
    /// An empty map for so many queues.
    ///
    /// # Errors
    ///
    /// The errno: `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn new(queues: u32) -> Result<Self, Failure> {
        let mut attributes = MapCreate {
            kind: MAP_TYPE_XSKMAP,
            key_bytes: 4,
            value_bytes: 4,
            entries: queues,
            ..MapCreate::default()
        };
        let fd = call::bpf(MAP_CREATE, &mut attributes).map_err(Failure::at("make a BPF map"))?;
        Ok(Self { fd: own(fd), queues })
    }

    /// The number by which an instruction names the map.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// From now on packets of the queue go to this socket.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn set(&self, queue: u32, socket: &impl AsRawFd) -> Result<(), Failure> {
        let value = socket.as_raw_fd();
        let mut attributes = MapUpdate {
            map: self.fd.as_raw_fd().cast_unsigned(),
            padding: 0,
            key: &raw const queue,
            value: &raw const value,
            flags: 0,
        };
        call::bpf(MAP_UPDATE_ELEM, &mut attributes)
            .map(drop)
            .map_err(Failure::at("put the socket in the BPF map"))
    }

    /// From now on packets go to no socket. A core that is about to hand some over may still do so, within the time that it
    /// takes a turn of receiving.
    ///
    /// # Errors
    ///
    /// The errno; packets of the queues from there on go to their sockets as before.
    pub fn clear(&self) -> Result<(), Failure> {
        (0..self.queues).try_for_each(|queue| map::remove(&self.fd, &raw const queue).map(drop))
    }
}

/// When the kernel runs a program, which also says what the program is given and may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// On each frame that an interface receives.
    Xdp,
    /// As a TCP socket of a cgroup connects, listens, writes a header and the like.
    SocketOps,
    /// After `getsockopt` on a socket of a cgroup.
    GetOption,
    /// Before `setsockopt` on a socket of a cgroup.
    SetOption,
}

impl Hook {
    const fn program(self) -> u32 {
        match self {
            Self::Xdp => PROG_TYPE_XDP,
            Self::SocketOps => PROG_TYPE_SOCK_OPS,
            Self::GetOption | Self::SetOption => PROG_TYPE_CGROUP_SOCKOPT,
        }
    }

    const fn attach(self) -> u32 {
        match self {
            Self::Xdp => ATTACH_XDP,
            Self::SocketOps => ATTACH_SOCK_OPS,
            Self::GetOption => ATTACH_GETSOCKOPT,
            Self::SetOption => ATTACH_SETSOCKOPT,
        }
    }

    const fn step(self) -> &'static str {
        match self {
            Self::Xdp => "load the XDP program",
            Self::SocketOps => "load the program for TCP sockets",
            Self::GetOption => "load the program for getsockopt",
            Self::SetOption => "load the program for setsockopt",
        }
    }
}

/// A program that the kernel has verified.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    hook: Hook,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: *const Instruction,
    license: *const u8,
    log_level: u32,
    log_bytes: u32,
    log: *mut u8,
    version: u32,
    flags: u32,
    name: [u32; 4],
    interface: u32,
    attach: u32,
    rest: [u64; 8],
}

/// Why a program was not loaded.
#[derive(Debug)]
pub struct Refused {
    /// The step and its errno.
    pub failure: Failure,
    /// What the kernel's verifier said, if it did.
    pub log: String,
}

impl Program {
    /// Loads a program.
    ///
    /// # Errors
    ///
    /// The errno, and the verifier's words: `EACCES` if it does not allow the program, `EINVAL` if the
    /// program calls what this kernel does not have, `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn load(hook: Hook, instructions: &[Instruction]) -> Result<Self, Refused> {
        let mut log = vec![0u8; LOG_BYTES];
        let mut attributes = ProgramLoad {
            kind: hook.program(),
            count: u32::try_from(instructions.len()).unwrap_or(u32::MAX),
            instructions: instructions.as_ptr(),
            license: c"Dual MIT/GPL".as_ptr().cast(),
            log_level: 1,
            log_bytes: u32::try_from(LOG_BYTES).unwrap_or(0),
            log: log.as_mut_ptr(),
            version: 0,
            flags: 0,
            name: [0; 4],
            interface: 0,
            attach: hook.attach(),
            rest: [0; 8],
        };
        match call::bpf(PROG_LOAD, &mut attributes) {
            Ok(fd) => Ok(Self { fd: own(fd), hook }),
            Err(errno) => {
                let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
                let log = String::from_utf8_lossy(&log[..end]).trim().to_owned();
                Err(Refused { failure: Failure { step: hook.step(), errno }, log })
            }
        }
    }
}

/// Where in the receive path a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver.
    Native,
    /// Behind it, which any driver can.
    Generic,
}

/// A program at work on an interface. It goes when this does, also if the process is killed.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
    /// Where it runs.
    pub mode: Mode,
}

/// A program at work on the sockets of a cgroup and of those below. It goes when this does, also if the
/// process is killed.
#[derive(Debug)]
pub struct GroupLink {
    _fd: OwnedFd,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct LinkCreate {
    program: u32,
    /// An interface's number, or a descriptor of a cgroup's directory.
    target: u32,
    attach: u32,
    flags: u32,
    rest: [u64; 6],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct LinkUpdate {
    link: u32,
    program: u32,
    flags: u32,
    old: u32,
}

/// What is asked of a link, and where the answer goes.
#[derive(Clone, Copy)]
#[repr(C)]
struct InfoByFd {
    fd: u32,
    len: u32,
    info: *mut LinkInfo,
}

/// The beginning of what the kernel says of a link at an interface.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    padding: u32,
    interface: u32,
    rest: u32,
}

impl Link {
    /// Puts the program to work on an interface: in the driver, else behind it.
    ///
    /// # Errors
    ///
    /// The errno of the second try: `EBUSY` if there is a program already, `EINVAL` if the kernel is
    /// older than 5.9.
    pub fn attach(program: &Program, interface: u32) -> Result<Self, Failure> {
        if let Ok(fd) = link(program, interface, XDP_DRV_MODE) {
            return Ok(Self { fd: own(fd), mode: Mode::Native });
        }
        let fd = link(program, interface, XDP_SKB_MODE)
            .map_err(Failure::at("attach the XDP program"))?;
        Ok(Self { fd: own(fd), mode: Mode::Generic })
    }

    /// Has another program do the work from now on. No frame passes between them.
    ///
    /// # Errors
    ///
    /// The errno: `ENOLINK` if the interface has gone.
    pub fn replace(&self, program: &Program) -> Result<(), Failure> {
        let mut attributes = LinkUpdate {
            link: self.fd.as_raw_fd().cast_unsigned(),
            program: program.fd.as_raw_fd().cast_unsigned(),
            flags: 0,
            old: 0,
        };
        call::bpf(LINK_UPDATE, &mut attributes)
            .map(drop)
            .map_err(Failure::at("replace the XDP program"))
    }

    /// Whether the program is at work still: whoever may can take it off (`bpftool link detach`), and an interface that goes
    /// does.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn is_attached(&self) -> Result<bool, Failure> {
        let mut info = LinkInfo::default();
        let mut attributes = InfoByFd {
            fd: self.fd.as_raw_fd().cast_unsigned(),
            len: u32::try_from(size_of::<LinkInfo>()).unwrap_or(0),
            info: &raw mut info,
        };
        call::bpf(OBJ_GET_INFO_BY_FD, &mut attributes)
            .map_err(Failure::at("look at the XDP program"))?;
        Ok(info.interface != 0)
    }
}

impl GroupLink {
    /// Puts the program to work on a cgroup of version 2, beside those that are there already.
    ///
    /// # Errors
    ///
    /// The errno: `EBADF` if the directory is none of a cgroup of version 2, `EPERM` without
    /// `CAP_NET_ADMIN` or if a program above allows none below, `EINVAL` if the kernel is older than
    /// 5.7.
    pub fn attach(program: &Program, directory: &impl AsFd) -> Result<Self, Failure> {
        let directory = directory.as_fd().as_raw_fd().cast_unsigned();
        let fd =
            link(program, directory, 0).map_err(Failure::at("attach the program to the cgroup"))?;
        Ok(Self { _fd: own(fd) })
    }
}

fn link(program: &Program, target: u32, flags: u32) -> Result<i32, i32> {
    let mut attributes = LinkCreate {
        program: program.fd.as_raw_fd().cast_unsigned(),
        target,
        attach: program.hook.attach(),
        flags,
        ..LinkCreate::default()
    };
    call::bpf(LINK_CREATE, &mut attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_the_kernels() {
        assert_eq!((size_of::<Classic>(), size_of::<Instruction>()), (8, 8));
        assert_eq!(size_of::<Classic>(), size_of::<libc::sock_filter>());
        assert_eq!(size_of::<ClassicProgram>(), size_of::<libc::sock_fprog>());
        assert_eq!(size_of::<MapUpdate>(), 32);
        assert_eq!((size_of::<MapCreate>(), std::mem::offset_of!(MapCreate, types)), (72, 48));
        assert_eq!(std::mem::offset_of!(ProgramLoad, attach), 68);
        assert_eq!((size_of::<LinkCreate>(), size_of::<LinkUpdate>()), (64, 16));
    }

    #[test]
    fn a_program_that_reads_what_it_may_not_is_refused() {
        if call::geteuid() != 0 {
            println!("skipped: loading a BPF program needs root");
            return;
        }
        // r0 = *(u64 *)(r3 + 0): register 3 was never set; then exit.
        let wild = [
            Instruction { code: 0x79, registers: 0x30, offset: 0, k: 0 },
            Instruction { code: 0x95, registers: 0, offset: 0, k: 0 },
        ];
        let refused = Program::load(Hook::Xdp, &wild).unwrap_err();
        assert_ne!(refused.failure.errno, 0);
        assert!(refused.log.contains("R3"), "{}", refused.log);
    }
}
