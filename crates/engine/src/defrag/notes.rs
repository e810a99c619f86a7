//! What a pcapng file says of a packet beside its bytes, as far as it holds for a datagram as well: comments of people, and
//! flags such as the direction.

use super::file::Order;

const COMMENT: u16 = 1;
const FLAGS: u16 = 2;
/// Comments of one datagram, at most: it may have thousands of fragments.
const COMMENTS_MAX: usize = 64 << 10;
/// Where the flags say how long the checksum behind the frame is, in bytes; 0: they do not.
const FCS_AT: u32 = 5;
const FCS_MASK: u32 = 15;

/// Options of a packet, and the order of bytes that they are in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) order: Order,
}

impl<'a> Options<'a> {
    /// Code and value of each.
    fn all(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let Self { bytes: mut rest, order } = self;
        std::iter::from_fn(move || {
            let (code, len) = (rest.len() >= 4)
                .then(|| (order.u16(rest, 0), usize::from(order.u16(rest, 2))))
                .filter(|(code, _)| *code != 0)?;
            let value = rest.get(4..4 + len)?;
            rest = rest.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
            Some((code, value))
        })
    }

    fn flags(self) -> Option<u32> {
        let flags = self.all().find(|(code, value)| *code == FLAGS && value.len() == 4);
        flags.map(|(_, value)| self.order.u32(value, 0))
    }

    /// Bytes of the checksum behind this frame, if they say so.
    pub(super) fn fcs_bytes(self) -> Option<u8> {
        let bytes = self.flags()? >> FCS_AT & FCS_MASK;
        u8::try_from(bytes).ok().filter(|bytes| *bytes > 0)
    }

    /// Its comments and flags in another order of bytes. What else there is may be anything, so it is left out.
    pub(super) fn reordered(self, order: Order) -> Vec<u8> {
        compose(order, self, std::iter::once(self))
    }
}

/// Options of a datagram: flags of its first fragment, comments of all of them.
pub(super) fn compose<'a>(
    order: Order,
    first: Options<'_>,
    all: impl Iterator<Item = Options<'a>>,
) -> Vec<u8> {
    let mut composed = Vec::new();
    for (_, comment) in all.flat_map(Options::all).filter(|(code, _)| *code == COMMENT) {
        if composed.len() + 4 + comment.len().next_multiple_of(4) > COMMENTS_MAX {
            break;
        }
        put(&mut composed, order, COMMENT, comment);
    }
    if let Some(flags) = first.flags() {
        put(&mut composed, order, FLAGS, &order.put32(flags));
    }
    if !composed.is_empty() {
        composed.extend([0; 4]);
    }
    composed
}

fn put(options: &mut Vec<u8>, order: Order, code: u16, value: &[u8]) {
    // It was as long where it comes from.
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    options.extend([order.put16(code), order.put16(len)].as_flattened());
    options.extend_from_slice(value);
    options.resize(options.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERS: [Order; 2] = [Order::Little, Order::Big];

    fn options(order: Order, all: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        all.iter().for_each(|(code, value)| put(&mut bytes, order, *code, value));
        [bytes, vec![0; 4]].concat()
    }

    #[test]
    fn comments_of_all_and_flags_of_the_first_are_kept_in_either_order_of_bytes() {
        for from in ORDERS {
            let flags = |n| from.put32(n);
            let one = options(from, &[(1, b"one"), (4, &[7; 8]), (2, &flags(0x81)), (1, b"more")]);
            let two = options(from, &[(2, &flags(2)), (1, b"two")]);
            let [one, two] = [&one, &two].map(|bytes| Options { bytes, order: from });
            for to in ORDERS {
                let flags = to.put32(0x81);
                let all: [(u16, &[u8]); 4] = [(1, b"one"), (1, b"more"), (1, b"two"), (2, &flags)];
                assert_eq!(compose(to, one, [one, two].into_iter()), options(to, &all));
                assert_eq!(two.reordered(to), options(to, &[(1, b"two"), (2, &to.put32(2))]));
            }
            assert_eq!((one.fcs_bytes(), two.fcs_bytes()), (Some(4), None));
        }
    }

    #[test]
    fn comments_have_a_limit_and_may_end_anywhere() {
        let order = Order::Little;
        let long = options(order, &[(1, &[7; 1000])]);
        let long = Options { bytes: &long, order };
        let composed = compose(order, long, std::iter::repeat_n(long, 1000));
        assert!((60_000..=COMMENTS_MAX + 12).contains(&composed.len()), "{}", composed.len());
        for end in 0..long.bytes.len() {
            let cut = Options { bytes: &long.bytes[..end], order };
            assert_eq!(cut.reordered(order).is_empty(), end < 4 + 1000);
        }
    }
}
