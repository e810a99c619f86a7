use super::{Gmac, multiply};

const NONCE: [u8; 12] = [0xca, 0xfe, 0xba, 0xbe, 0xfa, 0xce, 0xdb, 0xad, 0xde, 0xca, 0xf8, 0x88];

fn bytes(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// The empty message under the zero key: test case 1 of the GCM specification.
#[test]
fn case_1_of_the_specification() {
    let gmac = Gmac::new(&[0; 16]);
    assert_eq!(gmac.powers()[0], 0x66e9_4bd4_ef8a_2c3b_884c_fa59_ca34_2b2e);
    let tag = gmac.tag([0; 12], &[]);
    assert_eq!(u128::from_be_bytes(tag), 0x58e2_fcce_fa7e_3061_367f_1d57_a4e7_455a);
}

/// Intermediate values of test case 2: GHASH of one block of ciphertext and its length.
#[test]
fn products_of_the_specification() {
    let h = 0x66e9_4bd4_ef8a_2c3b_884c_fa59_ca34_2b2e;
    let x1 = multiply(0x0388_dace_60b6_a392_f328_c2b9_71b2_fe78, h);
    assert_eq!(x1, 0x5e2e_c746_9170_6288_2c85_b068_5353_deb7);
    assert_eq!(multiply(x1 ^ 0x80, h), 0xf38c_bb1a_d692_23dc_c345_7ae5_b6b0_f885);
}

/// Where a message is cut makes no difference, be it gathered or computed of parts.
#[test]
fn parts_are_the_whole() {
    let gmac = Gmac::new(&[7; 16]);
    for len in [64, 65, 512, 513, 4096 + 80, 9216, 9217, 9232, 70_001] {
        let message = bytes(len);
        let whole = gmac.tag(NONCE, &message);
        for cut in [0, 1, 15, 16, 17, 63, 64] {
            let (a, b) = message.split_at(cut);
            assert_eq!(gmac.tag_parts(NONCE, a, &[b]), whole, "{cut} of {len}");
            for second in [0, 1, 7, 16, 48, b.len() / 2, b.len()] {
                let (b, c) = b.split_at(second.min(b.len()));
                assert_eq!(
                    gmac.tag_parts(NONCE, a, &[b, &[], c]),
                    whole,
                    "{cut} {second} of {len}"
                );
            }
        }
        let small: Vec<&[u8]> = message[64..].chunks(13).collect();
        assert_eq!(gmac.tag_parts(NONCE, &message[..64], &small), whole, "of {len}");
    }
}
