//! Which datagram a fragment belongs to, and a hash of that which cannot be aimed at.

/// What fragments of one datagram have in common (RFC 791 section 3.2, RFC 8200 section 4.5), and where
/// they came in.
#[derive(Clone, Copy, Debug, Eq)]
pub struct Key {
    /// Source address; IPv4 in the low half of the second word.
    pub src: [u64; 2],
    /// Destination address.
    pub dst: [u64; 2],
    /// Identification in the low half; above it the protocol (IPv4 only) and the family, 4 or 6.
    pub id: u64,
    /// The caller's: VLAN, VRF, channel. Fragments of two scopes never meet.
    pub scope: u64,
}

impl Key {
    /// For IPv4.
    #[must_use]
    pub const fn v4(src: u32, dst: u32, id: u16, protocol: u8, scope: u64) -> Self {
        let id = id as u64 | (protocol as u64) << 32 | 4 << 40;
        Self { src: [0, src as u64], dst: [0, dst as u64], id, scope }
    }

    /// For IPv6.
    #[must_use]
    pub const fn v6(src: [u64; 2], dst: [u64; 2], id: u32, scope: u64) -> Self {
        Self { src, dst, id: id as u64 | 6 << 40, scope }
    }

    /// Whether this is IPv6.
    #[must_use]
    pub const fn is_v6(&self) -> bool {
        (self.id >> 40) == 6
    }

    /// What is charged together for fairness: the source's /24, or /64.
    #[must_use]
    pub const fn source_prefix(&self) -> u64 {
        if self.is_v6() { self.src[0] } else { self.src[1] >> 8 }
    }
}

impl PartialEq for Key {
    /// All words at once: they are nearly always equal when they are compared.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let differ = |a: [u64; 2], b: [u64; 2]| (a[0] ^ b[0]) | (a[1] ^ b[1]);
        let addresses = differ(self.src, other.src) | differ(self.dst, other.dst);
        addresses | (self.id ^ other.id) | (self.scope ^ other.scope) == 0
    }
}

/// Secret words of a [`Key`]'s hash.
///
/// The six words of a key go through NH (RFC 4418 section 5): products of sums with secret words, summed
/// modulo 2^128. For any two different keys, whatever they are, the chance that a secret makes them
/// collide is 2^-64; unlike a seeded CRC, whose collisions hold for every seed. A last multiplication
/// with secret words folds the sum into 64 bits.
#[derive(Clone, Debug)]
pub struct HashKey {
    words: [u64; 8],
    /// Where the next one comes from.
    next: u64,
}

impl HashKey {
    /// From a secret that the caller has drawn at random. The same secret gives the same hashes.
    #[must_use]
    pub fn new(secret: [u64; 2]) -> Self {
        Self::derive(secret, 0)
    }

    fn derive(secret: [u64; 2], counter: u64) -> Self {
        let mut words = [0; 8];
        for (i, word) in (0u64..).zip(&mut words) {
            *word = sip13(secret, counter.wrapping_mul(16).wrapping_add(i));
        }
        // Who learns one key by timing learns nothing of the next.
        let next = sip13(secret, counter.wrapping_mul(16).wrapping_add(15));
        Self { words, next }
    }

    /// Another one, which says nothing about this one.
    #[must_use]
    pub fn successor(&self) -> Self {
        Self::derive([self.next, self.words[7]], self.next)
    }

    /// Whether they hash alike.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.words == other.words
    }

    /// The hash of a key.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &Key) -> u64 {
        let k = &self.words;
        let sum = wide(key.src[0].wrapping_add(k[0]), key.src[1].wrapping_add(k[1]))
            .wrapping_add(wide(key.dst[0].wrapping_add(k[2]), key.dst[1].wrapping_add(k[3])))
            .wrapping_add(wide(key.id.wrapping_add(k[4]), key.scope.wrapping_add(k[5])));
        let (low, high) = halves(sum);
        let (low, high) = halves(wide(low ^ k[6], high ^ k[7]));
        low ^ high
    }

    /// The hash of a word, for smaller tables.
    #[inline]
    #[must_use]
    pub fn hash_word(&self, word: u64) -> u64 {
        let k = &self.words;
        let (low, high) = halves(wide(word.wrapping_add(k[1]), k[3] | 1));
        let (low, high) = halves(wide(low ^ k[5], high ^ k[7]));
        low ^ high
    }
}

#[inline]
fn wide(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "that is the point")]
fn halves(x: u128) -> (u64, u64) {
    (x as u64, (x >> 64) as u64)
}

/// SipHash-1-3 of one word, to draw secret words from a secret.
fn sip13(secret: [u64; 2], word: u64) -> u64 {
    let mut v = [
        secret[0] ^ 0x736f_6d65_7073_6575,
        secret[1] ^ 0x646f_7261_6e64_6f6d,
        secret[0] ^ 0x6c79_6765_6e65_7261,
        secret[1] ^ 0x7465_6462_7974_6573,
    ];
    for block in [word, 8 << 56] {
        v[3] ^= block;
        sip_round(&mut v);
        v[0] ^= block;
    }
    v[2] ^= 0xff;
    for _ in 0..3 {
        sip_round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(all(test, not(loom)))]
mod tests;
