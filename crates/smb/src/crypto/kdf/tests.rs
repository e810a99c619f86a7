use crate::crypto::{Cipher, KeySchedule, PreauthHash, SecretKey, SessionKeys};

fn key(value: u128) -> SecretKey {
    SecretKey::new(&value.to_be_bytes())
}

fn value(key: &SecretKey) -> u128 {
    u128::from_be_bytes(*key.first_16())
}

/// "SMB 2 and SMB 3 security in Windows 10: the anatomy of signing and cryptographic keys" (Microsoft), 3.0.
/// Its EncryptionKey is the client's.
#[test]
fn keys_of_3_0() {
    let session = key(0x7cd4_5182_5d04_50d2_3542_4e44_ba6e_78cc);
    let keys = SessionKeys::derive(KeySchedule::Smb30, &session, Some(Cipher::Aes128Ccm));
    assert_eq!(value(&keys.signing), 0x0b7e_9c5c_ac36_c0f6_ea9a_b275_298c_edce);
    assert_eq!(value(&keys.application), 0xbb23_a457_5aa2_6c72_1af5_25af_15a8_7b4f);
    let (out, back) = (keys.client_to_server.unwrap(), keys.server_to_client.unwrap());
    assert_eq!(value(&out), 0xfad2_7796_665b_313e_bb57_8f38_8632_b4f7);
    assert_eq!(value(&back), 0xb0f0_427f_7ceb_416d_1d9d_cc0c_d4f9_9447);
}

/// The same, 3.1.1.
#[test]
fn keys_of_3_1_1() {
    let session = key(0x270e_1ba8_9658_5eeb_7af3_472d_3b4c_75a7);
    let mut hash = [0; 64];
    for (to, part) in hash.chunks_exact_mut(16).zip([
        0x0dd1_3628_cc3e_d218_ef9d_f977_2d43_6d08_u128,
        0x87ab_9814_bfae_63a8_0aa8_45f3_6909_db79,
        0x2862_2ddd_ad52_2d97_5164_0a45_9762_c5a9,
        0xd6bb_084c_bb3c_e6bd_adef_5d5b_ce3c_6c01,
    ]) {
        to.copy_from_slice(&part.to_be_bytes());
    }
    let hash = PreauthHash::from(hash);
    let schedule = KeySchedule::Smb311(&hash);
    let keys = SessionKeys::derive(schedule, &session, Some(Cipher::Aes128Gcm));
    assert_eq!(value(&keys.signing), 0x73fe_7a9a_77be_f0bd_e49c_650d_8ccb_5f76);
    assert_eq!(value(&keys.application), 0x6d7a_d795_4e9e_c61e_907b_4d47_3dc1_78ff);
    let (out, back) = (keys.client_to_server.unwrap(), keys.server_to_client.unwrap());
    assert_eq!(value(&out), 0x629b_cbc5_4422_a0f5_72b9_7f45_989b_6073);
    assert_eq!(value(&back), 0xe2af_0dce_fac6_8da7_1a0d_fbd0_d135_0d74);
}

/// A key of 256 bits comes of another length field, not of more rounds.
#[test]
fn long_keys_differ_from_short_ones() {
    let session = key(0x270e_1ba8_9658_5eeb_7af3_472d_3b4c_75a7);
    let mut hash = [0u8; 64];
    hash.iter_mut().zip(0..).for_each(|(to, n)| *to = n);
    let hash = PreauthHash::from(hash);
    let derive =
        |session, cipher| SessionKeys::derive(KeySchedule::Smb311(&hash), session, Some(cipher));
    let long = derive(&session, Cipher::Aes256Gcm).client_to_server.unwrap();
    // Computed by another implementation.
    let expected = [
        0xc273_f0de_3567_1e76_6ef5_106b_6050_54d7_u128.to_be_bytes(),
        0x0385_f923_7f13_2766_2763_de8a_c244_4317_u128.to_be_bytes(),
    ];
    assert_eq!(long.as_bytes(), expected.concat());
    // Of a longer session key, all of it counts for the encryption of 256 bits, and for nothing else.
    let full = SecretKey::new(&[session.as_bytes(), &[9; 16]].concat());
    let more = derive(&full, Cipher::Aes256Gcm);
    assert_ne!(more.client_to_server.unwrap().as_bytes(), long.as_bytes());
    assert_eq!(value(&more.signing), value(&derive(&session, Cipher::Aes256Gcm).signing));
    let short = |key| derive(key, Cipher::Aes128Gcm).client_to_server.unwrap();
    assert_eq!(value(&short(&full)), value(&short(&session)));
}

/// 2.x signs with what authentication gave.
#[test]
fn smb2_derives_nothing() {
    let keys =
        SessionKeys::derive(KeySchedule::Smb2, &SecretKey::new(&[5; 8]), Some(Cipher::Aes128Gcm));
    assert_eq!(keys.signing.as_bytes(), [[5; 8], [0; 8]].concat());
    assert!(keys.client_to_server.is_none() && keys.server_to_client.is_none());
}

/// A key does not end up in a log.
#[test]
fn keys_are_not_printed() {
    assert_eq!(format!("{:?}", SecretKey::new(&[0xab; 16])), "SecretKey(16 bytes)");
}
