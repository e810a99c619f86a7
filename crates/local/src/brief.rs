//! Whether the connections of this process carry one request each.
//!
//! On one CPU such a connection is mostly the kernel's: it is made, accepted and closed there, and all that a yield finds
//! is that nothing has come by memory. A sleep in the kernel lets the peer run as well, and ends with what comes. What a
//! connection will carry nobody knows, but it is mostly what the ones before it have.

use sys::sync::{AtomicU32, Ordering};

/// So many in a row are no accident.
const MANY: u32 = 8;
/// More than this by rings is no short connection.
pub(crate) const BYTES_MAX: u64 = 64 << 10;

/// What connections of this process have carried.
#[derive(Debug, Default)]
pub(crate) struct Brief {
    in_a_row: AtomicU32,
}

impl Brief {
    /// A connection has ended; `brief`: it carried one request at most, and a short answer, on one CPU.
    pub(crate) fn ended(&self, brief: bool) {
        let so_far = self.in_a_row.load(Ordering::Relaxed);
        let now = if brief { (so_far + 1).min(MANY) } else { 0 };
        if now != so_far {
            self.in_a_row.store(now, Ordering::Relaxed);
        }
    }

    /// Whether the next one will carry one request, as far as can be told.
    pub(crate) fn is_usual(&self) -> bool {
        self.in_a_row.load(Ordering::Relaxed) == MANY
    }
}

#[cfg(test)]
mod tests {
    use super::{Brief, MANY};

    #[test]
    fn many_in_a_row_are_usual_until_one_carries_more() {
        let brief = Brief::default();
        for _ in 0..MANY {
            assert!(!brief.is_usual());
            brief.ended(true);
        }
        assert!(brief.is_usual());
        brief.ended(true);
        assert!(brief.is_usual());
        brief.ended(false);
        assert!(!brief.is_usual());
        (1..MANY).for_each(|_| brief.ended(true));
        assert!(!brief.is_usual(), "in a row again");
    }
}
