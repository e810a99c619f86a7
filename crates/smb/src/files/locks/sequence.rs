//! Lock requests that come twice, because their answer was lost (MS-SMB2 3.3.5.14).

const NONE: u8 = 0xff;

/// The numbers of the last lock requests of an open, by the bucket that its client keeps them in.
#[derive(Clone, Debug)]
pub struct LockSequence([u8; 64]);

impl Default for LockSequence {
    fn default() -> Self {
        Self([NONE; 64])
    }
}

impl LockSequence {
    fn bucket(&mut self, sequence: u32) -> Option<&mut u8> {
        let bucket = usize::try_from(sequence >> 4).ok()?.checked_sub(1)?;
        self.0.get_mut(bucket)
    }

    /// Whether this request, by its LockSequence field, has succeeded before: then it is answered again, and
    /// not done again. If not, what its bucket held is forgotten.
    #[must_use]
    pub fn is_replay(&mut self, sequence: u32) -> bool {
        let number = low(sequence);
        self.bucket(sequence).is_some_and(|bucket| {
            let same = *bucket == number;
            if !same {
                *bucket = NONE;
            }
            same
        })
    }

    /// This request has succeeded.
    pub fn done(&mut self, sequence: u32) {
        let number = low(sequence);
        if let Some(bucket) = self.bucket(sequence) {
            *bucket = number;
        }
    }
}

fn low(sequence: u32) -> u8 {
    u8::try_from(sequence & 0xf).unwrap_or(NONE)
}

#[cfg(test)]
mod tests {
    use super::LockSequence;

    #[test]
    fn a_request_that_succeeded_is_known_again_until_its_bucket_is_used() {
        let mut sequence = LockSequence::default();
        assert!(!sequence.is_replay(0x11));
        sequence.done(0x11);
        assert!(sequence.is_replay(0x11));
        assert!(!sequence.is_replay(0x12));
        assert!(!sequence.is_replay(0x11), "the bucket was used meanwhile");
        sequence.done(0x40f);
        assert!(sequence.is_replay(0x40f), "64 buckets");
    }

    #[test]
    fn bucket_zero_and_buckets_that_are_not_there_are_not_checked() {
        let mut sequence = LockSequence::default();
        for number in [0x01, 0x411, u32::MAX] {
            sequence.done(number);
            assert!(!sequence.is_replay(number));
        }
    }
}
