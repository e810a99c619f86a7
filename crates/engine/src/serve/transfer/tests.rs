use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use sys::filemap::Access;

use super::file::PROBED;
use super::*;

const METHODS: [Method; 4] = [Method::Copy, Method::Map, Method::Splice, Method::Vmsplice];
const MIB: usize = 1 << 20;

/// Bytes that tell where they are.
fn pattern(len: usize) -> Vec<u8> {
    (0x5a00_0000_u32..).flat_map(u32::to_le_bytes).take(len).collect()
}

/// Two ends of a connection; ours does not block.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    ours.set_nonblocking(true).unwrap();
    (ours, theirs)
}

/// The same, with little room in between.
fn narrow() -> (TcpStream, TcpStream) {
    let (ours, theirs) = connection();
    set_socket_send_buffer_size(&ours, 64 << 10).unwrap();
    set_socket_recv_buffer_size(&theirs, 64 << 10).unwrap();
    (ours, theirs)
}

/// Empty files in memory and on a disk, as far as there are both.
fn files() -> Vec<DataFile> {
    let mut files = vec![DataFile::new(tempfile::tempfile().unwrap()).unwrap()];
    if let Ok(file) = tempfile::tempfile_in("/dev/shm") {
        files.push(DataFile::new(file).unwrap());
    }
    files
}

fn files_with(bytes: &[u8]) -> Vec<Arc<DataFile>> {
    let files = files().into_iter().map(|file| {
        file.write_all(bytes, 0).unwrap();
        Arc::new(file)
    });
    files.collect()
}

fn wait(socket: &TcpStream, what: PollFlags) {
    poll(&mut [PollFd::new(socket, what)], None).unwrap();
}

/// Steps to the end; answers how often the socket and how often the disk was waited for.
fn drive_send(
    transfer: &mut SendFile,
    socket: &TcpStream,
    pools: &Pools,
) -> Result<(usize, usize), TransferError> {
    let (mut blocked, mut jobs) = (0, 0);
    loop {
        match transfer.step(socket.as_fd(), pools)? {
            Progress::Done => return Ok((blocked, jobs)),
            Progress::SocketBlocked => {
                blocked += 1;
                wait(socket, PollFlags::OUT);
            }
            Progress::WouldWait(job) => {
                jobs += 1;
                transfer.finished(job.run());
            }
        }
    }
}

fn drive_receive(
    transfer: &mut ReceiveFile,
    socket: &TcpStream,
    pools: &Pools,
) -> Result<usize, TransferError> {
    let mut blocked = 0;
    loop {
        match transfer.step(socket.as_fd(), pools)? {
            Progress::Done => return Ok(blocked),
            Progress::SocketBlocked => {
                blocked += 1;
                wait(socket, PollFlags::IN);
            }
            Progress::WouldWait(job) => transfer.finished(job.run()),
        }
    }
}

fn take(mut socket: TcpStream, n: usize) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut got = vec![0; n];
        socket.read_exact(&mut got).unwrap();
        got
    })
}

fn is(got: &[u8], want: &[u8], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    if got == want {
        return;
    }
    let differs = got.iter().zip(want).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: first byte that differs");
}

const PLACES: [(u64, usize); 11] = [
    (0, 0),
    (0, 1),
    (0, 4096),
    (1, 4095),
    (4095, 2),
    (12_345, 65_537),
    (0, MIB),
    (77, MIB),
    (MIB as u64 - 1, MIB + 2),
    (0, 8 * MIB),
    (3, 8 * MIB - 3),
];

#[test]
fn what_is_sent_is_what_is_in_the_file() {
    let bytes = pattern(8 * MIB);
    for file in files_with(&bytes) {
        for method in METHODS {
            let pools = Pools::new(2, 4 * MIB);
            let (ours, theirs) = connection();
            for (offset, len) in PLACES {
                let what = format!("{method:?} {offset}+{len} in memory {}", file.in_memory());
                let taker = take(theirs.try_clone().unwrap(), 84 + len);
                let (file, promise) = (Arc::clone(&file), u32::try_from(len).unwrap());
                let mut transfer = SendFile::new(vec![0xfe; 84], file, offset, promise, method);
                assert!(!transfer.started());
                drive_send(&mut transfer, &ours, &pools).unwrap();
                assert!(transfer.started() && transfer.sent() == 84 + len);
                assert!(len == 0 || transfer.method() == method, "{what}");
                let got = taker.join().unwrap();
                is(&got[..84], &[0xfe; 84], &what);
                let at = usize::try_from(offset).unwrap();
                is(&got[84..], &bytes[at..at + len], &what);
            }
            assert_eq!(pools.pipes.counts().1, 0);
        }
    }
}

#[test]
fn what_is_not_in_memory_is_left_to_a_thread_that_may_wait() {
    let bytes = pattern(4 * MIB);
    for file in files_with(&bytes).into_iter().filter(|file| !file.in_memory()) {
        for method in METHODS {
            file.file().sync_all().unwrap();
            // What is mapped would stay.
            file.forget_map();
            fadvise(file.file(), 0, None, Advice::DontNeed).unwrap();
            if file.resident(5, 3 << 20) {
                return println!("skipped: the file stays in memory");
            }
            let pools = Pools::new(2, 4 * MIB);
            let (ours, theirs) = connection();
            let taker = take(theirs, 3 * MIB);
            let mut transfer = SendFile::new(Vec::new(), Arc::clone(&file), 5, 3 << 20, method);
            let (_, jobs) = drive_send(&mut transfer, &ours, &pools).unwrap();
            assert!(jobs > 0, "{method:?} waited for the disk");
            is(&taker.join().unwrap(), &bytes[5..5 + 3 * MIB], "cold");
            assert!(file.resident(5, 3 << 20));
        }
    }
}

/// Steps to the end, and calls `meanwhile` before each; answers which jobs there were.
fn jobs_of(
    transfer: &mut SendFile,
    socket: &TcpStream,
    pools: &Pools,
    meanwhile: impl Fn(),
) -> (usize, usize) {
    let (mut fetched, mut read) = (0, 0);
    loop {
        meanwhile();
        match transfer.step(socket.as_fd(), pools).unwrap() {
            Progress::Done => return (fetched, read),
            Progress::SocketBlocked => wait(socket, PollFlags::OUT),
            Progress::WouldWait(job) => {
                match &job {
                    Job::Prefetch { .. } => fetched += 1,
                    Job::Read { .. } => read += 1,
                    Job::Write { .. } => panic!("nothing is written"),
                }
                let finished = job.run();
                meanwhile();
                transfer.finished(finished);
            }
        }
    }
}

/// As where what is in memory is another inode's, or the file system's own affair: the loop would wait for it.
#[test]
fn what_does_not_stay_in_memory_is_read_by_threads_and_once() {
    let bytes = pattern(2 * MIB);
    for file in files_with(&bytes).into_iter().filter(|file| !file.in_memory()) {
        file.file().sync_all().unwrap();
        let forget = || fadvise(file.file(), 0, None, Advice::DontNeed).unwrap();
        for method in METHODS {
            file.forget_map();
            forget();
            if file.resident(0, 2 << 20) {
                return println!("skipped: the file stays in memory");
            }
            for (number, wanted) in [(0, (1, 1)), (1, (0, 1))] {
                let pools = Pools::new(2, 16 * MIB);
                let (ours, theirs) = connection();
                let taker = take(theirs, 2 * MIB);
                let mut transfer = SendFile::new(Vec::new(), Arc::clone(&file), 0, 2 << 20, method);
                let jobs = jobs_of(&mut transfer, &ours, &pools, forget);
                assert_eq!(jobs, wanted, "{method:?} {number}: it is known then");
                is(&taker.join().unwrap(), &bytes, "never there");
            }
            // It is kept after all, and taken from there again.
            let (ours, theirs) = connection();
            let taker = take(theirs, 4 * MIB);
            for wanted in [(0, 1), (0, 0)] {
                let pools = Pools::new(2, 16 * MIB);
                let mut transfer = SendFile::new(Vec::new(), Arc::clone(&file), 0, 2 << 20, method);
                assert_eq!(jobs_of(&mut transfer, &ours, &pools, || ()), wanted, "{method:?}");
            }
            is(&taker.join().unwrap(), &[&bytes[..], &bytes[..]].concat(), "there again");
        }
    }
}

#[test]
fn what_was_read_just_now_is_looked_for_at_its_ends() {
    let bytes = pattern(2 * MIB);
    let file = DataFile::new(tempfile::tempfile().unwrap()).unwrap().without_cachestat();
    file.write_all(&bytes, 0).unwrap();
    if file.in_memory() {
        return println!("skipped: no disk");
    }
    let probed = |look: &dyn Fn() -> bool| {
        PROBED.set(0);
        (look(), PROBED.get())
    };
    if probed(&|| file.resident(0, 2 << 20)) != (true, 33) {
        return println!("skipped: the file system cannot be asked");
    }
    assert_eq!(probed(&|| file.look_again(0, 2 << 20)), (true, 2));
    assert_eq!(probed(&|| file.look_again(5, 1)), (true, 1));
}

/// A file of another host or a program: what is in memory, too, and by no mapping, which nobody asks whether it is current.
#[test]
fn what_may_be_asked_about_elsewhere_is_read_by_threads() {
    let bytes = pattern(3 * MIB);
    let file = tempfile::tempfile().unwrap();
    let file = DataFile::new(file).unwrap();
    file.write_all(&bytes, 0).unwrap();
    if file.in_memory() {
        return println!("skipped: no disk");
    }
    let file = Arc::new(file.that_asks());
    // All at once, where others have half of the buffers left; by the piece; and by the smallest.
    let pools = [(16 * MIB, 1), (7 * MIB, 3), (0, 40)];
    for (method, (pool, least)) in METHODS.into_iter().flat_map(|m| pools.map(|pool| (m, pool))) {
        let pools = Pools::new(2, pool);
        let (ours, theirs) = connection();
        let taker = take(theirs, 84 + 3 * MIB);
        let mut transfer = SendFile::new(vec![9; 84], Arc::clone(&file), 0, 3 << 20, method);
        assert!(transfer.parts().is_none());
        let (fetched, read) = jobs_of(&mut transfer, &ours, &pools, || ());
        assert!(fetched == 0 && read >= least, "{method:?}: {read} of {pool}");
        assert!(read == least || pool == 0, "{method:?}: {read}");
        assert!(pools.buffers.bytes() <= pool / 2 || pool == 0, "others have half");
        let got = taker.join().unwrap();
        is(&got[84..], &bytes, "asked about");
    }
    assert!(file.window(0, MIB, Access::Read).is_none());
    // Cut short before it is read.
    for cut in [1_000_000, 0] {
        file.cut(cut);
        let (ours, theirs) = connection();
        let taker = take(theirs, 84 + 3 * MIB);
        let mut transfer = SendFile::new(vec![9; 84], Arc::clone(&file), 0, 3 << 20, Method::Map);
        jobs_of(&mut transfer, &ours, &Pools::new(2, 8 * MIB), || ());
        let mut wanted = bytes[..usize::try_from(cut).unwrap()].to_vec();
        wanted.resize(3 * MIB, 0);
        is(&taker.join().unwrap()[84..], &wanted, "zeros follow");
    }
}

#[test]
fn a_file_cut_short_meanwhile_is_continued_with_zeros() {
    let bytes = pattern(8 * MIB);
    for method in METHODS {
        for (cut, keep) in [(0, 0), (3_000_001, 0), (3_000_001, 1_000_000)] {
            for file in files_with(&bytes) {
                let what = format!("{method:?} cut to {cut}, in memory {}", file.in_memory());
                let pools = Pools::new(2, 4 * MIB);
                let (ours, mut theirs) = narrow();
                let mut transfer =
                    SendFile::new(vec![9; 84], Arc::clone(&file), 0, 8 << 20, method);
                // So far until nothing is taken any more, then what `keep` lets through.
                let mut got = Vec::new();
                loop {
                    match transfer.step(ours.as_fd(), &pools).unwrap() {
                        Progress::Done => panic!("{what}: the socket took all"),
                        Progress::WouldWait(job) => transfer.finished(job.run()),
                        Progress::SocketBlocked if got.len() >= keep => break,
                        Progress::SocketBlocked => {
                            let mut some = vec![0; 32 << 10];
                            let n = theirs.read(&mut some).unwrap();
                            got.extend_from_slice(&some[..n]);
                        }
                    }
                }
                file.file().set_len(cut).unwrap();
                let taker = take(theirs, 84 + 8 * MIB - got.len());
                drive_send(&mut transfer, &ours, &pools).unwrap();
                got.extend(taker.join().unwrap());
                let data = &got[84..];
                let same = data.iter().zip(&bytes).take_while(|(a, b)| a == b).count();
                assert!(same >= keep.min(bytes.len()), "{what}");
                // A pipe or a buffer full of what was read before the cut may follow, and no more.
                let zeros = data.iter().rev().take_while(|b| **b == 0).count();
                let read = same.max(usize::try_from(cut).unwrap()) + 4096;
                assert!(zeros + read >= data.len(), "{what}: {same} same, {zeros} zeros");
                assert!(same <= 5 * MIB, "{what}: {same}");
            }
        }
    }
}

#[test]
fn a_file_cut_before_the_head_went_out_is_zeros_behind_its_head() {
    for method in METHODS {
        for len in [100_000, MIB] {
            for file in files_with(&pattern(MIB)) {
                let pools = Pools::new(2, 4 * MIB);
                let (ours, theirs) = connection();
                let promise = u32::try_from(len).unwrap();
                let mut transfer =
                    SendFile::new(vec![9; 84], Arc::clone(&file), 0, promise, method);
                file.file().set_len(0).unwrap();
                let taker = take(theirs, 84 + len);
                drive_send(&mut transfer, &ours, &pools).unwrap();
                let got = taker.join().unwrap();
                is(&got[..84], &[9; 84], "head");
                is(&got[84..], &vec![0; len], "zeros");
                assert_eq!(pools.pipes.counts().1, 0);
            }
        }
    }
}

#[test]
fn a_head_of_any_length_comes_first() {
    let bytes = pattern(2 * MIB);
    for method in METHODS {
        for head in [1, 4096, 4097, 600 << 10, MIB, MIB + 1] {
            for len in [70_000, MIB - 4096, MIB - 4095, MIB + 1] {
                for file in files_with(&bytes) {
                    let what = format!("{method:?} head {head} len {len}");
                    let pools = Pools::new(2, 4 * MIB);
                    let (ours, theirs) = narrow();
                    let promise = u32::try_from(len).unwrap();
                    let mut transfer = SendFile::new(vec![9; head], file, 4095, promise, method);
                    let taker = take(theirs, head + len);
                    drive_send(&mut transfer, &ours, &pools).unwrap();
                    let got = taker.join().unwrap();
                    is(&got[..head], &vec![9; head], &what);
                    is(&got[head..], &bytes[4095..4095 + len], &what);
                    assert_eq!(pools.pipes.counts().1, 0);
                }
            }
        }
    }
}

#[test]
fn a_file_cut_again_and_again_keeps_the_stream_in_step() {
    let bytes = pattern(4 * MIB);
    for method in METHODS {
        for file in files_with(&bytes) {
            let pools = Pools::new(2, 4 * MIB);
            let (ours, theirs) = connection();
            let stop = Arc::new(AtomicBool::new(false));
            let cutter = thread::spawn({
                let (stop, file, bytes) = (Arc::clone(&stop), Arc::clone(&file), bytes.clone());
                move || {
                    while !stop.load(Ordering::Relaxed) {
                        file.file().set_len(4097).unwrap();
                        file.write_all(&bytes[4097..], 4097).unwrap();
                    }
                }
            });
            let taker = take(theirs, 30 * (8 + 4 * MIB));
            for number in 0..30u64 {
                let head = number.to_be_bytes().to_vec();
                let mut transfer = SendFile::new(head, Arc::clone(&file), 0, 4 << 20, method);
                drive_send(&mut transfer, &ours, &pools).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            cutter.join().unwrap();
            for (number, answer) in taker.join().unwrap().chunks(8 + 4 * MIB).enumerate() {
                assert_eq!(answer[..8], (number as u64).to_be_bytes(), "{method:?}");
                is(&answer[8..8 + 4096], &bytes[..4096], "what was never cut");
            }
        }
    }
}

#[test]
fn a_slow_reader_gets_all_of_it() {
    let bytes = pattern(2 * MIB);
    for file in files_with(&bytes) {
        for method in METHODS {
            let pools = Pools::new(2, 4 * MIB);
            let (ours, mut theirs) = narrow();
            let taker = thread::spawn(move || {
                let mut got = Vec::new();
                let mut some = [0; 9999];
                while got.len() < 20 + 2 * MIB {
                    let n = theirs.read(&mut some).unwrap();
                    got.extend_from_slice(&some[..n]);
                    thread::sleep(std::time::Duration::from_micros(50));
                }
                got
            });
            let mut transfer = SendFile::new(vec![1; 20], Arc::clone(&file), 0, 2 << 20, method);
            let (blocked, _) = drive_send(&mut transfer, &ours, &pools).unwrap();
            assert!(blocked > 0);
            is(&taker.join().unwrap()[20..], &bytes, "slow");
        }
    }
}

#[test]
fn without_pipes_and_buffers_it_goes_on_all_the_same() {
    let bytes = pattern(2 * MIB);
    for file in files_with(&bytes) {
        for method in METHODS {
            let pools = Pools::new(0, 0);
            let (ours, theirs) = connection();
            let taker = take(theirs, 2 * MIB);
            let mut transfer = SendFile::new(Vec::new(), Arc::clone(&file), 0, 2 << 20, method);
            drive_send(&mut transfer, &ours, &pools).unwrap();
            is(&taker.join().unwrap(), &bytes, "poor");
            drop(transfer);
            assert_eq!(pools.buffers.bytes(), 0);
        }
    }
}

#[test]
fn a_transfer_given_up_leaves_nothing_for_the_next() {
    let file = Arc::clone(&files_with(&pattern(8 * MIB))[0]);
    let pools = Pools::new(1, 4 * MIB);
    let (ours, _theirs) = narrow();
    let mut transfer = SendFile::new(vec![1; 84], file, 0, 8 << 20, Method::Splice);
    let progress = transfer.step(ours.as_fd(), &pools).unwrap();
    assert!(matches!(progress, Progress::SocketBlocked) && transfer.started());
    assert_eq!(pools.pipes.counts(), (0, 1));
    drop(transfer);
    assert_eq!(pools.pipes.counts(), (0, 0), "closed, with what was in it");
}

#[test]
fn a_peer_that_went_away_is_an_error_of_the_socket() {
    let bytes = pattern(8 * MIB);
    for method in METHODS {
        let file = Arc::clone(&files_with(&bytes)[0]);
        let pools = Pools::new(1, 4 * MIB);
        let (ours, theirs) = narrow();
        let mut transfer = SendFile::new(vec![1; 84], file, 0, 8 << 20, method);
        let taker = thread::spawn(move || drop(theirs));
        let error = drive_send(&mut transfer, &ours, &pools).unwrap_err();
        taker.join().unwrap();
        assert!(matches!(error, TransferError::Socket(_)), "{method:?}: {error}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_before_anything_was_promised() {
    for method in METHODS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [1; 100]).unwrap();
        let blind = File::options().write(true).open(&path).unwrap();
        let file = Arc::new(DataFile::new(blind).unwrap());
        let (ours, _theirs) = connection();
        let mut transfer = SendFile::new(vec![1; 84], file, 0, 100, method);
        let error = drive_send(&mut transfer, &ours, &Pools::new(1, MIB)).unwrap_err();
        assert!(matches!(error, TransferError::File(_)), "{method:?}: {error}");
        assert!(!transfer.started(), "{method:?}");
    }
}

#[test]
fn a_read_promises_no_more_than_there_is() {
    for file in files_with(&[1; 1000]) {
        assert_eq!(file.clamp(0, 4096).unwrap(), 1000);
        assert_eq!(file.clamp(999, 4096).unwrap(), 1);
        assert_eq!(file.clamp(1000, 4096).unwrap(), 0);
        assert_eq!(file.clamp(u64::MAX, u32::MAX).unwrap(), 0);
        assert_eq!(file.clamp(10, 20).unwrap(), 20);
    }
}

#[test]
fn what_is_received_is_in_the_file_and_nothing_else_is_touched() {
    let bytes = pattern(8 * MIB);
    for grown in [false, true] {
        for method in METHODS {
            for file in files().into_iter().map(Arc::new) {
                let pools = Pools::new(2, 4 * MIB);
                let (ours, mut theirs) = connection();
                for (offset, len) in PLACES {
                    for early in [0, 1, 5000, len] {
                        let early = early.min(len);
                        let what = format!("{method:?} {offset}+{len} early {early}");
                        file.file().set_len(0).unwrap();
                        let at = usize::try_from(offset).unwrap();
                        let before = if grown { at + len + 1000 } else { 0 };
                        file.write_all(&vec![0xee; before], 0).unwrap();
                        let payload = bytes[..len].to_vec();
                        let sender = thread::spawn(move || {
                            theirs.write_all(&payload[early..]).unwrap();
                            theirs.write_all(b"next").unwrap();
                            theirs
                        });
                        let n = u32::try_from(len).unwrap();
                        let target = Arc::clone(&file);
                        let mut transfer =
                            ReceiveFile::new(&bytes[..early], target, offset, n, method);
                        drive_receive(&mut transfer, &ours, &pools).unwrap();
                        assert_eq!(transfer.outcome().unwrap(), n, "{what}");
                        theirs = sender.join().unwrap();
                        wait(&ours, PollFlags::IN);
                        let mut next = [0; 4];
                        (&ours).read_exact(&mut next).unwrap();
                        assert_eq!(&next, b"next", "{what}");

                        let end = if len == 0 { 0 } else { at + len };
                        let size = before.max(end);
                        assert_eq!(file.size().unwrap(), size as u64, "{what}");
                        let mut got = vec![0; size];
                        file.file().read_exact_at(&mut got, 0).unwrap();
                        let mut want = vec![0xee; before];
                        want.resize(size, 0);
                        want[at.min(size)..end.max(at.min(size))].copy_from_slice(&bytes[..len]);
                        is(&got, &want, &what);
                    }
                }
                assert_eq!(pools.pipes.counts().1, 0);
            }
        }
    }
}

/// Receives `len` bytes that cannot be written, and what comes after; answers the error.
fn refused(file: Arc<DataFile>, len: usize, early: usize, method: Method) -> io::Error {
    let pools = Pools::new(2, 4 * MIB);
    let (ours, mut theirs) = connection();
    let sender = thread::spawn(move || {
        theirs.write_all(&vec![3; len - early]).unwrap();
        theirs.write_all(b"next").unwrap();
        theirs
    });
    let n = u32::try_from(len).unwrap();
    let mut transfer = ReceiveFile::new(&vec![3; early], file, 0, n, method);
    drive_receive(&mut transfer, &ours, &pools).unwrap();
    let _theirs = sender.join().unwrap();
    wait(&ours, PollFlags::IN);
    let mut next = [0; 4];
    (&ours).read_exact(&mut next).unwrap();
    assert_eq!(&next, b"next");
    assert_eq!(pools.pipes.counts().1, 0, "a pipe is still lent");
    transfer.outcome().unwrap_err()
}

#[test]
fn what_cannot_be_written_is_taken_from_the_socket_and_said() {
    for method in METHODS {
        for early in [0, 100] {
            let file = Arc::new(DataFile::new(File::open("/dev/zero").unwrap()).unwrap());
            let error = refused(file, 3 * MIB, early, method);
            assert_eq!(error.raw_os_error(), Some(9), "not open for writing: {error}");
        }
    }
    let full = File::options().read(true).write(true).open("/dev/full").unwrap();
    let error = refused(Arc::new(DataFile::new(full).unwrap()), 3 * MIB, 10, Method::Copy);
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

/// A file system of 2 MiB, unmounted when dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().ok()?;
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
            .arg(folder.path())
            .output();
        mount.ok()?.status.success().then_some(Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[test]
fn a_full_disk_is_said_by_each_method() {
    let Some(small) = Small::new() else { return println!("skipped: may not mount a tmpfs") };
    for (method, sparse) in METHODS.into_iter().flat_map(|m| [(m, false), (m, true)]) {
        let path = small.path().join(format!("{method:?}-{sparse}"));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        // Length without room: what a mapping finds out page by page.
        file.set_len(if sparse { 8 << 20 } else { 0 }).unwrap();
        let file = Arc::new(DataFile::new(file).unwrap());
        assert!(file.in_memory());
        let error = refused(Arc::clone(&file), 5 * MIB, 0, method);
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{method:?}: {error}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_write_that_is_never_run_is_a_failed_write() {
    for file in files().into_iter().filter(|file| !file.in_memory()) {
        file.tries_to_write_not();
        let pools = Pools::new(1, 4 * MIB);
        let (ours, mut theirs) = connection();
        let sender = thread::spawn(move || theirs.write_all(&[1; 3 << 20]).unwrap());
        let mut transfer = ReceiveFile::new(&[], Arc::new(file), 0, 3 << 20, Method::Copy);
        let mut dropped = 0;
        loop {
            match transfer.step(ours.as_fd(), &pools).unwrap() {
                Progress::Done => break,
                Progress::SocketBlocked => wait(&ours, PollFlags::IN),
                Progress::WouldWait(_) => dropped += 1,
            }
        }
        sender.join().unwrap();
        assert_eq!(dropped, 1);
        assert!(transfer.outcome().is_err());
    }
}

#[test]
fn a_connection_that_ends_inside_of_a_payload_is_an_error() {
    for method in METHODS {
        let file = files().pop().unwrap();
        let (ours, mut theirs) = connection();
        theirs.write_all(&[1; 1000]).unwrap();
        drop(theirs);
        let mut transfer = ReceiveFile::new(&[1; 10], Arc::new(file), 0, 1 << 20, method);
        let error = drive_receive(&mut transfer, &ours, &Pools::new(1, MIB)).unwrap_err();
        let TransferError::Socket(error) = error else { panic!("{error}") };
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}

#[test]
fn what_is_written_over_is_mapped_and_what_has_no_page_yet_is_not() {
    for file in files().into_iter().filter(DataFile::in_memory).map(Arc::new) {
        file.file().set_len(2 << 20).unwrap();
        for wanted in [Method::Splice, Method::Copy] {
            let (ours, mut theirs) = connection();
            let sender = thread::spawn(move || theirs.write_all(&[1; MIB]).unwrap());
            let mut transfer = ReceiveFile::new(&[], Arc::clone(&file), 0, 1 << 20, Method::Map);
            drive_receive(&mut transfer, &ours, &Pools::new(1, MIB)).unwrap();
            sender.join().unwrap();
            // The end of what goes by a mapping is written by a call.
            assert_eq!(transfer.method(), wanted);
        }
    }
}

#[test]
fn a_mapped_write_shows_in_the_time_of_modification() {
    for file in files().into_iter().map(Arc::new) {
        file.file().set_len(2 << 20).unwrap();
        let past = std::time::SystemTime::UNIX_EPOCH;
        for _ in 0..2 {
            file.file().set_modified(past).unwrap();
            let (ours, mut theirs) = connection();
            let sender = thread::spawn(move || theirs.write_all(&[1; MIB]).unwrap());
            let mut transfer = ReceiveFile::new(&[], Arc::clone(&file), 0, 1 << 20, Method::Map);
            drive_receive(&mut transfer, &ours, &Pools::new(1, MIB)).unwrap();
            sender.join().unwrap();
            assert!(file.file().metadata().unwrap().modified().unwrap() > past);
        }
    }
}

/// By the kernel's copies, and then by our own instructions.
#[test]
fn what_is_written_over_again_and_again_is_there_and_so_is_its_time() {
    if !sys::guarded::is_installed() {
        written_over_again_and_again();
    }
    sys::guarded::install();
    written_over_again_and_again();
}

fn written_over_again_and_again() {
    let mut bytes = pattern(3 * MIB);
    for file in files_with(&bytes) {
        let past = std::time::SystemTime::UNIX_EPOCH;
        // From the fourth on by a mapping, where there is one.
        for round in 0..8_u8 {
            for (at, len) in [(0, MIB), (77, 65_536), (MIB - 1, MIB + 2), (4096, 65_535)] {
                let new = vec![round; len];
                file.file().set_modified(past).unwrap();
                file.overwrite(&new, at as u64).unwrap();
                assert!(file.file().metadata().unwrap().modified().unwrap() > past);
                bytes[at..at + len].copy_from_slice(&new);
            }
            let mut got = vec![0; bytes.len()];
            assert_eq!(file.read_at(&mut got, 0).unwrap(), bytes.len());
            is(&got, &bytes, &format!("round {round}"));
        }
        assert_eq!(file.rewritten(), file.in_memory());
        // Beyond its end it grows.
        file.overwrite(&bytes, 1).unwrap();
        assert_eq!(file.size().unwrap(), bytes.len() as u64 + 1);
        bytes.truncate(3 * MIB);
        file.file().set_len(bytes.len() as u64).unwrap();
        file.overwrite(&bytes, 0).unwrap();
    }
}

#[test]
fn a_file_cut_short_while_it_is_written_over_takes_all_of_each_write() {
    sys::guarded::install();
    let bytes = pattern(MIB);
    for file in files_with(&bytes) {
        let (cut, stop) = (Arc::clone(&file), Arc::new(AtomicBool::new(false)));
        let stopping = Arc::clone(&stop);
        let cutter = thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                cut.cut(300_000);
                thread::yield_now();
            }
        });
        for _ in 0..200 {
            // None is refused, and none ends the process.
            file.overwrite(&bytes, 0).unwrap();
            file.count_overwritten(MIB);
        }
        stop.store(true, Ordering::Relaxed);
        cutter.join().unwrap();
        file.overwrite(&bytes, 0).unwrap();
        let mut got = vec![0; MIB];
        assert_eq!(file.read_at(&mut got, 0).unwrap(), MIB);
        is(&got, &bytes, "after the last cut");
    }
}

#[test]
fn what_is_appended_from_a_mapping_is_what_the_file_has() {
    if !sys::guarded::is_installed() {
        appended_from_a_mapping();
    }
    sys::guarded::install();
    appended_from_a_mapping();
}

fn appended_from_a_mapping() {
    let bytes = pattern(MIB + 77);
    for file in files_with(&bytes) {
        for (at, len) in [(0, MIB), (4095, 65_536), (5, 65_535), (MIB, MIB), (2 * MIB, MIB)] {
            let mut got = b"head".to_vec();
            let n = file.append_mapped(&mut got, at as u64, len);
            let there = bytes.get(at..).unwrap_or_default();
            let there = &there[..there.len().min(len)];
            let may_be_none = len < 65_536 || !file.in_memory() || !file.copies_maps();
            assert!(n == there.len() || n == 0 && may_be_none, "{n} of {len} at {at}");
            is(&got[4..], &there[..n], "appended");
        }
    }
}

#[test]
fn data_moves_inside_of_the_file_system() {
    let bytes = pattern(3 * MIB);
    for (source, target) in files_with(&bytes).into_iter().zip(files()) {
        assert_eq!(copy_range(&source, 5, &target, 77, 2 << 20).unwrap(), 2 << 20);
        let mut got = vec![0; 2 * MIB];
        target.file().read_exact_at(&mut got, 77).unwrap();
        is(&got, &bytes[5..5 + 2 * MIB], "copied");
        assert_eq!(copy_range(&source, (3 << 20) - 10, &target, 0, 100).unwrap(), 10);
        assert_eq!(copy_range(&source, 4 << 20, &target, 0, 100).unwrap(), 0);

        // Shared or refused, never something else.
        match clone_range(&source, 0, &target, 0, 1 << 20) {
            Ok(()) => {
                target.file().read_exact_at(&mut got[..MIB], 0).unwrap();
                is(&got[..MIB], &bytes[..MIB], "cloned");
            }
            Err(e) => assert!(e.raw_os_error().is_some(), "{e}"),
        }
        clone_range(&source, 0, &target, 0, 0).unwrap();
    }
    let [a, b] = [&files_with(&bytes)[0], files_with(&bytes).last().unwrap()].map(Arc::clone);
    b.file().set_len(0).unwrap();
    assert_eq!(copy_range(&a, 0, &b, 0, 3 << 20).unwrap(), 3 << 20, "between file systems");
    let mut got = vec![0; 3 * MIB];
    b.file().read_exact_at(&mut got, 0).unwrap();
    is(&got, &bytes, "between file systems");
}

#[test]
fn holes_are_made_and_found() {
    for file in files_with(&pattern(3 * MIB)) {
        let all = 3 << 20;
        assert_eq!(allocated(&file, 0, u64::MAX, 10).unwrap(), [(0, all)]);
        if let Err(e) = punch(&file, 1 << 20, 1 << 20) {
            println!("no holes here: {e}");
            continue;
        }
        let both = [(0, 1 << 20), (2 << 20, 1 << 20)];
        assert_eq!(allocated(&file, 0, all, 10).unwrap(), both);
        assert_eq!(allocated(&file, 0, all, 1).unwrap(), both[..1]);
        assert_eq!(allocated(&file, 100, 1 << 20, 10).unwrap(), [(100, (1 << 20) - 100)]);
        assert_eq!(allocated(&file, 1 << 20, 1 << 20, 10).unwrap(), []);
        assert_eq!(allocated(&file, all, 100, 10).unwrap(), []);
        assert_eq!(file.size().unwrap(), all);

        assert!(zero(&file, 10, 5000, || true).unwrap());
        assert!(zero(&file, all - 10, 5000, || true).unwrap());
        let mut got = vec![1; 3 * MIB];
        file.file().read_exact_at(&mut got, 0).unwrap();
        assert_eq!(file.size().unwrap(), all);
        let mut want = pattern(3 * MIB);
        want[10..5010].fill(0);
        want[MIB..2 * MIB].fill(0);
        want[3 * MIB - 10..].fill(0);
        is(&got, &want, "zeroed");

        if reserve(&file, 4 << 20, 1 << 20).is_ok() {
            assert_eq!(file.size().unwrap(), all);
        }
        for nothing in [punch, reserve] {
            nothing(&file, 7, 0).unwrap();
        }
        assert!(zero(&file, 7, 0, || false).unwrap(), "nothing is to be done");
    }
}

#[test]
fn a_socket_that_blocks_is_not_waited_for_either() {
    let bytes = pattern(8 * MIB);
    for method in METHODS {
        let file = Arc::clone(files_with(&bytes).last().unwrap());
        let (ours, theirs) = narrow();
        ours.set_nonblocking(false).unwrap();
        let (done, over) = std::sync::mpsc::channel();
        let stepper = thread::spawn(move || {
            let pools = Pools::new(1, 4 * MIB);
            let mut transfer = SendFile::new(vec![1; 84], file, 0, 8 << 20, method);
            let progress = transfer.step(ours.as_fd(), &pools);
            done.send(matches!(progress, Ok(Progress::SocketBlocked))).unwrap();
        });
        let answer = over.recv_timeout(std::time::Duration::from_secs(60));
        drop(theirs);
        stepper.join().unwrap();
        assert!(answer.unwrap_or(false), "{method:?} waited");

        let file = Arc::clone(files_with(&bytes).last().unwrap());
        let (ours, theirs) = connection();
        let (done, over) = std::sync::mpsc::channel();
        let stepper = thread::spawn(move || {
            let mut transfer = ReceiveFile::new(&[], file, 0, 1 << 20, method);
            let progress = transfer.step(ours.as_fd(), &Pools::new(1, 4 * MIB));
            done.send(matches!(progress, Ok(Progress::SocketBlocked))).unwrap();
        });
        let answer = over.recv_timeout(std::time::Duration::from_secs(60));
        drop(theirs);
        stepper.join().unwrap();
        assert!(answer.unwrap_or(false), "{method:?} waited to receive");
    }
}

/// Reading a hole by a mapping would have tmpfs allocate it.
#[test]
fn what_is_sent_of_a_hole_takes_no_memory() {
    use std::os::unix::fs::MetadataExt;
    let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
        return println!("skipped: no tmpfs");
    };
    let len = 4 << 20;
    file.set_len(len as u64).unwrap();
    let data = pattern(100_000);
    file.write_all_at(&data, 1 << 20).unwrap();
    let mut want = vec![0; len];
    want[1 << 20..(1 << 20) + data.len()].copy_from_slice(&data);
    let blocks = |file: &DataFile| file.file().metadata().unwrap().blocks();
    let file = Arc::new(DataFile::new(file).unwrap());
    let before = blocks(&file);
    for method in METHODS {
        let (ours, theirs) = connection();
        let got = take(theirs, len);
        let promise = u32::try_from(len).unwrap();
        let mut transfer = SendFile::new(vec![], Arc::clone(&file), 0, promise, method);
        drive_send(&mut transfer, &ours, &Pools::new(2, 4 * MIB)).unwrap();
        is(&got.join().unwrap(), &want, "a hole");
        assert_eq!(blocks(&file), before, "{method:?}");
    }
    // Pages behind the end do not stand for those that are absent.
    let beyond = rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&*file, beyond, len as u64, 8 << 20).unwrap();
    assert!(file.window(0, 1 << 20, Access::Read).is_none());
    assert!(file.window(1 << 20, 65536, Access::Read).is_some(), "data");
}

/// Without the library that has such memory: what it would answer.
#[test]
fn errors_of_the_connection_and_of_the_file_are_told_apart() {
    const LEN: usize = 256 << 10;
    let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
        return println!("skipped: no tmpfs");
    };
    let file = Arc::new(DataFile::new(file).unwrap());
    file.write_all(&pattern(LEN), 0).unwrap();
    file.count_overwritten(LEN);
    let len = u32::try_from(LEN).unwrap();
    let receive = || ReceiveFile::new(&[], file.clone(), 0, len, Method::Carried);
    let send = || SendFile::new(Vec::new(), file.clone(), 0, len, Method::Carried);
    assert!(receive().maps() && send().maps());
    for error in [Errno::CONNRESET, Errno::TIMEDOUT, Errno::PIPE] {
        let said = receive().took_from_memory(Err(error)).unwrap_err();
        assert!(matches!(said, TransferError::Socket(_)), "{said}");
        let said = send().put_into_memory(Err(error)).unwrap_err();
        assert!(matches!(said, TransferError::Socket(_)), "{said}");
    }
    // Of this transfer, since the file was cut: others may be lucky.
    let (mut receiving, mut sending) = (receive(), send());
    receiving.took_from_memory(Err(Errno::FAULT)).unwrap();
    assert!(sending.put_into_memory(Err(Errno::FAULT)).unwrap().is_none());
    assert!(!receiving.maps() && !sending.maps() && sending.method() == Method::Carried);
    let mut sending = send();
    assert!(sending.put_into_memory(Err(Errno::OPNOTSUPP)).unwrap().is_none());
    assert!(!sending.maps() && file.copies_maps());
    // By a call it is the file's.
    receiving.took_from_memory(Err(Errno::NOSPC)).unwrap();
    assert_eq!(receiving.outcome().unwrap_err().kind(), io::ErrorKind::StorageFull);
    // What takes nothing is not asked for ever.
    let mut receiving = receive();
    receiving.took_from_memory(Ok(0)).unwrap();
    assert_eq!(receiving.outcome().unwrap_err().kind(), io::ErrorKind::WriteZero);
    // What is forbidden is forbidden to all that come later.
    assert!(receive().maps() && send().maps());
    let mut receiving = receive();
    receiving.took_from_memory(Err(Errno::PERM)).unwrap();
    assert!(!receiving.maps() && !receive().maps() && !send().maps());
    let file = Arc::new(DataFile::new(file.file()).unwrap());
    let send = || SendFile::new(Vec::new(), file.clone(), 0, len, Method::Carried);
    let mut sending = send();
    assert!(sending.put_into_memory(Err(Errno::NOSYS)).unwrap().is_none());
    assert!(!sending.maps() && !send().maps());
}

/// How many bytes a socket waits for before it is readable.
fn low_water(socket: &TcpStream) -> i32 {
    const SOL_SOCKET: i32 = 1;
    const SO_RCVLOWAT: i32 = 18;
    sys::call::getsockopt(socket.as_raw_fd(), SOL_SOCKET, SO_RCVLOWAT).unwrap()
}

#[test]
fn a_loop_sleeps_longer_for_one_client_of_this_host_than_for_others() {
    let pools = Pools::new(1, MIB);
    let receiving = |local, len| {
        let (ours, theirs) = connection();
        let file = Arc::new(files().remove(0));
        let transfer = ReceiveFile::new(&[], file, 0, len, Method::Copy).from_local(local);
        (transfer, ours, theirs)
    };
    // As the last of so many waits has it.
    let waits = |(transfer, ours, _): &mut (ReceiveFile, TcpStream, TcpStream), times: usize| {
        for _ in 0..times {
            let progress = transfer.step(ours.as_fd(), &pools).unwrap();
            assert!(matches!(progress, Progress::SocketBlocked), "{progress:?}");
        }
        low_water(ours)
    };
    let mut one = receiving(true, 3 << 20);
    assert_eq!(waits(&mut one, 1), 256 << 10, "nobody knows who else there is");
    assert_eq!(waits(&mut one, 8), 1 << 20);
    let mut other = receiving(true, 3 << 20);
    waits(&mut other, 1);
    for _ in 0..10 {
        assert_eq!([waits(&mut one, 1), waits(&mut other, 1)], [256 << 10; 2]);
    }
    assert_eq!(waits(&mut other, 8), 1 << 20, "it is alone again");
    let mut short = receiving(true, 300 << 10);
    assert_eq!([waits(&mut short, 1), waits(&mut short, 8)], [256 << 10, 1]);
    let mut far = receiving(false, 3 << 20);
    assert_eq!(waits(&mut far, 10), 256 << 10);
}
