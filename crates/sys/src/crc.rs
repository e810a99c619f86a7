//! CRC-32 (IEEE 802.3) by carry-less multiplication of 64 bytes at a time, and of bytes while they are copied.
//!
//! A CRC is a remainder, and bytes may be replaced by others that leave the same one. What is many is brought
//! down to 64 bytes in four chains that do not wait for each other, then to 16, then to the 4 of the
//! register: "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Gopal and others,
//! Intel 2009), with registers of four lanes.
//!
//! Both functions go from register to register: all ones before the first byte of a message, and its CRC is the
//! complement of the last.

/// Bytes that are taken at once: what is summed has to be a multiple of them.
pub const WORD: usize = 64;
/// Fewer bytes than this are better summed by other means.
pub const LEAST: usize = 4 * WORD;

/// The polynomial, the lowest power on top.
#[cfg(target_arch = "x86_64")]
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Whether so many bytes can be summed, on this CPU.
#[cfg(target_arch = "x86_64")]
#[inline]
fn is_able(n: usize) -> bool {
    n >= LEAST
        && n.is_multiple_of(WORD)
        && std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("pclmulqdq")
        && std::arch::is_x86_feature_detected!("vpclmulqdq")
}

/// The register behind `bytes`. `None`: they are fewer than [`LEAST`], no multiple of
/// [`WORD`], or the CPU cannot do it so.
#[inline]
#[must_use]
pub fn update(register: u32, bytes: &[u8]) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    if is_able(bytes.len()) {
        // SAFETY: the CPU has the features; the bytes may be read, and are not written to.
        return Some(unsafe {
            wide::run::<false>(register, bytes.as_ptr(), std::ptr::null_mut(), bytes.len())
        });
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (register, bytes);
    None
}

/// Copies bytes, and answers the register behind them. `None`: as for [`update`], or there are not as many of the
/// one as of the other; nothing was copied.
#[inline]
#[must_use]
pub fn copy(register: u32, from: &[u8], to: &mut [u8]) -> Option<u32> {
    if from.len() != to.len() {
        return None;
    }
    // SAFETY: as many bytes as `to` has, and others, as a shared and an exclusive reference show.
    unsafe { copy_shared(register, from.as_ptr(), to) }
}

/// Copies as many bytes as `to` has, and answers the register behind them: that of the copy: each
/// vector is loaded once, stored and summed, and no compiler that is used for this loads it again. `None`: as for [`update`], and nothing was copied.
///
/// # Safety
///
/// `from` leads to so many bytes that may be read, although others may write to them meanwhile, and that
/// are not those of `to`.
#[inline]
#[must_use]
pub(crate) unsafe fn copy_shared(register: u32, from: *const u8, to: &mut [u8]) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    if is_able(to.len()) {
        // SAFETY: the CPU has the features; the caller promises the bytes at `from`, and `to` is ours.
        return Some(unsafe { wide::run::<true>(register, from, to.as_mut_ptr(), to.len()) });
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (register, from, to);
    None
}

/// As [`copy_shared`], to where others may read and write meanwhile: the sum is that of `from`, which nobody else has.
///
/// # Safety
///
/// `to` leads to as many bytes as `from` has that may be written, and that are not those of `from`.
#[inline]
#[must_use]
pub(crate) unsafe fn copy_to_shared(register: u32, from: &[u8], to: *mut u8) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    if is_able(from.len()) {
        // SAFETY: the CPU has the features; `from` is borrowed, and the caller promises the bytes at `to`.
        return Some(unsafe { wide::run::<true>(register, from.as_ptr(), to, from.len()) });
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (register, from, to);
    None
}

/// What a lane's two halves are multiplied by when it is moved over `bits` bits, the lower half's first:
/// x^(bits + 32) and x^(bits - 32) modulo the polynomial, the lowest power on top of 33 bits.
#[cfg(target_arch = "x86_64")]
const fn over(bits: u32) -> [i64; 2] {
    [power(bits + 32), power(bits - 32)]
}

#[cfg(target_arch = "x86_64")]
const fn power(n: u32) -> i64 {
    let (mut power, mut step) = (1u32 << 31, 0);
    while step < n {
        power = power >> 1 ^ if power & 1 != 0 { POLYNOMIAL } else { 0 };
        step += 1;
    }
    (power as i64) << 1
}

/// The polynomial, and x^64 divided by it: what a remainder is found by (Barrett), the lowest power on top
/// of 33 bits.
#[cfg(target_arch = "x86_64")]
const BARRETT: [i64; 2] = [(POLYNOMIAL as i64) << 1 | 1, quotient()];

#[cfg(target_arch = "x86_64")]
const fn quotient() -> i64 {
    // Long division, the highest power first: of each step's remainder the top bit is the quotient's next.
    let (mut quotient, mut rest, mut bit) = (1i64, POLYNOMIAL, 1);
    while bit <= 32 {
        let top = rest & 1;
        rest = rest >> 1 ^ if top != 0 { POLYNOMIAL } else { 0 };
        quotient |= (top as i64) << bit;
        bit += 1;
    }
    quotient
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::asm;
    use std::arch::x86_64::{
        __m512i, _mm_and_si128, _mm_clmulepi64_si128, _mm_cvtsi32_si128, _mm_extract_epi32,
        _mm_set_epi32, _mm_set_epi64x, _mm_srli_si128, _mm_xor_si128, _mm512_clmulepi64_epi128,
        _mm512_extracti32x4_epi32, _mm512_loadu_si512, _mm512_maskz_mov_epi64, _mm512_set_epi64,
        _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
    };

    use super::{BARRETT, WORD, over, power};

    /// Chains that run beside each other.
    const CHAINS: usize = 4;
    /// How far ahead of what is summed memory is asked for, bytes: about a packet.
    const AHEAD: usize = 1024;
    /// The sum of three.
    const XOR3: i32 = 0x96;

    /// Reads 64 bytes, and if it is a copy, writes them.
    ///
    /// # Safety
    ///
    /// So many bytes may be read at `from` and, for a copy, written at `to`.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    unsafe fn load<const COPY: bool>(from: *const u8, to: *mut u8) -> __m512i {
        // What comes next is mostly behind it, and should be here when it is asked for. No access: it may be nowhere.
        // SAFETY: the instruction is a hint, which changes nothing and fails nowhere.
        unsafe {
            asm!("prefetcht0 [{}]", in(reg) from.wrapping_add(AHEAD), options(nostack, readonly, preserves_flags));
        }
        // SAFETY: the caller promises 64 bytes there, at any alignment.
        let word = unsafe { _mm512_loadu_si512(from.cast()) };
        if COPY {
            // SAFETY: likewise.
            unsafe { _mm512_storeu_si512(to.cast(), word) };
        }
        word
    }

    /// The register behind `n` bytes at `from`, which are copied to `to` if it is a copy.
    ///
    /// # Safety
    ///
    /// `n` is [`super::LEAST`] or more; `n` bytes may be read at `from` and, for a copy, written at `to`; they do
    /// not overlap.
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(super) unsafe fn run<const COPY: bool>(
        register: u32,
        from: *const u8,
        to: *mut u8,
        n: usize,
    ) -> u32 {
        let word = |at: usize| {
            // SAFETY: `at` is at least 64 bytes before the end wherever this is called.
            unsafe { load::<COPY>(from.wrapping_add(at), to.wrapping_add(at)) }
        };
        let before = _mm512_zextsi128_si512(_mm_cvtsi32_si128(register.cast_signed()));
        let mut sums = [word(0), word(WORD), word(2 * WORD), word(3 * WORD)];
        sums[0] = _mm512_xor_si512(sums[0], before);
        let mut at = CHAINS * WORD;
        let far = all_lanes(const { over(8 * 256) });
        while n - at >= CHAINS * WORD {
            for (sum, nth) in sums.iter_mut().zip(0..) {
                *sum = moved(*sum, far, word(at + nth * WORD));
            }
            at += CHAINS * WORD;
        }
        // All move to the last at once.
        let [first, second, third, last] = sums;
        let near = all_lanes(const { over(8 * 64) });
        let later = moved(second, all_lanes(const { over(8 * 128) }), last);
        let later = moved(first, all_lanes(const { over(8 * 192) }), later);
        let mut sum = moved(third, near, later);
        while n - at >= WORD {
            sum = moved(sum, near, word(at));
            at += WORD;
        }
        register_of(sum)
    }

    /// The remainder of 64 bytes.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn register_of(sum: __m512i) -> u32 {
        // The lanes move to the last, which stays where it is.
        let ([a, b], [c, d], [e, f]) = const { (over(8 * 48), over(8 * 32), over(8 * 16)) };
        let stays = _mm512_maskz_mov_epi64(0b1100_0000, sum);
        let lanes = moved(sum, _mm512_set_epi64(0, 0, f, e, d, c, b, a), stays);
        let front = _mm_xor_si128(
            _mm512_extracti32x4_epi32::<0>(lanes),
            _mm512_extracti32x4_epi32::<1>(lanes),
        );
        let back = _mm_xor_si128(
            _mm512_extracti32x4_epi32::<2>(lanes),
            _mm512_extracti32x4_epi32::<3>(lanes),
        );
        let lane = _mm_xor_si128(front, back);
        // 16 bytes, then 12, then 8, and what those leave.
        let by = const { [power(128 - 32), power(64)] };
        let by = _mm_set_epi64x(by[1], by[0]);
        let low_word = _mm_set_epi32(0, 0, 0, -1);
        let sum = _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(lane, by), _mm_srli_si128::<8>(lane));
        let low = _mm_and_si128(sum, low_word);
        let sum = _mm_xor_si128(_mm_clmulepi64_si128::<0x10>(low, by), _mm_srli_si128::<4>(sum));
        let by = _mm_set_epi64x(BARRETT[1], BARRETT[0]);
        let quotient = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(sum, low_word), by);
        let product = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(quotient, low_word), by);
        _mm_extract_epi32::<1>(_mm_xor_si128(sum, product)).cast_unsigned()
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn all_lanes([low, high]: [i64; 2]) -> __m512i {
        _mm512_set_epi64(high, low, high, low, high, low, high, low)
    }

    /// Each lane of `sum`, moved as far as `by` says, and `onto` added.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn moved(sum: __m512i, by: __m512i, onto: __m512i) -> __m512i {
        let low = _mm512_clmulepi64_epi128::<0x00>(sum, by);
        let high = _mm512_clmulepi64_epi128::<0x11>(sum, by);
        _mm512_ternarylogic_epi64::<XOR3>(low, high, onto)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// The register behind `bytes`, bit by bit.
    fn by_bits(register: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(register, |sum, byte| {
            let step = |sum: u32, _| sum >> 1 ^ if sum & 1 == 0 { 0 } else { POLYNOMIAL };
            (0..8).fold(sum ^ u32::from(*byte), step)
        })
    }

    #[test]
    fn constants_are_those_of_the_paper() {
        assert_eq!(over(512), [0x1_5444_2bd4, 0x1_c6e4_1596]);
        assert_eq!(over(128), [0x1_7519_97d0, 0x0_ccaa_009e]);
        assert_eq!(power(64), 0x1_63cd_6124);
        assert_eq!(BARRETT, [0x1_db71_0641, 0x1_f701_1641]);
    }

    #[test]
    fn a_sum_is_that_of_the_bits_and_a_copy_is_one() {
        if update(0, &[0; LEAST]).is_none() {
            return println!("skipped: this CPU has no wide carry-less multiplication");
        }
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * i / 32).to_le_bytes()[0]).collect();
        for (nth, len) in (LEAST..=4096).step_by(WORD).enumerate() {
            // At any alignment.
            let bytes = &bytes[nth * 7 % 67..][..len];
            for register in [u32::MAX, 0, 0x1234_5678] {
                let sum = by_bits(register, bytes);
                assert_eq!(update(register, bytes), Some(sum), "{len} {register:x}");
                let mut to = vec![0; len + 3];
                let copied = copy(register, bytes, &mut to[1..=len]);
                assert_eq!(copied, Some(sum), "{len} {register:x}");
                assert_eq!((to[0], &to[1..=len], &to[len + 1..]), (0, bytes, &[0, 0][..]));
            }
        }
    }

    #[test]
    fn what_is_short_or_uneven_is_left_alone() {
        for len in [0, 1, WORD, LEAST - 1, LEAST + 1, 1031] {
            let (bytes, mut to) = (vec![1; len], vec![0; len]);
            assert_eq!(update(u32::MAX, &bytes), None, "{len}");
            assert_eq!(copy(0, &bytes, &mut to), None, "{len}");
            assert!(to.iter().all(|byte| *byte == 0));
        }
        assert_eq!(copy(0, &[1; LEAST], &mut [0; 2 * LEAST]), None);
    }
}
