//! What is said of a board that a program does not come to, or that is not the one that was meant. Whoever named its
//! directory wants to know.

use std::ffi::CString;

use libc::c_int;
use local::{Level, Limits, board};
use sys::call;
use sys::map::MapError;

/// How things stood before the program came to its board.
pub(crate) struct Absence {
    /// The directory, if it was named.
    named: Option<String>,
    /// It was there.
    was_there: bool,
    log: Level,
}

impl Absence {
    pub(crate) fn of(limits: &Limits) -> Self {
        let named = limits.dir.clone();
        let is_there =
            |dir: &String| CString::new(dir.as_str()).is_ok_and(|dir| call::lstat(&dir).is_ok());
        let was_there = named.as_ref().is_none_or(is_there);
        Self { named, was_there, log: limits.log }
    }

    /// The program is on a board. One that it has had to make in a container is none of the host's, where others meet.
    pub(crate) fn over(self) {
        if let Some(dir) = self.named
            && !self.was_there
            && self.log >= Level::Error
            && board::is_in_container()
        {
            local::log::line(format_args!(
                "{dir} was not there and is made for this container alone; to meet others, mount it (docker run -v \
                 {dir}:{dir})"
            ));
        }
    }

    /// It is on none.
    pub(crate) fn stays(self, error: &MapError) {
        // Whoever was there first, or has closed it to us, may have meant it; the rest is that there is no room, or no such
        // place.
        let errno = match error {
            MapError::System(_, errno) => Some(*errno),
            _ => None,
        };
        let is_refused =
            matches!(error, MapError::NotOurs | MapError::OpenDirectory | MapError::NotADirectory)
                || matches!(errno, Some(libc::EACCES | libc::EPERM));
        let is_missed = self.named.is_some() && matches!(errno, Some(libc::EROFS | libc::ENOENT));
        let told = if is_refused || is_missed { Level::Error } else { Level::Info };
        if self.log < told {
            return;
        }
        let dir = self.named.as_deref();
        let place = board::directory(dir);
        match board::group_of(dir).filter(|_| is_denied(errno)) {
            Some(group) => local::log::line(format_args!(
                "{place}, which is for root and the users of group {group}: {error}; staying on TCP (in containers: \
                 --group-add {group})"
            )),
            None => local::log::line(format_args!("{place}: {error}; staying on TCP")),
        }
    }
}

fn is_denied(errno: Option<c_int>) -> bool {
    errno == Some(libc::EACCES)
}
