use proptest::prelude::*;

use super::*;

const SIZE: u32 = 16_384;

#[test]
fn full_and_empty_differ_by_the_wrap() {
    let (empty, full) = (Cursor { wrap: 7, count: 5 }, Cursor { wrap: 8, count: 5 });
    assert_eq!(empty.since(empty, SIZE), Ok(0));
    assert_eq!(full.since(empty, SIZE), Ok(SIZE));
}

#[test]
fn a_full_ring_from_the_start_is_wrap_1_count_0() {
    // As Linux has it; the offset is never the size.
    assert_eq!(Cursor::default().advance(SIZE, SIZE), Cursor { wrap: 1, count: 0 });
}

#[test]
fn wrap_comes_round() {
    let last = Cursor { wrap: u16::MAX, count: SIZE - 1 };
    assert_eq!(last.advance(1, SIZE), Cursor { wrap: 0, count: 0 });
    assert_eq!(last.advance(1, SIZE).since(last, SIZE), Ok(1));
}

#[test]
fn what_cannot_be_is_refused() {
    let at = |wrap, count| Cursor { wrap, count };
    let outside = at(0, SIZE);
    assert_eq!(outside.since(at(0, 0), SIZE), Err(BadCursor::Outside { count: SIZE, size: SIZE }));
    let cases = [(at(0, 0), at(0, 1)), (at(1, 1), at(0, 0)), (at(2, 0), at(0, 0))];
    for (new, old) in cases {
        let far = BadCursor::Far { wrap: new.wrap, count: new.count };
        assert_eq!(new.since(old, SIZE), Err(far), "{new:?} since {old:?}");
    }
    assert!(at(0, u32::MAX).near(0, u32::MAX).is_err());
    assert!(at(u16::MAX, 0).near(0, SIZE).is_err(), "before the beginning");
}

fn sizes() -> impl Strategy<Value = u32> {
    // SMC-D rings are 32 bytes shorter than a power of two.
    prop_oneof![(14..30u32).prop_map(|n| 1 << n), (14..21u32).prop_map(|n| (1 << n) - 32)]
}

proptest! {
    #[test]
    fn agrees_with_a_count_of_bytes(
        size in sizes(), start in any::<u64>(), step in any::<prop::sample::Index>(),
    ) {
        let start = start >> 8;
        let step = u32::try_from(step.index(size as usize + 1)).unwrap();
        let (old, new) = (Cursor::at(start, size), Cursor::at(start + u64::from(step), size));
        prop_assert_eq!(old.advance(step, size), new);
        prop_assert_eq!(new.since(old, size), Ok(step));
        prop_assert_eq!(new.near(start, size), Ok(start + u64::from(step)));
        prop_assert_eq!(old.near(start + u64::from(step), size), Ok(start));
        if step > 0 {
            prop_assert!(old.since(new, size).is_err());
        }
    }

    #[test]
    fn any_bytes_give_a_place_nearby_or_an_error(
        size in sizes(), known in any::<u32>(), wrap in any::<u16>(), count in any::<u32>(),
    ) {
        let (known, cursor) = (u64::from(known), Cursor { wrap, count });
        if let Ok(position) = cursor.near(known, size) {
            prop_assert!(position.abs_diff(known) <= u64::from(size));
            prop_assert_eq!(Cursor::at(position, size), cursor);
        }
    }
}
