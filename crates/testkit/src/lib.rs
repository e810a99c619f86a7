//! Small servers, load generators and yardsticks, one binary each in `src/bin`.
//!
//! They stand in for nginx, wrk and the like on a machine that has none, and measure what those do
//! not: a bare cache line, memory of idle connections. Each speaks to the kernel through libc (std
//! does, and [`event`] does), so that a preloaded library sees each call. Each prints its result as
//! one line of `name=value` words, for people and for `cargo xtask bench` alike.
//!
//! Beside them, values that tests of other crates poke: [`fragments`], and a bad [`network`].

pub mod cpu;
pub mod event;
pub mod fragments;
pub mod heap;
pub mod hosts;
pub mod http;
pub mod input;
pub mod kernels;
pub mod latency;
pub mod memory;
pub mod network;
#[cfg(feature = "smbload")]
pub mod smbload;

use std::net::{Ipv4Addr, SocketAddr};

/// The loopback address with this port: the programs here talk to their own host only.
#[must_use]
pub fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Parses `64K`, `1M` or a plain number of bytes, for command lines.
///
/// # Errors
///
/// A sentence that says what would be right.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.filter(|n| *n > 0).ok_or_else(|| format!("{text:?} is not a size such as 100, 64K or 1M"))
}

#[cfg(test)]
mod tests {
    use super::parse_bytes;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_bytes("100"), Ok(100));
        assert_eq!(parse_bytes("64K"), Ok(64 << 10));
        assert_eq!(parse_bytes("1M"), Ok(1 << 20));
        for wrong in ["", "0", "K", "-1", "1T"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong:?}");
        }
    }
}
