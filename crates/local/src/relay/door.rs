//! The engine's door, and who comes through it.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use sys::{call, passing};

use super::{
    BYTES, EAGAIN, EINTR, EPROTO, Hello, KEY, MSG_DONTWAIT, REFUSED, StandIn, WELCOME, Welcome,
    parse, words,
};
use crate::Reason;
use crate::board::{self, Side, SideKey};

const EADDRINUSE: i32 = 98;
const ECONNREFUSED: i32 = 111;

/// Where guests knock.
///
/// There are two ways to it. The one is a path in the closed directory of the board, which only its user reaches. A guest
/// that has given up its rights, or has another root directory, does not: a server's worker, as a rule. It comes by an
/// abstract address, which anybody may do, and says first what only who has the board can know ([`SideKey`]).
#[derive(Debug)]
pub struct Door {
    /// Whose board it is.
    owner: u32,
    fd: i32,
    path: CString,
    side: Option<SideDoor>,
    way: Side,
}

/// The way that is open to anybody.
#[derive(Debug)]
pub struct SideDoor {
    fd: i32,
    key: SideKey,
}

impl SideDoor {
    /// Readable when somebody knocks.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// The next who knocks, and [may](Visitor::is_known) turn out to be a guest.
    #[must_use]
    pub fn accept(&self) -> Option<Visitor> {
        let fd = passing::accept(self.fd).ok()?;
        Some(Visitor { fd, asked: Some(self.key) })
    }
}

impl Drop for SideDoor {
    fn drop(&mut self) {
        let _ = call::close(self.fd);
    }
}

/// Connections that wait at either way for the engine to take them.
const BACKLOG: i32 = 1024;

impl Door {
    /// Opens the door of this thread's user's board. What a dead engine has left there is taken away. Who opens it as
    /// somebody else ([`sys::acting`]) opens that one's, and closes it as that one too.
    ///
    /// # Errors
    ///
    /// The errno: `EADDRINUSE` if another engine serves this board.
    pub fn open(dir: Option<&str>) -> Result<Self, i32> {
        let path = board::door(dir).map_err(|_| EPROTO)?;
        // Who listens there may let nobody in.
        match passing::connect_now(&path) {
            Ok(fd) => {
                let _ = call::close(fd);
                return Err(EADDRINUSE);
            }
            Err(EAGAIN) => return Err(EADDRINUSE),
            Err(ECONNREFUSED) => {
                let _ = call::unlink(&path);
            }
            Err(_) => {}
        }
        let key = random_key()?;
        let (side, number) = passing::listen_anywhere(BACKLOG)?;
        let side = Some(SideDoor { fd: side, key });
        let fd = passing::listen(&path, BACKLOG)?;
        Ok(Self { owner: call::geteuid(), fd, path, side, way: Side { number, key } })
    }

    /// The other way alone, for a thread that has nothing else to do: whoever comes by it can keep it busy.
    pub fn take_side(&mut self) -> Option<SideDoor> {
        self.side.take()
    }

    /// Readable when a guest knocks.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// What the board is to say of it ([`crate::board::Board::serve`]).
    #[must_use]
    pub fn side(&self) -> Side {
        self.way
    }

    /// The next guest that knocks; of other users, only one that [may](Visitor::is_known) turn out to be one.
    #[must_use]
    pub fn accept(&self) -> Option<Visitor> {
        while let Ok(fd) = passing::accept(self.fd) {
            match passing::credentials(fd) {
                Ok(who) if who.uid == self.owner => {
                    return Some(Visitor { fd, asked: None });
                }
                _ => {
                    let _ = call::close(fd);
                }
            }
        }
        self.side.as_ref()?.accept()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = call::unlink(&self.path);
        let _ = call::close(self.fd);
    }
}

/// What nobody can guess.
fn random_key() -> Result<SideKey, i32> {
    let mut bytes = [0; size_of::<SideKey>()];
    let fd = call::open(c"/dev/urandom", 0, 0)?;
    let read = call::read(fd, &mut bytes);
    let _ = call::close(fd);
    if read? != bytes.len() {
        return Err(EPROTO);
    }
    let mut key = SideKey::default();
    for (to, from) in key.iter_mut().zip(bytes.chunks_exact(4)) {
        *to = from.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    Ok(key)
}

/// Whether a message says the key. How long the answer takes says nothing of how much of it was right.
fn is_key(message: &[u8], key: SideKey) -> bool {
    parse(message).is_some_and(|(kind, said)| {
        let wrong = said.iter().zip(key).fold(0, |sum, (said, key)| sum | (said ^ key));
        kind == KEY && wrong == 0
    })
}

/// Comes by the other way, as a guest: a descriptor, on which the first word has been said. `owner`: the user whose engine
/// it is; an address without a path may be anybody's once an engine has died.
///
/// # Errors
///
/// [`Reason::NoEngine`].
pub(super) fn by_side(side: Side, owner: u32, seconds: u64) -> Result<i32, Reason> {
    let link = passing::connect_anywhere(side.number, seconds).map_err(|_| Reason::NoEngine)?;
    let is_theirs = passing::credentials(link).is_ok_and(|who| who.uid == owner);
    if is_theirs && passing::send(link, &words(KEY, side.key), None, MSG_DONTWAIT).is_ok() {
        return Ok(link);
    }
    let _ = call::close(link);
    Err(Reason::NoEngine)
}

/// A guest process that has come through the [`Door`]. It stays for as long as the process lives.
#[derive(Debug)]
pub struct Visitor {
    fd: i32,
    /// What it has to say first.
    asked: Option<SideKey>,
}

/// What a [`Visitor`] has said.
#[derive(Debug)]
pub enum Said {
    /// It hands over a connection: the message, and the TCP socket, which is ours now.
    Hello(Hello, OwnedFd),
    /// Nothing, for now.
    Nothing,
    /// It has ended, or talks nonsense: close it.
    Gone,
}

impl Visitor {
    /// Readable when it says something, or ends.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// Whether it is one of ours, as far as can be told: what it has said says so, or the way by which it came.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.asked.is_none()
    }

    /// Hears whether it is a guest, if it has not said so yet. `false`: it is none, or has gone.
    #[must_use]
    pub fn is_guest(&mut self) -> bool {
        let Some(key) = self.asked else { return true };
        let mut bytes = [0; BYTES];
        match passing::receive_owned(self.fd, &mut bytes, MSG_DONTWAIT) {
            Ok((n, None)) if is_key(&bytes[..n], key) => self.asked = None,
            Err(EAGAIN | EINTR) => {}
            _ => return false,
        }
        true
    }

    /// What it says next.
    #[must_use]
    pub fn listen(&mut self) -> Said {
        if !self.is_guest() {
            return Said::Gone;
        }
        if !self.is_known() {
            return Said::Nothing;
        }
        let mut bytes = [0; BYTES];
        match passing::receive_owned(self.fd, &mut bytes, MSG_DONTWAIT) {
            Ok((n, Some(fd))) => {
                Hello::parse(&bytes[..n]).map_or(Said::Gone, |hello| Said::Hello(hello, fd))
            }
            Err(EAGAIN | EINTR) => Said::Nothing,
            _ => Said::Gone,
        }
    }

    /// Answers a [`Hello`]: with the stand-in, or with the reason why not. `false`: nobody hears it, and a guest
    /// that was promised nothing goes on by TCP.
    pub fn answer(&self, answer: Result<(Welcome, &StandIn), Reason>) -> bool {
        let sent = match answer {
            Ok((Welcome { half, generation }, stand_in)) => {
                let bytes = words(WELCOME, [half, generation, 0]);
                passing::send(self.fd, &bytes, Some(stand_in.theirs()), MSG_DONTWAIT)
            }
            Err(reason) => self.refuse(reason, false),
        };
        sent.is_ok()
    }

    /// Answers a [`Hello`] of a connection that was promised SMC, and of which the peer knows now that it is TCP.
    pub fn decline(&self, reason: Reason) {
        let _ = self.refuse(reason, true);
    }

    fn refuse(&self, reason: Reason, told: bool) -> Result<(), i32> {
        let bytes = words(REFUSED, [reason.code(), u32::from(told), 0]);
        passing::send(self.fd, &bytes, None, MSG_DONTWAIT)
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let _ = call::close(self.fd);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{board_dir, world};
    use super::super::{Hello, meet};
    use super::*;
    use crate::world::World;

    fn served(owner: impl FnOnce(u32) -> u32) -> (std::path::PathBuf, Door, World) {
        let dir = board_dir();
        let engine = world(&dir);
        let door = Door::open(Some(dir.to_str().unwrap())).unwrap();
        engine.board.serve(Some(7), false, door.side()).unwrap();
        let mut guest = World::join(engine.limits.clone(), "guest".into(), 600).unwrap();
        guest.board.owner = owner(guest.board.owner);
        (dir, door, guest)
    }

    fn hello() -> [u8; BYTES] {
        Hello { half: 3, generation: 5, client: false, promised: true }.emit()
    }

    fn hears_of_it(visitor: &mut Visitor) -> bool {
        matches!(visitor.listen(), Said::Hello(Hello { half: 3, .. }, _))
    }

    /// As for a worker that was root when it was started: its user's directory is another one, or its root is.
    #[test]
    fn who_cannot_come_by_the_path_comes_by_the_other_way() {
        let (dir, door, guest) = served(|owner| owner);
        std::fs::remove_file(door.path.to_str().unwrap()).unwrap();
        let link = meet(&guest).unwrap();
        let mut visitor = door.accept().unwrap();
        assert!(!visitor.is_known(), "it has not been heard");
        assert!(matches!(visitor.listen(), Said::Nothing));
        assert!(visitor.is_known());
        passing::send(link, &hello(), Some(link), 0).unwrap();
        assert!(hears_of_it(&mut visitor));
        let _ = call::close(link);
        assert!(matches!(visitor.listen(), Said::Gone));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn who_has_become_another_user_does_not_look_for_a_path_and_finds_its_own_engine() {
        let (dir, door, guest) = served(|owner| owner + 1);
        // What listens there is not of the user whose board it was: an engine has died, and somebody else has its number.
        assert_eq!(meet(&guest), Err(Reason::NoEngine));
        let mut visitor = door.accept().unwrap();
        assert!(!visitor.is_known(), "not by the path");
        assert!(matches!(visitor.listen(), Said::Gone), "nothing was said to it");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn strangers_are_not_heard() {
        let (dir, door, _guest) = served(|owner| owner);
        let Side { number, key } = door.side();
        for first in [
            &words(KEY, [key[0], key[1], key[2] ^ 1])[..],
            &words(super::super::HELLO, key)[..],
            &words(KEY, key)[..BYTES - 1],
            &hello()[..],
        ] {
            let link = passing::connect_anywhere(number, 1).unwrap();
            let mut visitor = door.accept().unwrap();
            assert!(matches!(visitor.listen(), Said::Nothing), "it is waited for");
            passing::send(link, first, None, 0).unwrap();
            passing::send(link, &hello(), Some(link), 0).unwrap();
            assert!(matches!(visitor.listen(), Said::Gone) && !visitor.is_known());
            let _ = call::close(link);
        }
        let link = passing::connect_anywhere(number, 1).unwrap();
        passing::send(link, &words(KEY, key), Some(link), 0).unwrap();
        let mut visitor = door.accept().unwrap();
        assert!(matches!(visitor.listen(), Said::Gone), "a descriptor is none of it");
        let _ = call::close(link);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// Somebody listens there, and lets nobody in: whoever asks would wait for ever.
    #[test]
    fn who_lets_nobody_in_is_not_waited_for() {
        let dir = board_dir();
        let _world = world(&dir);
        let dir_name = dir.to_str().unwrap();
        let path = board::door(Some(dir_name)).unwrap();
        let theirs = passing::listen(&path, 0).unwrap();
        let one = passing::connect(&path).unwrap();
        assert_eq!(Door::open(Some(dir_name)).map(drop), Err(EADDRINUSE));
        for fd in [theirs, one] {
            let _ = call::close(fd);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn each_engine_has_a_key_of_its_own() {
        let keys = [(); 3].map(|()| random_key().unwrap());
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys.iter().all(|key| *key != [0; 3]));
    }
}
