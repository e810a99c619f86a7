use super::{Key, base_key, hmac_md5, proof, rc4, response_key};
use crate::auth::NtHash;
use crate::auth::hex::unhex;

/// MS-NLMP 4.2.4: user "User" of "Domain" with "Password".
#[test]
fn vectors_of_the_specification() {
    let key = response_key(&NtHash::of_password("Password"), "User", "Domain");
    assert_eq!(&key[..], unhex("0c868a403bfd7a93a3001ef22ef02e3f"));
    let blob = unhex(
        "01010000000000000000000000000000aaaaaaaaaaaaaaaa0000000002000c0044006f006d00610069006e00\
         01000c005300650072007600650072000000000000000000",
    );
    let challenge = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
    let proof = proof(&key, &challenge, &blob);
    assert_eq!(&proof[..], unhex("68cd0ab851e51c96aabc927bebef6a1c"));
    let base = base_key(&key, &proof);
    assert_eq!(&base[..], unhex("8de40ccadbc14a82f15cb0ad0de95ca3"));
    let mut exported = [0x55; 16];
    rc4(&base[..], &mut exported);
    assert_eq!(&exported[..], unhex("c5dad2544fc9799094ce1ce90bc9d03e"));
}

/// RFC 2202 section 2, with its first key of 16 bytes.
#[test]
fn hmac_of_the_rfc() {
    assert_eq!(
        &hmac_md5(&[0x0b; 16], &[b"Hi ", b"There"])[..],
        unhex("9294727a3638bb1c13f48ef8158bfc9d")
    );
}

/// Case counts in the domain and not in the user, and letters that have no single upper case stay.
#[test]
fn names_are_upper_case_letter_by_letter() {
    let hash = NtHash::of_password("x");
    let key = |user: &str, domain: &str| -> Key { response_key(&hash, user, domain) };
    assert_eq!(key("jörg", "D"), key("JÖRG", "D"));
    assert_ne!(key("a", "d"), key("a", "D"));
    assert_eq!(key("weiß", ""), key("WEIß", ""));
    assert_ne!(key("weiß", ""), key("WEISS", ""));
}
