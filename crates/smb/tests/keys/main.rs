//! The keys of one session in the hands of several channels, each on a thread of its own.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;

use smb::SessionId;
use smb::crypto::{
    Cipher, Opener, Sealer, SecretKey, Signer, SigningAlgorithm, TRANSFORM_HEADER_LEN,
};

const CHANNELS: u64 = 4;
const MESSAGES: u64 = 300;
/// Where the nonce is in a transform header.
const NONCE: std::ops::Range<usize> = 20..36;

fn message(channel: u64, number: u64) -> Vec<u8> {
    let mut message = vec![0; 64];
    message[..4].copy_from_slice(b"\xfeSMB");
    message[24..32].copy_from_slice(&number.to_le_bytes());
    message.extend((0..number % 40).flat_map(|n| (n + channel).to_le_bytes()));
    message
}

/// What each channel encrypts at the same time opens, and no nonce comes twice.
#[test]
fn no_nonce_comes_twice() {
    for cipher in Cipher::BY_SPEED {
        let key = SecretKey::new(&[4; 32]);
        let sealer = Arc::new(Sealer::new(cipher, &key, SessionId(7)));
        let opener = Arc::new(Opener::new(cipher, &key));
        let channels = (0..CHANNELS).map(|channel| {
            let (sealer, opener) = (Arc::clone(&sealer), Arc::clone(&opener));
            thread::spawn(move || {
                let one = |number| {
                    let plain = message(channel, number);
                    let mut frame = [&[0; TRANSFORM_HEADER_LEN], &plain[..]].concat();
                    sealer.seal(&mut frame).unwrap();
                    let nonce = frame[NONCE].to_vec();
                    let opened = opener.open(&mut frame).unwrap();
                    assert_eq!(frame[opened], plain);
                    nonce
                };
                (0..MESSAGES).map(one).collect::<Vec<_>>()
            })
        });
        let channels: Vec<_> = channels.collect();
        let nonces: HashSet<_> = channels.into_iter().flat_map(|c| c.join().unwrap()).collect();
        assert_eq!(u64::try_from(nonces.len()), Ok(CHANNELS * MESSAGES), "{cipher:?}");
    }
}

/// A signature is the same whoever makes it, and beside whom.
#[test]
fn a_signer_is_shared() {
    for algorithm in
        [SigningAlgorithm::HmacSha256, SigningAlgorithm::AesCmac, SigningAlgorithm::AesGmac]
    {
        let key = SecretKey::new(&[4; 16]);
        let alone: Vec<_> = (0..MESSAGES)
            .map(|number| {
                let mut message = message(0, number);
                Signer::new(algorithm, &key).sign(&mut message).unwrap();
                message
            })
            .collect();
        let signer = Signer::new(algorithm, &key);
        thread::scope(|scope| {
            for _ in 0..CHANNELS {
                scope.spawn(|| {
                    for (number, alone) in (0..).zip(&alone) {
                        let mut message = message(0, number);
                        signer.sign(&mut message).unwrap();
                        assert_eq!(message, *alone);
                        signer.verify_message(alone).unwrap();
                    }
                });
            }
        });
    }
}
