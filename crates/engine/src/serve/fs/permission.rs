//! What the permission bits of POSIX let somebody do, in the words of Windows.

use smb::Access;
use smb::fscc::Facts;

/// Who asks, as POSIX knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unix {
    /// The user; zero may do everything.
    pub uid: u32,
    /// The user's groups.
    pub gids: Vec<u32>,
}

impl Unix {
    /// The user that the server runs as, by `/proc/self/status`; nobody, 65534, if that cannot be read.
    #[must_use]
    pub fn of_process() -> Self {
        let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let numbers = |key: &str| -> Vec<u32> {
            let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
        };
        // Real, effective, saved, and the one that counts for files.
        let uid = numbers("Uid:").get(3).copied().unwrap_or(65534);
        let mut gids = numbers("Groups:");
        gids.extend(numbers("Gid:").get(3));
        Self { uid, gids }
    }

    /// The three bits, read 4, write 2, execute 1, that count for this user.
    fn bits(&self, facts: &Facts) -> u32 {
        let shift = if self.uid == facts.uid {
            6
        } else if self.gids.contains(&facts.gid) {
            3
        } else {
            0
        };
        facts.mode >> shift & 7
    }
}

/// S_ISVTX: in such a folder only owners remove names.
const STICKY: u32 = 0o1000;

/// All that `user` may do with a file (MAXIMUM_ALLOWED), by its permission bits and those of the folder that
/// it is in, which decide about DELETE; `None` if that is not asked. It is what [`from_posix`](smb::security::from_posix)
/// tells clients of the file, but for DELETE. Access control lists of POSIX and what
/// [`Handle::security`](super::Handle::security) keeps are not looked at.
#[must_use]
pub fn allowed(facts: &Facts, folder: Option<&Facts>, user: &Unix) -> Access {
    if user.uid == 0 {
        return Access::FILE_ALL;
    }
    let owner = user.uid == facts.uid;
    let bits = user.bits(facts);
    // `stat(2)` needs no permission on the file.
    let mut access = Access::READ_ATTRIBUTES | Access::READ_CONTROL | Access::SYNCHRONIZE;
    if bits & 4 != 0 {
        access |= Access::FILE_READ;
    }
    if bits & 2 != 0 {
        access |= Access::FILE_WRITE;
        // Nothing of a file, but a part of FILE_ALL: who owns it and may read and write it is granted that.
        if facts.is_directory() || owner && bits & 4 != 0 {
            access |= Access::DELETE_CHILD;
        }
    }
    // To execute a file is to read it: its `x` is for the host's own programs.
    if bits & 1 != 0 || bits & 4 != 0 && !facts.is_directory() {
        access |= Access::FILE_EXECUTE;
    }
    if owner {
        access |= Access::WRITE_DAC | Access::WRITE_OWNER | Access::WRITE_ATTRIBUTES;
    }
    if let Some(folder) = folder {
        let sticky = folder.mode & STICKY != 0 && !owner && user.uid != folder.uid;
        if user.bits(folder) & 3 == 3 && !sticky {
            access |= Access::DELETE;
        }
    }
    access
}

#[cfg(test)]
mod tests {
    use smb::Attributes;
    use smb::security::{Token, from_posix, maximum};

    use super::{Access, Facts, Unix, allowed};

    const ANN: u32 = 1000;

    fn file(mode: u32, uid: u32) -> Facts {
        Facts { mode, uid, gid: 50, ..Facts::default() }
    }

    #[test]
    fn owner_group_and_others() {
        let ann = Unix { uid: ANN, gids: vec![50] };
        let folder = file(0o700, ANN);
        let own = allowed(&file(0o600, ANN), Some(&folder), &ann);
        assert!(
            own.contains(
                Access::FILE_READ | Access::FILE_WRITE | Access::DELETE | Access::WRITE_DAC
            )
        );
        assert_eq!(own, Access::FILE_ALL);
        let group = allowed(&file(0o640, 7), Some(&folder), &ann);
        assert!(group.contains(Access::READ_DATA) && !group.contains(Access::WRITE_DATA));
        assert!(!group.contains(Access::WRITE_DAC));
        // The owner's bits count for the owner, even when others may more.
        assert!(!allowed(&file(0o077, ANN), None, &ann).contains(Access::READ_DATA));
        assert_eq!(allowed(&file(0, 7), None, &Unix::default()), Access::FILE_ALL);
    }

    #[test]
    fn as_much_as_the_descriptor_says_that_clients_are_shown() {
        let users = [(ANN, 50), (7, 50), (8, 51)];
        for (uid, gid) in users {
            let user = Unix { uid, gids: vec![gid] };
            let token = Token::unix(uid, &user.gids);
            for attributes in [Attributes::ARCHIVE, Attributes::DIRECTORY] {
                for mode in 0..=0o777 {
                    let facts = Facts { attributes, ..file(mode, ANN) };
                    let shown = maximum(&from_posix(ANN, 50, mode, attributes), &token);
                    let got = allowed(&facts, Some(&file(0o777, ANN)), &user) - Access::DELETE;
                    assert_eq!(got, shown - Access::DELETE, "{uid}, {mode:o}, {attributes:?}");
                }
            }
        }
    }

    #[test]
    fn in_a_sticky_folder_only_owners_delete() {
        let ann = Unix { uid: ANN, gids: Vec::new() };
        let tmp = file(0o1777, 0);
        assert!(!allowed(&file(0o666, 7), Some(&tmp), &ann).contains(Access::DELETE));
        assert!(allowed(&file(0o666, ANN), Some(&tmp), &ann).contains(Access::DELETE));
    }
}
