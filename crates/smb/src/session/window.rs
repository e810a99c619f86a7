//! Credits: which message ids a client may use, and how many more it gets (MS-SMB2 3.3.1.1, 3.3.1.2).

use crate::MessageId;

/// The message ids that a client may use at this moment, and which of them it has used.
///
/// Ids are granted in order from zero. A client may use those it has in any order, each once; the window
/// never spans more than its limit, so that a client which leaves one id unused cannot make the server
/// remember without end.
#[derive(Clone, Debug)]
pub struct Window {
    /// The lowest id that has not been used.
    low: u64,
    /// Ids from `low` on that are granted.
    granted: u64,
    /// Which ids of `low ..` have been used; bit `id % span`.
    used: Box<[u64]>,
    /// The most ids in the window, a power of two.
    span: u64,
}

/// A message id that this client may not use now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessageId {
    /// Used before.
    #[error("message id {0} has been used")]
    Used(u64),
    /// Not granted yet.
    #[error("message id {0} has not been granted: credits reach to {1}")]
    NotGranted(u64, u64),
}

/// How a request may be rewarded with credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// No more than it cost: the client is not yet known.
    Replace,
    /// What was asked for, up to the limit.
    AsAsked,
}

impl Window {
    /// A window of at most `limit` ids (rounded up to a power of two, 64 at least), of which the first is
    /// granted: that of the negotiate request.
    #[must_use]
    pub fn new(limit: u16) -> Self {
        let span = u64::from(limit).next_power_of_two().max(64);
        let words = usize::try_from(span / 64).unwrap_or(1);
        Self { low: 0, granted: 1, used: vec![0; words].into_boxed_slice(), span }
    }

    /// Credits the client holds: ids granted and not used.
    #[must_use]
    pub fn held(&self) -> u64 {
        let used: u32 = self.used.iter().map(|word| word.count_ones()).sum();
        self.granted - u64::from(used)
    }

    /// The ids that a request uses: `charge` of them from `id` on (MS-SMB2 3.3.5.2.3). A charge of zero counts as
    /// one. Nothing is used when one of them may not be.
    ///
    /// # Errors
    ///
    /// [`BadMessageId`]: the connection is to be closed.
    pub fn consume(&mut self, id: MessageId, charge: u16) -> Result<(), BadMessageId> {
        let charge = u64::from(charge.max(1));
        let high = self.low + self.granted;
        if id.0 < self.low {
            return Err(BadMessageId::Used(id.0));
        }
        match id.0.checked_add(charge) {
            Some(end) if end <= high => {}
            _ => return Err(BadMessageId::NotGranted(id.0, high)),
        }
        if let Some(used) = (id.0..id.0 + charge).find(|id| self.is_used(*id)) {
            return Err(BadMessageId::Used(used));
        }
        for id in id.0..id.0 + charge {
            let (word, bit) = self.place(id);
            self.used[word] |= bit;
        }
        while self.granted > 0 && self.is_used(self.low) {
            let (word, bit) = self.place(self.low);
            self.used[word] &= !bit;
            self.low += 1;
            self.granted -= 1;
        }
        Ok(())
    }

    /// Credits for an answer to a request that asked for `asked` and cost `charge`: as many as it cost and,
    /// under [`Grant::AsAsked`], those that it asked for beyond one, as far as `limit` and the window allow.
    /// A client that would be left with none gets one.
    pub fn grant(&mut self, asked: u16, charge: u16, grant: Grant, limit: u16) -> u16 {
        let wanted = match (asked, grant) {
            (0, _) => 0,
            (_, Grant::Replace) => charge.max(1),
            (asked, Grant::AsAsked) => charge.max(1).saturating_add(asked - 1),
        };
        let room = self.span.min(u64::from(limit).max(1)).saturating_sub(self.granted);
        let mut credits = u64::from(wanted).min(room);
        if credits == 0 && self.held() == 0 && self.granted < self.span {
            credits = 1;
        }
        self.granted += credits;
        u16::try_from(credits).unwrap_or(u16::MAX)
    }

    fn is_used(&self, id: u64) -> bool {
        let (word, bit) = self.place(id);
        self.used[word] & bit != 0
    }

    fn place(&self, id: u64) -> (usize, u64) {
        let index = id % self.span;
        (usize::try_from(index / 64).unwrap_or(0), 1 << (index % 64))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::{BadMessageId, Grant, Window};
    use crate::MessageId;

    #[test]
    fn the_first_id_is_granted_and_no_other() {
        let mut window = Window::new(512);
        assert_eq!(window.consume(MessageId(1), 1), Err(BadMessageId::NotGranted(1, 1)));
        assert_eq!(window.consume(MessageId(0), 0), Ok(()));
        assert_eq!(window.consume(MessageId(0), 1), Err(BadMessageId::Used(0)));
        assert_eq!(window.held(), 0);
        assert_eq!(window.grant(1, 1, Grant::Replace, 512), 1);
        assert_eq!(window.consume(MessageId(1), 1), Ok(()));
    }

    #[test]
    fn a_skipped_id_holds_the_window_within_its_limit() {
        let mut window = Window::new(64);
        window.consume(MessageId(0), 1).expect("the first");
        assert_eq!(window.grant(1000, 1, Grant::AsAsked, 64), 64);
        for id in 2..=64 {
            window.consume(MessageId(id), 1).expect("granted");
            assert_eq!(window.grant(1, 1, Grant::AsAsked, 64), 0, "id 1 has not been used");
        }
        window.consume(MessageId(1), 1).expect("still granted");
        assert_eq!(window.grant(1, 1, Grant::AsAsked, 64), 1);
    }

    #[test]
    fn ids_near_the_end_of_the_numbers_do_not_wrap() {
        let mut window = Window::new(64);
        assert!(window.consume(MessageId(u64::MAX), 2).is_err());
    }

    proptest! {
        /// Against a set of what is granted and not used.
        #[test]
        fn behaves_as_a_set(steps in prop::collection::vec((0u64..200, 0u16..5, 0u16..40), 1..300)) {
            let mut window = Window::new(128);
            let mut free = BTreeSet::from([0u64]);
            let mut high = 1;
            for (id, charge, asked) in steps {
                let range = id..id + u64::from(charge.max(1));
                let allowed = range.clone().all(|id| free.contains(&id));
                prop_assert_eq!(window.consume(MessageId(id), charge).is_ok(), allowed);
                if allowed {
                    range.for_each(|id| { free.remove(&id); });
                    let granted = window.grant(asked, charge, Grant::AsAsked, 128);
                    (high..high + u64::from(granted)).for_each(|id| { free.insert(id); });
                    high += u64::from(granted);
                }
                prop_assert_eq!(window.held(), free.len() as u64);
                prop_assert!(!free.is_empty(), "a client always has a credit");
                prop_assert!(free.first().is_none_or(|low| high - low <= 128));
            }
        }
    }
}
