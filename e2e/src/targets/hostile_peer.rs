//! A peer of the same user that writes whatever it likes into all that it may write, between any two
//! of our calls: nothing may happen but the end of this connection, and that soon.

use std::time::Duration;

use local::conn::{Got, Phase, Put};
use sys::abi::{Half, Loc, half_flags as flag};
use sys::sync::{AtomicU32, AtomicU64, Ordering};

use super::Input;
use super::clock::Moment;
use super::pair::{End, worlds};
use crate::calls;

/// No call may take longer, whatever the peer writes: seconds at most, and a busy machine.
const CALL_MAX: Duration = Duration::from_secs(20);
/// Calls that may each wait for the peer, as they are meant to: so many in one input.
const SLOW_MAX: u32 = 1;

fn words64(half: &Half) -> [&AtomicU64; 9] {
    [
        &half.tail,
        &half.loc,
        &half.up_at,
        &half.down_at,
        &half.next_loc,
        &half.next_at,
        &half.head,
        &half.wait,
        &half.cookie,
    ]
}

fn words32(half: &Half) -> [&AtomicU32; 17] {
    [
        &half.flags,
        &half.bells,
        &half.room_wait,
        &half.cpu,
        &half.state,
        &half.generation,
        &half.peer,
        &half.peer_generation,
        &half.slot,
        &half.users,
        &half.tx_lock,
        &half.rx_lock,
        &half.drained,
        &half.rung,
        &half.fd,
        &half.offer_word,
        &half.reason,
    ]
}

/// What the peer's half said before the peer became hostile, so that its own code can end it.
struct Kept {
    words64: [u64; 9],
    words32: [u32; 17],
}

impl Kept {
    fn of(half: &Half) -> Self {
        Self {
            words64: words64(half).map(|word| word.load(Ordering::Relaxed)),
            words32: words32(half).map(|word| word.load(Ordering::Relaxed)),
        }
    }

    fn restore(&self, half: &Half) {
        for (word, kept) in words64(half).iter().zip(self.words64) {
            word.store(kept, Ordering::Relaxed);
        }
        for (word, kept) in words32(half).iter().zip(self.words32) {
            word.store(kept, Ordering::Relaxed);
        }
    }
}

/// A number that a cursor check may stumble over, or anything.
fn number(input: &mut Input<'_>, ours: &Half, theirs: &Half) -> u64 {
    let near = u64::from(input.byte()).wrapping_sub(8);
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed).wrapping_add(near);
    match input.byte() % 10 {
        0 => load(&ours.head),
        1 => load(&ours.tail),
        2 => load(&theirs.head),
        3 => load(&theirs.tail),
        4 => ours.loc.load(Ordering::Relaxed),
        5 => theirs.loc.load(Ordering::Relaxed),
        6 => {
            let now = Loc::parse(theirs.loc.load(Ordering::Relaxed)).map_or(0, |loc| loc.block);
            let block = now.wrapping_add(u32::from(input.byte()).wrapping_sub(64));
            Loc { block, order: u32::from(input.byte() % 10) }.emit()
        }
        7 => load(&ours.tail).wrapping_add(256 << 10),
        8 => u64::MAX - near,
        _ => input.word(),
    }
}

/// The peer writes.
fn write(input: &mut Input<'_>, ours: &End, theirs: &End) {
    let (mine, half) = (ours.half(), theirs.half());
    if input.byte().is_multiple_of(2) {
        let word = input.choice(&words64(half));
        word.store(number(input, mine, half), Ordering::Relaxed);
        return;
    }
    let at = input.below(words32(half).len());
    let word = words32(half)[at];
    #[expect(clippy::cast_possible_truncation, reason = "any number will do")]
    let value = match input.byte() % 4 {
        0 => input.choice(&[0, 1, 2, flag::UP, flag::UP | flag::DOWN, flag::UP | flag::WANT_DOWN]),
        1 => word.load(Ordering::Relaxed) ^ 1 << (input.byte() % 32),
        2 => word.load(Ordering::Relaxed).wrapping_add(u32::from(input.byte()).wrapping_sub(8)),
        _ => input.word() as u32,
    };
    word.store(value, Ordering::Relaxed);
}

/// One call of ours.
fn call(input: &mut Input<'_>, end: &End, slow: &mut u32) {
    let (w, conn, fd) = (end.w, end.conn, end.fd);
    let Some((mine, peer)) = conn.halves(w) else { return };
    match input.byte() % 12 {
        0..=2 => {
            let flags = input.choice(&[0, 0, 0, libc::MSG_PEEK, libc::MSG_TRUNC]);
            let len = input.below(80 << 10);
            let (got, _) = end.recv(len, flags);
            if let Got::Bytes(n) | Got::Part(n) = got {
                assert!(n <= len, "received {n} of {len}");
            }
        }
        3..=5 => {
            let bytes = vec![input.byte(); input.below(96 << 10)];
            let (put, left) = end.send(&bytes);
            assert!(left <= bytes.len() && (put != Put::All || left == 0));
        }
        6 => {
            let fill = input.byte();
            let _ = conn.send_with(w, fd, 1 + input.below(64 << 10), |to| {
                // SAFETY: the ring's own bytes, free for us to write.
                unsafe { &mut *to }.fill(fill);
                Ok(to.len())
            });
        }
        7 => {
            // What an event mask is made of.
            conn.judge_end(mine, peer);
            let _ = (conn.may_read(mine, peer), conn.has_room(mine, peer));
            let _ = (conn.moved(mine, peer, true), conn.is_mixed(mine, peer));
            let _ = (conn.came_down(mine, peer), conn.unread_ring(w), conn.unread(w, fd));
            let _ = (conn.tcp_readable(mine, peer, fd), conn.wait_for_room(mine, peer));
            conn.look_for_strays(mine, peer, fd);
        }
        8 => {
            let _ = conn.shutdown(w, fd, input.byte() % 2 == 1, input.byte() % 2 == 1);
        }
        9 => {
            conn.answer_demotion(w, fd, mine, peer);
            conn.arm_cold(w, mine);
            conn.drain(w, fd);
        }
        10 => {
            let _ = (conn.socket_error(w, fd, 0), conn.has_ended(w), conn.unsent(w, fd));
            let _ = conn.settle(w, fd, true);
        }
        _ if *slow < SLOW_MAX && conn.phase() == Phase::Attached => {
            *slow += 1;
            if !conn.demote(w, fd, local::Reason::Exec) {
                conn.thaw(w);
            }
        }
        _ => conn.demote_sender(w, fd, local::Reason::Urgent),
    }
}

/// Runs one input.
///
/// # Panics
///
/// When a call took too long or answered what cannot be; a crash is a crash.
pub fn run(bytes: &[u8]) {
    let worlds = worlds();
    let mut input = Input::new(bytes);
    let [ours, theirs] = worlds.connect();
    // Some honest traffic, so that rings exist and lie anywhere.
    for _ in 0..input.byte() % 4 {
        let n = 1 + input.below(24 << 10);
        let _ = (ours.send(&vec![1; n]), theirs.recv(n, 0));
        let _ = (theirs.send(&vec![2; n]), ours.recv(n / 2, 0));
    }
    let kept = Kept::of(theirs.half());
    let mut slow = 0;
    let mut done = 0;
    while !input.is_empty() && done < 64 {
        done += 1;
        match input.byte() % 4 {
            0 => write(&mut input, &ours, &theirs),
            1 if input.byte().is_multiple_of(4) => {
                // Past the library, or doorbells that nobody announced.
                let _ =
                    calls::send(theirs.fd, &vec![0x5a; 1 + input.below(64)], libc::MSG_NOSIGNAL);
                let _ = calls::recv(theirs.fd, 64 << 10, 0);
            }
            _ => {
                let begun = Moment::now();
                call(&mut input, &ours, &mut slow);
                assert!(begun.elapsed() < CALL_MAX, "a call took {:?}", begun.elapsed());
            }
        }
    }
    let begun = Moment::now();
    let half = theirs.half();
    ours.close();
    assert!(begun.elapsed() < CALL_MAX, "close took {:?}", begun.elapsed());
    kept.restore(half);
    half.flags.fetch_and(!(flag::DOWN | flag::WANT_DOWN), Ordering::Relaxed);
    theirs.close();
}
