//! When a file was last written, as clients are to see it.
//!
//! The file system moves the time with each write, which is what Windows and current Samba show at once. What
//! it does not know is that the time may be somebody's business: once a client has set it through a handle, or
//! has frozen it (`-1`), what it writes *through that handle* does not move it any more (MS-FSCC 2.4.7, MS-FSA
//! 2.1.5.15.2, UserSetModificationTime). So after such a write the time from before is set again. Writes
//! through other handles move it as ever.
//!
//! The state is a value of the open; nothing here touches a file.

use smb::FileTime;

/// What one handle lets happen to a file's time, of writing or of access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The file system's own.
    #[default]
    Running,
    /// What is done through this handle does not move it.
    Held,
}

impl Clock {
    /// A set request for the time has come: what to write to the file ([`FileTime::NONE`] for nothing).
    #[must_use]
    pub fn set(&mut self, time: FileTime) -> FileTime {
        match time {
            FileTime::NONE => FileTime::NONE,
            FileTime::THAW => {
                *self = Self::Running;
                FileTime::NONE
            }
            // Zero by -1 freezes, and so does any other time that the file system is not to move.
            _ => {
                *self = Self::Held;
                if time.is_time() { time } else { FileTime::NONE }
            }
        }
    }

    /// Whether the time must be read before a write through this handle, and be set again after it.
    #[must_use]
    pub fn is_held(self) -> bool {
        self == Self::Held
    }

    /// What to set after a write, when `before` was the time before it; [`FileTime::NONE`] for nothing.
    #[must_use]
    pub fn after_write(self, before: FileTime) -> FileTime {
        match self {
            Self::Running => FileTime::NONE,
            Self::Held => before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Clock, FileTime};

    #[test]
    fn a_time_that_was_set_stays_until_it_is_thawed() {
        let mut clock = Clock::default();
        assert_eq!(clock.after_write(FileTime(7)), FileTime::NONE);
        assert_eq!(clock.set(FileTime::NONE), FileTime::NONE);
        assert!(!clock.is_held());
        assert_eq!(clock.set(FileTime(99)), FileTime(99));
        assert_eq!(clock.after_write(FileTime(99)), FileTime(99));
        // Another handle has written meanwhile: that one's time stays.
        assert_eq!(clock.after_write(FileTime(108)), FileTime(108));
        assert_eq!(clock.set(FileTime::THAW), FileTime::NONE);
        assert_eq!(clock.after_write(FileTime(108)), FileTime::NONE);
    }

    #[test]
    fn freezing_sets_nothing() {
        let mut clock = Clock::default();
        assert_eq!(clock.set(FileTime::FREEZE), FileTime::NONE);
        assert!(clock.is_held());
    }
}
