//! The users and groups of the host, as its name services know them (`nsswitch.conf(5)`): files, LDAP, whatever.
//!
//! These calls may take their time: services may be on other hosts.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;

/// Bytes that one entry may take at first, and at most.
const ROOM: usize = 1 << 12;
const ROOM_MAX: usize = 1 << 20;
/// Groups that one user may have: NGROUPS_MAX of the kernel.
const GROUPS_MAX: usize = 65_536;

/// A user of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The name, as the service has it.
    pub name: CString,
    /// The user's number.
    pub uid: u32,
    /// The number of the user's first group.
    pub gid: u32,
}

impl Account {
    /// The user of this name, if there is one.
    ///
    /// # Errors
    ///
    /// What the name service says: that it cannot be reached, say.
    pub fn by_name(name: &str) -> io::Result<Option<Self>> {
        // There is none with a NUL in its name.
        let Ok(name) = CString::new(name) else { return Ok(None) };
        // SAFETY: the name ends with NUL; the entry, `room` bytes at `buffer`, and the place for the answer are
        // there to be written.
        look_up(|entry, buffer, room, found| unsafe {
            libc::getpwnam_r(name.as_ptr(), entry, buffer, room, found)
        })
    }

    /// The user of this number, if there is one.
    ///
    /// # Errors
    ///
    /// What the name service says.
    pub fn by_uid(uid: u32) -> io::Result<Option<Self>> {
        // SAFETY: as above.
        look_up(|entry, buffer, room, found| unsafe {
            libc::getpwuid_r(uid, entry, buffer, room, found)
        })
    }

    /// All groups of the user, the first included.
    ///
    /// # Errors
    ///
    /// More than the kernel lets anybody have.
    pub fn groups(&self) -> io::Result<Vec<u32>> {
        let mut room = 64;
        loop {
            let mut groups = vec![0_u32; room];
            let mut count = libc::c_int::try_from(room).unwrap_or(libc::c_int::MAX);
            // SAFETY: the name ends with NUL, and there is room for `count` numbers.
            let done = unsafe {
                libc::getgrouplist(
                    self.name.as_ptr(),
                    self.gid,
                    groups.as_mut_ptr(),
                    &raw mut count,
                )
            };
            let count = usize::try_from(count).unwrap_or(0);
            if done >= 0 {
                groups.truncate(count);
                return Ok(groups);
            }
            if room >= GROUPS_MAX {
                return Err(io::Error::other("a user of too many groups"));
            }
            // The C library says how many there are; others only that there are more.
            room = count.max(2 * room).min(GROUPS_MAX);
        }
    }
}

/// A group of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The name, as the service has it.
    pub name: CString,
    /// The group's number.
    pub gid: u32,
}

impl Group {
    /// The group of this name, if there is one.
    ///
    /// # Errors
    ///
    /// What the name service says.
    pub fn by_name(name: &str) -> io::Result<Option<Self>> {
        let Ok(name) = CString::new(name) else { return Ok(None) };
        // SAFETY: as of users.
        look_up(|entry, buffer, room, found| unsafe {
            libc::getgrnam_r(name.as_ptr(), entry, buffer, room, found)
        })
    }

    /// The group of this number, if there is one.
    ///
    /// # Errors
    ///
    /// What the name service says.
    pub fn by_gid(gid: u32) -> io::Result<Option<Self>> {
        // SAFETY: as of users.
        look_up(|entry, buffer, room, found| unsafe {
            libc::getgrgid_r(gid, entry, buffer, room, found)
        })
    }
}

/// What the C library fills in, and what is kept of it.
trait Entry: Sized {
    type Raw;
    /// Of one that was filled in, while its strings are there.
    ///
    /// # Safety
    ///
    /// Its name is a string.
    unsafe fn of(raw: &Self::Raw) -> Self;
}

impl Entry for Account {
    type Raw = libc::passwd;

    unsafe fn of(raw: &libc::passwd) -> Self {
        // SAFETY: as is asked for.
        let name = unsafe { CStr::from_ptr(raw.pw_name) }.to_owned();
        Self { name, uid: raw.pw_uid, gid: raw.pw_gid }
    }
}

impl Entry for Group {
    type Raw = libc::group;

    unsafe fn of(raw: &libc::group) -> Self {
        // SAFETY: as is asked for.
        let name = unsafe { CStr::from_ptr(raw.gr_name) }.to_owned();
        Self { name, gid: raw.gr_gid }
    }
}

/// Asks with more and more room until there is enough.
fn look_up<E: Entry>(
    ask: impl Fn(*mut E::Raw, *mut libc::c_char, usize, *mut *mut E::Raw) -> libc::c_int,
) -> io::Result<Option<E>> {
    let mut room = ROOM;
    loop {
        let mut entry = MaybeUninit::<E::Raw>::zeroed();
        let mut buffer = vec![0; room];
        let mut found = std::ptr::null_mut();
        match ask(entry.as_mut_ptr(), buffer.as_mut_ptr(), room, &raw mut found) {
            0 if found.is_null() => return Ok(None),
            0 => {
                // SAFETY: zeroed is a valid entry, and it was filled, as `found` says.
                let entry = unsafe { entry.assume_init() };
                // SAFETY: the name of an entry is a string in `buffer`, which is still there.
                return Ok(Some(unsafe { E::of(&entry) }));
            }
            libc::EINTR => {}
            libc::ERANGE if room < ROOM_MAX => room *= 2,
            // What `getpwnam(3)` lists as ways of services to say that there is none.
            libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => return Ok(None),
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Account, Group};

    #[test]
    fn root_is_known_by_name_and_number() {
        let Some(root) = Account::by_uid(0).unwrap() else {
            return println!("skipped: no names of users here");
        };
        assert_eq!(root.gid, 0);
        let name = root.name.to_str().unwrap();
        assert_eq!(Account::by_name(name).unwrap().as_ref(), Some(&root));
        assert!(root.groups().unwrap().contains(&0));
    }

    #[test]
    fn groups_are_known_by_name_and_number() {
        let Some(root) = Group::by_gid(0).unwrap() else {
            return println!("skipped: no names of groups here");
        };
        assert_eq!(Group::by_name(root.name.to_str().unwrap()).unwrap(), Some(root));
        assert_eq!(Group::by_name("no such group, surely").unwrap(), None);
        assert_eq!(Group::by_gid(3_999_999_999).unwrap(), None);
    }

    #[test]
    fn who_is_not_there_is_none() {
        for name in ["no such user, surely", "", "root\0"] {
            assert_eq!(Account::by_name(name).unwrap(), None, "{name:?}");
        }
        assert_eq!(Account::by_uid(3_999_999_999).unwrap(), None);
    }
}
