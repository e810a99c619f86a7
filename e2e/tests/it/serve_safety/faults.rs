//! Disks that fail, forget and wait, as both drivers meet them: a file system of our own (`faultfs`), since strace
//! does not see what io_uring does, and the page cache of a host survives whoever did not sync.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use e2e::run::{PATIENCE, eventually, outcome, skipped};
use e2e::{built, installed};
use rustix::process::{Pid, Signal, kill_process};
use smb::fscc::fsctl::Code;
use smb::wire::context::{Lease, LeaseFlags, Requested};
use smb::wire::header::{Command as Smb, Flags, Header, Patch};
use smb::wire::negotiate::dialect::{SMB_2_1, SMB_3_0_2};
use smb::wire::query_info::Subject;
use smb::wire::{bare, create, flush, ioctl, lease_break, read};
use smb::{
    CreateOptions, Disposition, FileId, LeaseKey, LeaseState, NtStatus, OplockLevel, SessionId,
};

use super::client::{Answer, Client, SHARE, Wish, wide};
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
        Self::start_as(&[], options, prepare, false)
    }

    /// The same, with options of the file system.
    fn start_on(kind: &[&str], options: &[&str], prepare: impl FnOnce(&Path)) -> Option<Self> {
        Self::start_as(kind, options, prepare, false)
    }

    /// The same; `beneath`: what is served is a folder of a disk in which that file system is mounted, with a link to its
    /// file `slow`, and a file `there` of its own.
    fn start_with(options: &[&str], prepare: impl FnOnce(&Path), beneath: bool) -> Option<Self> {
        Self::start_as(&[], options, prepare, beneath)
    }

    fn start_as(
        kind: &[&str],
        options: &[&str],
        prepare: impl FnOnce(&Path),
        beneath: bool,
    ) -> Option<Self> {
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
        let inside = if beneath { mount.file("inside") } else { mount.path().to_owned() };
        if beneath {
            std::fs::create_dir(&inside).unwrap();
            std::os::unix::fs::symlink("inside/slow", mount.file("slow")).unwrap();
            std::fs::write(mount.file("there"), "there").unwrap();
        }
        let (from, onto) = (text(below.path()), text(&inside));
        let words = ["unshare", "-m", &program, "--control", &rules, "--log", &log, &from, &onto];
        let before = [&words[..], kind, &["--"]].concat();
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

/// What takes long with a file that is open, on the file system of the share and on one that is mounted beneath it.
fn a_slow(what: &str, slow: impl Fn(&mut Client, FileId) + Send + Copy + 'static) {
    let open = |client: &mut Client| client.open("slow").unwrap();
    a_slow_thing(what, open, slow);
    a_thing_of_a_share_that_is_slow(what, &format!("{what} hold name=slow"), true, open, slow);
}

/// What takes long of the file or folder that is called `slow`. One loop: whoever waits for the disk in it would hold up
/// all.
fn a_slow_thing<T: Send + 'static>(
    what: &str,
    before: impl Fn(&mut Client) -> T,
    slow: impl Fn(&mut Client, T) + Send + Copy + 'static,
) {
    a_thing_that_is_slow(what, &format!("{what} hold name=slow"), before, slow);
}

fn a_thing_that_is_slow<T: Send + 'static>(
    what: &str,
    rule: &str,
    before: impl Fn(&mut Client) -> T,
    slow: impl Fn(&mut Client, T) + Send + Copy + 'static,
) {
    a_thing_of_a_share_that_is_slow(what, rule, false, before, slow);
}

fn a_thing_of_a_share_that_is_slow<T: Send + 'static>(
    what: &str,
    rule: &str,
    beneath: bool,
    before: impl Fn(&mut Client) -> T,
    slow: impl Fn(&mut Client, T) + Send + Copy + 'static,
) {
    for driver in DRIVERS {
        let options = [driver, "--vectors=1"];
        let Some(mut faulty) = Faulty::start_with(&options, with_files, beneath) else { return };
        let mut others: Vec<_> = (0..3).map(|_| faulty.client()).collect();
        let files: Vec<_> = others.iter_mut().map(|client| client.open("there").unwrap()).collect();
        for (client, file) in others.iter_mut().zip(&files) {
            go_on(client, *file);
        }
        let mut client = faulty.client();
        let with = before(&mut client);
        faulty.rule(rule);
        let waiting = thread::spawn(move || slow(&mut client, with));
        let delayed = format!("delayed {what}");
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

/// What is read is not in memory afterwards: whoever brings it there first reads it, and the loop would wait for it again.
#[test]
fn a_slow_read_of_what_is_never_in_memory_holds_up_nobody_else() {
    const LEN: u32 = 200_000;
    for driver in DRIVERS {
        for send in ["--send=auto", "--send=splice", "--send=copy"] {
            let options = [driver, send, "--vectors=1"];
            let kind = ["--direct"];
            let Some(mut faulty) = Faulty::start_on(&kind, &options, with_files) else { return };
            let (mut client, mut other) = (faulty.unsigned(), faulty.client());
            let (slow, there) = (client.open("slow").unwrap(), other.open("there").unwrap());
            let slow = Arc::new(Mutex::new((client, slow)));
            for nth in 1..=6 {
                let delayed = faulty.noted("delayed read slow");
                faulty.rule(&format!("read hold name=slow nth={nth}"));
                let slow = Arc::clone(&slow);
                let reading = thread::spawn(move || {
                    let (client, slow) = &mut *slow.lock().unwrap();
                    for _ in 0..4 {
                        assert!(client.read(*slow, 0, LEN).unwrap() == block(1, LEN as usize));
                    }
                });
                eventually("the disk is asked", || faulty.noted("delayed read slow") > delayed);
                go_on(&mut other, there);
                faulty.rule("");
                reading.join().unwrap();
            }
            faulty.server.must_live();
        }
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

#[test]
fn a_slow_small_write_holds_up_nobody_else() {
    a_slow("write", |client, file| write_all(client, file, b"bytes", false).unwrap());
}

#[test]
fn a_slow_change_of_size_holds_up_nobody_else() {
    a_slow("resize", |client, file| {
        client.set_info(file, END_OF_FILE, &1000u64.to_le_bytes()).unwrap();
    });
}

#[test]
fn a_slow_overwrite_holds_up_nobody_else() {
    a_slow_thing(
        "resize",
        |_| (),
        |client, ()| {
            let anew = Wish { disposition: Disposition::Overwrite, ..Wish::file("slow") };
            client.create(&anew).map(drop).unwrap();
        },
    );
}

#[test]
fn a_slow_change_of_times_holds_up_nobody_else() {
    // Created, accessed, written, changed; attributes.
    let written = 133_000_000_000_000_000u64;
    let mut basic = [0; 40];
    basic[16..24].copy_from_slice(&written.to_le_bytes());
    a_slow("attributes", move |client, file| client.set_info(file, BASIC, &basic).unwrap());
}

#[test]
fn a_slow_rename_holds_up_nobody_else() {
    let rename: &'static [u8] = renamed("elsewhere", false).leak();
    let open = |client: &mut Client| client.open("slow").unwrap();
    a_slow_thing("rename", open, move |client, file| {
        client.set_info(file, RENAME, rename).unwrap();
    });
}

/// Another name in the same share, in the place of what has it or not.
fn renamed(to: &str, replace: bool) -> Vec<u8> {
    let to = wide(to);
    let len = u32::try_from(to.len()).unwrap();
    [&[u8::from(replace)][..], &[0; 15], &len.to_le_bytes(), &to].concat()
}

#[test]
fn who_opens_what_is_being_replaced_gets_what_takes_its_place() {
    for driver in DRIVERS {
        let Some(mut faulty) = Faulty::start(&[driver, "--vectors=1"], with_files) else { return };
        let (mut client, mut other) = (faulty.client(), faulty.client());
        let file = client.open("slow").unwrap();
        let there = other.open("there").unwrap();
        other.close(there).unwrap();
        faulty.rule("rename hold name=slow");
        let renaming =
            thread::spawn(move || client.set_info(file, RENAME, &renamed("there", true)));
        eventually("the disk is asked", || faulty.noted("delayed rename slow") > 0);
        // What he writes was lost, were it written to the other file.
        let opening = thread::spawn(move || {
            let there = other.open("there").unwrap();
            write_all(&mut other, there, b"new", false).unwrap();
            other.flush(there).unwrap();
        });
        let mut third = faulty.client();
        let same = third.open("slow").unwrap();
        assert_eq!(third.read(same, 0, 10).unwrap().len(), 10);
        assert!(!opening.is_finished(), "{driver}: opened what goes");
        faulty.rule("");
        renaming.join().unwrap().unwrap();
        opening.join().unwrap();
        let mut whole = block(1, 300_000);
        whole[..3].copy_from_slice(b"new");
        assert!(faulty.synced("there") == whole, "{driver}");
        faulty.server.must_live();
    }
}

#[test]
fn a_file_that_takes_long_to_close_holds_up_nobody() {
    for driver in DRIVERS {
        let Some(mut faulty) = Faulty::start(&[driver, "--vectors=1"], with_files) else { return };
        let (mut client, mut other) = (faulty.client(), faulty.client());
        let (file, there) = (client.open("slow").unwrap(), other.open("there").unwrap());
        write_all(&mut client, file, b"bytes", false).unwrap();
        faulty.rule("flush hold name=slow");
        client.close(file).unwrap();
        eventually("the disk is asked", || faulty.noted("delayed flush slow") > 0);
        go_on(&mut other, there);
        faulty.rule("");
        // Not at the end of a session either.
        client.open("slow").unwrap();
        faulty.rule("flush hold name=slow\n");
        drop(client);
        eventually("the disk is asked", || faulty.noted("delayed flush slow") > 1);
        go_on(&mut other, there);
        faulty.rule("");
        faulty.server.must_live();
    }
}

/// A file or a folder that is to come to be.
fn a_slow_new(what: &str, options: CreateOptions) {
    let gone = |client: &mut Client| {
        let file = client.open("slow").unwrap();
        client.set_info(file, DISPOSITION, &[1]).unwrap();
        client.close(file).unwrap();
    };
    a_slow_thing(what, gone, move |client, ()| {
        client.create(&Wish { options, ..Wish::file("slow") }).map(drop).unwrap();
    });
}

#[test]
fn a_slow_new_file_holds_up_nobody_else() {
    a_slow_new("create", CreateOptions::NON_DIRECTORY_FILE);
    a_slow_new("mkdir", CreateOptions::DIRECTORY_FILE);
}

#[test]
fn a_slow_deletion_holds_up_nobody_else() {
    let condemned = |client: &mut Client| {
        let file = client.open("slow").unwrap();
        client.set_info(file, DISPOSITION, &[1]).unwrap();
        file
    };
    a_slow_thing("unlink", condemned, |client, file| {
        client.close(file).unwrap();
        // It is gone when that is answered.
        let again = Wish { disposition: Disposition::Open, ..Wish::file("slow") };
        assert_eq!(refused(client.create(&again)), NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}

#[test]
fn a_slow_deletion_for_who_has_gone_holds_up_nobody_else() {
    for driver in DRIVERS {
        let Some(mut faulty) = Faulty::start(&[driver, "--vectors=1"], with_files) else { return };
        let mut other = faulty.client();
        let file = other.open("there").unwrap();
        let mut client = faulty.client();
        let options = CreateOptions::DELETE_ON_CLOSE | CreateOptions::NON_DIRECTORY_FILE;
        client.create(&Wish { options, ..Wish::file("slow") }).unwrap();
        faulty.rule("unlink hold name=slow");
        drop(client);
        eventually("the disk is asked", || faulty.noted("delayed unlink slow") > 0);
        go_on(&mut other, file);
        // Who wants it meanwhile is told that it goes.
        let again = Wish { disposition: Disposition::Open, ..Wish::file("slow") };
        assert_eq!(refused(other.create(&again)), NtStatus::DELETE_PENDING, "{driver}");
        faulty.rule("");
        eventually("it is gone", || {
            refused(other.create(&again)) == NtStatus::OBJECT_NAME_NOT_FOUND
        });
        faulty.server.must_live();
    }
}

#[test]
fn who_has_opened_what_goes_meanwhile_gets_another_one() {
    for driver in DRIVERS {
        let Some(mut faulty) = Faulty::start(&[driver, "--vectors=1"], with_files) else { return };
        let mut client = faulty.client();
        let options = CreateOptions::DELETE_ON_CLOSE | CreateOptions::NON_DIRECTORY_FILE;
        let (old, _) = client.create(&Wish { options, ..Wish::file("slow") }).unwrap();
        let mut other = faulty.client();
        // It has found the file, and has it not yet.
        faulty.rule("open hold name=slow");
        let opening = thread::spawn(move || {
            let file = other.open("slow").unwrap();
            write_all(&mut other, file, b"new", false).unwrap();
            other.flush(file).unwrap();
        });
        eventually("the disk is asked", || faulty.noted("delayed open slow") > 0);
        client.close(old).unwrap();
        assert!(!faulty.below.file("slow").exists(), "{driver}");
        faulty.rule("");
        opening.join().unwrap();
        assert_eq!(faulty.synced("slow"), b"new", "{driver}");
        faulty.server.must_live();
    }
}

#[test]
fn a_disk_that_does_not_answer_takes_nothing_from_other_shares() {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    // More than the server has threads.
    let all = 8 * cpus + 24;
    for driver in DRIVERS {
        let other = Folder::new();
        let share = format!("--share=other={}", other.path().display());
        let socket = Folder::new();
        let control = socket.file("control").display().to_string();
        let options = [driver, &share, "--control", &control];
        let Some(mut faulty) = Faulty::start(&options, with_files) else { return };
        let mut client = Client::connect(faulty.server.port, SMB_2_1).unwrap();
        client.log_on(SessionId(0)).unwrap();
        client.connect_tree_of("other").unwrap();
        let file = client.open("file").unwrap();
        let clients: Vec<_> = (0..all).map(|_| faulty.client()).collect();
        faulty.rule("lookup hold");
        let waiting: Vec<_> = clients.into_iter().enumerate().collect();
        let waiting = waiting.into_iter().map(|(n, mut client)| {
            thread::spawn(move || client.open(&format!("slow-{n}")).map(drop))
        });
        let waiting: Vec<_> = waiting.collect();
        eventually("as many ask the disk as may", || {
            faulty.noted("delayed lookup slow-") >= (8 * cpus + 16) / 2
        });
        let ask = ["stat", "smb", "--json", "--control", &control];
        let told = outcome(Command::new(built("shunt")).args(ask), PATIENCE);
        let told: serde_json::Value = serde_json::from_str(&told.out).unwrap();
        let most = (8 * cpus + 16) / 2;
        let there = serde_json::json!([{"share": SHARE, "calls": most, "calls_max": most}]);
        assert_eq!(told["slow_shares"], there, "{driver}");
        // Threads do that, too.
        client.set_info(file, ALLOCATION, &(16u64 << 20).to_le_bytes()).unwrap();
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()), "{driver}");
        faulty.rule("");
        for waiting in waiting {
            waiting.join().unwrap().unwrap();
        }
        faulty.server.must_live();
    }
}

#[test]
fn syncs_that_do_not_end_take_nothing_from_other_shares() {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    for driver in DRIVERS {
        let other = Folder::new();
        let share = format!("--share=other={}", other.path().display());
        let options = [driver, &share, "--vectors=1"];
        let Some(mut faulty) = Faulty::start(&options, with_files) else { return };
        let mut client = Client::connect(faulty.server.port, SMB_2_1).unwrap();
        client.log_on(SessionId(0)).unwrap();
        client.connect_tree_of("other").unwrap();
        let file = client.open("file").unwrap();
        // More than the server has threads, and the kernel for its ring.
        let clients = (0..8 * cpus + 24).map(|_| faulty.client());
        let mut clients: Vec<_> =
            clients.map(|mut client| (client.open("slow").unwrap(), client)).collect();
        faulty.rule("fsync hold name=slow");
        for (at, (file, client)) in clients.iter_mut().enumerate() {
            let flush = flush::Request { file: *file, ..flush::Request::default() };
            let asked = match at % 2 {
                0 => client.request(Smb::Flush, 1, &flush),
                _ => client.write_request(*file, 0, b"bytes", true),
            };
            client.send(&asked).unwrap();
        }
        eventually("the disk is asked", || faulty.noted("delayed fsync slow") > 0);
        for (_, client) in &mut clients {
            // It has come to what was sent before.
            client.ask(Smb::Echo, 1, &bare::Request).unwrap();
        }
        client.flush(file).unwrap();
        write_all(&mut client, file, b"bytes", true).unwrap();
        // Threads do that, too.
        client.set_info(file, ALLOCATION, &(16u64 << 20).to_le_bytes()).unwrap();
        faulty.rule("");
        for (_, client) in &mut clients {
            let (header, _) = client.receive().unwrap();
            assert_eq!(header.status, NtStatus::SUCCESS, "{driver}");
        }
        faulty.server.must_live();
    }
}

/// Of its threads no one comes back from there but by itself.
#[test]
fn a_server_ends_though_a_file_system_does_not_answer() {
    for driver in DRIVERS {
        let Some(mut faulty) = Faulty::start(&[driver], with_files) else { return };
        let mut client = faulty.client();
        let file = client.open("slow").unwrap();
        faulty.rule("read hold name=slow");
        let read = read::Request { file, length: 10, ..read::Request::default() };
        let asked = client.request(Smb::Read, 1, &read);
        client.send(&asked).unwrap();
        eventually("the disk is asked", || faulty.noted("delayed read slow") > 0);
        let serving = Pid::from_raw(faulty.server.serving()).unwrap();
        kill_process(serving, Signal::TERM).unwrap();
        eventually("it says what it leaves", || {
            faulty.server.said().contains("has not answered, left as they are: 1\n")
        });
        // It is the kernel that waits for its threads now.
        faulty.rule("");
        faulty.server.guest.wait(PATIENCE).unwrap();
    }
}

#[test]
fn a_large_file_is_gone_when_its_deletion_is_answered() {
    for driver in DRIVERS {
        let folder = Folder::new();
        let mut server = Server::start_as(folder.path(), 0, &[], &[driver]);
        let mut client = Client::ready(server.port, SMB_2_1).unwrap();
        let file = client.open("large").unwrap();
        client.set_info(file, ALLOCATION, &(64u64 << 20).to_le_bytes()).unwrap();
        client.set_info(file, DISPOSITION, &[1]).unwrap();
        assert!(folder.file("large").exists());
        client.close(file).unwrap();
        assert!(!folder.file("large").exists(), "{driver}");
        // And nobody keeps its blocks.
        let held = format!("/proc/{}/fd", server.serving());
        eventually("the server lets go of it", || {
            let links = std::fs::read_dir(&held).unwrap().flatten();
            let mut links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
            !links.any(|link| link.to_string_lossy().contains("large"))
        });
        server.must_live();
    }
}

#[test]
fn a_slow_look_at_a_file_holds_up_nobody_else() {
    let written = |client: &mut Client| {
        let file = client.open("slow").unwrap();
        // The kernel asks again what it is like.
        write_all(client, file, b"bytes", false).unwrap();
        file
    };
    a_slow_thing("look", written, |client, file| {
        client.query_info(file, Subject::File, STANDARD).map(drop).unwrap();
    });
}

#[test]
fn a_slow_look_at_the_disk_holds_up_nobody_else() {
    let before = |client: &mut Client| client.open("slow").unwrap();
    a_thing_that_is_slow("room", "room hold", before, |client, file| {
        client.query_info(file, Subject::FileSystem, FULL_SIZE).map(drop).unwrap();
    });
}

/// What is told of a lease is what it is when that is told.
#[test]
fn a_lease_that_is_broken_before_it_is_told_of_is_told_so() {
    let state = LeaseState::all();
    let lease = Lease { key: LeaseKey([3; 16]), state, ..Lease::default() };
    let contexts = Requested { lease: Some(lease), ..Requested::default() };
    let wish = Wish {
        disposition: Disposition::Overwrite,
        oplock: OplockLevel::Lease,
        contexts,
        ..Wish::file("slow")
    };
    for driver in DRIVERS {
        // As much as is not freed at once.
        let prepare = |below: &Path| std::fs::write(below.join("slow"), block(1, 9 << 20)).unwrap();
        let Some(mut faulty) = Faulty::start(&[driver, "--vectors=1"], prepare) else { return };
        let (mut client, mut other) = (faulty.client(), faulty.client());
        faulty.rule("resize hold name=slow");
        let create = wish.request(&mut client);
        client.send(&create).unwrap();
        eventually("the disk is asked", || faulty.noted("delayed resize slow") > 0);
        let opening = thread::spawn(move || other.open("slow").map(drop).unwrap());
        eventually("the lease is broken", || {
            client.ask(Smb::Echo, 1, &bare::Request).unwrap();
            !client.unasked.is_empty()
        });
        faulty.rule("");
        let (header, answer) = client.receive().unwrap();
        assert_eq!(header.status, NtStatus::SUCCESS, "{driver}");
        let told = create::Response::parse(&answer).unwrap().contexts.lease.unwrap();
        assert!(told.flags.contains(LeaseFlags::BREAK_IN_PROGRESS), "{driver}: {told:?}");
        let new = LeaseState::READ | LeaseState::HANDLE;
        let said = lease_break::Request { flags: 0, key: lease.key, state: new };
        client.ask(Smb::OplockBreak, 1, &said).unwrap();
        opening.join().unwrap();
        faulty.server.must_live();
    }
}

/// Opens the file "slow" by the request that is made, of which the disk holds up a part, and again by another client before
/// the first one is answered.
fn an_oplock_is_broken_early(held: &str, request: impl Fn(&mut Client) -> Vec<u8>) {
    for driver in DRIVERS {
        // As much as is not freed at once.
        let prepare = |below: &Path| std::fs::write(below.join("slow"), block(1, 9 << 20)).unwrap();
        let Some(mut faulty) = Faulty::start(&[driver, "--vectors=1"], prepare) else { return };
        let (mut client, mut other) = (faulty.unsigned(), faulty.client());
        faulty.rule(&format!("{held} hold name=slow"));
        let asked = request(&mut client);
        client.send(&asked).unwrap();
        eventually("the disk is asked", || faulty.noted(&format!("delayed {held} slow")) > 0);
        let opening = Wish::file("slow").request(&mut other);
        other.send(&opening).unwrap();
        let interim = Header::parse(&other.frame().unwrap()).unwrap();
        assert_eq!(interim.status, NtStatus::PENDING, "{driver}: it waits for the oplock");
        faulty.rule("");
        let (header, answer) = client.receive().unwrap();
        assert_eq!(header.status, NtStatus::SUCCESS, "{driver}");
        let told = create::Response::parse(&answer).unwrap();
        assert_eq!((told.oplock, client.unasked.len()), (OplockLevel::Two, 0), "{driver}");
        // Which nobody has to acknowledge.
        let (header, _) = other.receive().unwrap();
        assert_eq!(header.status, NtStatus::SUCCESS, "{driver}");
        client.ask(Smb::Echo, 1, &bare::Request).unwrap();
        assert!(client.unasked.is_empty(), "{driver}");
        faulty.server.must_live();
    }
}

/// Of an oplock a client hears nothing before it knows of the open that has it, and then what is left.
#[test]
fn an_oplock_that_is_broken_before_it_is_told_of_is_told_as_what_is_left() {
    let disposition = Disposition::Overwrite;
    let wish = Wish { disposition, oplock: OplockLevel::Batch, ..Wish::file("slow") };
    an_oplock_is_broken_early("resize", |client| wish.request(client));
}

#[test]
fn an_oplock_is_told_of_with_the_frame_that_its_create_is_in() {
    let wish = Wish { oplock: OplockLevel::Batch, ..Wish::file("slow") };
    let read = read::Request { file: FileId::ALL_ONES, length: 10, ..read::Request::default() };
    an_oplock_is_broken_early("read", |client| {
        let mut first = wish.request(client);
        first.resize(first.len().next_multiple_of(8), 0);
        let next = u32::try_from(first.len()).unwrap();
        Patch::of(&mut first).unwrap().next(next);
        let mut then = client.request(Smb::Read, 1, &read);
        Patch::of(&mut then).unwrap().add_flags(Flags::RELATED);
        [first, then].concat()
    });
}

/// Who cancels what takes long, and closes the file, has it end there. Until it has, it is under way, and who has come to
/// cache the file meanwhile hears of what was done.
#[test]
fn zeros_are_written_for_as_long_as_the_file_is_open() {
    /// What is written at a time.
    const PART: usize = 256 << 10;
    const ALL: usize = 4 * PART;
    for driver in DRIVERS {
        let prepare = |below: &Path| std::fs::write(below.join("slow"), block(1, ALL)).unwrap();
        let Some(mut faulty) = Faulty::start(&[driver, "--vectors=1"], prepare) else { return };
        let mut client = Client::ready(faulty.server.port, SMB_3_0_2).unwrap();
        let mut other = faulty.client();
        let file = client.open("slow").unwrap();
        faulty.rule("write hold name=slow");
        let range = [0, ALL as u64].map(u64::to_le_bytes).concat();
        let zeros = ioctl::Request {
            code: Code::SET_ZERO_DATA.0,
            file,
            input: &range,
            flags: ioctl::IS_FSCTL,
            ..ioctl::Request::default()
        };
        let (zeros, mut again) =
            (client.request(Smb::Ioctl, 1, &zeros), client.request(Smb::Ioctl, 1, &zeros));
        client.send(&zeros).unwrap();
        eventually("the disk is asked", || faulty.noted("delayed write slow") > 0);
        let mut cancel = client.request(Smb::Cancel, 0, &bare::Request);
        // The number of the message that is meant.
        cancel[24..32].copy_from_slice(&zeros[24..32]);
        client.sign(&mut cancel);
        client.send(&cancel).unwrap();
        let (cancelled, _) = client.receive().unwrap();
        assert_eq!(cancelled.status, NtStatus::CANCELLED, "{driver}");
        // By another channel, as it were: the number of its sequence, and a flag (MS-SMB2 2.2.1.2).
        again[8] = 1;
        again[19] |= 0x20;
        client.sign(&mut again);
        client.send(&again).unwrap();
        let (refused, _) = client.receive().unwrap();
        assert_eq!(refused.status, NtStatus::FILE_NOT_AVAILABLE, "{driver}: it is under way");
        client.close(file).unwrap();
        let wish = Wish { oplock: OplockLevel::Two, ..Wish::file("slow") };
        let (file, answer) = other.create(&wish).unwrap();
        let granted = create::Response::parse(&answer).unwrap().oplock;
        assert_eq!(granted, OplockLevel::Two, "{driver}");
        faulty.rule("");
        eventually("who caches is told", || {
            other.read(file, 0, 1).unwrap();
            !other.unasked.is_empty()
        });
        let mut whole = block(1, ALL);
        whole[..PART].fill(0);
        let read = other.read(file, 0, u32::try_from(ALL).unwrap()).unwrap();
        assert!(read == whole, "{driver}: written on after it was closed");
        faulty.server.must_live();
    }
}

/// FileBasicInformation, FileStandardInformation, FileRenameInformation, FileDispositionInformation,
/// FileAllocationInformation, FileEndOfFileInformation (MS-FSCC 2.4), FileFsFullSizeInformation (MS-FSCC 2.5.4).
const BASIC: u8 = 4;
const STANDARD: u8 = 5;
const RENAME: u8 = 10;
const DISPOSITION: u8 = 13;
const ALLOCATION: u8 = 19;
const END_OF_FILE: u8 = 20;
const FULL_SIZE: u8 = 7;
