//! Hostile clients: bytes that no client would send, before and after it has logged on. The server stays, keeps
//! within bounds, and serves the others.
//!
//! `SHUNT_SOAK_SECONDS=600` goes on with fresh seeds; `SHUNT_SEED` repeats one.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use e2e::run::{PATIENCE, eventually};
use smb::wire::header::{Command, Flags, Header};
use smb::wire::negotiate::dialect::{SMB_2_0_2, SMB_2_1, SMB_3_0, SMB_3_1_1};
use smb::wire::negotiate::{self, Context};
use smb::wire::query_info::Subject;
use smb::wire::smb1::Offer;
use smb::wire::{Encode, U16s, change_notify, ioctl, lock, query_directory, query_info, set_info};
use smb::{FileId, NtStatus};
use testkit::fragments::Random;

use super::client::Client;
use super::{Folder, Server, block};

/// Hostile clients at a time.
const HOSTILE: u64 = 4;
/// How often somebody else has to be served beside them before anything is said of how long it waits.
const ROUNDS_MIN: usize = 30;
const SHORT: Duration = Duration::from_secs(6);
/// What the server may need more of memory after any time than before, bytes.
const GROWTH_MAX: u64 = 96 << 20;
const DIALECTS: [u16; 3] = [SMB_2_1, SMB_3_0, SMB_3_1_1];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Requests as a client would send them, in a session that is at work.
fn requests(client: &mut Client, file: FileId) -> Vec<Vec<u8>> {
    let name = super::client::wide("file");
    let create = smb::wire::create::Request { name: &name, ..Default::default() };
    let mut all = vec![
        client.request(Command::Create, 1, &create),
        client.request(
            Command::Read,
            1,
            &smb::wire::read::Request { length: 4096, file, ..Default::default() },
        ),
        client.request(Command::Echo, 1, &smb::wire::bare::Request),
        client.request(
            Command::Flush,
            1,
            &smb::wire::flush::Request { file, ..Default::default() },
        ),
    ];
    all.push(client.write_request(file, 0, &block(1, 3000), false));
    // Classes of files (MS-FSCC 2.4), of file systems (2.5), and a descriptor.
    let asked = [4, 5, 6, 7, 8, 15, 16, 18, 22, 34, 35, 48].map(|class| (Subject::File, class));
    let asked =
        asked.into_iter().chain([1, 3, 4, 5, 7, 11].map(|class| (Subject::FileSystem, class)));
    for (subject, class) in asked.chain([(Subject::Security, 0)]) {
        let (output_max, additional) = (4096, 7);
        let info = query_info::Request {
            subject,
            class,
            output_max,
            input: &[],
            additional,
            flags: 0,
            file,
        };
        all.push(client.request(Command::QueryInfo, 1, &info));
    }
    let there = [&[0; 16][..], &8u32.to_le_bytes(), &super::client::wide("to-x")].concat();
    for (class, data) in [
        (4, &[0; 40][..]),
        (10, &there),
        (11, &there),
        (13, &[0]),
        (19, &[9; 8]),
        (20, &[9, 9, 0, 0, 0, 0, 0, 0]),
    ] {
        let info = set_info::Request { subject: Subject::File, class, additional: 0, file, data };
        all.push(client.request(Command::SetInfo, 1, &info));
    }
    let list = query_directory::Request { file, ..Default::default() };
    all.push(client.request(Command::QueryDirectory, 1, &list));
    let watch = change_notify::Request { file, ..Default::default() };
    all.push(client.request(Command::ChangeNotify, 1, &watch));
    let control = ioctl::Request { file, ..Default::default() };
    all.push(client.request(Command::Ioctl, 1, &control));
    let lock = lock::Request { file, ..Default::default() };
    all.push(client.request(Command::Lock, 1, &lock));
    all
}

/// Makes a message worse: bits, words that are lengths and offsets, its length, its command.
fn spoil(message: &mut Vec<u8>, random: &mut Random) {
    const WORDS: [u32; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    for _ in 0..=random.below(4) {
        if message.is_empty() {
            return;
        }
        let at = random.below(message.len());
        match random.below(9) {
            0 => message[at] ^= 1 << random.below(8),
            1 => message[at] = random.word().to_le_bytes()[0],
            2 | 3 => {
                let word = WORDS[random.below(WORDS.len())].to_le_bytes();
                let width = [1, 2, 4][random.below(3)];
                for (byte, new) in message[at..].iter_mut().zip(&word[..width]) {
                    *byte = *new;
                }
            }
            4 => message.truncate(at),
            5 => {
                let more = block(random.word(), random.below(2000));
                message.extend(more);
            }
            // Another command with the same body.
            6 if message.len() > 64 => message[12] = random.word().to_le_bytes()[0] % 24,
            // A compound of itself.
            7 if message.len() > 64 => {
                message.resize(message.len().next_multiple_of(8), 0);
                let next = u32::try_from(message.len()).unwrap_or(0);
                let mut second = message.clone();
                message[20..24].copy_from_slice(&next.to_le_bytes());
                second[20..24].fill(0);
                second[16] |= u8::try_from(Flags::RELATED.bits()).unwrap_or(0);
                message.extend(second);
            }
            _ => {
                let from = random.below(message.len());
                let byte = message[from];
                message[at] = byte;
            }
        }
    }
}

/// One hostile connection, from its first byte to its last.
fn attack(port: u16, random: &mut Random) {
    if random.below(5) == 0 {
        raw(port, random);
        return;
    }
    let dialect = DIALECTS[random.below(DIALECTS.len())];
    let Ok(mut client) = Client::connect(port, dialect) else { return };
    let _ = client.stream.set_read_timeout(Some(Duration::from_millis(20)));
    let known = client.sent.clone();
    let mut base = known;
    if random.below(4) != 0 {
        let _ = client.stream.set_read_timeout(Some(Duration::from_secs(10)));
        if client.log_on(smb::SessionId(0)).is_err() || client.connect_tree().is_err() {
            return;
        }
        let Ok(file) = client.open(&format!("file-{}", random.below(4))) else { return };
        base = client.sent.clone();
        base.extend(requests(&mut client, file));
        let _ = client.stream.set_read_timeout(Some(Duration::from_millis(20)));
    }
    for _ in 0..20 + random.below(60) {
        let mut message = base[random.below(base.len())].clone();
        // Message ids that are to be had, so that it gets further than to them.
        if message.len() > 32 && random.below(8) != 0 {
            let id = client.sent.len() as u64 + random.below(40) as u64;
            message[24..32].copy_from_slice(&id.to_le_bytes());
        }
        spoil(&mut message, random);
        if random.below(10) != 0 {
            client.sign(&mut message);
        }
        if client.send(&message).is_err() {
            return;
        }
        // At times answers are left where they are.
        if random.below(3) == 0 {
            let _ = client.receive();
        }
    }
    if random.below(2) == 0 {
        let _ = client.stream.shutdown(Shutdown::Write);
    }
}

/// What is no frame: any bytes, lengths that never come, silence.
fn raw(port: u16, random: &mut Random) {
    let Ok(mut stream) = TcpStream::connect(testkit::loopback(port)) else { return };
    let _ = stream.set_write_timeout(Some(Duration::from_secs(2)));
    let bytes = match random.below(5) {
        0 => block(random.word(), random.below(5000)),
        1 => vec![0, 0xff, 0xff, 0xff],
        2 => [&[0, 0xff, 0xff, 0xff][..], b"\xfeSMB", &block(1, 200_000)].concat(),
        3 => [&[0, 0, 0, 100][..], b"\xfdSMB", &block(random.word(), 96)].concat(),
        _ => [&[0, 0, 0, 4][..], b"\xffSMB"].concat(),
    };
    let _ = stream.write_all(&bytes);
    if random.below(3) == 0 {
        thread::sleep(Duration::from_millis(50));
    }
}

/// Resident memory and descriptors of a process.
fn footprint(pid: i32) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    (kib.unwrap_or(0) << 10, descriptors)
}

/// Somebody who does nothing wrong; counts how often it was served, and answers how long it waited each time.
fn honest(port: u16, stop: &AtomicBool, rounds: &AtomicUsize) -> Vec<Duration> {
    let mut client = Client::ready(port, SMB_3_1_1).unwrap();
    let file = client.open("honest").unwrap();
    let mut waited = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let bytes = block(waited.len() as u64, 20_000);
        let begun = Instant::now();
        client.write(file, 0, &bytes, false).unwrap();
        let read = client.read(file, 0, 20_000).unwrap();
        assert!(read == bytes, "round {}", waited.len());
        waited.push(begun.elapsed());
        rounds.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(2));
    }
    waited
}

#[test]
fn hostile_clients_break_nothing_and_nobody_waits_for_them() {
    let soak = number("SHUNT_SOAK_SECONDS").map(Duration::from_secs);
    let seed = number("SHUNT_SEED").unwrap_or(1);
    let time = soak.unwrap_or(SHORT);
    println!("SHUNT_SEED={seed}");
    for options in [&[][..], &["--uring=off"]] {
        let folder = Folder::new();
        let server = Server::start_as(folder.path(), 0, &[], options);
        under_attack(server, seed, time / 2);
    }
}

fn under_attack(mut server: Server, seed: u64, time: Duration) {
    let (port, pid) = (server.port, server.serving());
    let stop = Arc::new(AtomicBool::new(false));
    let attacks = Arc::new(AtomicUsize::new(0));
    // What one attack leaves for good it leaves once: measured after the first.
    attack(port, &mut Random::new(seed));
    let before = footprint(pid);
    let rounds = Arc::new(AtomicUsize::new(0));
    let served = thread::spawn({
        let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
        move || honest(port, &stop, &rounds)
    });
    let hostile: Vec<_> = (0..HOSTILE)
        .map(|number| {
            let (stop, attacks) = (Arc::clone(&stop), Arc::clone(&attacks));
            let mut random = Random::new(seed << 8 | number);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    attack(port, &mut random);
                    attacks.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let begun = Instant::now();
    let mut most = 0;
    // As long as asked for, and on a machine with other work until there is something to judge by.
    let goes_on = || begun.elapsed() < time.max(PATIENCE) && !served.is_finished();
    let is_enough = || {
        rounds.load(Ordering::Relaxed) >= ROUNDS_MIN
            && attacks.load(Ordering::Relaxed) as u64 >= HOSTILE
    };
    while goes_on() && (begun.elapsed() < time || !is_enough()) {
        thread::sleep(Duration::from_millis(100));
        most = most.max(footprint(pid).0);
        let ended = server.guest.ended();
        if ended.is_some() {
            stop.store(true, Ordering::Relaxed);
            panic!("the server ended with {ended:?} and says {}", server.said());
        }
    }
    stop.store(true, Ordering::Relaxed);
    hostile.into_iter().for_each(|hostile| hostile.join().unwrap());
    let mut waited = served.join().unwrap();
    waited.sort();
    let (rounds, attacks) = (waited.len(), attacks.load(Ordering::Relaxed));
    println!("{attacks} attacks, {rounds} rounds of somebody else, {most} bytes");
    assert!(attacks as u64 >= HOSTILE, "{attacks} attacks");
    assert!(rounds >= ROUNDS_MIN, "served {rounds} times in {:?}", begun.elapsed());
    // What a hostile client can do it does all the time; what comes once may be the machine.
    let (median, worst) = (waited[rounds / 2], waited[rounds - 1]);
    println!("somebody else waited {median:?}, {worst:?} at worst");
    assert!(median < Duration::from_millis(500), "waited {median:?} as a rule");
    assert!(!server.said().contains("panicked"), "{}", server.said());
    let growth = most.saturating_sub(before.0);
    assert!(growth < GROWTH_MAX, "it took {growth} bytes more");
    let held = || footprint(pid).1;
    eventually("descriptors come back", || held() <= before.1 + 16);
    server.must_live();
}

/// Or whoever runs the server would look for the mistake elsewhere.
#[test]
fn who_offers_only_what_is_not_served_is_told_of() {
    let folder = Folder::new();
    let said = |server: &Server, parts: &[&str]| {
        let all = || parts.iter().all(|part| server.said().contains(part));
        eventually(&format!("{parts:?} is said"), all);
    };
    let server = Server::start(folder.path());
    let refused = Client::connect(server.port, SMB_2_0_2).err().unwrap();
    assert_eq!(refused.status(), Some(NtStatus::NOT_SUPPORTED));
    said(&server, &["offers SMB 2.0.2, and nothing", "dialects = \"2.0.2-3.1.1\" would"]);
    // The way in which clients ask who know SMB1 as well.
    for (smb2_002, words) in [(true, "offers SMB 2.0.2, and nothing"), (false, "speaks SMB1 only")]
    {
        let server = Server::start(folder.path());
        let mut message = Vec::new();
        Offer { smb2_002, smb2_wildcard: false }.encode(&mut message);
        let len = u32::try_from(message.len()).unwrap();
        let mut stream = TcpStream::connect(testkit::loopback(server.port)).unwrap();
        stream.write_all(&[&len.to_be_bytes()[..], &message].concat()).unwrap();
        said(&server, &[words]);
        assert_eq!(server.said().contains("SMB1"), !smb2_002);
    }
    // And from the other end.
    let server = Server::start_as(folder.path(), 0, &[], &["--dialects", "2.0.2-2.1"]);
    assert!(Client::connect(server.port, SMB_3_1_1).is_err());
    said(&server, &["offers SMB 3.1.1, and nothing", "dialects = \"2.0.2-3.1.1\" would"]);
    assert!(Client::connect(server.port, SMB_2_0_2).is_ok());
}

/// As smb-rs (0.12) does when it is to encrypt nothing: a list of ciphers that is empty. Nothing is said of ciphers to
/// it, and all else is agreed on.
#[test]
fn who_knows_no_cipher_encrypts_nothing() {
    let folder = Folder::new();
    let server = Server::start(folder.path());
    let (dialects, one) = (U16s::bytes_of(&[SMB_3_1_1]), U16s::bytes_of(&[1]));
    let one = U16s::new(&one);
    let agreed = |ciphers| {
        let preauth = Context::Preauth { hashes: one, salt: b"a grain of it" };
        let contexts = vec![preauth, Context::Encryption(ciphers), Context::Signing(one)];
        let dialects = U16s::new(&dialects);
        let request = negotiate::Request { dialects, contexts, ..Default::default() };
        let mut message = Vec::new();
        let start = Header::request(Command::Negotiate).encode(&mut message);
        request.encode(&mut message, start);
        let mut stream = TcpStream::connect(testkit::loopback(server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let len = u32::try_from(message.len()).unwrap().to_be_bytes();
        stream.write_all(&[&len[..], &message].concat()).unwrap();
        let mut len = [0; 4];
        stream.read_exact(&mut len).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(len) as usize];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(Header::parse(&answer).unwrap().status, NtStatus::SUCCESS);
        let answer = negotiate::Response::parse(&answer).unwrap();
        let mut kinds: Vec<_> = answer.contexts.iter().map(Context::kind).collect();
        kinds.sort_unstable();
        kinds
    };
    assert_eq!(agreed(one), [1, 2, 8]);
    assert_eq!(agreed(U16s::default()), [1, 8]);
}
