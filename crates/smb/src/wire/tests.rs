use super::*;

#[test]
fn credits_pay_for_64_kib_each() {
    for (len, charge) in [(0, 1), (1, 1), (65_536, 1), (65_537, 2), (8 << 20, 128)] {
        assert_eq!(credit_charge_needed(len), charge, "{len} bytes");
    }
}
