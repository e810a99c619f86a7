//! Every interleaving of an offer that is taken, withdrawn, and made again.

use loom::sync::Arc;
use loom::thread;
use sys::abi::half_state;
use sys::sync::AtomicU32;

use super::*;

const CLIENT: u32 = 3;
const SERVER: u32 = 8;

/// What of the two halves matters here.
#[derive(Default)]
struct Board {
    word: AtomicU64,
    /// The client's half.
    state: AtomicU32,
    generation: AtomicU32,
    cookie: AtomicU32,
    /// The server's half.
    peer_generation: AtomicU32,
    attached: AtomicU32,
    flags: AtomicU32,
}

impl Board {
    /// `Arena::half`, `Conn::new_half` and `Board::offer`, for the connection `cookie`.
    fn offer(&self, cookie: u32) {
        self.generation.fetch_add(1, Ordering::Release);
        self.cookie.store(cookie, Ordering::Relaxed);
        self.state.store(half_state::OFFERED, Ordering::Release);
        assert!(publish(&self.word, 0, CLIENT));
    }

    /// `Conn::keep_tcp`: `true` if the offer could be withdrawn, the half being free then.
    fn keep_tcp(&self) -> bool {
        loop {
            if taken(&self.word, CLIENT).is_some() {
                return false;
            }
            if withdraw(&self.word, CLIENT) {
                self.state.store(half_state::FREE, Ordering::Release);
                return true;
            }
            thread::yield_now();
        }
    }

    /// `Board::find` and `Conn::try_attach`, for the accepted socket whose peer has `cookie`.
    fn attach(&self, cookie: u32) -> bool {
        let Some((CLIENT, None)) = split(self.word.load(Ordering::Acquire)) else { return false };
        let generation = self.generation.load(Ordering::Acquire);
        if self.state.load(Ordering::Acquire) != half_state::OFFERED
            || self.cookie.load(Ordering::Relaxed) != cookie
        {
            return false;
        }
        self.peer_generation.store(generation, Ordering::Relaxed);
        self.attached.store(1, Ordering::Relaxed);
        take(&self.word, CLIENT, SERVER)
    }

    /// `Conn::settle_client`: whether a taker of the offer is one for the connection of now.
    fn settles(&self) -> bool {
        if taken(&self.word, CLIENT) != Some(SERVER) {
            return false;
        }
        // What the taker wrote before it took is there.
        assert_eq!(self.attached.load(Ordering::Relaxed), 1);
        self.peer_generation.load(Ordering::Relaxed) == self.generation.load(Ordering::Relaxed)
    }
}

/// Either both ends believe that they are attached, or neither does.
#[test]
fn an_offer_is_taken_or_withdrawn() {
    loom::model(|| {
        let board = Arc::new(Board::default());
        board.offer(1);
        let server = thread::spawn({
            let board = board.clone();
            move || board.attach(1)
        });
        let kept = board.keep_tcp();
        assert!(kept || board.settles());
        assert_eq!(server.join().unwrap(), !kept);
    });
}

/// Two processes that both hold the accepted socket, and a client that closes.
#[test]
fn an_offer_is_taken_once() {
    loom::model(|| {
        let board = Arc::new(Board::default());
        board.offer(1);
        let takers = [SERVER, SERVER + 1].map(|server| {
            let board = board.clone();
            thread::spawn(move || take(&board.word, CLIENT, server))
        });
        let kept = withdraw(&board.word, CLIENT);
        let took = takers.map(|t| t.join().unwrap());
        assert_eq!(usize::from(kept) + took.iter().filter(|t| **t).count(), 1);
        clear(&board.word, CLIENT);
        assert_eq!(split(board.word.load(Ordering::Relaxed)), None);
    });
}

/// A half is withdrawn and offered again, under the same word, for another connection, while a
/// server is about to take it for the old one.
#[test]
fn an_offer_is_not_taken_for_another_connection() {
    loom::model(|| {
        let board = Arc::new(Board::default());
        board.offer(1);
        let server = thread::spawn({
            let board = board.clone();
            move || board.attach(1)
        });
        if board.keep_tcp() {
            board.offer(2);
            assert!(!board.settles(), "the second connection has no server");
            let _ = server.join().unwrap();
            assert!(!board.settles(), "the second connection has no server");
        } else {
            assert!(server.join().unwrap());
        }
    });
}

impl Board {
    /// `Conn::try_attach` where words may be overwritten: whether the server is attached in the end.
    fn attach_under_attack(&self) -> bool {
        if !self.attach(1) {
            return false;
        }
        tell_taken(&self.flags);
        loop {
            match self.state.load(Ordering::Acquire) {
                half_state::DOUBT => thread::yield_now(),
                half_state::TCP => return false,
                _ => return true,
            }
        }
    }

    /// `Conn::keep_tcp` where words may be overwritten: whether the client is attached in the end.
    fn settles_under_attack(&self) -> bool {
        let end = |state| self.state.store(state, Ordering::Release);
        match status(&self.word, CLIENT) {
            Status::Taken(_) => true,
            Status::Open if withdraw(&self.word, CLIENT) => {
                end(half_state::TCP);
                false
            }
            // Overwritten, or taken, at this very moment.
            Status::Open | Status::Lost => {
                begin_doubt(&self.state);
                let taken = self.flags.load(Ordering::Acquire) & half_flags::TAKEN != 0;
                end(if taken { half_state::ATTACHED } else { half_state::TCP });
                taken
            }
        }
    }
}

/// The word is overwritten at any moment: both ends still believe the same.
#[test]
fn an_offer_whose_word_is_overwritten_is_taken_or_not() {
    loom::model(|| {
        let board = Arc::new(Board::default());
        board.offer(1);
        let vandal = thread::spawn({
            let board = board.clone();
            move || board.word.store(u64::from(CLIENT + 77), Ordering::Relaxed)
        });
        let server = thread::spawn({
            let board = board.clone();
            move || board.attach_under_attack()
        });
        let attached = board.settles_under_attack();
        assert_eq!(server.join().unwrap(), attached);
        vandal.join().unwrap();
    });
}
