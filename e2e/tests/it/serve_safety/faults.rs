//! Disks that fail, forget and wait, as both drivers meet them: a file system of our own (`faultfs`), since strace
//! does not see what io_uring does, and the page cache of a host survives whoever did not sync.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use e2e::run::{PATIENCE, eventually, skipped};
use e2e::{built, installed};
use rustix::process::{Pid, Signal, kill_process};
use smb::wire::negotiate::dialect::SMB_2_1;
use smb::{CreateOptions, FileId, NtStatus};

use super::client::{Answer, Client, Wish};
use super::disks::refused;
use super::kills::{LEN, write_until_gone};
use super::{Folder, Server, block};

const DRIVERS: [&str; 2] = ["--uring=auto", "--uring=off"];

/// A server on a file system that does as it is told.
struct Faulty {
    server: Server,
    /// What was synced.
    below: Folder,
    /// Rules and log.
    aside: Folder,
    _mount: Folder,
}

impl Faulty {
    /// Starts it on what `prepare` put into the folder; `None`: it cannot be, and that was said.
    fn start(options: &[&str], prepare: impl FnOnce(&Path)) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || installed("unshare").is_none() {
            skipped("a mount of one's own needs root and unshare");
            return None;
        }
        let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
        if let Err(error) = fuse {
            skipped(&format!("/dev/fuse: {error}"));
            return None;
        }
        let (below, mount, aside) = (Folder::new(), Folder::new(), Folder::new());
        prepare(below.path());
        let text = |path: &Path| path.display().to_string();
        let program = text(&built("faultfs"));
        let (rules, log) = (text(&aside.file("rules")), text(&aside.file("log")));
        let (from, onto) = (text(below.path()), text(mount.path()));
        let words = ["unshare", "-m", &program, "--control", &rules, "--log", &log, &from, &onto];
        let before = [&words[..], &["--"]].concat();
        let server = Server::start_as(mount.path(), 0, &before, options);
        Some(Self { server, below, aside, _mount: mount })
    }

    /// On each driver in turn that this machine has.
    fn on_each(prepare: impl Fn(&Path)) -> impl Iterator<Item = Self> {
        DRIVERS.into_iter().filter_map(move |driver| {
            let faulty = Self::start(&[driver], &prepare)?;
            let is_there = driver == "--uring=off" || !faulty.server.said().contains("no io_uring");
            if !is_there {
                skipped(&format!("{driver}: {}", faulty.server.said()));
            }
            is_there.then_some(faulty)
        })
    }

    /// Has other things go wrong from now on.
    fn rule(&self, text: &str) {
        // Never half of it.
        let new = self.aside.file("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.aside.file("rules")).unwrap();
    }

    /// How many lines of the log begin so.
    fn noted(&self, what: &str) -> usize {
        let log = std::fs::read_to_string(self.aside.file("log")).unwrap_or_default();
        log.lines().filter(|line| line.starts_with(what)).count()
    }

    fn client(&self) -> Client {
        Client::ready(self.server.port, SMB_2_1).unwrap()
    }

    /// One whose large writes go from the socket to the file, since they need not be checked.
    fn unsigned(&self) -> Client {
        let mut client = self.client();
        client.signs_no_more();
        client
    }

    /// Ends the server where it is, and then all that was not synced.
    fn cut_power(&mut self) {
        let serving = Pid::from_raw(self.server.serving()).unwrap();
        assert_ne!(serving.as_raw_pid(), self.server.guest.pid(), "not the file system first");
        kill_process(serving, Signal::KILL).unwrap();
        self.server.guest.wait(PATIENCE).unwrap();
    }

    fn synced(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.below.file(name)).unwrap()
    }
}

fn write_all(client: &mut Client, file: FileId, bytes: &[u8], through: bool) -> Answer<()> {
    let n = client.write(file, 0, bytes, through)?;
    assert_eq!(n as usize, bytes.len());
    Ok(())
}

/// What is written in a call, from a thread of the pool, and from the socket.
const SIZES: [usize; 3] = [10, 5000, 300_000];

#[test]
fn what_was_flushed_or_written_through_survives_a_power_cut() {
    for mut faulty in Faulty::on_each(|_| ()) {
        for (mut client, kind) in [(faulty.client(), "signed"), (faulty.unsigned(), "unsigned")] {
            for size in SIZES {
                let bytes = block(size as u64, size);
                let file = client.open(&format!("flushed-{kind}-{size}")).unwrap();
                write_all(&mut client, file, &bytes, false).unwrap();
                client.flush(file).unwrap();
                let file = client.open(&format!("through-{kind}-{size}")).unwrap();
                write_all(&mut client, file, &bytes, true).unwrap();
                let name = format!("opened-through-{kind}-{size}");
                let options = CreateOptions::WRITE_THROUGH | CreateOptions::NON_DIRECTORY_FILE;
                let (file, _) = client.create(&Wish { options, ..Wish::file(&name) }).unwrap();
                write_all(&mut client, file, &bytes, false).unwrap();
                let file = client.open(&format!("left-{kind}-{size}")).unwrap();
                write_all(&mut client, file, &bytes, false).unwrap();
            }
        }
        assert!(faulty.noted("fsync ") >= 2 * SIZES.len());
        faulty.cut_power();
        for kind in ["signed", "unsigned"] {
            for size in SIZES {
                for how in ["flushed", "through", "opened-through"] {
                    let found = faulty.synced(&format!("{how}-{kind}-{size}"));
                    assert!(found == block(size as u64, size), "{how}, {kind}, {size} bytes");
                }
                // Or else nothing was cut.
                assert_eq!(faulty.synced(&format!("left-{kind}-{size}")), b"", "{kind}, {size}");
            }
        }
    }
}

#[test]
fn what_was_acknowledged_in_the_middle_of_writes_survives_a_power_cut() {
    for (number, mut faulty) in Faulty::on_each(|_| ()).enumerate() {
        let port = faulty.server.port;
        // Each driver with each way, over the two of them.
        let ways = if number == 0 { [true, false] } else { [false, true] };
        let writers = ways.map(|through| {
            let name = u64::from(through);
            (name, thread::spawn(move || write_until_gone(port, name, through)))
        });
        for (name, _) in &writers {
            let name = format!("file-{name}");
            let syncs = || {
                faulty.noted(&format!("fsync {name}")) + faulty.noted(&format!("fdatasync {name}"))
            };
            eventually("each has written", || syncs() > 10);
        }
        faulty.cut_power();
        for (name, writer) in writers {
            let count = writer.join().unwrap();
            assert!(count >= 10, "only {count} blocks");
            let found = faulty.synced(&format!("file-{name}"));
            for at in 0..count {
                let from = usize::try_from(at).unwrap() * LEN;
                let found = found.get(from..from + LEN);
                assert!(found == Some(&block(name << 32 | at, LEN)[..]), "block {at} of {count}");
            }
        }
    }
}

#[test]
fn a_write_that_fails_on_the_disk_is_said_to_have_failed() {
    let errors = [("EIO", NtStatus::IO_DEVICE_ERROR), ("ENOSPC", NtStatus::DISK_FULL)];
    for mut faulty in Faulty::on_each(|_| ()) {
        for (mut client, kind) in [(faulty.client(), "signed"), (faulty.unsigned(), "unsigned")] {
            for (size, (error, status)) in SIZES.into_iter().flat_map(|n| errors.map(|e| (n, e))) {
                let name = format!("{kind}-{size}-{error}");
                let file = client.open(&name).unwrap();
                let (first, second) = (block(1, size), block(2, size));
                assert_eq!(client.write(file, 0, &first, false).unwrap() as usize, size);
                faulty.rule(&format!("write error={error} name={name}"));
                let answer = client.write(file, size as u64, &second, false);
                assert_eq!(refused(answer), status, "{name}");
                assert!(faulty.noted(&format!("failed write {name}")) > 0);
                faulty.rule("");
                // What did not fail is there, and what failed can be written again.
                assert_eq!(client.write(file, size as u64, &second, false).unwrap() as usize, size);
                client.flush(file).unwrap();
                assert!(faulty.synced(&name) == [first, second].concat(), "{name}");
                client.close(file).unwrap();
            }
        }
        faulty.server.must_live();
    }
}

#[test]
fn a_sync_that_fails_on_the_disk_is_said_to_have_failed() {
    for mut faulty in Faulty::on_each(|_| ()) {
        let mut client = faulty.client();
        let file = client.open("file").unwrap();
        write_all(&mut client, file, b"bytes", false).unwrap();
        faulty.rule("fsync error=EIO count=1");
        assert_eq!(refused(client.flush(file)), NtStatus::IO_DEVICE_ERROR);
        assert_eq!(faulty.synced("file"), b"");
        client.flush(file).unwrap();
        assert_eq!(faulty.synced("file"), b"bytes");
        // A disk that had promised room.
        faulty.rule("fsync error=ENOSPC count=2");
        assert_eq!(refused(client.flush(file)), NtStatus::DISK_FULL);
        assert_eq!(refused(client.write(file, 0, b"other", true)), NtStatus::DISK_FULL);
        assert_eq!(faulty.synced("file"), b"bytes");
        write_all(&mut client, file, b"other", true).unwrap();
        assert_eq!(faulty.synced("file"), b"other");
        assert_eq!(faulty.noted("failed fsync file"), 3);
        faulty.server.must_live();
    }
}

/// In a call, and three ways of sending more; at once, and in pieces of which the first can be read: after so many
/// bytes of it the disk fails.
const READS: [(&str, &str, u32, u32); 9] = [
    ("small", "--send=auto", 10_000, 0),
    ("auto", "--send=auto", 200_000, 0),
    ("splice", "--send=splice", 200_000, 0),
    ("map", "--send=map", 200_000, 0),
    ("copy", "--send=copy", 200_000, 0),
    ("large-auto", "--send=auto", LARGE, 1_500_000),
    ("large-splice", "--send=splice", LARGE, 1_500_000),
    ("large-map", "--send=map", LARGE, 1_500_000),
    ("large-copy", "--send=copy", LARGE, 1_500_000),
];
const LARGE: u32 = 3_000_000;

#[test]
fn a_read_that_fails_on_the_disk_is_said_to_have_failed() {
    let bytes = block(1, LARGE as usize);
    for driver in DRIVERS {
        for send in ["--send=auto", "--send=splice", "--send=map", "--send=copy"] {
            let prepare = |below: &Path| {
                for (name, ..) in READS {
                    for kind in ["signed", "unsigned"] {
                        std::fs::write(below.join(format!("{name}-{kind}")), &bytes).unwrap();
                    }
                }
            };
            let Some(mut faulty) = Faulty::start(&[driver, send], prepare) else { return };
            for (name, _, len, good) in READS.into_iter().filter(|(_, own, ..)| *own == send) {
                for kind in ["signed", "unsigned"] {
                    let mut client = faulty.client();
                    if kind == "unsigned" {
                        client.signs_no_more();
                    }
                    let name = format!("{name}-{kind}");
                    let file = client.open(&name).unwrap();
                    if good > 0 {
                        // In memory from now on, and the rest is not.
                        assert!(client.read(file, 0, good).unwrap() == bytes[..good as usize]);
                    }
                    faulty.rule(&format!("read error=EIO name={name}"));
                    let failure = client.read(file, 0, len).unwrap_err();
                    assert!(faulty.noted(&format!("failed read {name}")) > 0, "{driver} {name}");
                    faulty.rule("");
                    // Nobody has been promised anything: it is said, and the connection goes on.
                    let status = failure.status();
                    let wanted = Some(NtStatus::IO_DEVICE_ERROR);
                    assert_eq!(status, wanted, "{driver} {name}: {failure}");
                    let found = client.read(file, 0, len).unwrap();
                    assert!(found == bytes[..len as usize], "{driver} {name}");
                }
            }
            faulty.server.must_live();
        }
    }
}

/// What a client does whose own requests do not wait for the disk.
fn go_on(client: &mut Client, file: FileId) {
    for _ in 0..10 {
        assert_eq!(client.read(file, 0, 10).unwrap(), b"there");
        let again = client.open("there").unwrap();
        client.close(again).unwrap();
    }
}

fn with_files(below: &Path) {
    std::fs::write(below.join("there"), "there").unwrap();
    std::fs::write(below.join("slow"), block(1, 300_000)).unwrap();
}

/// What takes long with a file that is open.
fn a_slow(what: &str, slow: impl Fn(&mut Client, FileId) + Send + Copy + 'static) {
    a_slow_thing(what, |client| client.open("slow").unwrap(), slow);
}

/// One loop: whoever waits for the disk in it would hold up all.
fn a_slow_thing<T: Send + 'static>(
    what: &str,
    before: impl Fn(&mut Client) -> T,
    slow: impl Fn(&mut Client, T) + Send + Copy + 'static,
) {
    for driver in DRIVERS {
        let Some(mut faulty) = Faulty::start(&[driver, "--vectors=1"], with_files) else { return };
        let mut others: Vec<_> = (0..3).map(|_| faulty.client()).collect();
        let files: Vec<_> = others.iter_mut().map(|client| client.open("there").unwrap()).collect();
        for (client, file) in others.iter_mut().zip(&files) {
            go_on(client, *file);
        }
        let mut client = faulty.client();
        let with = before(&mut client);
        faulty.rule(&format!("{what} hold name=slow"));
        let waiting = thread::spawn(move || slow(&mut client, with));
        let delayed = format!("delayed {what} slow");
        eventually("the disk is asked", || faulty.noted(&delayed) > 0);
        for (client, file) in others.iter_mut().zip(&files) {
            go_on(client, *file);
        }
        assert!(!waiting.is_finished(), "{driver}: answered before the disk was");
        faulty.rule("");
        waiting.join().unwrap();
        faulty.server.must_live();
    }
}

#[test]
fn a_slow_sync_holds_up_nobody_else() {
    a_slow("fsync", |client, file| client.flush(file).unwrap());
}

#[test]
fn a_slow_write_through_holds_up_nobody_else() {
    a_slow("fsync", |client, file| write_all(client, file, b"bytes", true).unwrap());
}

#[test]
fn a_slow_read_holds_up_nobody_else() {
    for len in [10_000, 200_000] {
        a_slow("read", move |client, file| {
            assert!(client.read(file, 0, len).unwrap() == block(1, len as usize));
        });
    }
}

#[test]
fn a_slow_large_write_holds_up_nobody_else() {
    a_slow("write", |client, file| write_all(client, file, &block(2, 300_000), false).unwrap());
}

#[test]
fn a_slow_look_up_holds_up_nobody_else() {
    a_slow_thing("lookup", |_| (), |client, ()| client.open("slow").map(drop).unwrap());
}

#[test]
fn a_slow_open_holds_up_nobody_else() {
    a_slow("open", |client, _| client.open("slow").map(drop).unwrap());
}

/// Two loops with two clients each: those of the one in which somebody waits for the disk may have to wait as well.
fn a_slow_thing_inline(what: &str, slow: impl Fn(&mut Client) + Send + Copy + 'static) {
    for driver in DRIVERS {
        let Some(mut faulty) = Faulty::start(&[driver, "--vectors=2"], with_files) else { return };
        let mut clients: Vec<_> = (0..4).map(|_| faulty.client()).collect();
        let files: Vec<_> =
            clients.iter_mut().map(|client| client.open("there").unwrap()).collect();
        let mut waits = clients.pop().unwrap();
        faulty.rule(&format!("{what} hold name=slow"));
        let waiting = thread::spawn(move || slow(&mut waits));
        let delayed = format!("delayed {what} slow");
        eventually("the disk is asked", || faulty.noted(&delayed) > 0);
        let ended = Arc::new(AtomicUsize::new(0));
        let others = clients.into_iter().zip(files).map(|(mut client, file)| {
            let ended = Arc::clone(&ended);
            thread::spawn(move || {
                go_on(&mut client, file);
                ended.fetch_add(1, Ordering::Relaxed);
            })
        });
        let others: Vec<_> = others.collect();
        eventually("the other loop goes on", || ended.load(Ordering::Relaxed) >= 2);
        assert!(!waiting.is_finished(), "{driver}: answered before the disk was");
        faulty.rule("");
        waiting.join().unwrap();
        for other in others {
            other.join().unwrap();
        }
        faulty.server.must_live();
    }
}

#[test]
fn a_slow_small_write_holds_up_no_other_loop() {
    // Up to 64 KiB are written inline, which on a disk goes to the page cache; here the disk itself is waited for.
    a_slow_thing_inline("write", |client| {
        let file = client.open("slow").unwrap();
        write_all(client, file, b"bytes", false).unwrap();
    });
}
