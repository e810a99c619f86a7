use super::Cmac;

const KEY: [u8; 16] = 0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c_u128.to_be_bytes();

fn message() -> Vec<u8> {
    [
        0x6bc1_bee2_2e40_9f96_e93d_7e11_7393_172a_u128,
        0xae2d_8a57_1e03_ac9c_9eb7_6fac_45af_8e51,
        0x30c8_1c46_a35c_e411_e5fb_c119_1a0a_52ef,
        0xf69f_2445_df4f_9b17_ad2b_417b_e66c_3710,
    ]
    .iter()
    .flat_map(|block| block.to_be_bytes())
    .collect()
}

/// RFC 4493 section 4.
#[test]
fn vectors_of_the_rfc() {
    let cmac = Cmac::new(&KEY);
    for (len, tag) in [
        (0, 0xbb1d_6929_e959_3728_7fa3_7d12_9b75_6746_u128),
        (16, 0x070a_16b4_6b4d_4144_f79b_dd9d_d04a_287c),
        (40, 0xdfa6_6747_de9a_e630_30ca_3261_1497_c827),
        (64, 0x51f0_bebf_7e3b_9d92_fc49_7417_7936_3cfe),
    ] {
        assert_eq!(u128::from_be_bytes(cmac.tag(&message()[..len], &[])), tag, "{len} bytes");
    }
}

/// Where a message is cut makes no difference.
#[test]
fn parts_are_the_whole() {
    let cmac = Cmac::new(&KEY);
    let message = [message(), message()].concat();
    for len in [1, 15, 16, 17, 64, 80, 127, 128] {
        let whole = cmac.tag(&message[..len], &[]);
        for cut in 0..len {
            let (a, b) = message[..len].split_at(cut);
            assert_eq!(cmac.tag(a, &[b]), whole, "{cut} of {len}");
            let (b, c) = b.split_at(b.len() / 3);
            assert_eq!(cmac.tag(a, &[b, &[], c]), whole, "{cut} of {len}");
        }
    }
}

/// Another implementation says the same of long messages.
#[test]
fn agrees_with_aws_lc() {
    let key = aws_lc_rs::cmac::Key::new(aws_lc_rs::cmac::AES_128, &KEY).unwrap();
    let message: Vec<u8> =
        (0u32..100_003).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    for len in [65, 4096, 65_552, message.len()] {
        let theirs = aws_lc_rs::cmac::sign(&key, &message[..len]).unwrap();
        let (first, rest) = message[..len].split_at(64);
        assert_eq!(Cmac::new(&KEY).tag(first, &[rest]), theirs.as_ref());
    }
}

/// Messages side by side have the tags that they have alone, whichever of them is the shortest, and however heads and
/// blocks meet.
#[test]
fn tags_of_many_are_those_of_each() {
    let cmac = Cmac::new(&KEY);
    let bytes: Vec<u8> =
        (0..4000_u32).map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()[1]).collect();
    for head in [64, 60, 16, 5] {
        for lens in [[0, 0, 0], [1, 16, 17], [3000, 3000, 3000], [3000, 15, 900], [33, 32, 31]] {
            let messages: [(&[u8], &[u8]); 3] =
                std::array::from_fn(|at| (&bytes[at..][..head], &bytes[at * 100..][..lens[at]]));
            let alone = messages.map(|(head, rest)| cmac.tag(head, &[rest]));
            assert_eq!(cmac.tags(messages), alone, "{head}, {lens:?}");
            assert_eq!(cmac.tags([messages[1]]), [alone[1]]);
        }
    }
    assert_eq!(cmac.tags([]), [[0; 16]; 0]);
}
