use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::*;
use crate::event::{Bell, Interest};

const SECOND: u64 = 1_000_000_000;

/// A ring, or `None` with a word why not: a machine may forbid it.
fn ring(entries: u32) -> Option<Ring> {
    match Ring::new(entries) {
        Ok(ring) => Some(ring),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

fn next(ring: &mut Ring) -> Done {
    for _ in 0..100 {
        if let Some(done) = ring.take() {
            return done;
        }
        ring.enter(Some(SECOND)).unwrap();
    }
    panic!("nothing is done, for a long time");
}

fn pair() -> (Arc<OwnedFd>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Arc::new(ours.into()), theirs)
}

/// What is never ready.
fn never() -> Arc<OwnedFd> {
    Arc::new(Bell::new().unwrap().another().unwrap())
}

#[test]
fn buffers_go_and_come_back() {
    let Some(mut ring) = ring(8) else { return };
    let (ours, mut theirs) = pair();
    let recv = Op::Recv { fd: ours.clone(), buf: vec![1; 10], range: 2..6 };
    let ticket = ring.submit(recv, 5).unwrap();
    ring.enter(Some(0)).unwrap();
    assert!(ring.take().is_none());
    theirs.write_all(b"abcdefgh").unwrap();
    let done = next(&mut ring);
    assert_eq!((done.ticket, done.tag, done.result), (ticket, 5, Ok(4)));
    let Some(Op::Recv { buf, .. }) = done.op else { panic!("not what was given") };
    assert_eq!(buf, [1, 1, b'a', b'b', b'c', b'd', 1, 1, 1, 1]);
    assert!(ring.is_empty());
}

#[test]
fn files_are_read_written_and_synced() {
    let Some(mut ring) = ring(8) else { return };
    let path = std::env::temp_dir().join(format!("shunt-uring-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path);
    std::fs::remove_file(&path).unwrap();
    let fd = Arc::new(OwnedFd::from(file.unwrap()));
    let mut run = |op: Op| {
        ring.submit(op, 0).unwrap();
        next(&mut ring)
    };
    let write = Op::Write { fd: fd.clone(), buf: b"xhello".to_vec(), range: 1..6, offset: 10_000 };
    assert_eq!(run(write).result, Ok(5));
    assert_eq!(run(Op::Sync { fd: fd.clone(), data_only: true }).result, Ok(0));
    assert_eq!(run(Op::Sync { fd: fd.clone(), data_only: false }).result, Ok(0));
    let read = Op::Read { fd: fd.clone(), buf: vec![7; 8], range: 0..5, offset: 10_000 };
    let Done { result, op, .. } = run(read);
    let given = matches!(&op, Some(Op::Read { buf, .. }) if buf == b"hello\x07\x07\x07");
    assert_eq!((result, given), (Ok(5), true));
    drop(op);
    assert_eq!(Arc::strong_count(&fd), 1, "the ring has let go of it");
}

#[test]
fn a_poll_tells_once_or_again() {
    let Some(mut ring) = ring(8) else { return };
    let bell = Bell::new().unwrap();
    let fd = Arc::new(bell.another().unwrap());
    let poll = |again| Op::Poll { fd: fd.clone(), interest: Interest::READ, again };
    let many = ring.submit(poll(true), 1).unwrap();
    ring.submit(poll(false), 2).unwrap();
    ring.enter(Some(0)).unwrap();
    bell.ring();
    let mut told = [next(&mut ring), next(&mut ring)];
    told.sort_by_key(|done| done.tag);
    assert!(told.iter().all(|done| done.event().read && !done.event().broken));
    assert_eq!([told[0].op.is_some(), told[1].op.is_some()], [false, true]);
    bell.ring();
    let done = next(&mut ring);
    assert_eq!((done.tag, done.op.is_some()), (1, false), "a ring is told each time, unheard");
    ring.cancel(many);
    ring.cancel(many);
    let done = next(&mut ring);
    assert_eq!((done.result, done.op.is_some()), (Err(libc::ECANCELED), true));
    drop((done, told));
    ring.cancel(many);
    ring.enter(Some(0)).unwrap();
    assert!(ring.take().is_none() && ring.is_empty());
    assert_eq!(Arc::strong_count(&fd), 1);
}

#[test]
fn a_ring_as_older_kernels_have_it_does_the_same() {
    if ring(8).is_none() {
        return;
    }
    for kinds in (0..KINDS.len()).map(|from| &KINDS[from..]) {
        let mut ring = Ring::of(8, kinds).unwrap();
        if ring.kind() != kinds[0].0 {
            println!("this kernel has no {} rings", kinds[0].0);
            continue;
        }
        let (ours, mut theirs) = pair();
        ring.submit(Op::Recv { fd: ours.clone(), buf: vec![0; 8], range: 0..8 }, 1).unwrap();
        let poll = Op::Poll { fd: ours.clone(), interest: Interest::READ, again: true };
        ring.submit(poll, 2).unwrap();
        ring.enter(Some(0)).unwrap();
        let other = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(5));
            theirs.write_all(b"abc").unwrap();
            theirs
        });
        loop {
            let done = next(&mut ring);
            if done.tag == 1 {
                assert_eq!(done.result, Ok(3));
                break;
            }
        }
        other.join().unwrap();
        let never = Op::Poll { fd: never(), interest: Interest::READ, again: false };
        ring.submit(never, 3).unwrap();
        ring.enter(Some(1_000_000)).unwrap();
        drop(ring);
        assert_eq!(Arc::strong_count(&ours), 1);
    }
}

#[test]
fn a_wait_ends_by_time() {
    let Some(mut ring) = ring(8) else { return };
    let start = crate::call::now_ns();
    ring.enter(Some(20_000_000)).unwrap();
    assert!(crate::call::now_ns() - start >= 20_000_000);
}

#[test]
fn more_than_both_queues_hold_is_done_all_the_same() {
    let Some(mut ring) = ring(4) else { return };
    let fd = Arc::new(OwnedFd::from(std::fs::File::open("/dev/zero").unwrap()));
    for tag in 0..500 {
        let op = Op::Read { fd: fd.clone(), buf: vec![1; 64], range: 0..64, offset: 0 };
        ring.submit(op, tag).unwrap();
    }
    let mut told = vec![false; 500];
    for _ in 0..500 {
        let done = next(&mut ring);
        assert_eq!(done.result, Ok(64));
        assert!(!std::mem::replace(&mut told[usize::try_from(done.tag).unwrap()], true));
        assert!(matches!(done.op, Some(Op::Read { buf, .. }) if buf == [0; 64]));
    }
    assert!(ring.is_empty());
}

#[test]
fn completions_wait_while_nobody_takes_them() {
    let Some(mut ring) = ring(4) else { return };
    let bell = Bell::new().unwrap();
    let fd = Arc::new(bell.another().unwrap());
    // The completion queue has 16 places; these are told all at once.
    for tag in 0..100 {
        let op = Op::Poll { fd: fd.clone(), interest: Interest::READ, again: false };
        ring.submit(op, tag).unwrap();
        ring.enter(Some(0)).unwrap();
    }
    bell.ring();
    for _ in 0..100 {
        assert!(next(&mut ring).event().read);
    }
    assert!(ring.is_empty());
}

#[test]
fn a_dropped_ring_has_let_go_of_everything() {
    let Some(mut ring) = ring(4) else { return };
    let (ours, mut theirs) = pair();
    for tag in 0..50 {
        let op = Op::Recv { fd: ours.clone(), buf: vec![0; 1 << 16], range: 0..1 << 16 };
        ring.submit(op, tag).unwrap();
        if tag % 3 == 0 {
            ring.enter(Some(0)).unwrap();
        }
    }
    ring.submit(Op::Poll { fd: never(), interest: Interest::READ, again: false }, 0).unwrap();
    drop(ring);
    assert_eq!(Arc::strong_count(&ours), 1);
    drop(ours);
    assert_eq!(theirs.read(&mut [0; 1]).unwrap(), 0, "the descriptor is closed");
}

#[test]
fn what_is_wrong_is_an_errno_and_the_buffer_comes_back() {
    let Some(mut ring) = ring(4) else { return };
    let fd = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
    ring.submit(Op::Recv { fd, buf: vec![3; 5], range: 0..5 }, 0).unwrap();
    let done = next(&mut ring);
    assert_eq!(done.result, Err(libc::ENOTSOCK));
    assert!(matches!(done.op, Some(Op::Recv { buf, .. }) if buf == [3; 5]));
}

#[test]
#[should_panic(expected = "out of range")]
fn a_range_outside_of_the_buffer_is_refused() {
    let Some(mut ring) = ring(4) else { panic!("out of range") };
    let fd = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
    let _ = ring.submit(Op::Read { fd, buf: vec![0; 4], range: 2..9, offset: 0 }, 0);
}

#[test]
fn why_there_is_no_ring_is_told() {
    let of = |errno| Unavailable::from(io::Error::from_raw_os_error(errno));
    assert_eq!(of(libc::EPERM), Unavailable::Forbidden);
    assert_eq!(of(libc::ENOSYS), Unavailable::Absent);
    assert_eq!(of(libc::ENOMEM), Unavailable::Failed(libc::ENOMEM));
    assert!(Unavailable::Forbidden.to_string().contains("io_uring_disabled"));
}
