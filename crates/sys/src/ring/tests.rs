use super::*;
use proptest::prelude::*;

#[test]
fn a_cursor_out_of_bounds_is_refused() {
    assert_eq!(used(0, 16, 16), Ok(16));
    assert_eq!(used(0, 17, 16), Err(Corrupt));
    assert_eq!(used(1, 0, 16), Err(Corrupt));
    assert_eq!(used(u64::MAX, 3, 16), Ok(4));
}

proptest! {
    /// Two pieces cover the stretch exactly and stay inside of the ring.
    #[test]
    fn pieces_cover(at: u64, order in 4u32..16, n in 0usize..70000) {
        let capacity = 1usize << order;
        let n = n.min(capacity);
        let [(a, x), (b, y)] = pieces(at, n, capacity);
        prop_assert_eq!(x + y, n);
        prop_assert!(a + x <= capacity && b + y <= capacity);
        prop_assert!(y == 0 || a + x == capacity && b == 0);
    }
}
