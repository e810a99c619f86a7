use super::{BadSignature, HEADER_LEN, SIGNATURE_AT, Signer, TooShort, nonce};
use crate::crypto::{SecretKey, SigningAlgorithm};

const ALL: [SigningAlgorithm; 3] =
    [SigningAlgorithm::HmacSha256, SigningAlgorithm::AesCmac, SigningAlgorithm::AesGmac];

const KNOWN: [u128; 3] = [
    0xff46_ba9d_5e13_0cde_bd87_0e04_a0c4_f85a,
    0x53a3_eac1_6d2f_e2ab_7544_877c_a081_f233,
    0x8c7d_5246_c12d_bfee_aec3_91aa_b0af_2485,
];

fn message(len: usize) -> Vec<u8> {
    let mut message: Vec<u8> = (0..=250u8).cycle().take(len).collect();
    message[..4].copy_from_slice(b"\xfeSMB");
    message
}

/// However a message lies, it has one signature, and a change anywhere breaks it.
#[test]
fn signs_and_verifies() {
    for algorithm in ALL {
        let signer = Signer::new(algorithm, &SecretKey::new(&[3; 16]));
        assert_eq!(signer.algorithm(), algorithm);
        for len in [64, 73, 80, 1500, 70_000] {
            let mut signed = message(len);
            signer.sign(&mut signed).unwrap();
            assert_eq!(signer.verify_message(&signed), Ok(()), "{algorithm:?} {len}");
            let (header, rest) = signed.split_first_chunk().unwrap();
            let (a, b) = rest.split_at(rest.len().min(16));
            assert_eq!(signer.verify(header, &[a, b]), Ok(()));
            let mut header = *message(len).first_chunk().unwrap();
            signer.sign_parts(&mut header, &[a, b]);
            assert_eq!(header, signed[..HEADER_LEN]);
            for at in [0, 16, SIGNATURE_AT, HEADER_LEN - 1, len / 2, len - 1] {
                signed[at] ^= 0x10;
                assert_eq!(signer.verify_message(&signed), Err(BadSignature), "byte {at}");
                signed[at] ^= 0x10;
            }
        }
        assert_eq!(signer.sign(&mut message(63)), Err(TooShort));
        assert_eq!(signer.verify_message(&message(63)), Err(BadSignature));
    }
}

/// Of several messages each is found good or bad as it is alone, in whatever company.
#[test]
fn messages_are_verified_together_as_they_are_alone() {
    for algorithm in ALL {
        let signer = Signer::new(algorithm, &SecretKey::new(b"0123456789abcdef"));
        assert_eq!(signer.gains_by_many(), algorithm == SigningAlgorithm::AesCmac);
        for count in 0..=9 {
            for bad in 0..=count {
                let mut messages: Vec<_> = (0..count).map(|at| message(64 + 331 * at)).collect();
                messages.iter_mut().for_each(|message| signer.sign(message).unwrap());
                if let Some(message) = messages.get_mut(bad) {
                    // One is changed at its end, one has no whole header.
                    *message.last_mut().unwrap() ^= 1;
                    message.truncate(if bad % 3 == 2 { 63 } else { message.len() });
                }
                let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
                let together = signer.verify_messages(&messages);
                let wanted =
                    (0..count).map(|at| if at == bad { Err(BadSignature) } else { Ok(()) });
                assert!(together.into_iter().eq(wanted), "{algorithm:?}, {bad} of {count}");
            }
        }
    }
}

/// A message of each algorithm computed by other implementations (Python's hmac and cryptography).
#[test]
fn agrees_with_others() {
    for (algorithm, expected) in ALL.into_iter().zip(KNOWN) {
        let key: Vec<u8> = (0..16).collect();
        let signer = Signer::new(algorithm, &SecretKey::new(&key));
        let mut signed = message(3000);
        signer.sign(&mut signed).unwrap();
        let signature = u128::from_be_bytes(*signed[SIGNATURE_AT..].first_chunk().unwrap());
        assert_eq!(signature, expected, "{algorithm:?} {signature:#x}");
    }
}

/// One byte for the kind of message, so that a request and its response have different nonces.
#[test]
fn nonces_tell_requests_responses_and_cancels_apart() {
    let mut header = [0; HEADER_LEN];
    header[24..32].copy_from_slice(&0x0102_0304_0506_0708_u64.to_le_bytes());
    let with = |rest: [u8; 4]| [&[8, 7, 6, 5, 4, 3, 2, 1], &rest[..]].concat();
    assert_eq!(nonce(&header).as_slice(), with([0, 0, 0, 0]));
    header[16] = 0x09;
    assert_eq!(nonce(&header).as_slice(), with([1, 0, 0, 0]));
    header[12] = 0x0c;
    header[16] = 0x08;
    assert_eq!(nonce(&header).as_slice(), with([2, 0, 0, 0]));
}
