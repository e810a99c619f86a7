//! A network and a control group of a test's own, and what is heard on its loopback.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]
#![expect(clippy::cast_possible_truncation, reason = "sizes of small structures")]

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use e2e::installed;
use e2e::run::skipped;
use engine::remote::option::{Error, TcpOption};
use sys::cgroup::{Group, Hierarchy};

use super::NAME;

const NOBODY: libc::c_long = 65534;

/// A network namespace, and a group for threads with the option at work.
pub(super) struct Stage {
    name: String,
    option: Option<TcpOption>,
    group: Group,
    /// Hears all IPv4 packets of the network. Opened early, since not every thread may.
    packets: Option<OwnedFd>,
}

impl Stage {
    /// `None`, with the reason on standard error, where there cannot be one.
    pub(super) fn new() -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        if sys::call::geteuid() != 0 {
            skipped("programs for sockets and network namespaces need root");
            return None;
        }
        if installed("ip").is_none() {
            skipped("there is no ip(8)");
            return None;
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("shunt-option-{}-{count}", std::process::id());
        match group(&name).and_then(|group| {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            let option = Some(TcpOption::attach(&group, NAME, None).map_err(|e| e.to_string())?);
            Ok(Self { name: name.clone(), option, group, packets: None })
        }) {
            Ok(mut stage) => {
                stage.packets = Some(stage.inside(packets));
                Some(stage)
            }
            Err(why) => {
                let _ = ip(&format!("netns del {name}"));
                skipped(&why);
                None
            }
        }
    }

    pub(super) fn option(&self) -> &TcpOption {
        self.option.as_ref().unwrap()
    }

    pub(super) fn detach(&mut self) {
        self.option = None;
    }

    pub(super) fn attach_again(&self) -> Result<TcpOption, Error> {
        TcpOption::attach(&self.group, NAME, None)
    }

    /// Does something on a thread that is in the network and in the group.
    pub(super) fn inside<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let network = File::open(format!("/run/netns/{}", self.name)).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: changes the namespace of this thread only, which ends with the scope.
                let entered = unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(entered, 0, "{}", std::io::Error::last_os_error());
                self.group.join_thread().unwrap();
                what()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The same, without any right that root has.
    pub(super) fn inside_as_nobody<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        self.inside(|| {
            // SAFETY: the raw call, unlike the C library's, is about this thread only.
            let r = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
            what()
        })
    }

    pub(super) fn sysctl(&self, name: &str, value: &str) {
        self.inside(|| std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).unwrap());
    }

    pub(super) fn free_port(&self) -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    /// A listener to which something is done before it listens.
    pub(super) fn listener(&self, before: impl FnOnce(&OwnedFd)) -> TcpListener {
        self.listener_at(0, before)
    }

    pub(super) fn listener_at(&self, port: u16, before: impl FnOnce(&OwnedFd)) -> TcpListener {
        let socket = socket();
        set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        let address = raw(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        // SAFETY: an address of the length that is said.
        let r = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), LEN) };
        assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
        before(&socket);
        // SAFETY: a socket of ours.
        let r = unsafe { libc::listen(socket.as_raw_fd(), 16) };
        assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
        TcpListener::from(socket)
    }

    /// A connection of a socket to which something is done before it connects.
    pub(super) fn client(&self, to: SocketAddr, before: impl FnOnce(&OwnedFd)) -> TcpStream {
        let socket = socket();
        before(&socket);
        let address = raw(v4(to));
        // SAFETY: an address of the length that is said.
        let r = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), LEN) };
        assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
        TcpStream::from(socket)
    }

    /// Hears what comes over the loopback from now on, to and from the port.
    pub(super) fn trace(&self, port: u16) -> Trace<'_> {
        let trace = Trace { packets: self.packets.as_ref().unwrap(), port };
        let _ = trace.segments();
        trace
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = ip(&format!("netns del {}", self.name));
    }
}

fn group(name: &str) -> Result<Group, String> {
    let tree = Hierarchy::open().map_err(|e| e.to_string())?;
    let own = Hierarchy::own_path().ok_or("the kernel does not say which cgroup we are in")?;
    // Seen from inside of a cgroup namespace it may begin with "..".
    let own = if own.starts_with("/..") { Path::new("/") } else { &own };
    let group = tree.make(&own.join(name)).map_err(|e| e.to_string())?;
    group.take_threads().map_err(|e| e.to_string())?;
    Ok(group)
}

const LEN: libc::socklen_t = size_of::<libc::sockaddr_in>() as libc::socklen_t;

fn socket() -> OwnedFd {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    owned(sys::call::socket(libc::AF_INET, kind, 0).unwrap())
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: it has just been opened, for us alone.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn v4(address: SocketAddr) -> SocketAddrV4 {
    let SocketAddr::V4(address) = address else { panic!("{address}") };
    address
}

fn raw(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

fn set_option(socket: &impl AsFd, level: i32, name: i32, value: i32) {
    sys::call::setsockopt(socket.as_fd().as_raw_fd(), level, name, value).unwrap();
}

/// Lets a listener take data that come in SYNs.
pub(super) fn set_fast_open(socket: &impl AsFd) {
    set_option(socket, libc::SOL_TCP, libc::TCP_FASTOPEN, 16);
}

/// A connection whose first bytes may come in its SYN.
pub(super) fn fast_open(to: SocketAddr, bytes: &[u8], before: impl FnOnce(&OwnedFd)) -> TcpStream {
    let socket = socket();
    before(&socket);
    let address = raw(v4(to));
    // SAFETY: bytes and address of the lengths that are said.
    let n = unsafe {
        let (at, address) = (bytes.as_ptr().cast(), (&raw const address).cast());
        libc::sendto(socket.as_raw_fd(), at, bytes.len(), libc::MSG_FASTOPEN, address, LEN)
    };
    assert_eq!(n, bytes.len().cast_signed(), "{}", std::io::Error::last_os_error());
    TcpStream::from(socket)
}

/// Reads and writes options whose values are longer than what programs are shown.
pub(super) fn check_long_options(socket: &impl AsFd) {
    let fd = socket.as_fd().as_raw_fd();
    let mut name = [0u8; 8192];
    name[..9].copy_from_slice(b"cubic\0\0\0\0");
    // SAFETY: a value of the length that is said.
    let r = unsafe {
        let at = name.as_ptr().cast();
        libc::setsockopt(fd, libc::SOL_TCP, libc::TCP_CONGESTION, at, name.len() as u32)
    };
    assert_eq!(r, 0, "set: {}", std::io::Error::last_os_error());
    let mut value = [7u8; 8192];
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: room of the length that is said.
    let r = unsafe {
        let at = value.as_mut_ptr().cast();
        libc::getsockopt(fd, libc::SOL_TCP, libc::TCP_CONGESTION, at, &raw mut len)
    };
    assert_eq!(r, 0, "get: {}", std::io::Error::last_os_error());
    assert_eq!((len, &value[..6]), (16, &b"cubic\0"[..]));
}

/// A TCP segment as far as its options.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) syn: bool,
    pub(super) ack: bool,
    pub(super) options: Vec<u8>,
}

impl Segment {
    /// Of an IPv4 packet, if it is to or from the port.
    fn parse(packet: &[u8], port: u16) -> Option<Self> {
        let header = usize::from(packet.first()? & 15) * 4;
        let tcp = packet.get(header..).filter(|_| packet[9] == 6)?;
        let ports = [0, 2].map(|at| u16::from_be_bytes([tcp[at], tcp[at + 1]]));
        let options = tcp[20..usize::from(tcp[12] >> 4) * 4].to_vec();
        let [syn, ack] = [2, 16].map(|bit| tcp[13] & bit != 0);
        ports.contains(&port).then_some(Self { syn, ack, options })
    }

    /// The option of that kind, with its kind and length.
    pub(super) fn option(&self, kind: u8) -> Option<Vec<u8>> {
        let mut rest = &self.options[..];
        while let [this, tail @ ..] = rest {
            match this {
                0 => return None,
                1 => rest = tail,
                _ => {
                    let (option, after) = rest.split_at(usize::from(tail[0]));
                    if *this == kind {
                        return Some(option.to_vec());
                    }
                    rest = after;
                }
            }
        }
        None
    }

    pub(super) fn carries_option(&self) -> bool {
        self.option(254).is_some()
    }
}

/// Packets on the loopback since it was made, or asked the last time.
pub(super) struct Trace<'a> {
    packets: &'a OwnedFd,
    port: u16,
}

impl Trace<'_> {
    pub(super) fn segments(&self) -> Vec<Segment> {
        let mut packet = [0; 2048];
        let mut segments = Vec::new();
        while let Ok(n) = recv(self.packets, &mut packet) {
            segments.extend(Segment::parse(&packet[..n], self.port));
        }
        segments
    }
}

fn recv(socket: &OwnedFd, into: &mut [u8]) -> Result<usize, i32> {
    sys::call::recv(socket.as_raw_fd(), into, libc::MSG_DONTWAIT)
}

/// A socket that gets all IPv4 packets of the network.
fn packets() -> OwnedFd {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let protocol = i32::from((libc::ETH_P_IP as u16).to_be());
    owned(sys::call::socket(libc::AF_PACKET, kind, protocol).unwrap())
}

fn ip(words: &str) -> Result<String, String> {
    let output = Command::new("ip").args(words.split(' ')).output().map_err(|e| e.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(format!("ip {words}: {}", text(&output.stderr).trim()))
}
