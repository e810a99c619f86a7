//! The names of files, opens, and those who wait.

use crate::{Guid, SessionId};

/// A stream of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileKey {
    /// The file system, as `st_dev`.
    pub device: u64,
    /// The file in it, as `st_ino`.
    pub inode: u64,
    /// The stream in the file, a hash of its folded name. 0: the unnamed one, which is the file itself.
    pub stream: u64,
}

impl FileKey {
    /// Which of `shards` shards has the file: the same for all of its streams. 0 if `shards` is 0.
    #[must_use]
    pub fn shard(&self, shards: usize) -> usize {
        let mixed = mix(self.device, self.inode);
        // The high half: the low one picks the bucket within the shard.
        usize::try_from(mixed >> 32).unwrap_or(0).checked_rem(shards).unwrap_or(0)
    }
}

/// Two numbers made one, every bit of which depends on all of theirs.
pub(super) fn mix(device: u64, inode: u64) -> u64 {
    let mut x = inode ^ device.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

/// An open, by a number that no other open of the server has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpenId(pub u64);

/// Somebody who waits, by a number of the caller's choice that is unique among all who wait at the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiter(pub u64);

/// Whose an open is: where its breaks go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Opener {
    /// The client's ClientGuid.
    pub client: Guid,
    /// The session that opened, or reconnected.
    pub session: SessionId,
    /// The open.
    pub open: OpenId,
}
