//! What NTLM knows of a password.

use std::fmt;

use md4::{Digest, Md4};
use zeroize::{Zeroize, Zeroizing};

/// NTOWFv1: MD4 of the password in UTF-16LE (MS-NLMP 3.3.1). As good as the password for who wants to log on; not
/// printed, and wiped when it goes.
#[derive(Clone)]
pub struct NtHash([u8; 16]);

impl NtHash {
    /// The hash that these bytes are.
    #[must_use]
    pub fn new(hash: [u8; 16]) -> Self {
        Self(hash)
    }

    /// The hash of a password.
    #[must_use]
    pub fn of_password(password: &str) -> Self {
        let mut hash = Md4::new();
        let mut units = Zeroizing::new([0; 2]);
        for unit in password.encode_utf16() {
            *units = unit.to_le_bytes();
            hash.update(*units);
        }
        Self(hash.finalize().into())
    }

    /// From 32 hexadecimal digits; `None`: it is something else.
    #[must_use]
    pub fn from_hex(digits: &str) -> Option<Self> {
        let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
        if pairs.len() != 16 || !rest.is_empty() {
            return None;
        }
        let mut hash = [0; 16];
        for (byte, pair) in hash.iter_mut().zip(pairs) {
            let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(hash))
    }

    /// As 32 hexadecimal digits, to be written to a file that only its owner can read.
    #[must_use]
    pub fn to_hex(&self) -> Zeroizing<String> {
        let mut hex = Zeroizing::new(String::with_capacity(32));
        for byte in self.0 {
            for digit in [byte >> 4, byte & 15] {
                hex.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
            }
        }
        hex
    }

    /// The hash.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl Drop for NtHash {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for NtHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NtHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::NtHash;

    /// MS-NLMP 4.2.2.1.2: NTOWFv1 of "Password".
    #[test]
    fn hash_of_the_specification() {
        let hash = NtHash::of_password("Password");
        assert_eq!(*hash.to_hex(), "a4f49c406510bdcab6824ee7c30fd852");
        assert_eq!(
            NtHash::from_hex(&hash.to_hex().to_uppercase()).unwrap().as_bytes(),
            hash.as_bytes()
        );
        assert_eq!(*NtHash::of_password("").to_hex(), "31d6cfe0d16ae931b73c59d7e0c089c0");
        for bad in
            ["", "a4", "g4f49c406510bdcab6824ee7c30fd852", "a4f49c406510bdcab6824ee7c30fd8521"]
        {
            assert!(NtHash::from_hex(bad).is_none(), "{bad}");
        }
        assert_eq!(format!("{hash:?}"), "NtHash(..)");
    }
}
