//! The same fragments to our engine and to the running kernel: where they differ, a rule says why.
//!
//! Needs root, for a network namespace with a TUN device: what is written to that comes in as packets.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::Command;

use frag::{Arrival, Config, Datagram, HashKey, Ledger, Released, Shard, Sink};
use testkit::fragments::packet::EXPERIMENT;
use testkit::fragments::random::overlap;
use testkit::fragments::{Cut, Family, ORDERS, Packet, Random, cut, cut_unevenly};

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const DEVICE: &str = "shuntd0";

/// A kernel to itself: a namespace, a device to send packets into it, sockets to get datagrams out.
struct Kernel {
    device: File,
    sockets: [File; 2],
}

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output().map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if output.status.success() { Ok(()) } else { Err(format!("ip {words}: {said}")) }
}

fn checked(what: &str, result: i32) -> Result<i32, String> {
    if result < 0 {
        Err(format!("{what}: {}", std::io::Error::last_os_error()))
    } else {
        Ok(result)
    }
}

impl Kernel {
    /// For this thread, which leaves its network namespace.
    fn new() -> Result<Self, String> {
        // SAFETY: changes only this thread.
        checked("a network namespace", unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        // Else what is never completed, of which there is much here, would soon be all that there is room for.
        for limit in ["ipv4/ipfrag_high_thresh", "ipv6/ip6frag_high_thresh"] {
            let path = format!("/proc/sys/net/{limit}");
            std::fs::write(&path, "268435456").map_err(|error| format!("{path}: {error}"))?;
        }
        let device = Self::device()?;
        ip(&format!("addr add 198.19.0.1/24 dev {DEVICE}"))?;
        ip(&format!("addr add fd00::1/64 dev {DEVICE} nodad"))?;
        ip(&format!("link set {DEVICE} up"))?;
        let sockets = [Self::socket(libc::AF_INET)?, Self::socket(libc::AF_INET6)?];
        Ok(Self { device, sockets })
    }

    fn device() -> Result<File, String> {
        let device = File::options().read(true).write(true).open("/dev/net/tun");
        let device = device.map_err(|error| format!("/dev/net/tun: {error}"))?;
        let mut request = [0u8; 40];
        request[..DEVICE.len()].copy_from_slice(DEVICE.as_bytes());
        let flags = u16::try_from(libc::IFF_TUN | libc::IFF_NO_PI).unwrap_or(0);
        request[16..18].copy_from_slice(&flags.to_ne_bytes());
        // SAFETY: an `ifreq` of that size.
        checked("TUN", unsafe { libc::ioctl(device.as_raw_fd(), TUNSETIFF, request.as_ptr()) })?;
        Ok(device)
    }

    fn socket(family: i32) -> Result<File, String> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: always callable.
        let fd =
            checked("a raw socket", unsafe { libc::socket(family, kind, i32::from(EXPERIMENT)) })?;
        // SAFETY: a new descriptor that is ours.
        let socket = unsafe { File::from_raw_fd(fd) };
        // A large datagram in many buffers counts as several times its size.
        let (level, room) = (libc::SOL_SOCKET, 16 << 20i32);
        let len = u32::try_from(size_of::<i32>()).unwrap_or(0);
        // SAFETY: a word of that size, which is only read.
        let set = unsafe {
            libc::setsockopt(fd, level, libc::SO_RCVBUFFORCE, (&raw const room).cast(), len)
        };
        checked("room for a datagram", set)?;
        Ok(socket)
    }

    /// What comes out when these come in: see [`Whole`].
    fn answer(&mut self, family: Family, fragments: &[Packet]) -> Vec<Whole> {
        for fragment in fragments {
            self.device.write_all(&fragment.emit()).expect("the device takes packets");
        }
        let (socket, header) = match family {
            Family::V4 => (&self.sockets[0], 20),
            Family::V6 => (&self.sockets[1], 0),
        };
        let mut bytes = vec![0u8; 70_000];
        // A packet is dealt with before the write of it returns. The sockets do not wait.
        let next = || {
            let n = (&*socket).read(&mut bytes).ok()?;
            Some(Whole::new(&bytes[..header], &bytes[header..n]))
        };
        std::iter::from_fn(next).collect()
    }
}

/// A datagram that came out.
#[derive(PartialEq, Eq)]
struct Whole {
    /// IPv4: the congestion mark, as RFC 3168 makes it of those of the fragments. The kernel's raw sockets do
    /// not hand out IPv6 headers.
    ecn: Option<u8>,
    payload: Vec<u8>,
}

impl Whole {
    fn new(header: &[u8], payload: &[u8]) -> Self {
        let is_v4 = header.first().is_some_and(|byte| byte >> 4 == 4);
        Self { ecn: is_v4.then(|| header[1] & 3), payload: payload.to_vec() }
    }
}

/// What our engine makes of them.
#[derive(Default)]
struct Ours(Vec<Whole>);

impl<'p> Sink<&'p [u8]> for Ours {
    fn whole(&mut self, buffer: &'p [u8], len: usize) {
        // Only what was not cut: its payload is behind a header without options.
        self.0.push(Whole::new(&buffer[..20], &buffer[20..len]));
    }

    fn datagram(&mut self, datagram: &Datagram<'_, &'p [u8]>) {
        let mut bytes = vec![0; datagram.packet_len()];
        datagram.write_to(&mut bytes, |buffer| buffer).expect("there is room");
        let (header, payload) = bytes.split_at(datagram.header().len());
        self.0.push(Whole::new(header, payload));
    }

    fn release(&mut self, _: &'p [u8], _: Released) {}
}

fn ours(fragments: &[Packet]) -> Vec<Whole> {
    let limits = Config::default().limits().expect("the default can be");
    let packets: Vec<Vec<u8>> = fragments.iter().map(Packet::emit).collect();
    let mut shard = Shard::new(&limits, &Ledger::of(&limits), HashKey::new([5, 6]));
    let mut out = Ours::default();
    for packet in &packets {
        shard.push(Arrival::new(packet, packet.as_slice()), 0, &mut out);
    }
    out.0
}

/// A datagram, how it is cut, and in which order the pieces come.
struct Trial {
    family: Family,
    fragments: Vec<Packet>,
    cuts: Vec<Cut>,
}

fn trial(seed: u64) -> Trial {
    let mut random = Random::new(seed);
    let family = if random.below(2) == 0 { Family::V4 } else { Family::V6 };
    // The sizes of the kernel's own test.
    let mut len = 9 + random.below(9_991);
    let mut size = 8 * (1 + random.below(180));
    // What that has not: the largest there are, a second overlap, marks that differ.
    let mut more = Random::new(!seed);
    if more.below(6) == 0 {
        len = LARGE + more.below(LARGEST + 1 - LARGE);
        // Else the kernel's memory would end, and what its buffers cost is no rule of reassembly.
        size = size.max(512);
    }
    let mut pieces =
        if random.below(3) == 0 { cut_unevenly(&mut random, len, size) } else { cut(len, size) };
    if random.below(3) == 0
        && let Some(odd) = overlap(len, size, &mut random)
    {
        pieces.insert(random.below(pieces.len() + 1), odd);
        if more.below(2) == 0
            && let Some(odd) = overlap(len, size, &mut more)
        {
            pieces.insert(more.below(pieces.len() + 1), odd);
        }
    }
    let order = ORDERS[random.below(ORDERS.len())];
    let mut cuts = order.of(&pieces, &mut random);
    if random.below(3) == 0 {
        let again = cuts[random.below(cuts.len())];
        cuts.insert(random.below(cuts.len() + 1), again);
    }
    if random.below(8) == 0 {
        cuts.remove(random.below(cuts.len()));
    }
    let payload = (0..len as u64).map(|at| (at * 7 + seed).to_le_bytes()[0]).collect();
    let whole = Packet::new(family, u32::try_from(seed).unwrap_or(0), payload);
    let mut fragments: Vec<Packet> =
        cuts.iter().map(|cut| whole.fragment(cut.at, cut.end)).collect();
    if more.below(3) == 0 {
        mark(&mut fragments, &mut more);
    }
    Trial { family, fragments, cuts }
}

/// Bytes of payload of the largest datagrams: those of IPv4 have 20 bytes of header besides.
const LARGE: usize = 60_000;
const LARGEST: usize = 65_515;

/// Congestion marks of all combinations (RFC 3168 section 5.3): most fragments have one, some another.
fn mark(fragments: &mut [Packet], random: &mut Random) {
    let two = [random.below(4), random.below(4)].map(|mark| u8::try_from(mark).unwrap_or(0));
    let rarely = 1 + random.below(8);
    for fragment in fragments {
        fragment.tos = fragment.tos & !3 | two[usize::from(random.below(rarely) == 0)];
    }
}

const CONTAINED: &str =
    "Linux takes what lies within what it has for a duplicate; RFC 5722 does not";

const MANY: &str = "Linux has no limit of fragments; we have one";

/// Why the kernel may answer otherwise than we do, if it may.
fn excuse(trial: &Trial) -> Option<&'static str> {
    let mut there: Vec<Cut> = Vec::new();
    if trial.cuts.len() > usize::from(Config::default().fragments_max) {
        return Some(MANY);
    }
    for cut in &trial.cuts {
        let overlaps = there.iter().any(|old| old.at < cut.end && cut.at < old.end);
        if overlaps && !there.contains(cut) {
            let has = |at| there.iter().any(|old| old.at <= at && at < old.end);
            if (cut.at..cut.end).step_by(8).all(has) {
                return Some(CONTAINED);
            }
            // Both give up what was there, and what comes behind begins anew.
            there.clear();
            continue;
        }
        there.push(*cut);
    }
    None
}

const ASKED_AGAIN: &str = "the kernel was asked again";
/// Identifications from here on are those of datagrams that it is asked of again.
const OTHERS: u32 = 10_000;

fn compare(seeds: std::ops::Range<u64>) -> Result<BTreeMap<&'static str, u32>, String> {
    let mut kernel = Kernel::new()?;
    let mut tally = BTreeMap::new();
    for seed in seeds {
        let trial = trial(seed);
        let ours = ours(&trial.fragments);
        let mut theirs = kernel.answer(trial.family, &trial.fragments);
        // On a busy machine the kernel may be out of memory for a moment, or of time, and tells nobody. It is asked again of
        // the same as a datagram of its own, with nothing of the one before: what it refuses, it refuses again.
        for again in 1..=3 {
            if !theirs.is_empty() || ours.is_empty() {
                break;
            }
            *tally.entry(ASKED_AGAIN).or_insert(0) += 1;
            std::thread::sleep(std::time::Duration::from_millis(50));
            let id = |id| id + again * OTHERS;
            let anew = |f: &Packet| Packet { id: id(f.id), ..f.clone() };
            let fragments: Vec<Packet> = trial.fragments.iter().map(anew).collect();
            theirs = kernel.answer(trial.family, &fragments);
        }
        let verdict = if theirs == ours {
            if ours.is_empty() { "neither delivers" } else { "both deliver the same" }
        } else {
            // The excuse is for a datagram that the kernel alone delivers, and for nothing else.
            let alone = theirs.len() == 1 && ours.is_empty();
            excuse(&trial).filter(|_| alone).unwrap_or_else(|| {
                let said = |all: &[Whole]| {
                    all.iter().map(|whole| (whole.payload.len(), whole.ecn)).collect::<Vec<_>>()
                };
                let (theirs, ours) = (said(&theirs), said(&ours));
                let marks: Vec<u8> = trial.fragments.iter().map(|f| f.tos & 3).collect();
                let cuts = &trial.cuts;
                panic!("seed {seed}: kernel {theirs:?}, ours {ours:?} of {cuts:?}, marks {marks:?}")
            })
        };
        let large = trial.cuts.iter().any(|cut| cut.end >= LARGE);
        let marked = trial.fragments.iter().any(|f| f.tos & 3 != trial.fragments[0].tos & 3);
        let delivered = theirs.len();
        for (what, is) in [("large and delivered", large), ("marked and delivered", marked)] {
            *tally.entry(what).or_insert(0) += u32::from(is && delivered == 1);
        }
        *tally.entry(verdict).or_insert(0) += 1;
    }
    Ok(tally)
}

#[test]
fn the_kernel_puts_fragments_together_as_we_do() {
    // A thread of its own, because it does not come back from its namespace.
    let compared = std::thread::spawn(|| compare(1..1500)).join();
    match compared.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
        Ok(tally) => {
            println!("{tally:#?}");
            let of = |what| tally.get(what).copied().unwrap_or(0);
            assert!(of("both deliver the same") > 700 && of("neither delivers") > 100, "{tally:?}");
            assert!(of(ASKED_AGAIN) < 30, "{tally:?}");
            assert!(of("large and delivered") > 100, "{tally:?}");
            assert!(of("marked and delivered") > 50, "{tally:?}");
        }
        Err(why) => println!("skipped: {why}"),
    }
}
