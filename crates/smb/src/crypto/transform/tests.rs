use super::{
    Cipher, Counter, MESSAGES_MAX, OpenError, Opener, SealError, Sealer, SecretKey, SessionId,
    TRANSFORM_HEADER_LEN, TransformHeader,
};

const KNOWN: [(Cipher, u128, u128); 4] = [
    (
        Cipher::Aes128Ccm,
        0xfbca_02ea_1b33_3149_458e_9538_c5f1_a852,
        0x6659_8fd1_7829_99f9_288b_d5af_e6ef_d13f,
    ),
    (
        Cipher::Aes128Gcm,
        0x1e11_3e12_ae60_4263_a78a_cfe6_e240_9e84,
        0x49d7_8550_9d9e_a08b_eb80_7063_6c8c_be92,
    ),
    (
        Cipher::Aes256Ccm,
        0x5a38_3d51_2614_e7eb_3e4d_b8fd_272a_0364,
        0x12e9_861f_7bd4_868c_2155_a22e_7bb4_dfb0,
    ),
    (
        Cipher::Aes256Gcm,
        0x7d90_b21b_7a30_1349_21c2_9390_bb29_88eb,
        0x0ebd_b7dd_b129_85ba_00a1_a33e_1421_9f96,
    ),
];

fn key() -> SecretKey {
    SecretKey::new(&(0..32).collect::<Vec<u8>>())
}

fn frame(len: usize) -> Vec<u8> {
    let mut frame = vec![0xee; TRANSFORM_HEADER_LEN];
    frame.extend((0..=250u8).cycle().take(len));
    frame
}

#[test]
fn what_is_sealed_opens() {
    for cipher in Cipher::BY_SPEED {
        let sealer = Sealer::new(cipher, &key(), SessionId(0x1234_5678_9abc));
        let opener = Opener::new(cipher, &key());
        for len in [0, 1, 64, 80, 4096, 100_003] {
            let mut sealed = frame(len);
            sealer.seal(&mut sealed).unwrap();
            let header = TransformHeader::parse(&sealed).unwrap();
            assert_eq!(header.session, SessionId(0x1234_5678_9abc));
            assert_eq!(usize::try_from(header.original_size), Ok(len));
            if len > 16 {
                assert_ne!(sealed[TRANSFORM_HEADER_LEN..], frame(len)[TRANSFORM_HEADER_LEN..]);
            }
            for at in [4, 19, 20, 31, 40, 44, 51, TRANSFORM_HEADER_LEN + len / 2] {
                let mut changed = sealed.clone();
                let Some(byte) = changed.get_mut(at) else { continue };
                *byte ^= 1;
                // Bytes of the nonce field that CCM does not use are authenticated as well.
                assert_eq!(opener.open(&mut changed), Err(OpenError::BadTag), "{cipher:?} {at}");
            }
            let plain = opener.open(&mut sealed).unwrap();
            assert_eq!(sealed[plain], frame(len)[TRANSFORM_HEADER_LEN..]);
        }
    }
}

#[test]
fn what_is_no_sealed_message_is_refused() {
    let sealer = Sealer::new(Cipher::Aes128Gcm, &key(), SessionId(1));
    let opener = Opener::new(Cipher::Aes128Gcm, &key());
    let mut sealed = frame(100);
    sealer.seal(&mut sealed).unwrap();
    assert_eq!(opener.open(&mut sealed.clone()[..51]), Err(OpenError::TooShort));
    let length = OpenError::Length { said: 100, there: 99 };
    assert_eq!(opener.open(&mut sealed.clone()[..151]), Err(length));
    let mut other = sealed.clone();
    other[0] = 0xfe;
    assert_eq!(opener.open(&mut other), Err(OpenError::NotTransform));
    let mut other = sealed.clone();
    other[42] = 2;
    assert_eq!(opener.open(&mut other), Err(OpenError::Flags(2)));
    let another = Opener::new(Cipher::Aes128Gcm, &SecretKey::new(&[9; 16]));
    assert_eq!(another.open(&mut sealed), Err(OpenError::BadTag));
    assert_eq!(sealer.seal(&mut [0; 51]), Err(SealError::Length));
}

/// A key that has done its work refuses, for ever, and leaves the message as it was.
#[test]
fn a_key_ends() {
    let mut sealer = Sealer::new(Cipher::Aes128Ccm, &key(), SessionId(1));
    sealer.used = Counter::new(MESSAGES_MAX - 1);
    assert_eq!(sealer.seal(&mut frame(10)), Ok(()));
    for _ in 0..3 {
        let mut plain = frame(10);
        assert_eq!(sealer.seal(&mut plain), Err(SealError::Exhausted));
        assert_eq!(plain, frame(10));
    }
}

/// A message sealed by another implementation (Python's cryptography), one of each cipher.
#[test]
fn agrees_with_others() {
    for (cipher, tag, first) in KNOWN {
        let sealer = Sealer::new(cipher, &key(), SessionId(0x0007_ffee_0000_0011));
        let mut sealed = frame(200);
        sealer.seal(&mut sealed).unwrap();
        sealer.seal(&mut frame(200)).unwrap();
        let value = |at: usize| u128::from_be_bytes(*sealed[at..].first_chunk().unwrap());
        assert_eq!((value(4), value(52)), (tag, first), "{cipher:?}");
    }
}
