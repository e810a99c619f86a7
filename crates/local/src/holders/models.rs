//! Every interleaving of a thread that attaches with a fork, and of those who leave and attach.

use loom::sync::{Arc, Mutex};
use loom::thread;

use super::*;

const SERVER: u32 = 0;
const BUSY: u32 = 1;
const ATTACHED: u32 = 2;

/// One process's record of the connection, and the word that all have in common.
struct Held {
    phase: AtomicU32,
    word: Arc<AtomicU32>,
}

impl Held {
    /// `Conn::settle_server`.
    fn settle(&self) -> bool {
        let (from, to) = (Ordering::AcqRel, Ordering::Relaxed);
        if self.phase.compare_exchange(SERVER, BUSY, from, to).is_err() {
            return false;
        }
        let alone = is_alone(&self.word);
        self.phase.store(if alone { ATTACHED } else { SERVER }, Ordering::Release);
        alone
    }

    /// `life::fork_prepare` and the fork.
    fn fork(&self) -> Self {
        joins(&self.word);
        while self.phase.load(Ordering::Acquire) == BUSY {
            thread::yield_now();
        }
        // `Conn::forked`: who attaches now does so in the parent, in vain.
        let now = self.phase.load(Ordering::Acquire);
        let phase = AtomicU32::new(if now == BUSY { SERVER } else { now });
        Self { phase, word: Arc::clone(&self.word) }
    }
}

/// A child that does not know that the connection is attached holds one that is not.
#[test]
fn a_fork_beside_an_attachment() {
    loom::model(|| {
        let word = AtomicU32::new(0);
        let words = [word];
        assert_eq!(found(&words, &AtomicU32::new(0)), Some(0));
        let [word] = words;
        let parent = Arc::new(Held { phase: AtomicU32::new(SERVER), word: Arc::new(word) });
        let other = {
            let parent = Arc::clone(&parent);
            thread::spawn(move || parent.settle())
        };
        let child = parent.fork();
        let attached = other.join().unwrap();
        assert!(!attached || child.phase.load(Ordering::Relaxed) == ATTACHED);
        // While both hold it neither attaches it.
        let had = attached || parent.settle() || child.settle();
        assert_eq!(had, attached);
    });
}

/// Who attaches has seen all that others have sent before they left, and of two that are left one attaches.
#[test]
fn the_last_one_attaches() {
    loom::model(|| {
        let word = Arc::new(AtomicU32::new(2));
        let sent = Arc::new(Mutex::new(0));
        let child = Held { phase: AtomicU32::new(SERVER), word: Arc::clone(&word) };
        let parent = {
            let (word, sent) = (Arc::clone(&word), Arc::clone(&sent));
            thread::spawn(move || {
                *sent.lock().unwrap() += 1;
                leaves(&word);
            })
        };
        if child.settle() {
            assert_eq!(*sent.lock().unwrap(), 1);
        }
        parent.join().unwrap();
        assert!(child.phase.load(Ordering::Relaxed) == ATTACHED || child.settle());
    });
}

/// Both processes are counted in a half that comes during the fork, and each of them once.
#[test]
fn a_half_that_comes_during_a_fork_counts_it_once() {
    loom::model(|| {
        let [half, users, phase] = [0, 0, BUSY].map(|n| Arc::new(AtomicU32::new(n)));
        let other = {
            let [half, users, phase] = [&half, &users, &phase].map(Arc::clone);
            // `Conn::try_attach`, which had found the connection its own before the fork began.
            thread::spawn(move || {
                users.store(1, Ordering::Relaxed);
                half.store(1, Ordering::Release);
                phase.store(ATTACHED, Ordering::Release);
            })
        };
        let more = |_| {
            users.fetch_add(1, Ordering::AcqRel);
        };
        let begun = count_half(&half, 0, more);
        while phase.load(Ordering::Acquire) == BUSY {
            thread::yield_now();
        }
        let _ = count_half(&half, begun, more);
        other.join().unwrap();
        assert_eq!(users.load(Ordering::Relaxed), 2);
    });
}
