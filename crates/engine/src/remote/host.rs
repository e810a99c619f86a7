//! The engine of a host: the doors that guests come through, the engine behind them, and the TCP option that makes peers
//! notice.

use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use local::relay::{self, Door};
use local::world::World;
use local::{Limits, Reason, board};
use sys::call::Failure;
use sys::cgroup::{Group, Hierarchy};

use super::boards::{Asleep, Boards, Counted, Guests};
use super::config::Config;
use super::drain::Drain;
use super::guest::{Broken, Program, Relay, Sleeper, Stamp};
use super::inbox::Inbox;
use super::option::{self, TcpOption};
use super::reception::{Reception, Word};
use super::stat::Stat;
use super::steward::{Promise, Steward, Wish};
use super::users::{self, Finder, User, Users};
use super::{Change, Engine, port};

/// What vectors get for parting from peers where they cannot be waited for.
const PARTING: Duration = Duration::from_millis(300);
/// Descriptors of the board get at least this number.
pub(super) const FIRST_FD: i32 = 3;

/// Why there is no engine for this host.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The board, its directory, or its file.
    #[error("{0}")]
    Board(#[from] sys::map::MapError),
    /// Another engine has the board.
    #[error("another engine serves this user here (see `shunt engine status`)")]
    Serves,
    /// Its programs trust each other, and not more than that: an engine that they could end is none for others.
    #[error(
        "the directory `dir` is one that users or network namespaces share, whose programs no engine serves: their \
         connections to other hosts are TCP"
    )]
    Shared,
    /// Only root can be others.
    #[error("serving other users (`users`) wants root")]
    NotRoot,
    /// One of the users to be served.
    #[error("users: {0}")]
    User(String),
    /// There is no place on the board.
    #[error("no place on the board: {}", .0.words())]
    Full(Reason),
    /// The TCP option cannot be put to work.
    #[error("peers cannot be told in the TCP handshake: {0} (`--cgroup none` does without)")]
    Option(#[from] option::Error),
    /// The group of processes that the option is for cannot be opened.
    #[error("the cgroup {0}: {1}")]
    Group(PathBuf, Failure),
    /// What is behind the door.
    #[error(transparent)]
    Engine(#[from] super::Error),
    /// The system refuses something.
    #[error("{0}")]
    System(#[from] Failure),
    /// A file or a thread.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Error {
    /// Whether another user may have it otherwise: the settings may be right.
    #[must_use]
    pub fn is_of_rights(&self) -> bool {
        match self {
            Self::NotRoot => true,
            Self::Group(_, failure) => [EPERM, EACCES].contains(&failure.errno),
            _ => false,
        }
    }
}

/// What [`Host::start`] would end with because of what settings name on this host, users, addresses, a control group, by
/// what it finds that out itself. Nobody hears of it. Each with the setting that it is about.
#[must_use]
pub fn try_out(config: &Config) -> Vec<(&'static str, Error)> {
    let mut bad = Vec::new();
    bad.extend(others(&config.users).err().map(|e| ("users", e)));
    bad.extend(config.cgroup.as_ref().and_then(|path| Some(("cgroup", group(path).err()?))));
    // An RDMA card has addresses of its own.
    let own = config.addresses.iter().filter(|_| config.device.is_none());
    let absent = own.filter_map(|address| {
        let failure = port::try_out(*address).err()?;
        Some(("address", super::Error::Port(*address, failure).into()))
    });
    bad.extend(absent);
    bad
}

/// The users who have been asked for.
fn others(users: &Users) -> Result<Vec<User>, Error> {
    if *users != Users::Own && sys::call::geteuid() != 0 {
        return Err(Error::NotRoot);
    }
    users::named(users).map_err(Error::User)
}

/// A group of processes, by its path from the top.
fn group(path: &Path) -> Result<Group, Error> {
    let group = Hierarchy::open().and_then(|tree| tree.group(path));
    group.map_err(|e| Error::Group(path.to_owned(), e))
}

/// See the module.
#[derive(Debug)]
pub struct Host {
    boards: Arc<Boards>,
    engine: Arc<Engine>,
    /// The threads at our own door, and for other users, and how they are told to end.
    door: (Arc<Inbox<Word>>, Option<JoinHandle<()>>),
    steward: (Arc<Inbox<Wish>>, Option<JoinHandle<()>>),
    option: Arc<Mutex<Option<TcpOption>>>,
    drain: Arc<Drain>,
}

/// Where people talk to the engine of a board.
///
/// # Errors
///
/// As [`board::locate`].
pub fn control_path(dir: Option<&str>) -> Result<PathBuf, sys::map::MapError> {
    let door = board::door(dir)?;
    let mut path = door.into_string().map_err(|_| sys::map::MapError::NotOurs)?;
    path.push_str("-control");
    Ok(PathBuf::from(path))
}

impl Host {
    /// Opens the door, and starts what is behind it. Has `end` called once there is nothing left to do, after somebody has
    /// asked for no new connections to be taken ([`Request::Drain`](super::control::Request::Drain)), which may be before
    /// this returns.
    ///
    /// # Errors
    ///
    /// See [`Error`]. Nothing is left running.
    pub fn start(config: Config, end: impl Fn() + Send + Sync + 'static) -> Result<Self, Error> {
        let dir = config.dir.clone();
        let named = others(&config.users)?;
        if board::prepare(dir.as_deref())?.is_some() || board::is_across(dir.as_deref()) {
            return Err(Error::Shared);
        }
        let finder = Finder::new(&config.users, named);
        let limits =
            Limits { memory_max: config.memory_max, dir: dir.clone(), ..Limits::default() };
        // For the life of the process: guests are reached through it from any thread.
        let world: &'static World =
            Box::leak(Box::new(World::join(limits, "shunt".into(), FIRST_FD)?));
        let door = Door::open(dir.as_deref()).map_err(|errno| match errno {
            EADDRINUSE => Error::Serves,
            errno => Error::System(Failure { step: "open the door for guests", errno }),
        })?;
        // Other engines may serve other users here, or in other network namespaces.
        let [a, b, c, d, ..] = super::random_bytes();
        let name = option::Name::new(u32::from_ne_bytes([a, b, c, d]));
        let group = config.cgroup.clone();
        let boards = Arc::new(Boards::new());
        let own = boards.add(Guests::new(world, None)).ok_or(Error::Full(Reason::NoSlot))?;
        let sleeper = |vector| -> Box<dyn Sleeper> {
            Box::new(Asleep { boards: Arc::clone(&boards), vector })
        };
        let told = Arc::clone(&boards);
        let notice = move |Change { line, way, word }| {
            told.open().for_each(|guests| guests.world.board.note_destination(line, way, word));
        };
        let meets = !config.peers.is_empty();
        let asked = Arc::clone(&boards);
        let listens = move |port| {
            let of = |board: &board::Board| !board.is_off() && board.listening(port);
            asked.open().any(|guests| !guests.drains() && of(&guests.world.board))
        };
        let mut engine = Engine::start(config, sleeper, notice, listens)?;
        let listed = Arc::clone(&boards);
        engine.list_users(move || listed.stat());
        let (inbox, wishes) = (Arc::new(Inbox::new()?), Arc::new(Inbox::new()?));
        let doors = (Arc::clone(&inbox), Arc::clone(&wishes));
        let tell = move |turn| {
            doors.0.put(Word::Drain(turn));
            doors.1.put(Wish::Drain(turn));
        };
        let option = Arc::new(Mutex::<Option<TcpOption>>::default());
        let hushed = Arc::clone(&option);
        let hush = move || held(&hushed).as_mut().map(TcpOption::promise_no_more).is_some();
        let drain = Arc::new(Drain::new(Arc::clone(&boards), tell, hush, end));
        // Who asks is answered from the moment that there is a socket to ask at: what is heard before the doors open is the
        // first that those at them hear.
        let told = Arc::clone(&drain);
        engine.tell_drained(move |on| told.turn(on));
        engine.answer_at(&control_path(dir.as_deref())?)?;
        let engine = Arc::new(engine);
        let (side, door_netns) = (door.side(), board::netns_of(door.fd()));
        let reception = Reception::new(
            Arc::clone(&boards),
            own,
            door,
            Arc::clone(&engine),
            Arc::clone(&inbox),
        )?;
        // From now on listeners of guests that were here before promise SMC, and guests knock: the one right behind the
        // other, because who is promised something by a listener that does not know whom to ask is reset.
        *held(&option) = announce(group, name, door_netns)?;
        let promise = Promise { option: held(&option).as_ref().map(|_| name.number()), meets };
        world.board.serve(promise.option, meets, side).map_err(Error::Full)?;
        let (door, steward) = ((inbox, None), (wishes, None));
        // What goes wrong from here on takes all of it back.
        let mut host = Self { boards, engine, door, steward, option, drain };
        let thread = std::thread::Builder::new().name("shunt-door".into());
        // Our own user's board is one until we end.
        let work = move || {
            let _ = reception.work();
        };
        host.door.1 = Some(thread.spawn(work)?);
        if finder.looks() {
            let (boards, engine) = (Arc::clone(&host.boards), Arc::clone(&host.engine));
            let steward =
                Steward::new(finder, boards, engine, promise, Arc::clone(&host.steward.0))?;
            let thread = std::thread::Builder::new().name("shunt-users".into());
            host.steward.1 = Some(thread.spawn(move || steward.work())?);
        }
        Ok(host)
    }

    /// The engine behind the door.
    #[must_use]
    pub fn stat(&self) -> Stat {
        self.engine.stat()
    }

    /// Answers us as it does people who [ask](super::control::ask).
    ///
    /// # Errors
    ///
    /// Why it does not do that, in words.
    pub fn answer(&self, request: super::control::Request) -> Result<serde_json::Value, String> {
        self.engine.answer(request)
    }

    /// Lets nobody in any more, parts from all peers and ends.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Nobody waits for the last connection any more.
        self.drain.forget();
        // Nothing is promised any more, and then nobody is there to keep it. Guests see what was promised until all is over:
        // then they know better than to take what the peer says for what it says to their program.
        if let Some(option) = held(&self.option).as_mut() {
            option.promise_no_more();
        }
        self.boards.open().for_each(|guests| guests.shut());
        self.door.0.put(Word::Stop);
        self.steward.0.put(Wish::Stop);
        for thread in [self.door.1.take(), self.steward.1.take()].into_iter().flatten() {
            let _ = thread.join();
        }
        // The threads have gone, so this is the engine's last holder: it ends here. Unless a user holds one of them up.
        if Arc::strong_count(&self.engine) > 1 {
            self.engine.ends();
            std::thread::sleep(PARTING);
        }
    }
}

const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EADDRINUSE: i32 = 98;

fn held(option: &Mutex<Option<TcpOption>>) -> MutexGuard<'_, Option<TcpOption>> {
    option.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the TCP option written for sockets of guests that ask.
fn announce(
    path: Option<PathBuf>,
    name: option::Name,
    netns: Option<u64>,
) -> Result<Option<TcpOption>, Error> {
    let Some(path) = path else { return Ok(None) };
    Ok(Some(TcpOption::attach(&group(&path)?, name, netns)?))
}

/// A guest's rings on the board.
#[derive(Debug)]
pub(super) struct Ours(relay::Relay, #[expect(dead_code, reason = "it counts")] Counted);

impl Ours {
    pub(super) fn new(relay: relay::Relay, counted: Counted) -> Self {
        Self(relay, counted)
    }
}

impl Relay for Ours {
    fn fd(&self) -> RawFd {
        self.0.fd()
    }
    fn heard(&mut self, gone: bool, ended: bool) {
        self.0.heard(gone, ended);
    }
    fn explain(&mut self, why: u32) {
        self.0.explain(why);
    }
    fn stamp(&self) -> Option<Stamp> {
        self.0.stamp()
    }
    fn written(&mut self) -> Result<u64, Broken> {
        self.0.written().map_err(|_| Broken)
    }
    fn copy_out(&self, at: u64, to: &mut [u8]) -> Result<(), Broken> {
        self.0.copy_out(at, to).map_err(|_| Broken)
    }
    fn copy_out_summed(
        &self,
        at: u64,
        to: &mut [u8],
        register: u32,
    ) -> Result<Option<u32>, Broken> {
        self.0.copy_out_summed(at, to, register).map_err(|_| Broken)
    }
    fn urgent(&self) -> Option<u64> {
        self.0.urgent()
    }
    fn release(&mut self, upto: u64) {
        self.0.release(upto);
    }
    fn program(&self) -> Program {
        match self.0.program() {
            relay::Program::Open => Program::Open,
            relay::Program::Shut => Program::Shut,
            relay::Program::Closed => Program::Closed,
            relay::Program::Reset => Program::Reset,
        }
    }
    fn rmb_bytes(&self) -> usize {
        self.0.rmb_bytes()
    }
    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> bool {
        self.0.write_at(offset, bytes)
    }
    fn write_at_summed(&mut self, offset: usize, bytes: &[u8], register: u32) -> Option<u32> {
        self.0.write_at_summed(offset, bytes, register)
    }
    fn publish(&mut self, upto: u64) {
        self.0.publish(upto);
    }
    fn publish_urgent(&mut self, upto: u64) {
        self.0.publish_urgent(upto);
    }
    fn pour(&mut self) -> bool {
        self.0.pour()
    }
    fn consumed(&self) -> Result<u64, Broken> {
        self.0.consumed().map_err(|_| Broken)
    }
    fn want_consumed(&mut self, want: bool) {
        self.0.want_consumed(want);
    }
    fn shut(&mut self) {
        self.0.shut();
    }
    fn close(self: Box<Self>, reset: bool) {
        self.0.close(reset);
    }
}

/// Where a user's engine is asked, for [`super::control::ask`].
///
/// # Errors
///
/// As [`super::control::ask`]; `NotFound` if the board cannot be named.
pub fn ask(dir: Option<&str>, request: &super::control::Request) -> io::Result<serde_json::Value> {
    super::control::ask(&asked_at(dir)?, request)
}

/// What a user's engine has done and has, for [`super::control::look`].
///
/// # Errors
///
/// As [`super::control::look`]; `NotFound` if the board cannot be named.
pub fn look(dir: Option<&str>) -> io::Result<serde_json::Value> {
    super::control::look(&asked_at(dir)?)
}

/// The same, to work with. What an engine of another version does not say is 0.
///
/// # Errors
///
/// As [`look`]; `InvalidData` if it is no such answer.
pub fn look_closely(dir: Option<&str>) -> io::Result<Stat> {
    serde_json::from_value(look(dir)?).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

fn asked_at(dir: Option<&str>) -> io::Result<PathBuf> {
    control_path(dir).map_err(|e| io::Error::new(io::ErrorKind::NotFound, e.to_string()))
}
