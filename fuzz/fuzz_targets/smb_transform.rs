//! Encrypted and signed messages that nobody has encrypted or signed, and some that were changed on the way.
#![no_main]

use smb::SessionId;
use smb::crypto::{
    Cipher, OpenError, Opener, Sealer, SecretKey, Signer, SigningAlgorithm, TRANSFORM_HEADER_LEN,
    TransformHeader,
};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let key = SecretKey::new(&[5; 32]);
    for cipher in Cipher::BY_SPEED {
        let opener = Opener::new(cipher, &key);
        let mut frame = bytes.to_vec();
        let parsed = TransformHeader::parse(bytes);
        match opener.open(&mut frame) {
            // The fuzzer knows the key, and sees what tags are compared with: in time it makes one.
            Ok(plain) => assert_eq!(plain, TRANSFORM_HEADER_LEN..bytes.len()),
            Err(OpenError::Length { .. } | OpenError::BadTag) => assert!(parsed.is_ok()),
            Err(error) => assert_eq!(parsed, Err(error)),
        }
        let mut sealed = [&[0; TRANSFORM_HEADER_LEN], bytes].concat();
        Sealer::new(cipher, &key, SessionId(1)).seal(&mut sealed).expect("a short message");
        let good = sealed.clone();
        if let [at, to, ..] = bytes {
            let at = usize::from(*at) % sealed.len();
            sealed[at] = *to;
        }
        let changed = sealed != good;
        match opener.open(&mut sealed) {
            Ok(plain) => assert!(!changed && sealed[plain] == *bytes),
            Err(_) => assert!(changed),
        }
    }
    for algorithm in
        [SigningAlgorithm::HmacSha256, SigningAlgorithm::AesCmac, SigningAlgorithm::AesGmac]
    {
        let signer = Signer::new(algorithm, &key);
        let mut signed = bytes.to_vec();
        if signer.sign(&mut signed).is_err() {
            assert!(bytes.len() < 64 && signer.verify_message(bytes).is_err());
            continue;
        }
        // However it is cut.
        let (header, rest) = signed.split_first_chunk().expect("a header");
        let (a, b) = rest.split_at(usize::from(bytes[0]) % (rest.len() + 1));
        let (b, c) = b.split_at(usize::from(bytes[1]) % (b.len() + 1));
        assert_eq!(signer.verify(header, &[a, b, c]), Ok(()));
    }
});
