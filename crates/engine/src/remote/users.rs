//! Whose programs an engine serves, and how it finds their boards.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::str::FromStr;

use local::board;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, FileType, StatxFlags};
use sys::accounts::Account;
use sys::acting::{self, Credentials};
use sys::call;

/// Users beside our own.
pub const USERS_MAX: usize = 64;
/// Boards of one user, one after the other, in the life of an engine: what was mapped of one that was removed stays.
const BOARDS_EACH: u32 = 32;
/// Users whose boards are looked for at one time.
const CANDIDATES_MAX: usize = 1024;
/// What is heard of at one time.
const EVENTS_MAX: usize = 1024;
/// `AT_STATX_DONT_SYNC`, absent from rustix.
const AT_STATX_DONT_SYNC: u32 = 0x4000;
/// How often is looked for all of them, nanoseconds.
const ROUND_NS: u64 = 60_000_000_000;
/// A board that was removed is looked for again after a moment, nanoseconds.
const AGAIN_NS: u64 = 100_000_000;
/// Names that are looked at where boards are.
const NAMES_MAX: usize = 100_000;
/// How often is looked for boards that could not be had, or were removed, nanoseconds.
pub(super) const LOOK_NS: u64 = 2_000_000_000;

/// Whose programs are served, beside our own user's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Users {
    /// Nobody else's.
    #[default]
    Own,
    /// These users', by name or number: at most [`USERS_MAX`].
    Some(Vec<String>),
    /// Those of each user who has a board, the first [`USERS_MAX`].
    All,
}

impl FromStr for Users {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "own" => return Ok(Self::Own),
            "all" => return Ok(Self::All),
            _ => {}
        }
        let names: Vec<String> =
            text.split(',').map(|name| name.trim().to_owned()).filter(|n| !n.is_empty()).collect();
        let is_odd = |name: &&String| name.chars().any(|c| c.is_whitespace() || c == '/');
        match names.len() {
            0 => Err("names or numbers of users, all, or own".into()),
            n if n > USERS_MAX => Err(format!("at most {USERS_MAX} users, or all")),
            _ => match names.iter().find(is_odd) {
                Some(odd) => Err(format!("`{odd}` is no name of a user")),
                None => Ok(Self::Some(names)),
            },
        }
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("own"),
            Self::Some(names) => f.write_str(&names.join(",")),
            Self::All => f.write_str("all"),
        }
    }
}

/// Another user than our own, as whom this thread can be for files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    credentials: Credentials,
}

impl User {
    fn new(uid: u32, gid: u32) -> Self {
        // Without further groups: it is the user's own folder.
        Self { uid, credentials: Credentials::new(uid, gid, &[]) }
    }

    /// The user of that name or number; an error says what is wrong with it.
    fn named(name: &str) -> Result<Self, String> {
        let number = name.parse().ok().filter(|uid| *uid != u32::MAX);
        let known = match number {
            Some(uid) => Account::by_uid(uid),
            None => Account::by_name(name),
        };
        match (known, number) {
            (Ok(Some(account)), _) => Ok(Self::new(account.uid, account.gid)),
            // Nobody needs a name.
            (Ok(None), Some(uid)) => Ok(Self::new(uid, uid)),
            (Ok(None), None) => Err(format!("there is no user {name} here")),
            (Err(e), _) => Err(format!("whether there is a user {name} cannot be told: {e}")),
        }
    }

    /// Does something with this user's rights and nobody else's.
    pub(super) fn does<T>(&self, act: impl FnOnce() -> T) -> io::Result<T> {
        struct Resume<'a>(&'a Credentials);
        impl Drop for Resume<'_> {
            fn drop(&mut self) {
                acting::resume(self.0);
            }
        }
        let own = Credentials::of_thread()?;
        acting::assume(&own, &self.credentials)?;
        let _resume = Resume(&own);
        Ok(act())
    }
}

/// The users who have been asked for, all of them known here.
pub(super) fn named(users: &Users) -> Result<Vec<User>, String> {
    let Users::Some(names) = users else { return Ok(Vec::new()) };
    let mut all: Vec<User> = Vec::new();
    for name in names {
        let user = User::named(name)?;
        if user.uid != call::geteuid() && !all.contains(&user) {
            all.push(user);
        }
    }
    Ok(all)
}

/// Finds users whose boards are to be served: who were named, and who have one.
#[derive(Debug)]
pub(super) struct Finder {
    named: Vec<User>,
    /// Whoever has a board is served.
    all: bool,
    /// Where a folder for a board is made says so.
    news: Option<OwnedFd>,
    /// Who has such a folder, and an account.
    candidates: BTreeMap<u32, User>,
    /// How it has gone with each of them.
    tries: HashMap<u32, Tries>,
    next: u64,
    next_round: u64,
}

/// What was tried for a user.
#[derive(Clone, Copy, Debug, Default)]
struct Tries {
    is_at_it: bool,
    /// How many boards it has had.
    had: u32,
    /// How often in a row it had none.
    failed: u32,
    next: u64,
}

impl Finder {
    pub(super) fn new(users: &Users, named: Vec<User>) -> Self {
        let all = *users == Users::All;
        let news = all.then(|| watched().ok()).flatten();
        let (candidates, tries) = (BTreeMap::new(), HashMap::new());
        let mut finder = Self { named, all, news, candidates, tries, next: 0, next_round: 0 };
        if all {
            finder.look_around();
        }
        finder
    }

    /// Readable when [`Self::hear`] has something to hear.
    pub(super) fn news(&self) -> Option<&OwnedFd> {
        self.news.as_ref()
    }

    /// Whether there is anybody to be served, now or later.
    pub(super) fn looks(&self) -> bool {
        self.all || !self.named.is_empty()
    }

    /// When [`Self::due`] is to be asked.
    pub(super) fn next_look(&self) -> u64 {
        self.next
    }

    /// Somebody has made something where boards are.
    pub(super) fn hear(&mut self) {
        let Some(news) = &self.news else { return };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(news, &mut buffer);
        let (mut lost, mut came) = (false, BTreeSet::new());
        // So many of one look: others may make files there without end.
        for _ in 0..EVENTS_MAX {
            let Ok(event) = reader.next() else { break };
            lost |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            let name = event.file_name().and_then(|name| name.to_str().ok());
            came.extend(name.and_then(board::owner_of));
        }
        for uid in came {
            self.comes(uid);
        }
        if lost {
            self.look_around();
        }
    }

    fn look_around(&mut self) {
        let Ok(all) = fs::read_dir(board::HOME) else { return };
        let names = all.flatten().take(NAMES_MAX).map(|entry| entry.file_name());
        let owners = names.filter_map(|name| name.to_str().and_then(board::owner_of));
        owners.for_each(|uid| self.comes(uid));
    }

    /// A folder has the name of a user's. Anybody may make one of that name, and a user may have many numbers: what counts
    /// is whose it is, and an account.
    fn comes(&mut self, uid: u32) {
        if self.candidates.contains_key(&uid) || self.candidates.len() >= CANDIDATES_MAX {
            return;
        }
        let has_account = || Account::by_uid(uid).is_ok_and(|account| account.is_some());
        if let Some(user) = at_home(uid).filter(|_| has_account()) {
            self.candidates.insert(uid, user);
            self.next = 0;
        }
    }

    /// The users whose boards are to be opened now; [`Self::ended`] must follow for each. At most one look in a while.
    pub(super) fn due(&mut self, now: u64) -> Vec<User> {
        if now < self.next {
            return Vec::new();
        }
        self.next = now + LOOK_NS;
        if self.all && (self.news.is_none() || now >= self.next_round) {
            // Who had no account, or was not the owner, when the news came.
            self.next_round = now + ROUND_NS;
            self.look_around();
            self.next = now + LOOK_NS;
        }
        let tries = &self.tries;
        let is_at_it = |uid: &u32| tries.get(uid).is_some_and(|tries| tries.is_at_it);
        self.candidates.retain(|uid, _| is_at_it(uid) || at_home(*uid).is_some());
        let mut due: Vec<User> =
            self.named.iter().chain(self.candidates.values()).cloned().collect();
        due.retain(|user| {
            let tries = self.tries.entry(user.uid).or_default();
            let is_due = user.uid != call::geteuid()
                && !tries.is_at_it
                && tries.had < BOARDS_EACH
                && tries.next <= now;
            tries.is_at_it |= is_due;
            is_due
        });
        due
    }

    /// A user's board is none any more, or there was none (`!had`).
    pub(super) fn ended(&mut self, uid: u32, had: bool, now: u64) {
        let tries = self.tries.entry(uid).or_default();
        tries.is_at_it = false;
        tries.had += u32::from(had);
        tries.failed = if had { 0 } else { tries.failed + 1 };
        // From two seconds to some minutes.
        tries.next = now + (LOOK_NS << tries.failed.min(7));
        if had {
            // Its user may have made another one already.
            tries.next = now;
            self.next = self.next.min(now + AGAIN_NS);
        }
    }
}

/// The user who has a folder for a board. What is mounted there by its user is not asked.
fn at_home(uid: u32) -> Option<User> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::from_bits_retain(AT_STATX_DONT_SYNC);
    let wanted = StatxFlags::TYPE | StatxFlags::UID | StatxFlags::GID;
    let at = rustix::fs::statx(rustix::fs::CWD, board::home_of(uid), flags, wanted).ok()?;
    let is_folder = FileType::from_raw_mode(at.stx_mode.into()) == FileType::Directory;
    (is_folder && at.stx_uid == uid).then(|| User::new(uid, at.stx_gid))
}

fn watched() -> io::Result<OwnedFd> {
    let news = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let events = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
    inotify::add_watch(news.as_fd(), Path::new(board::HOME), events)?;
    Ok(news)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_written_as_they_are_read() {
        for text in ["own", "all", "redis", "redis,1001"] {
            assert_eq!(text.parse::<Users>().unwrap().to_string(), text);
        }
        assert_eq!(" redis , 7 ".parse::<Users>().unwrap().to_string(), "redis,7");
        let many = vec!["u"; USERS_MAX + 1].join(",");
        for bad in ["", ",", "a b", "../x", &many] {
            assert!(bad.parse::<Users>().is_err(), "{bad}");
        }
    }

    #[test]
    fn who_is_not_there_is_named() {
        let users = Users::Some(vec!["no-such-user-surely".into()]);
        assert_eq!(named(&users).unwrap_err(), "there is no user no-such-user-surely here");
        assert_eq!(named(&Users::All).unwrap(), []);
        let own = call::geteuid().to_string();
        assert_eq!(named(&Users::Some(vec![own])).unwrap(), [], "that is us");
        let twice = Users::Some(vec!["54321".into(), "54321".into()]);
        assert_eq!(named(&twice).unwrap(), [User::new(54_321, 54_321)]);
        assert!(named(&Users::Some(vec![u32::MAX.to_string()])).is_err(), "that is nobody at all");
    }

    #[test]
    fn boards_are_looked_for_in_turn_and_not_for_ever() {
        let user = User::new(54_321, 54_321);
        let only = std::slice::from_ref(&user);
        let mut finder = Finder::new(&Users::Some(vec!["x".into()]), vec![user.clone()]);
        assert_eq!(finder.due(5), only);
        assert_eq!(finder.due(5 + LOOK_NS), [], "somebody is at it");
        // Who cannot be served is tried less and less often.
        let mut now = 6 + 2 * LOOK_NS;
        for failed in 1..12 {
            finder.ended(user.uid, false, now);
            let wait = LOOK_NS << failed.min(7);
            assert_eq!(finder.due(now + wait - 1), [], "{failed}");
            now += wait + LOOK_NS;
            assert_eq!(finder.due(now), only, "{failed}");
        }
        for _ in 0..BOARDS_EACH {
            finder.ended(user.uid, true, now);
            now += LOOK_NS;
            let _ = finder.due(now);
        }
        finder.ended(user.uid, true, now);
        assert_eq!(finder.due(now + (LOOK_NS << 10)), [], "that was the last");
    }

    #[test]
    fn a_folder_is_whose_it_is() {
        let uid = call::geteuid();
        let _ = fs::create_dir(board::home_of(uid));
        assert_eq!(at_home(uid).map(|user| user.uid), Some(uid));
        assert_eq!(at_home(3_999_999_998), None);
    }
}
