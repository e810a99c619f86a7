//! As whom a thread touches files.
//!
//! Credentials belong to a thread; that those of a process are one is what the C library makes of it, by having all
//! threads change theirs. Here the calls are made without the library, for one thread only: a server that runs as
//! root does what a user wants with that user's rights and leaves the rest of itself as it is.
//!
//! The real and the saved user stay those of the process. So the thread can come back, and no process of the user
//! can send it a signal or trace it. An effective user other than root has none of root's capabilities
//! (`capabilities(7)`, *Effect of user ID changes*), those by which quotas and permissions are passed over included.

use std::io;

use crate::call::raw;

/// A number that `setresuid(2)` and `setresgid(2)` leave as it is.
const SAME: u32 = u32::MAX;

/// What the kernel looks at when a thread touches a file: user, group, and further groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    uid: u32,
    gid: u32,
    groups: Box<[u32]>,
}

impl Credentials {
    /// Those of a user. The numbers are the caller's to know; none of them may be the one that means nobody at all
    /// (4294967295).
    #[must_use]
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Self {
        Self { uid, gid, groups: groups.into() }
    }

    /// Those of the calling thread, as they are now.
    ///
    /// # Errors
    ///
    /// What `getgroups(2)` says.
    pub fn of_thread() -> io::Result<Self> {
        let of = |n| number(call(n, [0, 0, 0]));
        let groups = loop {
            let count = call(libc::SYS_getgroups, [0, 0, 0])?;
            let mut groups = vec![0_u32; count];
            // Nothing is written when there is no room: that would be an error.
            match call(libc::SYS_getgroups, [count, groups.as_mut_ptr() as usize, 0]) {
                Ok(count) => {
                    groups.truncate(count);
                    break groups;
                }
                // More than a moment ago.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => return Err(error),
            }
        };
        Ok(Self { uid: of(libc::SYS_geteuid)?, gid: of(libc::SYS_getegid)?, groups: groups.into() })
    }

    /// The user.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The group that new files get.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// Further groups.
    #[must_use]
    pub fn groups(&self) -> &[u32] {
        &self.groups
    }

    fn set_groups(&self) -> io::Result<()> {
        call(libc::SYS_setgroups, [self.groups.len(), self.groups.as_ptr() as usize, 0]).map(drop)
    }

    fn set_gid(&self) -> io::Result<()> {
        call(libc::SYS_setresgid, [SAME as usize, self.gid as usize, SAME as usize]).map(drop)
    }

    fn set_uid(&self) -> io::Result<()> {
        call(libc::SYS_setresuid, [SAME as usize, self.uid as usize, SAME as usize]).map(drop)
    }
}

/// Has the calling thread be `whom` for files until [`resume`]. `own` is what it is now: [`Credentials::of_thread`] of a
/// thread that was nobody else. Three system calls.
///
/// # Errors
///
/// `EPERM` without CAP_SETUID and CAP_SETGID; `EINVAL` for numbers that the user namespace does not have; `ENOMEM`. The
/// thread is what it was then.
pub fn assume(own: &Credentials, whom: &Credentials) -> io::Result<()> {
    whom.set_groups()?;
    // What could be changed can be changed back; that must not be tried of anything else. The user last: with that
    // go the capabilities by which the others are changed.
    if let Err(error) = whom.set_gid() {
        resumed(own.set_groups());
        return Err(error);
    }
    if let Err(error) = whom.set_uid() {
        resumed(own.set_gid().and_then(|()| own.set_groups()));
        return Err(error);
    }
    Ok(())
}

/// [`assume`] for a thread that still has the groups of `whom`, since it has left only the user behind ([`resume_user`]).
/// One system call.
///
/// # Errors
///
/// As [`assume`]. The thread is what it was then, groups of somebody else included.
pub fn assume_user(whom: &Credentials) -> io::Result<()> {
    whom.set_uid()
}

/// Has the calling thread be `own` again. Three system calls. A thread that cannot be, for want of memory, ends the
/// process: whatever it did next would be done with somebody's rights whose it is not.
pub fn resume(own: &Credentials) {
    resumed(own.set_uid().and_then(|()| own.set_gid()).and_then(|()| own.set_groups()));
}

/// [`resume`] for root, who may do everything whatever the groups: they are left as they are. One system call.
pub fn resume_user(own: &Credentials) {
    resumed(own.set_uid());
}

fn resumed(done: io::Result<()>) {
    if let Err(error) = done {
        eprintln!("shunt: a thread cannot be again who it was: {error}");
        std::process::abort();
    }
}

fn call(n: i64, arguments: [usize; 3]) -> io::Result<usize> {
    let [a, b, c] = arguments;
    // SAFETY: numbers, or the place and length of a slice that lives; the kernel changes nothing but the thread's
    // credentials, and the slice that `getgroups` is given to fill.
    let done = unsafe { raw(n, [a, b, c, 0, 0, 0]) };
    match usize::try_from(done) {
        Ok(done) => Ok(done),
        Err(_) => Err(io::Error::from_raw_os_error(i32::try_from(-done).unwrap_or(libc::EIO))),
    }
}

fn number(of: io::Result<usize>) -> io::Result<u32> {
    of.and_then(|n| u32::try_from(n).map_err(io::Error::other))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::sync::mpsc;

    use super::*;

    /// Nobody's numbers.
    const UID: u32 = 54_321;
    const GID: u32 = 54_322;

    fn own() -> Option<Credentials> {
        let own = Credentials::of_thread().unwrap();
        if own.uid == 0 {
            return Some(own);
        }
        println!("skipped: only root can act as somebody else");
        None
    }

    #[test]
    fn a_thread_is_somebody_else_for_a_while_and_others_are_not() {
        let Some(own) = own() else { return };
        let folder = std::env::temp_dir().join(format!("shunt-acting-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let secret = folder.join("secret");
        fs::write(&secret, "of root").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();

        // It must be there before: a thread inherits.
        let (ask, asked) = mpsc::channel();
        let other = std::thread::spawn(move || {
            asked.recv().unwrap();
            Credentials::of_thread().unwrap()
        });
        assume(&own, &Credentials::new(UID, GID, &[7, 8])).unwrap();
        assert_eq!(Credentials::of_thread().unwrap(), Credentials::new(UID, GID, &[7, 8]));
        let refused = File::open(&secret).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "root's capabilities are left");
        drop(File::create(folder.join("theirs")).unwrap());
        ask.send(()).unwrap();
        let elsewhere = other.join().unwrap();
        resume_user(&own);
        assert_eq!(fs::read_to_string(&secret).unwrap(), "of root");
        assert_eq!(Credentials::of_thread().unwrap(), Credentials::new(0, GID, &[7, 8]));
        assume_user(&Credentials::new(UID, GID, &[7, 8])).unwrap();
        assert!(File::open(&secret).is_err());
        resume(&own);
        assert_eq!(elsewhere, own, "another thread has changed");
        assert_eq!(Credentials::of_thread().unwrap(), own);
        assert_eq!(fs::read_to_string(&secret).unwrap(), "of root");
        let theirs = fs::metadata(folder.join("theirs")).unwrap();
        assert_eq!((theirs.uid(), theirs.gid()), (UID, GID));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn who_may_not_is_told_so() {
        // As root becomes in this thread, which ends with the test; others are so from the beginning.
        if let Some(own) = own() {
            assume(&own, &Credentials::new(UID, GID, &[])).unwrap();
        }
        let own = Credentials::of_thread().unwrap();
        let refused = assume(&own, &Credentials::new(UID + 1, GID, &[7])).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        assert_eq!(Credentials::of_thread().unwrap(), own);
    }

    #[test]
    fn what_cannot_be_leaves_the_thread_as_it_was() {
        let Some(own) = own() else { return };
        // No group has this number.
        let nobody_at_all = Credentials::new(UID, GID, &[SAME]);
        let refused = assume(&own, &nobody_at_all).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(Credentials::of_thread().unwrap(), own);
    }
}
