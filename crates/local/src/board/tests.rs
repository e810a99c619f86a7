//! What threads do with a board at the same time.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;

use sys::abi::Loc;

use super::*;

const SOL_SOCKET: i32 = 1;
const SO_COOKIE: i32 = 57;

fn board(of: &str) -> Board {
    let dir = std::env::temp_dir().join(format!("shunt-{of}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    let board = Board::join(dir.to_str(), 600).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    board
}

/// Each thread gets the kernel's answer to what it has asked, and not that to another one.
#[test]
fn threads_that_ask_who_somebody_is() {
    let board = board("asking");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = |_| TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let clients: Vec<TcpStream> = (0..4).map(connect).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            let board = &board;
            scope.spawn(move || {
                let fd = client.as_raw_fd();
                let [local, remote] = [false, true].map(|peer| call::name(fd, peer).unwrap());
                let cookie: u64 = call::getsockopt(fd, SOL_SOCKET, SO_COOKIE).unwrap();
                for n in 0..2000 {
                    let found = board.who_is(local.unwrap(), remote.unwrap());
                    let its = found.map(|found| found.map(|found| found.cookie));
                    assert_eq!(its, Ok(Some(cookie)), "time {n}");
                }
            });
        }
    });
}

/// Whoever has read the number of the netlink socket asks by it: what the guest puts there gets no question of ours.
#[test]
fn the_netlink_socket_stays_where_it_is_while_a_thread_asks() {
    let board = board("moving");
    // Who moves it waits only so long. Where that has run out, because this thread did not run, nothing was seen.
    let saw = (0..100).find_map(|_| {
        let (fd, since) = (board.netlink().unwrap(), call::now_ns());
        let asking = board.asks()?;
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| board.moves(fd));
            while !mover.is_finished() && call::now_ns() < since + ASKING_NS / 4 {
                call::sched_yield();
            }
            let stays = board.netlink() == Ok(fd);
            let in_time = call::now_ns() < since + ASKING_NS;
            drop(asking);
            assert!(mover.join().unwrap());
            assert_ne!(board.netlink(), Ok(fd));
            (in_time || stays).then_some(stays)
        })
    });
    assert_eq!(saw, Some(true));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_thread_that_was_asking_when_it_left_by_a_jump_may_ask_again() {
    let board = board("left");
    std::mem::forget(board.asks());
    assert!(board.asks().is_some());
    std::mem::forget(board.asks());
    board.free_left_locks();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(lock::try_lock(&board.asking).is_some()));
    });
}

/// Its file is made shorter all the while.
#[test]
fn a_board_that_is_not_trusted_may_be_taken_away_while_it_is_opened() {
    use std::sync::atomic::AtomicBool;
    let (_, netns) = locate(None).unwrap();
    let at = std::path::Path::new(HOME).join(format!("shunt-shortened-{}", std::process::id()));
    let path = CString::new(at.clone().into_os_string().into_encoded_bytes()).unwrap();
    let (map, fd) = Map::open(&path, netns, Access::Foreign).unwrap();
    map.unmap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let _ = call::ftruncate(fd, 0);
            }
        });
        for _ in 0..200 {
            if let Ok((map, fd)) = Map::open(&path, netns, Access::Foreign) {
                let _ = map.header().version.load(Ordering::Relaxed);
                map.unmap();
                let _ = call::close(fd);
            }
        }
        ends.store(true, Ordering::Relaxed);
    });
    let _ = call::close(fd);
    std::fs::remove_file(at).unwrap();
}

/// What a process was at that was killed while it took a slot, or gave one back, the next one does: but nothing that
/// somebody is at.
#[test]
fn a_slot_of_which_nobody_has_the_lock_is_given_back() {
    let dir = std::env::temp_dir().join(format!("shunt-burial-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    let [first, second] = [600, 610].map(|high| Board::join(dir.to_str(), high).unwrap());
    let extent = DATA_AT / EXTENT_BYTES + 3;
    let header = first.map.header();
    header.extents_used.fetch_max(number(extent + 1).unwrap(), Ordering::Relaxed);
    // One is dead, of the other somebody has the lock, who is no slower than that.
    let (dead, alive) = (5, 6);
    for slot in [dead, alive] {
        first.map.commit(first.fd(), Map::slot_offset(slot), size_of::<Slot>()).unwrap();
        first.map.slot(slot).state.store(slot_state::BUSY, Ordering::Release);
        header.slots_used.fetch_max(slot + 1, Ordering::Relaxed);
    }
    first.map.owner(extent).store(dead + 1, Ordering::Release);
    call::lock_byte(first.fd(), lock_of(alive)).unwrap();
    second.ensure_slot().unwrap();
    let states = [dead, alive].map(|slot| first.map.slot(slot).state.load(Ordering::Acquire));
    assert_eq!(states, [slot_state::FREE, slot_state::BUSY]);
    assert_eq!(first.map.owner(extent).load(Ordering::Acquire), 0);
    // And whoever comes then may have it.
    assert_eq!(call::byte_locked(first.fd(), lock_of(dead)), Ok(false));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Where halves were are halves: what leads there still finds memory, and nothing that it takes for what was there.
#[test]
fn halves_of_the_dead_keep_their_pages_and_are_used_again() {
    use crate::arena::Arena;
    let dir = std::env::temp_dir().join(format!("shunt-dead-halves-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    let [dead, alive] = [600, 610].map(|high| Board::join(dir.to_str(), high).unwrap());
    let mut arena = Arena::default();
    let ring = arena.block(&dead, 0, usize::MAX).unwrap();
    let half = arena.half(&dead, usize::MAX).unwrap();
    let words = dead.map.half_known(half);
    words.state.store(half_state::OFFERED, Ordering::Relaxed);
    words.peer.store(7, Ordering::Relaxed);
    let at = |port| SocketAddrV6::new(Ipv6Addr::LOCALHOST, port, 0, 0);
    let ends = Ends { local: at(1), remote: at(2) };
    ends.write(words);
    let offered = dead.offer(half, ends, false).unwrap();
    let generation = words.generation.load(Ordering::Relaxed);
    let extent = half as usize * HALF_BYTES / EXTENT_BYTES;
    assert_eq!(alive.offers_to(ends.mirrored(), -1).count(), 1);
    dead.leave();

    alive.ensure_slot().unwrap();
    assert_eq!(alive.map.owner(extent).load(Ordering::Acquire), OWNER_HALVES);
    assert_eq!(alive.map.owner(ring.offset() / EXTENT_BYTES).load(Ordering::Acquire), 0);
    assert_eq!(alive.map.offer_word(offered).load(Ordering::Relaxed), 0);
    let words = alive.map.half(half).expect("still a place for halves");
    let said = [&words.state, &words.peer, &words.generation].map(|w| w.load(Ordering::Relaxed));
    assert_eq!(said, [half_state::FREE, 0, generation]);
    assert_eq!(halves(&alive.map, alive.fd()).count(), 0);

    let mut arena = Arena::default();
    for _ in 0..3 {
        let ring = arena.block(&alive, Loc::ORDER_MAX, usize::MAX).unwrap();
        assert_ne!(ring.offset() / EXTENT_BYTES, extent, "a ring among halves");
    }
    assert_eq!(arena.half(&alive, usize::MAX), Ok(half));
    assert!(words.generation.load(Ordering::Relaxed) > generation);
    std::fs::remove_dir_all(&dir).unwrap();
}
