//! What changed in a directory: FILE_NOTIFY_INFORMATION (MS-FSCC 2.7.1), for CHANGE_NOTIFY.

use super::le::{Put, len32, patch_u32};
use crate::NtStatus;
use crate::name::utf16;

/// What happened (MS-FSCC 2.7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Action {
    /// FILE_ACTION_ADDED.
    Added = 1,
    /// FILE_ACTION_REMOVED.
    Removed = 2,
    /// FILE_ACTION_MODIFIED.
    Modified = 3,
    /// FILE_ACTION_RENAMED_OLD_NAME; the new name follows.
    RenamedOld = 4,
    /// FILE_ACTION_RENAMED_NEW_NAME.
    RenamedNew = 5,
    /// FILE_ACTION_ADDED_STREAM.
    AddedStream = 6,
    /// FILE_ACTION_REMOVED_STREAM.
    RemovedStream = 7,
    /// FILE_ACTION_MODIFIED_STREAM.
    ModifiedStream = 8,
}

/// Packs changes. When they do not fit, the client is told to look at the directory itself.
#[derive(Debug, Default)]
pub struct NotifyWriter {
    out: Vec<u8>,
    limit: usize,
    last: usize,
    overflowed: bool,
}

impl NotifyWriter {
    /// At most `limit` bytes: the client's buffer.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Adds a change; `name` is the path from the watched directory, `\` between components.
    pub fn push(&mut self, action: Action, name: &str) {
        let at = self.out.len().next_multiple_of(4);
        let name_len = utf16::len(name);
        // Once something is lost, nothing else is of use.
        if self.overflowed || at + 12 + name_len > self.limit {
            self.overflowed = true;
            return;
        }
        if at > 0 {
            self.out.resize(at, 0);
            patch_u32(&mut self.out, self.last, len32(at - self.last));
        }
        self.last = at;
        self.out.u32(0);
        self.out.u32(action as u32);
        self.out.u32(len32(name_len));
        utf16::append(name, &mut self.out);
    }

    /// The list; or NOTIFY_ENUM_DIR with nothing, if something did not fit.
    #[must_use]
    pub fn finish(self) -> (NtStatus, Vec<u8>) {
        if self.overflowed {
            return (NtStatus::NOTIFY_ENUM_DIR, Vec::new());
        }
        (NtStatus::SUCCESS, self.out)
    }
}
