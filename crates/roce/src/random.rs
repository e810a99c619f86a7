//! Numbers that a peer cannot guess, from a secret that the caller drew.

/// A secret, drawn by the caller from what the kernel offers; one for each device.
#[derive(Clone, Copy)]
pub struct Secret([u64; 2]);

impl Secret {
    /// From 128 random bits.
    #[must_use]
    pub const fn new(bits: [u64; 2]) -> Self {
        Self(bits)
    }
}

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret")
    }
}

/// `SipHash`-2-4 of a counter: who has seen some numbers knows nothing of the others.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    secret: Secret,
    drawn: u64,
}

impl Random {
    pub(crate) const fn new(secret: Secret) -> Self {
        Self { secret, drawn: 0 }
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.drawn += 1;
        sip(self.secret.0, self.drawn)
    }

    pub(crate) fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }
}

fn sip(key: [u64; 2], word: u64) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for block in [word, 8 << 56] {
        v[3] ^= block;
        round(&mut v);
        round(&mut v);
        v[0] ^= block;
    }
    v[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sip_is_as_published() {
        // The paper's vectors: key 00 01 .. 0f, input 00 01 .. 07.
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(sip(key, 0x0706_0504_0302_0100), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret::new([1, 2])), "Secret");
    }
}
