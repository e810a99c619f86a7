//! The numbers by which the two ends name messages, sessions, trees and opens.

/// Which request an answer belongs to (MS-SMB2 2.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

impl MessageId {
    /// What a server says on its own account, a break, has this number (MS-SMB2 2.2.23).
    pub const UNSOLICITED: Self = Self(u64::MAX);
}

/// A session, whichever channel it is used on. Zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// A share that a session has connected to. Zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeId(pub u32);

/// An open, as SMB2_FILEID (MS-SMB2 2.2.14.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Survives a lost connection, when the open is durable.
    pub persistent: u64,
    /// Names the open while its session lives.
    pub volatile: u64,
}

impl FileId {
    /// No file, or in a related request of a compound "the one before".
    pub const ALL_ONES: Self = Self { persistent: u64::MAX, volatile: u64::MAX };
}
