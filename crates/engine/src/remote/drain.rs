//! The end of an engine that is to end when its last connection is gone.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::boards::{Boards, Turn};

/// How often it is looked whether connections are left.
const LOOK: Duration = Duration::from_millis(50);
/// When nothing is promised to peers any more, those who have come before, and wait for their program to accept them, have
/// so long at least, and until nobody was heard of for a while, which is more than a client is waited for
/// (`declining::PATIENCE_NS`).
const LINGER: Duration = Duration::from_secs(1);
const QUIET: Duration = Duration::from_millis(600);
/// Guests that go on to knock keep nobody from his end.
const LINGER_MAX: Duration = Duration::from_secs(30);

/// Whether an engine is to end when the last connection is gone, and what is done then.
pub(super) struct Drain {
    state: Mutex<State>,
    boards: Arc<Boards>,
    /// Tells those at the doors.
    tell: Box<dyn Fn(Option<Turn>) + Send + Sync>,
    /// Has peers promised nothing more. Whether they were promised anything before.
    hush: Box<dyn Fn() -> bool + Send + Sync>,
    end: Box<dyn Fn() + Send + Sync>,
}

#[derive(Debug)]
struct State {
    /// Counts how often that has changed: who waits for the end does so for one of these alone, and the doors say for which
    /// one they are shut.
    turn: Turn,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    Draining,
    /// Nobody is left: who takes it back is too late.
    Ending,
}

impl fmt::Debug for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Drain {
    pub(super) fn new(
        boards: Arc<Boards>,
        tell: impl Fn(Option<Turn>) + Send + Sync + 'static,
        hush: impl Fn() -> bool + Send + Sync + 'static,
        end: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let state = Mutex::new(State { turn: Turn::MIN, stage: Stage::Open });
        let (tell, hush, end) = (Box::new(tell), Box::new(hush), Box::new(end));
        Self { state, boards, tell, hush, end }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the engine end when the last connection is gone, or not any more.
    ///
    /// # Errors
    ///
    /// It is too late for that, or there is nobody who could wait, in words.
    pub(super) fn turn(self: &Arc<Self>, on: bool) -> Result<(), String> {
        // Held until all are told: what they hear comes in the order of the turns, and nobody takes the end meanwhile.
        let mut state = self.state();
        match (on, state.stage) {
            (false, Stage::Open) | (true, Stage::Draining | Stage::Ending) => return Ok(()),
            (false, Stage::Ending) => {
                return Err("too late: no connection was left, and it is ending".into());
            }
            (false, Stage::Draining) | (true, Stage::Open) => {}
        }
        let turn = state.turn.saturating_add(1);
        if on {
            let drain = Arc::clone(self);
            let thread = std::thread::Builder::new().name("shunt-drain".into());
            let wait = move || drain.wait(turn);
            thread.spawn(wait).map_err(|e| format!("no thread: {e}"))?;
        }
        state.turn = turn;
        state.stage = if on { Stage::Draining } else { Stage::Open };
        (self.tell)(on.then_some(turn));
        Ok(())
    }

    /// Nobody waits for the last connection any more.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        state.turn = state.turn.saturating_add(1);
    }

    fn wait(&self, turn: Turn) {
        loop {
            let mut state = self.state();
            if state.turn != turn {
                return;
            }
            if self.boards.are_drained(turn) {
                state.stage = Stage::Ending;
                break;
            }
            drop(state);
            std::thread::sleep(LOOK);
        }
        // Listeners have promised SMC until now, and whose program accepts one of those connections comes to us.
        if !(self.hush)() || self.lingers(turn) {
            (self.end)();
        }
    }

    /// Until those have come that were promised something. `false`: it is ending already.
    fn lingers(&self, turn: Turn) -> bool {
        let begun = Instant::now();
        let mut last = (begun, self.boards.bustle());
        loop {
            std::thread::sleep(LOOK);
            if self.state().turn != turn {
                return false;
            }
            let (now, bustle) = (Instant::now(), self.boards.bustle());
            let (_, is_declining) = bustle;
            if is_declining || bustle != last.1 {
                last = (now, bustle);
            }
            let is_quiet = now - last.0 >= QUIET;
            if now - begun >= if is_quiet { LINGER } else { LINGER_MAX } {
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, RecvTimeoutError};

    use local::Limits;
    use local::world::World;

    use super::super::boards::{Counted, Guests};
    use super::*;

    #[test]
    fn what_drains_ends_when_nobody_is_left_unless_it_is_taken_back() {
        let place = tempfile::tempdir().unwrap();
        // Made for its user alone.
        let dir = place.path().join("board").to_str().unwrap().to_owned();
        let limits = Limits { dir: Some(dir), ..Limits::default() };
        let world: &'static World =
            Box::leak(Box::new(World::join(limits, "test".into(), 600).unwrap()));
        let boards = Arc::new(Boards::new());
        let guests = boards.add(Guests::new(world, None)).unwrap();
        let connection = Counted::new(&guests);
        let (say, said) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let tell = move |turn| tell.send(turn).unwrap();
        let (hushes, hushed) = mpsc::channel();
        let of_hush = Arc::clone(&guests);
        let hush = move || {
            of_hush.note_declining(1);
            hushes.send(()).unwrap();
            true
        };
        let drain = Drain::new(Arc::clone(&boards), tell, hush, move || say.send(()).unwrap());
        let drain = Arc::new(drain);
        let has_not_ended = |why: &str| {
            let ended = said.recv_timeout(4 * LOOK);
            assert_eq!(ended, Err(RecvTimeoutError::Timeout), "{why}");
        };
        assert!(!world.board.engine_drains());
        drain.turn(true).unwrap();
        drop(connection);
        has_not_ended("the door is open");
        let connection = Counted::new(&guests);
        guests.note_drains(told.recv().unwrap());
        assert!(world.board.engine_drains());
        has_not_ended("a connection is left");
        drain.turn(false).unwrap();
        drain.turn(true).unwrap();
        drop(connection);
        has_not_ended("the door is shut for an earlier turn, and is to be opened first");
        guests.note_drains(told.recv().unwrap());
        assert!(!world.board.engine_drains());
        guests.note_declining(1);
        guests.note_drains(told.recv().unwrap());
        has_not_ended("a peer is to be told");
        assert!(hushed.try_recv().is_err());
        guests.note_declining(0);
        hushed.recv().unwrap();
        let ended = said.recv_timeout(LINGER + QUIET + 4 * LOOK);
        assert_eq!(ended, Err(RecvTimeoutError::Timeout), "one who was promised SMC is told no");
        guests.note_declining(0);
        said.recv().unwrap();
        let late = drain.turn(false).unwrap_err();
        assert!(late.contains("too late"), "{late}");
        drain.turn(true).unwrap();
        has_not_ended("twice");
        assert!(told.try_recv().is_err(), "the doors stay shut");
    }
}
