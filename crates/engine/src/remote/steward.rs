//! The thread that has boards of other users served: each by a thread of its own, which is the only one that touches what
//! that user may make wait.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use local::relay::Door;
use local::world::World;
use local::{Limits, board};
use sys::call::{self, Failure};
use sys::event::{Events, Interest, Poller};

use super::Engine;
use super::boards::{Boards, Guests, Turn};
use super::host::FIRST_FD;
use super::inbox::Inbox;
use super::reception::{REMOVED, Reception, Word};
use super::users::{Finder, USERS_MAX, User};

const STOP: u64 = 0;
const NEWS: u64 = 1;
const EADDRINUSE: i32 = 98;
/// As people see us in lists of processes.
const NAME: &[u8; 16] = b"shunt\0\0\0\0\0\0\0\0\0\0\0";
const MOMENT: Duration = Duration::from_millis(10);
/// How long the end waits for threads that their users hold up.
const PARTING: Duration = Duration::from_secs(1);

/// What to serve boards with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    /// Name of the option by which sockets ask for the TCP option.
    pub(super) option: Option<i32>,
    /// See [`board::Board::engine_meets`].
    pub(super) meets: bool,
}

/// What others ask of the steward.
#[derive(Debug)]
pub(super) enum Wish {
    Stop,
    /// All are to take no connections in any more, those that come later as well; or to do so again.
    Drain(Option<Turn>),
    /// A user's thread has ended; it has served a board, or it has not.
    Ended(u32, bool),
}

/// What threads for users share.
#[derive(Debug)]
struct Shared {
    boards: Arc<Boards>,
    engine: Arc<Engine>,
    promise: Promise,
    wishes: Arc<Inbox<Wish>>,
    doors: Mutex<Doors>,
}

#[derive(Debug, Default)]
struct Doors {
    /// How each of them is told to end.
    all: HashMap<u32, Arc<Inbox<Word>>>,
    /// What they have been told, for those that come.
    drains: Option<Turn>,
}

impl Shared {
    fn doors(&self) -> MutexGuard<'_, Doors> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a user until its board is none any more, or we end. `false`: it was not served at all.
    fn serve(&self, user: &User) -> bool {
        let uid = user.uid;
        let opened = self.open(user);
        let why = match opened {
            Ok(reception) => {
                self.boards.has_no_problem(uid);
                let Some(why) = reception.work() else { return true };
                // Who logs out takes it along, and has no problem by that.
                if why != REMOVED {
                    self.boards.note_problem(uid, why);
                }
                say(format_args!("user {uid} is not served any more: {why}"));
                return true;
            }
            Err(why) => why,
        };
        if self.boards.note_problem(uid, &why) {
            say(format_args!("user {uid} is not served: {why}"));
        }
        false
    }

    /// Opens the board of another user, as that user.
    fn open(&self, user: &User) -> Result<Reception, String> {
        if self.boards.open().count() > USERS_MAX || self.boards.is_full() {
            return Err(format!("{USERS_MAX} others are, which is as many as can be"));
        }
        let limits = Limits { memory_max: self.engine.config().memory_max, ..Limits::default() };
        let opened = user.does(|| -> Result<(World, Door), String> {
            board::prepare(None).map_err(|e| e.to_string())?;
            let door = Door::open(None).map_err(|errno| match errno {
                EADDRINUSE => "an engine of its own serves it".to_owned(),
                errno => format!("no door: {}", io::Error::from_raw_os_error(errno)),
            })?;
            let world = World::join_foreign(limits, "shunt".into(), FIRST_FD);
            let world = world.map_err(|e| e.to_string())?;
            if let Err(reason) = world.board.ensure_slot() {
                world.leave();
                return Err(reason.words().to_owned());
            }
            world.board.says_who(0, *NAME);
            Ok((world, door))
        });
        let (world, door) = opened.map_err(|e| format!("cannot act as it: {e}"))??;
        let inbox = match Inbox::new() {
            Ok(inbox) => Arc::new(inbox),
            Err(e) => {
                world.leave();
                return Err(e.to_string());
            }
        };
        // For the life of the process: vectors and guests know it.
        let world: &'static World = Box::leak(Box::new(world));
        let guests = self.boards.add(Guests::new(world, Some(user.clone())));
        let guests = guests.ok_or("there were too many boards")?;
        let (boards, engine) = (Arc::clone(&self.boards), Arc::clone(&self.engine));
        let side = door.side();
        let reception =
            Reception::new(boards, Arc::clone(&guests), door, engine, Arc::clone(&inbox));
        let Promise { option, meets } = self.promise;
        let served = reception.map_err(|e| e.to_string()).and_then(|reception| {
            world.board.serve(option, meets, side).map_err(|reason| reason.words().to_owned())?;
            Ok(reception)
        });
        match served {
            Ok(reception) => {
                if let Some(own) = self.boards.all().next() {
                    world.board.learn_destinations(&own.world.board);
                }
                let mut doors = self.doors();
                if doors.drains.is_some() {
                    inbox.put(Word::Drain(doors.drains));
                }
                doors.all.insert(user.uid, inbox);
                Ok(reception)
            }
            Err(why) => {
                guests.shut();
                Err(why)
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Steward {
    finder: Finder,
    shared: Arc<Shared>,
    poller: Poller,
}

impl Steward {
    pub(super) fn new(
        finder: Finder,
        boards: Arc<Boards>,
        engine: Arc<Engine>,
        promise: Promise,
        wishes: Arc<Inbox<Wish>>,
    ) -> Result<Self, Failure> {
        let poller = Poller::new()?;
        poller.add(&*wishes, Interest::READ, STOP)?;
        if let Some(news) = finder.news() {
            poller.add(news, Interest::READ, NEWS)?;
        }
        let doors = Mutex::default();
        let shared = Arc::new(Shared { boards, engine, promise, wishes, doors });
        Ok(Self { finder, shared, poller })
    }

    /// Until it is told to end.
    pub(super) fn work(mut self) {
        let mut events = Events::new(8);
        loop {
            for user in self.finder.due(call::now_ns()) {
                self.begin(user);
            }
            let most = self.finder.next_look().saturating_sub(call::now_ns()).max(1);
            self.poller.wait(&mut events, Some(most));
            if events.iter().any(|event| event.token == NEWS) {
                // Others may make and remove folders without end: what comes within a moment is heard at once.
                thread::sleep(MOMENT);
                self.finder.hear();
            }
            for wish in self.shared.wishes.take() {
                match wish {
                    Wish::Stop => return self.end(),
                    Wish::Drain(turn) => {
                        let mut doors = self.shared.doors();
                        doors.drains = turn;
                        doors.all.values().for_each(|door| door.put(Word::Drain(turn)));
                    }
                    Wish::Ended(uid, had) => self.finder.ended(uid, had, call::now_ns()),
                }
            }
        }
    }

    fn begin(&mut self, user: User) {
        let (uid, shared) = (user.uid, Arc::clone(&self.shared));
        let work = move || {
            let had = shared.serve(&user);
            let wishes = Arc::clone(&shared.wishes);
            shared.doors().all.remove(&uid);
            // And with it what it holds of the engine.
            drop(shared);
            wishes.put(Wish::Ended(uid, had));
        };
        let thread = thread::Builder::new().name(format!("shunt-{uid}"));
        if let Err(e) = thread.spawn(work) {
            say(format_args!("user {uid} is not served: no thread: {e}"));
            self.finder.ended(uid, false, call::now_ns());
        }
    }

    /// Has all of them end. Who is held up by its user is not waited for long.
    fn end(self) {
        self.shared.doors().all.values().for_each(|door| door.put(Word::Stop));
        let until = Instant::now() + PARTING;
        while !self.shared.doors().all.is_empty() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn say(what: fmt::Arguments<'_>) {
    local::log::error(what);
}
