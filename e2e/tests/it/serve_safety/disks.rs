//! Disks that are full, closed, broken or slow.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use e2e::installed;
use e2e::run::{Guest, PATIENCE, skipped};
use smb::wire::negotiate::dialect::SMB_2_1;
use smb::wire::query_info::{self, Subject};
use smb::{CreateOptions, NtStatus};

use super::client::{Answer, Client, Wish};
use super::{Folder, Server, block};

const KIB: usize = 1024;

/// The status of a refusal.
pub(super) fn refused<T: std::fmt::Debug>(answer: Answer<T>) -> NtStatus {
    let failure = answer.unwrap_err();
    failure.status().unwrap_or_else(|| panic!("not refused, but {failure}"))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A server for which `script` has made the folder another one.
pub(super) fn with_mount(folder: &Path, script: &str, options: &[&str]) -> Option<Server> {
    if !is_root() || installed("unshare").is_none() {
        skipped("a mount of one's own needs root and unshare");
        return None;
    }
    let script = format!("D={}; {script} && exec \"$@\"", folder.display());
    let before = ["unshare", "-m", "sh", "-c", &script, "sh"];
    Some(Server::start_as(folder, 0, &before, options))
}

#[test]
fn a_full_disk_is_said_and_the_rest_goes_on() {
    for options in [&[][..], &["--uring=off"]] {
        let folder = Folder::new();
        let mount = "mount -t tmpfs -o size=1m,mode=777 none $D";
        let Some(mut server) = with_mount(folder.path(), mount, options) else { return };
        let mut client = Client::ready(server.port, SMB_2_1).unwrap();
        let file = client.open("file").unwrap();
        let bytes = block(1, 256 * KIB);
        let mut kept = 0;
        let full = loop {
            match client.write(file, kept, &bytes, false) {
                // A short write is an honest answer, too.
                Ok(n) => kept += u64::from(n),
                failed @ Err(_) => break refused(failed),
            }
            assert!(kept <= 1 << 20, "{kept} bytes on a disk of a megabyte");
        };
        assert_eq!(full, NtStatus::DISK_FULL);
        assert!(kept >= 512 << 10, "full after {kept} bytes");
        let whole = usize::try_from(kept).unwrap() / bytes.len();
        for at in 0..whole as u64 {
            let found = client.read(file, at * bytes.len() as u64, 256 << 10).unwrap();
            assert!(found == bytes, "what was taken is there");
        }
        client.close(file).unwrap();
        let wish = Wish { options: CreateOptions::DELETE_ON_CLOSE, ..Wish::file("file") };
        let (file, _) = client.create(&wish).unwrap();
        client.close(file).unwrap();
        let file = client.open("another").unwrap();
        assert_eq!(client.write(file, 0, &bytes, false).unwrap(), 256 << 10);
        server.must_live();
    }
}

#[test]
fn a_disk_that_nobody_may_write_to_can_be_read() {
    let folder = Folder::new();
    std::fs::write(folder.file("file"), "there").unwrap();
    let mount = "mount --bind $D $D && mount -o remount,bind,ro $D";
    let Some(mut server) = with_mount(folder.path(), mount, &[]) else { return };
    let mut client = Client::ready(server.port, SMB_2_1).unwrap();
    let status = refused(client.open("new"));
    let said = [NtStatus::MEDIA_WRITE_PROTECTED, NtStatus::ACCESS_DENIED];
    assert!(said.contains(&status), "{status:?}");
    let name = super::client::wide("file");
    let request = smb::wire::create::Request { name: &name, ..Default::default() };
    let (_, answer) = client.ask(smb::wire::header::Command::Create, 1, &request).unwrap();
    let file = smb::wire::create::Response::parse(&answer).unwrap().file;
    assert_eq!(client.read(file, 0, 100).unwrap(), b"there");
    server.must_live();
}

/// A server whose system calls strace spoils, from when it serves on.
struct Spoiled {
    server: Server,
    log: PathBuf,
    _strace: Guest,
}

impl Drop for Spoiled {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.log);
    }
}

/// Starts it; `None`: it cannot be, and that was said.
fn spoiled(folder: &Path, spoil: &str) -> Option<Spoiled> {
    if installed("strace").is_none() {
        skipped("there is no strace");
        return None;
    }
    // What io_uring does no strace sees.
    let server = Server::start_as(folder, 0, &[], &["--uring=off"]);
    let log = folder.with_extension("strace");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", spoil, "-p", &server.guest.pid().to_string(), "-o"]);
    let mut strace = Guest::start(command.arg(&log).stderr(Stdio::null()));
    let tasks = format!("/proc/{}/task", server.guest.pid());
    let is_traced = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !std::fs::read_dir(&tasks).unwrap().flatten().all(is_traced) {
        if strace.ended().is_some() || Instant::now() > deadline {
            skipped("strace may not look at the server");
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Some(Spoiled { server, log, _strace: strace })
}

const WRITES: &str = "pwrite64,pwritev,pwritev2";
const READS: &str = "pread64,preadv,preadv2,sendfile";
/// More than there are threads in the server.
const READS_MADE: u32 = 40;

#[test]
fn a_write_that_fails_is_said_to_have_failed() {
    let folder = Folder::new();
    let spoil = format!("inject={WRITES}:error=EIO:when=2");
    let Some(mut spoiled) = spoiled(folder.path(), &spoil) else { return };
    let mut client = Client::ready(spoiled.server.port, SMB_2_1).unwrap();
    let file = client.open("file").unwrap();
    let blocks: Vec<_> = (0..6).map(|seed| block(seed, 5000)).collect();
    let mut answers = Vec::new();
    for (at, bytes) in (0..).zip(&blocks) {
        answers.push(client.write(file, at * 5000, bytes, false));
    }
    let failed: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert!(!failed.is_empty(), "nothing failed: is it another system call that writes?");
    for failure in failed {
        assert_eq!(failure.status(), Some(NtStatus::IO_DEVICE_ERROR), "{failure:?}");
    }
    // What did not fail is there, and what failed can be written again.
    for ((at, bytes), answer) in (0..).zip(&blocks).zip(&answers) {
        if answer.is_err() {
            client.write(file, at * 5000, bytes, false).unwrap();
        }
    }
    let found = std::fs::read(folder.file("file")).unwrap();
    assert!(found == blocks.concat());
    spoiled.server.must_live();
}

#[test]
fn a_flush_that_fails_is_said_to_have_failed() {
    let folder = Folder::new();
    let Some(mut spoiled) = spoiled(folder.path(), "inject=fsync,fdatasync:error=EIO:when=1..2")
    else {
        return;
    };
    let mut client = Client::ready(spoiled.server.port, SMB_2_1).unwrap();
    let file = client.open("file").unwrap();
    client.write(file, 0, b"bytes", false).unwrap();
    assert_eq!(refused(client.flush(file)), NtStatus::IO_DEVICE_ERROR);
    // The third call of a thread succeeds, and any thread may be the one that makes it. What a flush says is what
    // the disk said.
    let again: Vec<_> = (0..100).map(|_| client.flush(file)).collect();
    assert!(again.iter().any(Result::is_ok), "{again:?}");
    for failure in again.iter().filter_map(|answer| answer.as_ref().err()) {
        assert_eq!(failure.status(), Some(NtStatus::IO_DEVICE_ERROR), "{failure:?}");
    }
    assert_eq!(client.read(file, 0, 10).unwrap(), b"bytes");
    spoiled.server.must_live();
}

#[test]
fn a_read_that_fails_is_said_to_have_failed() {
    let folder = Folder::new();
    let bytes = block(1, 300_000);
    std::fs::write(folder.file("file"), &bytes).unwrap();
    let Some(mut spoiled) = spoiled(folder.path(), &format!("inject={READS}:error=EIO:when=1"))
    else {
        return;
    };
    let mut client = Client::ready(spoiled.server.port, SMB_2_1).unwrap();
    let file = client.open("file").unwrap();
    let mut failed = 0;
    for _ in 0..READS_MADE {
        match client.read(file, 0, 100_000) {
            Ok(found) => assert!(found == bytes[..100_000]),
            failure @ Err(_) => {
                assert_eq!(refused(failure), NtStatus::IO_DEVICE_ERROR);
                failed += 1;
            }
        }
    }
    // strace counts for each thread, and the server has as many as it needs, of which any may be the one.
    assert!((1..READS_MADE).contains(&failed), "{failed} of {READS_MADE} reads failed");
    spoiled.server.must_live();
}

#[test]
fn what_is_flushed_or_written_through_goes_to_the_disk() {
    let folder = Folder::new();
    let Some(spoiled) = spoiled(folder.path(), "trace=fsync,fdatasync,sync_file_range,pwritev2")
    else {
        return;
    };
    let lines = || std::fs::read_to_string(&spoiled.log).unwrap_or_default();
    let synced = || {
        let durable = |line: &&str| {
            line.contains("fsync(")
                || line.contains("fdatasync(")
                || line.contains("RWF_DSYNC")
                || line.contains("RWF_SYNC")
        };
        lines().lines().filter(durable).count()
    };
    let mut client = Client::ready(spoiled.server.port, SMB_2_1).unwrap();
    let file = client.open("file").unwrap();
    client.write(file, 0, b"plain", false).unwrap();
    let before = synced();
    client.flush(file).unwrap();
    let flushed = synced();
    assert!(flushed > before, "a flush without a sync:\n{}", lines());
    client.write(file, 5, b"through", true).unwrap();
    let written = synced();
    assert!(written > flushed, "a write through without a sync:\n{}", lines());
    let options = CreateOptions::NON_DIRECTORY_FILE | CreateOptions::WRITE_THROUGH;
    let (other, _) = client.create(&Wish { options, ..Wish::file("other") }).unwrap();
    client.write(other, 0, b"through", false).unwrap();
    let created = synced();
    assert!(created > written, "opened to write through, and no sync:\n{}", lines());

    // Streams are extended attributes: what fdatasync(2) need not bring to the disk. The first file was opened for
    // itself, so these are descriptors that the kernel synchronizes nothing by.
    let whole = || lines().lines().filter(|line| line.contains("fsync(")).count();
    let stream = client.open("file:stream").unwrap();
    client.write(stream, 0, b"plain", false).unwrap();
    let before = whole();
    client.flush(stream).unwrap();
    let flushed = whole();
    assert!(flushed > before, "a flush of a stream without a sync:\n{}", lines());
    client.write(stream, 5, b"through", true).unwrap();
    let written = whole();
    assert!(written > flushed, "a stream written through without a sync:\n{}", lines());
    let (stream, _) = client.create(&Wish { options, ..Wish::file("file:second") }).unwrap();
    client.write(stream, 0, b"through", false).unwrap();
    assert!(whole() > written, "a stream opened to write through, and no sync:\n{}", lines());
    assert_eq!(client.read(stream, 0, 100).unwrap(), b"through");
}

#[test]
fn a_slow_disk_holds_up_nobody_else() {
    let folder = Folder::new();
    std::fs::write(folder.file("other"), "there").unwrap();
    // Flushes are slow; whoever asks something else is not.
    let Some(mut spoiled) = spoiled(folder.path(), "inject=fsync,fdatasync:delay_enter=700000")
    else {
        return;
    };
    let port = spoiled.server.port;
    let mut clients: Vec<_> = (0..3).map(|_| Client::ready(port, SMB_2_1).unwrap()).collect();
    let files: Vec<_> = clients.iter_mut().map(|client| client.open("other").unwrap()).collect();
    let enough = Arc::new(AtomicBool::new(false));
    let is_enough = Arc::clone(&enough);
    let slow = thread::spawn(move || {
        let mut client = Client::ready(port, SMB_2_1).unwrap();
        let file = client.open("file").unwrap();
        let mut flushes = 0;
        while flushes < 3 || !is_enough.load(Ordering::Relaxed) {
            client.write(file, flushes, b"x", false).unwrap();
            let begun = Instant::now();
            client.flush(file).unwrap();
            assert!(begun.elapsed() >= Duration::from_millis(650), "the flush did not wait");
            flushes += 1;
        }
        flushes
    });
    // Who waited for a flush each time would get around as often as there are flushes, and no more: that is the
    // measure, since how long one round takes on a machine with other work says nothing.
    let mut rounds = 0;
    let begun = Instant::now();
    while !slow.is_finished() {
        for (client, file) in clients.iter_mut().zip(&files) {
            assert_eq!(client.read(*file, 0, 10).unwrap(), b"there");
        }
        rounds += 1;
        if rounds >= 60 || begun.elapsed() > PATIENCE {
            enough.store(true, Ordering::Relaxed);
        }
        thread::sleep(Duration::from_millis(5));
    }
    let flushes = slow.join().unwrap();
    assert!(rounds > 3 * flushes, "{rounds} rounds beside {flushes} flushes");
    spoiled.server.must_live();
}

/// Clients take two files of one id for one, and read and write the one for the other.
#[test]
fn two_disks_in_one_share_have_no_file_in_common() {
    const INTERNAL: u8 = 6;
    let folder = Folder::new();
    let mounts = "for M in $D/one $D/two; do mkdir $M && mount -t tmpfs -o mode=777 none $M; done";
    let Some(server) = with_mount(folder.path(), mounts, &[]) else { return };
    let mut client = Client::ready(server.port, SMB_2_1).unwrap();
    let mut ids: Vec<Vec<u8>> = ["file", "one\\file", "two\\file"]
        .map(|name| {
            let file = client.open(name).unwrap();
            let told = client.query_info(file, Subject::File, INTERNAL).unwrap();
            query_info::Response::parse(&told).unwrap().data.to_vec()
        })
        .to_vec();
    let on_host = std::fs::metadata(folder.file("file")).unwrap().ino();
    assert_eq!(ids[0], on_host.to_le_bytes(), "where the share's root is, it is the inode");
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "{ids:?}");
}
