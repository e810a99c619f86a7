//! What can happen, and who is told of it how.

use bitflags::bitflags;

use crate::fscc::Action;

bitflags! {
    /// What a client would like to hear of (MS-SMB2 2.2.35, CompletionFilter). Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct NotifyFilter: u32 {
        /// FILE_NOTIFY_CHANGE_FILE_NAME: files that come, go, or are renamed.
        const FILE_NAME = 0x001;
        /// FILE_NOTIFY_CHANGE_DIR_NAME: directories that come, go, or are renamed.
        const DIR_NAME = 0x002;
        /// FILE_NOTIFY_CHANGE_ATTRIBUTES.
        const ATTRIBUTES = 0x004;
        /// FILE_NOTIFY_CHANGE_SIZE.
        const SIZE = 0x008;
        /// FILE_NOTIFY_CHANGE_LAST_WRITE.
        const LAST_WRITE = 0x010;
        /// FILE_NOTIFY_CHANGE_LAST_ACCESS.
        const LAST_ACCESS = 0x020;
        /// FILE_NOTIFY_CHANGE_CREATION.
        const CREATION = 0x040;
        /// FILE_NOTIFY_CHANGE_EA.
        const EA = 0x080;
        /// FILE_NOTIFY_CHANGE_SECURITY.
        const SECURITY = 0x100;
        /// FILE_NOTIFY_CHANGE_STREAM_NAME.
        const STREAM_NAME = 0x200;
        /// FILE_NOTIFY_CHANGE_STREAM_SIZE.
        const STREAM_SIZE = 0x400;
        /// FILE_NOTIFY_CHANGE_STREAM_WRITE.
        const STREAM_WRITE = 0x800;
        const _ = !0;
    }
}

impl NotifyFilter {
    /// The names of files or of directories.
    #[must_use]
    pub fn name(directory: bool) -> Self {
        if directory { Self::DIR_NAME } else { Self::FILE_NAME }
    }
}

/// What happened. Paths are relative to the share; that of a stream ends in `:name:$DATA`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A file or a directory was made.
    Added {
        /// Where.
        path: &'a str,
        /// It is a directory.
        directory: bool,
    },
    /// A file or a directory was removed.
    Removed {
        /// Where it was.
        path: &'a str,
        /// It was a directory.
        directory: bool,
    },
    /// A file or a directory has another name.
    Renamed {
        /// Where it was.
        from: &'a str,
        /// Where it is.
        to: &'a str,
        /// It is a directory.
        directory: bool,
    },
    /// Something else changed.
    Modified {
        /// Of which file or directory.
        path: &'a str,
        /// What: all that applies.
        what: NotifyFilter,
    },
    /// A stream was made.
    StreamAdded {
        /// Which.
        path: &'a str,
    },
    /// A stream was removed.
    StreamRemoved {
        /// Which it was.
        path: &'a str,
    },
    /// A stream was written, or has another size.
    StreamModified {
        /// Which.
        path: &'a str,
        /// [`NotifyFilter::STREAM_SIZE`], [`NotifyFilter::STREAM_WRITE`] or both.
        what: NotifyFilter,
    },
}

fn parent(path: &str) -> &str {
    path.rsplit_once('\\').map_or("", |(directory, _)| directory)
}

impl<'a> Event<'a> {
    /// The entries that an event makes, in order.
    pub(super) fn each(&self, tell: &mut dyn FnMut(Action, NotifyFilter, &'a str)) {
        match *self {
            Self::Added { path, directory } => {
                tell(Action::Added, NotifyFilter::name(directory), path);
            }
            Self::Removed { path, directory } => {
                tell(Action::Removed, NotifyFilter::name(directory), path);
            }
            Self::Renamed { from, to, directory } => {
                let name = NotifyFilter::name(directory);
                if parent(from) == parent(to) {
                    tell(Action::RenamedOld, name, from);
                    tell(Action::RenamedNew, name, to);
                } else {
                    // Only who sees both places could make a pair of it.
                    tell(Action::Removed, name, from);
                    tell(Action::Added, name, to);
                }
                if !directory {
                    // What Windows says of a file under a new name, and not of a directory.
                    tell(Action::Modified, NotifyFilter::ATTRIBUTES | NotifyFilter::CREATION, to);
                }
            }
            Self::Modified { path, what } => tell(Action::Modified, what, path),
            Self::StreamAdded { path } => {
                tell(Action::AddedStream, NotifyFilter::STREAM_NAME, path)
            }
            Self::StreamRemoved { path } => {
                tell(Action::RemovedStream, NotifyFilter::STREAM_NAME, path);
            }
            Self::StreamModified { path, what } => tell(Action::ModifiedStream, what, path),
        }
    }
}
