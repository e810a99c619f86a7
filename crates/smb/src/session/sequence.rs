//! Which requests on an open are older than a lost channel (MS-SMB2 3.3.5.2.10).

/// What an open remembers of the channel sequence of its client, and of the requests under way.
///
/// When a client loses a channel it counts its sequence up and sends again what had not been answered. What
/// still arrives with the old number must not change anything any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelSequence {
    /// The newest sequence that the client has used on this open.
    current: u16,
    /// Requests under way with the current number.
    outstanding: u64,
    /// Requests under way with an older one.
    older: u64,
}

/// The request is older than a channel that the client has given up, or it modifies while such are still
/// under way: STATUS_FILE_NOT_AVAILABLE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

impl ChannelSequence {
    /// An open made by a request with this sequence.
    #[must_use]
    pub fn new(current: u16) -> Self {
        Self { current, outstanding: 0, older: 0 }
    }

    /// A request begins. `modifies` is true of those that change something: WRITE, SET_INFO and IOCTL; `replay`
    /// of those that carry SMB2_FLAGS_REPLAY_OPERATION. The answer is to be given back to
    /// [`ChannelSequence::end`]: whether it counts as current.
    ///
    /// # Errors
    ///
    /// [`Stale`] when it must not be done.
    pub fn begin(&mut self, sequence: u16, modifies: bool, replay: bool) -> Result<bool, Stale> {
        let ahead = sequence.wrapping_sub(self.current);
        match ahead {
            0 => {
                // What is sent again may find the first one still under way, on a channel that is not lost yet.
                if modifies && replay && self.older > 0 {
                    return Err(Stale);
                }
                self.outstanding += 1;
                Ok(true)
            }
            1..=0x7fff => {
                self.older += self.outstanding;
                self.outstanding = 0;
                self.current = sequence;
                if modifies && replay && self.older > 0 {
                    return Err(Stale);
                }
                self.outstanding += 1;
                Ok(true)
            }
            _ if modifies => Err(Stale),
            _ => {
                self.older += 1;
                Ok(false)
            }
        }
    }

    /// A request that [`ChannelSequence::begin`] let pass with sequence number `sequence` has ended.
    pub fn end(&mut self, sequence: u16) {
        if sequence == self.current && self.outstanding > 0 {
            self.outstanding -= 1;
        } else {
            self.older = self.older.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ChannelSequence, Stale};

    #[test]
    fn an_old_write_is_refused_and_an_old_read_is_not() {
        let mut open = ChannelSequence::new(0);
        assert_eq!(open.begin(1, true, false), Ok(true));
        assert_eq!(open.begin(0, true, false), Err(Stale));
        assert_eq!(open.begin(0, false, false), Ok(false));
    }

    #[test]
    fn the_number_wraps() {
        let mut open = ChannelSequence::new(0xffff);
        assert_eq!(open.begin(0, true, false), Ok(true), "zero comes after 0xffff");
        assert_eq!(open.begin(0xffff, true, false), Err(Stale));
        let mut open = ChannelSequence::new(0);
        assert_eq!(open.begin(0x8000, true, false), Err(Stale), "too far ahead is behind");
    }

    #[test]
    fn what_is_sent_again_waits_for_the_older_to_end() {
        let mut open = ChannelSequence::new(0);
        assert_eq!(open.begin(0, true, false), Ok(true));
        assert_eq!(open.begin(1, true, true), Err(Stale));
        open.end(0);
        assert_eq!(open.begin(1, true, true), Ok(true));
    }
}
