//! Which requests on an open are older than a lost channel (MS-SMB2 3.3.5.2.10).

/// What an open remembers of the channel sequence of its client, and of the requests under way.
///
/// When a client loses a channel it counts its sequence up and sends again what had not been answered. What
/// still arrives with the old number must not change anything any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelSequence {
    /// The newest sequence that the client has used on this open.
    current: u16,
    /// Requests under way with the current number, at most [`COUNT_MAX`].
    outstanding: u32,
    /// Requests under way with an older one, at most as many.
    older: u32,
}

/// Bits of each count in [`ChannelSequence::to_bits`].
const COUNT_BITS: u32 = 24;
/// The most requests that are counted: more than the channels of a session have credits for.
const COUNT_MAX: u32 = (1 << COUNT_BITS) - 1;

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

    /// All of it in one word, for those who count from several threads.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        u64::from(self.current) << (2 * COUNT_BITS)
            | u64::from(self.outstanding) << COUNT_BITS
            | u64::from(self.older)
    }

    /// What [`ChannelSequence::to_bits`] has made.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "what is cut off is another field")]
    pub fn from_bits(bits: u64) -> Self {
        Self {
            current: (bits >> (2 * COUNT_BITS)) as u16,
            outstanding: (bits >> COUNT_BITS) as u32 & COUNT_MAX,
            older: bits as u32 & COUNT_MAX,
        }
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
                self.outstanding = more(self.outstanding, 1);
                Ok(true)
            }
            1..=0x7fff => {
                self.older = more(self.older, self.outstanding);
                self.outstanding = 0;
                self.current = sequence;
                if modifies && replay && self.older > 0 {
                    return Err(Stale);
                }
                self.outstanding = more(self.outstanding, 1);
                Ok(true)
            }
            _ if modifies => Err(Stale),
            _ => {
                self.older = more(self.older, 1);
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

fn more(count: u32, by: u32) -> u32 {
    count.saturating_add(by).min(COUNT_MAX)
}

#[cfg(test)]
mod tests {
    use super::{COUNT_MAX, ChannelSequence, Stale};

    #[test]
    fn one_word_says_all_of_it() {
        for (current, outstanding, older) in
            [(0, 0, 0), (0xffff, COUNT_MAX, COUNT_MAX), (1, 2, 3), (0x8000, 0, COUNT_MAX)]
        {
            let said = ChannelSequence { current, outstanding, older };
            assert_eq!(ChannelSequence::from_bits(said.to_bits()), said);
        }
        let mut full = ChannelSequence { current: 7, outstanding: COUNT_MAX, older: COUNT_MAX - 1 };
        assert_eq!(full.begin(7, true, false), Ok(true));
        assert_eq!(full.begin(8, false, false), Ok(true), "and no count runs into the next field");
        let wanted = ChannelSequence { current: 8, outstanding: 1, older: COUNT_MAX };
        assert_eq!(ChannelSequence::from_bits(full.to_bits()), wanted);
    }

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
