//! Who may open a file beside whom.

use crate::{Access, ShareAccess};

/// What share modes speak of; an open without any of these never conflicts (MS-FSA 2.1.5.1.2.2).
const SHARED: Access = Access::READ_DATA
    .union(Access::WRITE_DATA)
    .union(Access::APPEND_DATA)
    .union(Access::EXECUTE)
    .union(Access::DELETE);

/// What each share bit lets others have.
const PAIRS: [(ShareAccess, Access); 3] = [
    (ShareAccess::READ, Access::READ_DATA.union(Access::EXECUTE)),
    (ShareAccess::WRITE, Access::WRITE_DATA.union(Access::APPEND_DATA)),
    (ShareAccess::DELETE, Access::DELETE),
];

const OPLOCK_STAT: Access =
    Access::SYNCHRONIZE.union(Access::READ_ATTRIBUTES).union(Access::WRITE_ATTRIBUTES);

fn within(access: Access, bits: Access) -> bool {
    !access.is_empty() && access.difference(bits).is_empty()
}

/// An open that only looks at attributes: it breaks no oplock, conflicts with no share mode, and does not
/// keep others from a write lease (MS-FSA 2.1.5.1.2).
#[must_use]
pub fn is_oplock_stat_open(access: Access) -> bool {
    within(access, OPLOCK_STAT)
}

/// An open that breaks no lease: as [`is_oplock_stat_open`], and it may read the security descriptor.
#[must_use]
pub fn is_lease_stat_open(access: Access) -> bool {
    within(access, OPLOCK_STAT.union(Access::READ_CONTROL))
}

/// Whether two opens of one stream, each with its rights and what it lets others do, cannot be at the same
/// time.
#[must_use]
pub fn share_conflict(a: (Access, ShareAccess), b: (Access, ShareAccess)) -> bool {
    if !a.0.intersects(SHARED) || !b.0.intersects(SHARED) {
        return false;
    }
    PAIRS.iter().any(|(share, access)| {
        (a.0.intersects(*access) && !b.1.contains(*share))
            || (b.0.intersects(*access) && !a.1.contains(*share))
    })
}

/// Whether who opens the file itself to delete it is kept from it by an open of one of its streams.
pub(super) fn delete_conflict(file: Access, stream: (Access, ShareAccess)) -> bool {
    file.contains(Access::DELETE)
        && stream.0.intersects(SHARED)
        && !stream.1.contains(ShareAccess::DELETE)
}

#[cfg(test)]
mod tests {
    use super::{is_lease_stat_open, is_oplock_stat_open, share_conflict};
    use crate::{Access, ShareAccess};

    #[test]
    fn stat_opens() {
        assert!(is_oplock_stat_open(Access::READ_ATTRIBUTES | Access::SYNCHRONIZE));
        assert!(!is_oplock_stat_open(Access::READ_ATTRIBUTES | Access::READ_CONTROL));
        assert!(is_lease_stat_open(Access::READ_CONTROL));
        assert!(!is_lease_stat_open(Access::READ_EA));
        assert!(!is_oplock_stat_open(Access::empty()));
    }

    #[test]
    fn both_must_allow_what_the_other_does() {
        let read = Access::READ_DATA;
        let write = Access::WRITE_DATA;
        let none = ShareAccess::empty();
        assert!(share_conflict((read, none), (read, ShareAccess::READ)));
        assert!(!share_conflict((read, ShareAccess::READ), (read, ShareAccess::READ)));
        assert!(share_conflict((read, ShareAccess::READ), (write, ShareAccess::READ)));
        assert!(!share_conflict((read, ShareAccess::WRITE), (write, ShareAccess::READ)));
        assert!(!share_conflict((Access::READ_ATTRIBUTES, none), (write, none)));
        assert!(share_conflict(
            (Access::DELETE, ShareAccess::all()),
            (read, ShareAccess::READ | ShareAccess::WRITE)
        ));
        assert!(share_conflict((Access::EXECUTE, ShareAccess::all()), (write, none)));
    }
}
