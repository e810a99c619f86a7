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
        if self.log < told_at(error, self.named.is_some()) {
            return;
        }
        let errno = errno_of(error);
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

const fn errno_of(error: &MapError) -> Option<c_int> {
    match error {
        MapError::System(_, errno) => Some(*errno),
        _ => None,
    }
}

/// How much is to be said for this to be. `is_named`: the directory is not the usual one.
fn told_at(error: &MapError, is_named: bool) -> Level {
    use libc::{EACCES, EDQUOT, EFBIG, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSPC, EPERM, EROFS};
    let is_told = match (error, errno_of(error)) {
        // Whoever was there first, or has closed it to us, may have meant it.
        (MapError::NotOurs | MapError::OpenDirectory | MapError::NotADirectory, _)
        | (_, Some(EACCES | EPERM)) => true,
        // There is no room: nobody has meant that, and more room helps.
        (MapError::FileLimit, _)
        | (_, Some(ENOSPC | EDQUOT | EFBIG | ENOMEM | EMFILE | ENFILE)) => true,
        (_, Some(EROFS | ENOENT)) => is_named,
        // A place without such things, as a sandbox is, or another version: TCP does.
        _ => false,
    };
    if is_told { Level::Error } else { Level::Info }
}

fn is_denied(errno: Option<c_int>) -> bool {
    errno == Some(libc::EACCES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_should_act_on_is_told_unasked() {
        let system = |errno| MapError::System("reserve the board", errno);
        for errno in [libc::ENOSPC, libc::ENOMEM, libc::EMFILE, libc::EACCES] {
            assert_eq!(told_at(&system(errno), false), Level::Error, "{errno}");
        }
        assert_eq!(told_at(&MapError::FileLimit, false), Level::Error);
        assert_eq!(told_at(&MapError::NotADirectory, true), Level::Error);
        // Without `/dev/shm`, or in a sandbox.
        for errno in [libc::ENOENT, libc::EROFS] {
            assert_eq!(told_at(&system(errno), false), Level::Info, "{errno}");
            assert_eq!(told_at(&system(errno), true), Level::Error, "{errno}");
        }
        assert_eq!(told_at(&system(libc::EAFNOSUPPORT), true), Level::Info);
    }
}
