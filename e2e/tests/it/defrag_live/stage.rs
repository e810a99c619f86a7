//! Two hosts as network namespaces with a cable between them, and what sends and listens there.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]
#![expect(
    clippy::cast_possible_truncation,
    reason = "small numbers, or the low bits of random ones"
)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use e2e::run::{Guest, eventually, outcome, skipped};
use e2e::{built, installed};
use serde_json::Value;
use sys::interface::Interface;

use super::SIGINT;

const A4: &str = "10.77.0.1";
const B4: &str = "10.77.0.2";
const A6: &str = "fd77::1";
const B6: &str = "fd77::2";
const PORT: u16 = 4477;
const LIMIT: Duration = Duration::from_secs(30);

/// Host A sends, host B has the interface that `shunt` looks at.
pub(super) struct Stage {
    number: String,
    dir: PathBuf,
}

/// `shunt defrag` on the interface of host B.
pub(super) struct Shunt {
    guest: Guest,
    listeners: Option<[JoinHandle<()>; 2]>,
    said: Arc<Mutex<String>>,
}

impl Stage {
    /// `None`, with the reason on standard error, where there cannot be one.
    pub(super) fn new() -> Option<Self> {
        Self::with_queues(1)
    }

    /// Each end of the cable has so many queues. Which of them a frame takes says the CPU that sends it.
    pub(super) fn with_queues(queues: usize) -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        if sys::call::geteuid() != 0 {
            skipped("network namespaces need root");
            return None;
        }
        if installed("ip").is_none() {
            skipped("there is no ip(8)");
            return None;
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let number = format!("{}-{count}", std::process::id());
        let dir = std::env::temp_dir().join(format!("shunt-live-{number}"));
        std::fs::create_dir_all(&dir).unwrap();
        let stage = Self { number, dir };
        match stage.build(queues) {
            Ok(()) => Some(stage),
            Err(why) => {
                skipped(&why);
                None
            }
        }
    }

    fn a(&self) -> String {
        format!("shunt-a{}", self.number)
    }

    fn b(&self) -> String {
        format!("shunt-b{}", self.number)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn build(&self, queues: usize) -> Result<(), String> {
        let (a, b) = (self.a(), self.b());
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        let queues = format!("numrxqueues {queues} numtxqueues {queues}");
        ip(&format!("link add va netns {a} {queues} type veth peer name vb netns {b} {queues}"))?;
        for (host, interface, v4, v6) in [(&a, "va", A4, A6), (&b, "vb", B4, B6)] {
            ip(&format!("-n {host} addr add {v4}/24 dev {interface}"))?;
            ip(&format!("-n {host} addr add {v6}/64 dev {interface} nodad"))?;
            ip(&format!("-n {host} link set lo up"))?;
            ip(&format!("-n {host} link set {interface} up"))?;
        }
        let address = ip(&format!("-n {b} -br link show vb"))?;
        let address = address.split_whitespace().nth(2).ok_or("no address")?.to_owned();
        ip(&format!("-n {a} neigh replace {B4} lladdr {address} dev va"))?;
        ip(&format!("-n {a} neigh replace {B6} lladdr {address} dev va"))?;
        Ok(())
    }

    /// What `ip link` says of the interface.
    pub(super) fn link(&self) -> String {
        ip(&format!("-n {} link show vb", self.b())).unwrap()
    }

    /// The same with its details.
    pub(super) fn details(&self) -> String {
        ip(&format!("-n {} -d link show vb", self.b())).unwrap()
    }

    /// Gives host B a TAP device that is down.
    pub(super) fn has_sleeping_tap(&self, name: &str) {
        ip(&format!("-n {} tuntap add {name} mode tap", self.b())).unwrap();
    }

    pub(super) fn set_down(&self) {
        ip(&format!("-n {} link set vb down", self.b())).unwrap();
    }

    /// Host B's end of the cable.
    pub(super) fn end(&self) -> Interface {
        self.inside(|| Interface::find("vb").unwrap().unwrap())
    }

    /// Of host B's end.
    pub(super) fn set_address(&self, address: &str) {
        ip(&format!("-n {} link set vb address {address}", self.b())).unwrap();
    }

    /// The same.
    pub(super) fn set_mtu(&self, mtu: u32) {
        self.set_mtu_of("vb", mtu);
    }

    /// Of an interface of host B.
    pub(super) fn set_mtu_of(&self, name: &str, mtu: u32) {
        ip(&format!("-n {} link set {name} mtu {mtu}", self.b())).unwrap();
    }

    /// Gives host B's end of the cable another name beside its own.
    pub(super) fn also_named(&self, name: &str) {
        ip(&format!("-n {} link property add dev vb altname {name}", self.b())).unwrap();
    }

    /// Gives it another name.
    pub(super) fn rename(&self, name: &str) -> Result<String, String> {
        ip(&format!("-n {} link set vb name {name}", self.b()))
    }

    /// The cable, after it was removed.
    pub(super) fn make_again(&self) {
        let (a, b) = (self.a(), self.b());
        ip(&format!("link add va netns {a} type veth peer name vb netns {b}")).unwrap();
        for (host, end) in [(a, "va"), (b, "vb")] {
            ip(&format!("-n {host} link set {end} up")).unwrap();
        }
    }

    pub(super) fn remove(&self) {
        ip(&format!("-n {} link del vb", self.b())).unwrap();
    }

    /// Lets host B take packets of A from this device, too.
    pub(super) fn trust(&self, device: &str) {
        ["all", device].into_iter().for_each(|name| self.set_rp_filter(name, 0));
    }

    /// How strictly host B filters by the way back: of all interfaces, of new ones (`default`), of one.
    pub(super) fn set_rp_filter(&self, name: &str, value: u8) {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/rp_filter");
        let written = self.inside(|| std::fs::write(&path, value.to_string()));
        written.unwrap_or_else(|e| panic!("{path}: {e}"));
    }

    /// Types a command on host B; what it says.
    pub(super) fn types(&self, line: &str) -> Result<String, String> {
        ip_of(&["netns", "exec", &self.b(), "sh", "-c", line])
    }

    /// The same on host A.
    pub(super) fn types_beyond(&self, line: &str) -> Result<String, String> {
        ip_of(&["netns", "exec", &self.a(), "sh", "-c", line])
    }

    /// Fragments by IPv6 that host B has seen.
    pub(super) fn fragments6(&self) -> u64 {
        let text = self.inside(|| std::fs::read_to_string("/proc/thread-self/net/snmp6").unwrap());
        let line = text.lines().find_map(|line| line.strip_prefix("Ip6ReasmReqds"));
        line.unwrap().trim().parse().unwrap()
    }

    /// A counter of host B's IP.
    pub(super) fn snmp(&self, name: &str) -> u64 {
        let text = self.inside(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
        let mut lines = text.lines().filter(|line| line.starts_with("Ip:"));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let at = names.split(' ').position(|word| word == name).unwrap();
        values.split(' ').nth(at).unwrap().parse().unwrap()
    }

    /// Does something in host B.
    pub(super) fn inside<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        within(&self.b(), what)
    }

    /// A socket of host B for what [`Self::send`] sends.
    pub(super) fn listen(&self) -> UdpSocket {
        self.listen_by(false)
    }

    /// The same, for what comes by IPv6 or IPv4.
    pub(super) fn listen_by(&self, v6: bool) -> UdpSocket {
        let address = if v6 { B6 } else { B4 };
        let socket = self.inside(|| UdpSocket::bind((address, PORT)).unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    }

    /// Sends a datagram from host A to host B, which the kernel of A cuts to pieces.
    pub(super) fn send(&self, body: &[u8], v6: bool) {
        let (from, to) = if v6 { (A6, B6) } else { (A4, B4) };
        let sent = within(&self.a(), || {
            let socket = UdpSocket::bind((from, 0)).unwrap();
            socket.send_to(body, (to, PORT)).unwrap()
        });
        assert_eq!(sent, body.len());
    }

    /// Host B's address that is good on the cable only, once it is usable.
    pub(super) fn link_local(&self) -> Ipv6Addr {
        let mut found = None;
        eventually("host B has an address of the link", || {
            let said = ip(&format!("-n {} -6 -o addr show dev vb scope link", self.b())).unwrap();
            let words: Vec<&str> = said.split_whitespace().collect();
            let address = words.get(3).filter(|_| !words.contains(&"tentative"));
            found = address.and_then(|address| address.split('/').next()?.parse().ok());
            found.is_some()
        });
        found.unwrap()
    }

    /// Sends a datagram from host A to that address.
    pub(super) fn send_to_link_local(&self, body: &[u8], port: u16) {
        let to = self.link_local();
        within(&self.a(), || {
            let index = Interface::find("va").unwrap().unwrap().index;
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
            socket.send_to(body, SocketAddrV6::new(to, port, 0, index)).unwrap();
        });
    }

    /// Sends packets from host A as they are.
    pub(super) fn send_raw(&self, what: impl FnOnce(&Raw) + Send) {
        within(&self.a(), || what(&Raw::new()));
    }

    /// Sends frames from host A as they are, but for the addresses that they begin with.
    pub(super) fn send_frames(&self, frames: &[Vec<u8>]) {
        self.send_frames_on(None, frames);
    }

    /// The same from this CPU, which chooses the queue.
    pub(super) fn send_frames_on(&self, cpu: Option<u32>, frames: &[Vec<u8>]) {
        self.put_on_cable(cpu, self.end().address, frames);
    }

    /// The same, addressed to this one.
    pub(super) fn send_frames_to(&self, to: [u8; 6], frames: &[Vec<u8>]) {
        self.put_on_cable(None, to, frames);
    }

    fn put_on_cable(&self, cpu: Option<u32>, to: [u8; 6], frames: &[Vec<u8>]) {
        within(&self.a(), || {
            let index = Interface::find("va").unwrap().unwrap().index;
            let fd = owned(sys::call::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).unwrap());
            if let Some(cpu) = cpu {
                sys::call::pin(cpu).unwrap();
                // Without the queueing discipline the kernel goes by the CPU; else by addresses and ports.
                let (level, name) = (libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS);
                sys::call::setsockopt(fd.as_raw_fd(), level, name, 1i32).unwrap();
            }
            // SAFETY: all zeros is a link-level address.
            let mut link: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            link.sll_family = libc::AF_PACKET as u16;
            link.sll_ifindex = index.cast_signed();
            for frame in frames {
                let mut frame = frame.clone();
                frame[..6].copy_from_slice(&to);
                send_to(&fd, &frame, &link);
            }
        });
    }

    fn command(&self, interface: &str, options: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.b()]).arg(built("shunt"));
        command.args(["defrag", "--interface", interface]).args(options);
        command
    }

    /// Starts `shunt` and waits until it is ready.
    pub(super) fn shunt(&self, options: &[&str]) -> Shunt {
        self.shunt_on("vb", options)
    }

    /// The same on another interface of host B.
    pub(super) fn shunt_on(&self, interface: &str, options: &[&str]) -> Shunt {
        Self::started(self.command(interface, options), options)
    }

    /// The same where what is in /sys is of another network namespace.
    pub(super) fn shunt_beside_sys(&self, options: &[&str]) -> Shunt {
        let mut command = Command::new(built("shunt"));
        command.args(["defrag", "--interface", "vb"]).args(options);
        self.inside(|| Self::started(command, options))
    }

    fn started(mut command: Command, options: &[&str]) -> Shunt {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut guest = Guest::start(&mut command);
        let out = guest.take_stdout().unwrap();
        let mut err = BufReader::new(guest.take_stderr().unwrap());
        let mut said = String::new();
        while !said.contains("Ctrl-C ends") {
            let n = err.read_line(&mut said).unwrap();
            assert!(n > 0, "shunt defrag {options:?} does not start: {said}");
        }
        let said = Arc::new(Mutex::new(said));
        let listeners = Some([gather(out, &said), gather(err, &said)]);
        Shunt { guest, listeners, said }
    }

    /// What `shunt` says when it cannot.
    pub(super) fn fails(&self, options: &[&str]) -> String {
        self.fails_on("vb", options)
    }

    /// What is on its standard error until it ends by itself.
    pub(super) fn ends_well(&self, options: &[&str]) -> String {
        let outcome = outcome(&mut self.command("vb", options), LIMIT);
        assert!(outcome.code == 0 && outcome.hung.is_none(), "{outcome:?}");
        outcome.err
    }

    pub(super) fn fails_on(&self, interface: &str, options: &[&str]) -> String {
        failure(&mut self.command(interface, options))
    }

    pub(super) fn fails_as_nobody(&self, setpriv: &Path, options: &[&str]) -> String {
        // A copy, since nobody may not look into our directories.
        let program = format!("/tmp/shunt-{}", self.number);
        e2e::run::copy_program(built("shunt"), &program);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.b()]).arg(setpriv);
        command.args(["--reuid", "65534", "--clear-groups", &program, "defrag", "--interface"]);
        let said = failure(command.arg("vb").args(options));
        std::fs::remove_file(&program).unwrap();
        said
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for host in [self.a(), self.b()] {
            let _ = ip(&format!("netns del {host}"));
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn failure(command: &mut Command) -> String {
    let outcome = outcome(command, LIMIT);
    assert!(outcome.code == 2 && outcome.hung.is_none(), "{outcome:?}");
    outcome.err
}

fn gather(from: impl Read + Send + 'static, into: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let into = Arc::clone(into);
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = String::new();
        while from.read_line(&mut line).is_ok_and(|n| n > 0) {
            into.lock().unwrap().push_str(&line);
            line.clear();
        }
    })
}

impl Shunt {
    /// Waits for its end, which must be a good one.
    pub(super) fn ends(&mut self, limit: Duration) {
        let status = self.guest.wait(limit).unwrap();
        self.listen();
        assert!(status.success(), "{status}: {}", self.said());
    }

    /// Presses Ctrl-C; answers all that it has said.
    pub(super) fn stop(&mut self) -> String {
        self.guest.signal(SIGINT);
        self.ends(LIMIT);
        self.said()
    }

    pub(super) fn signal(&self, signal: i32) {
        self.guest.signal(signal);
    }

    pub(super) fn kill(mut self) {
        self.guest.kill_all();
    }

    /// Waits for its end, which must be a bad one; answers what it has said.
    pub(super) fn fails_within(&mut self, limit: Duration) -> String {
        let status = self.guest.wait(limit).unwrap();
        self.listen();
        assert_eq!(status.code(), Some(2), "{}", self.said());
        self.said()
    }

    /// Waits for its end; the exit status.
    pub(super) fn code_within(&mut self, limit: Duration) -> Option<i32> {
        let status = self.guest.wait(limit).unwrap();
        self.listen();
        status.code()
    }

    /// What it has said until now; all of it, once it has ended.
    pub(super) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    fn listen(&mut self) {
        for listener in self.listeners.take().into_iter().flatten() {
            listener.join().unwrap();
        }
    }
}

/// A socket that sends IPv4 packets with the header that they have.
pub(super) struct Raw(OwnedFd);

impl Raw {
    fn new() -> Self {
        Self(owned(sys::call::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW).unwrap()))
    }

    fn send(&self, packet: &[u8]) {
        // SAFETY: all zeros is an IPv4 address and port.
        let mut to: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        to.sin_family = libc::AF_INET as u16;
        to.sin_addr.s_addr = u32::from_ne_bytes([10, 77, 0, 2]);
        send_to(&self.0, packet, &to);
    }
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just made it, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn send_to<T>(fd: &OwnedFd, packet: &[u8], to: &T) {
    let (to, len) = (std::ptr::from_ref(to).cast(), size_of::<T>() as u32);
    let at = packet.as_ptr().cast();
    // SAFETY: packet and address are valid for their lengths while the call lasts.
    let sent = unsafe { libc::sendto(fd.as_raw_fd(), at, packet.len(), 0, to, len) };
    assert_eq!(sent, packet.len().cast_signed(), "{}", std::io::Error::last_os_error());
}

/// Bytes that differ between datagrams and within them.
pub(super) fn payload(seed: usize, len: usize) -> Vec<u8> {
    let mut state = seed as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A datagram of the largest size from each of `senders`, one fragment of each in turn.
pub(super) fn interleaved(raw: &Raw, senders: usize, round: usize) {
    const LEN: usize = 65_515;
    const EACH: usize = 1480;
    for at in (0..LEN).step_by(EACH) {
        for sender in 0..senders {
            let end = (at + EACH).min(LEN);
            let body = vec![0; end - at];
            let mut packet = fragment4(round as u16 + 1, at, end < LEN, &body);
            packet[15] = 100 + sender as u8;
            raw.send(&packet);
        }
    }
}

/// A fragment of a datagram from A to B, by IPv4.
pub(super) fn fragment4(id: u16, at: usize, more: bool, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend(((20 + body.len()) as u16).to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend(((at / 8) as u16 | u16::from(more) << 13).to_be_bytes());
    packet.extend([64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
    seal(&mut packet);
    packet.extend_from_slice(body);
    packet
}

/// Writes the checksum of a header without options.
pub(super) fn seal(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let sum = testkit::fragments::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// The same by IPv6, behind so many other headers: the first with options, others for the destination.
pub(super) fn fragment6(id: u32, at: usize, more: bool, body: &[u8], others: usize) -> Vec<u8> {
    let kind = |header: usize| match header {
        _ if header == others => 44,
        0 => 0,
        _ => 60,
    };
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(((others * 8 + 8 + body.len()) as u16).to_be_bytes());
    packet.extend([kind(0), 64]);
    for last in [1, 2] {
        packet.extend([0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    for header in 1..=others {
        packet.extend([kind(header), 0, 1, 4, 0, 0, 0, 0]);
    }
    packet.extend([17, 0]);
    packet.extend((at as u16 | u16::from(more)).to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend_from_slice(body);
    packet
}

/// The packets of a file of ours: pcap if its name says so, else pcapng.
pub(super) fn capture(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut packets) = (0, Vec::new());
    if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("pcap")) {
        assert_eq!([word(0), word(20)], [0xa1b2_3c4d, 101], "pcap in nanoseconds, raw IP");
        at = 24;
        while at < bytes.len() {
            let (len, original) = (word(at + 8), word(at + 12));
            assert_eq!(len, original);
            packets.push(bytes[at + 16..at + 16 + len].to_vec());
            at += 16 + len;
        }
        return packets;
    }
    assert_eq!(word(0), 0x0a0d_0d0a, "pcapng");
    while at < bytes.len() {
        if word(at) == 6 {
            packets.push(bytes[at + 28..at + 28 + word(at + 20)].to_vec());
        }
        at += word(at + 4);
    }
    packets
}

/// Takes this program of XDP off its interface, as `bpftool link detach` does.
pub(super) fn detach(program: u32) -> Result<(), String> {
    const GET_INFO: u32 = 15;
    const GET_FD: u32 = 30;
    const GET_NEXT: u32 = 31;
    const DETACH: u32 = 34;
    let bpf = |command: u32, words: &mut [u32; 4]| {
        // SAFETY: what the kernel is told to write to is the words, or what they point to, which is there meanwhile.
        let done = unsafe { libc::syscall(libc::SYS_bpf, command, words.as_mut_ptr(), 16) };
        let failed = || format!("bpf(2), command {command}: {}", std::io::Error::last_os_error());
        i32::try_from(done).ok().filter(|done| *done >= 0).ok_or_else(failed)
    };
    let mut id = 0;
    loop {
        let mut next = [id, 0, 0, 0];
        bpf(GET_NEXT, &mut next)?;
        id = next[1];
        // One that is gone by now is none of ours.
        let Ok(link) = bpf(GET_FD, &mut [id, 0, 0, 0]) else { continue };
        // SAFETY: a new descriptor that is ours.
        let link = unsafe { File::from_raw_fd(link) };
        let fd = u32::try_from(link.as_raw_fd()).unwrap();
        // Kind, id, program.
        let mut info = [0u32; 4];
        let [low, high] =
            [0, 32].map(|shift| (info.as_mut_ptr().expose_provenance() as u64 >> shift) as u32);
        bpf(GET_INFO, &mut [fd, 16, low, high])?;
        if info[2] == program {
            return bpf(DETACH, &mut [fd, 0, 0, 0]).map(drop);
        }
    }
}

/// Does something on a thread that is in this network namespace.
fn within<T: Send>(host: &str, what: impl FnOnce() -> T + Send) -> T {
    let file = File::open(format!("/run/netns/{host}")).unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // SAFETY: changes the namespace of this thread only, which ends with the scope.
            let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(entered, 0, "{}", std::io::Error::last_os_error());
            what()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn ip(words: &str) -> Result<String, String> {
    ip_of(&words.split(' ').collect::<Vec<_>>())
}

fn ip_of(words: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(words).output().map_err(|e| e.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(format!("ip {}: {}", words.join(" "), text(&output.stderr).trim()))
}

/// The JSON objects in what `shunt` has said, each a line.
pub(super) fn objects(said: &str) -> Vec<Value> {
    let lines = said.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// What it has told last.
pub(super) struct Told(Value);

impl Told {
    pub(super) fn of(said: &str) -> Self {
        Self(objects(said).pop().unwrap_or_else(|| panic!("no JSON in {said}")))
    }

    /// A number in it; of an object by `name/key`, 0 if that has no such key.
    #[track_caller]
    pub(super) fn get(&self, name: &str) -> u64 {
        let (name, key) = name.split_once('/').unwrap_or((name, ""));
        let value = self.0.get(name).unwrap_or_else(|| panic!("no {name} in {}", self.0));
        if key.is_empty() {
            return value.as_u64().unwrap_or_else(|| panic!("{name} in {}", self.0));
        }
        let there = value.as_object().unwrap_or_else(|| panic!("{name} in {}", self.0));
        there.get(key).map_or(0, |n| n.as_u64().unwrap())
    }
}
