//! How results are written, so that two runs can be compared as text.

use std::fmt::Write as _;

use crate::calls::{Bytes, Extra, Ret, Selected};

macro_rules! names {
    ($value:expr; $($name:ident)*) => {
        $(if $value == libc::$name { return stringify!($name).to_owned(); })*
    };
}

/// Name of an errno.
#[must_use]
pub fn errno_name(e: i32) -> String {
    names!(e; EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST
        ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY EFBIG ENOSPC ESPIPE EPIPE ERANGE ENOSYS
        ELOOP EBADMSG ENOTSOCK EDESTADDRREQ EMSGSIZE ENOPROTOOPT EPROTONOSUPPORT EOPNOTSUPP
        EADDRINUSE EADDRNOTAVAIL ENETUNREACH ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN
        ESHUTDOWN ETIMEDOUT ECONNREFUSED EHOSTUNREACH EALREADY EINPROGRESS ECANCELED);
    format!("errno {e}")
}

/// Names of the bits of `revents` or of an epoll event.
#[must_use]
pub fn mask_names(bits: u32) -> String {
    let all = [
        (0x1, "IN"),
        (0x2, "PRI"),
        (0x4, "OUT"),
        (0x8, "ERR"),
        (0x10, "HUP"),
        (0x20, "NVAL"),
        (0x40, "RDNORM"),
        (0x80, "RDBAND"),
        (0x100, "WRNORM"),
        (0x200, "WRBAND"),
        (0x400, "MSG"),
        (0x2000, "RDHUP"),
    ];
    let named: Vec<&str> = all.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, n)| *n).collect();
    if named.is_empty() { "0".to_owned() } else { named.join("|") }
}

/// A stable hash (FNV-1a) of bytes, continued from `state`.
#[must_use]
pub fn hash_on(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// Where [`hash_on`] starts.
pub const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;

/// Byte `at` of the stream `seed` is the low byte of its place, and one that seven in a row have in common.
fn common(seed: u64, seven: u64) -> u64 {
    (seven + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56
}

/// Bytes `at..at + len` of the stream `seed`: what senders send and receivers expect. Without iterators, for guests are
/// not optimised, and with them this was most of what they did.
#[must_use]
pub fn stream_bytes(seed: u64, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let all: &mut [u8] = &mut bytes;
    let (mut i, mut place, mut seven) = (0, at, at / 7);
    let mut theirs = common(seed, seven);
    while i < len {
        if place / 7 != seven {
            seven = place / 7;
            theirs = common(seed, seven);
        }
        all[i] = ((theirs ^ place) & 0xff) as u8;
        i += 1;
        place += 1;
    }
    bytes
}

/// Something that can be one word of a line of results.
pub trait Show {
    /// The word.
    fn show(&self) -> String;
}

macro_rules! by_display {
    ($($t:ty),*) => { $(impl Show for $t { fn show(&self) -> String { self.to_string() } })* };
}
by_display!(bool, i32, u16, u32, u64, usize, i64, str, String);

impl<T: Show + ?Sized> Show for &T {
    fn show(&self) -> String {
        (**self).show()
    }
}

/// Bytes as text, or their number and hash when there are many.
impl Show for [u8] {
    fn show(&self) -> String {
        if self.len() > 64 {
            return format!("bytes:{}:{:016x}", self.len(), hash_on(HASH_START, self));
        }
        let mut out = String::from("b:");
        for b in self {
            if b.is_ascii_graphic() {
                out.push(char::from(*b));
            } else {
                let _ = write!(out, "\\{b:02x}");
            }
        }
        out
    }
}

impl Show for Vec<u8> {
    fn show(&self) -> String {
        self.as_slice().show()
    }
}

/// `revents`.
impl Show for i16 {
    fn show(&self) -> String {
        mask_names(u32::from(self.cast_unsigned()))
    }
}

impl Show for Extra {
    fn show(&self) -> String {
        format!("flags={:x} name={} control={}", self.flags, self.name_len, self.control_len)
    }
}

impl<A: Show, B: Show> Show for (A, B) {
    fn show(&self) -> String {
        format!("({} {})", self.0.show(), self.1.show())
    }
}

impl<T: Show> Show for Result<T, i32> {
    fn show(&self) -> String {
        match self {
            Ok(v) => v.show(),
            Err(e) => errno_name(*e),
        }
    }
}

impl<T: Show> Show for Option<T> {
    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), Show::show)
    }
}

fn list<T: Show>(items: &[T]) -> String {
    let words: Vec<String> = items.iter().map(Show::show).collect();
    format!("[{}]", words.join(" "))
}

macro_rules! by_list {
    ($($t:ty),*) => { $(impl Show for Vec<$t> { fn show(&self) -> String { list(self) } })* };
}
by_list!(i16, i32, u32, usize, String, Vec<u8>, Ret, Bytes, bool);

/// Events of an event set: names and data, in a fixed order.
impl Show for Vec<(u32, u64)> {
    fn show(&self) -> String {
        let mut all: Vec<(u64, String)> =
            self.iter().map(|(bits, data)| (*data, mask_names(*bits))).collect();
        all.sort();
        let words: Vec<String> = all.iter().map(|(data, bits)| format!("{data}:{bits}")).collect();
        format!("[{}]", words.join(" "))
    }
}

impl Show for Selected {
    fn show(&self) -> String {
        let sizes = [self.read.len(), self.write.len(), self.except.len()];
        format!("{} r{} w{} x{} used={}", self.count, sizes[0], sizes[1], sizes[2], self.time_used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_the_same_from_wherever_it_is_taken() {
        let byte = |seed, at: u64| ((common(seed, at / 7) ^ at) & 0xff) as u8;
        for (seed, from) in [(0, 0), (5, 200), (9, 0xffff), (31, 1 << 40)] {
            let expected: Vec<u8> = (from..from + 2000).map(|at| byte(seed, at)).collect();
            for (skipped, len) in (0..1000).zip([0, 1, 6, 7, 8, 256, 997].into_iter().cycle()) {
                let got = stream_bytes(seed, from + skipped as u64, len);
                assert_eq!(got, expected[skipped..skipped + len], "{seed}, {from} + {skipped}");
            }
        }
    }
}
