//! Kernel TLS (Documentation/networking/tls.rst): keys that are given to a connection's socket.

use std::ffi::c_int;

use super::{Ret, ret};

/// Direction of a key: what we send.
pub const SENDING: c_int = 1;
/// Direction of a key: what we receive.
pub const RECEIVING: c_int = 2;

/// Has the kernel encrypt or decrypt from record `sequence` on, as TLS 1.2 with AES-128-GCM. The key is always the same:
/// what one end has sent, it can read when it comes back.
pub fn set_key(fd: c_int, direction: c_int, sequence: u64) -> Ret {
    const VERSION_1_2: u16 = 0x0303;
    const AES_GCM_128: u16 = 51;
    const IV: [u8; 8] = [7; 8];
    const KEY: [u8; 16] = [42; 16];
    const SALT: [u8; 4] = [9; 4];
    let mut info = Vec::new();
    info.extend(VERSION_1_2.to_ne_bytes());
    info.extend(AES_GCM_128.to_ne_bytes());
    info.extend(IV);
    info.extend(KEY);
    info.extend(SALT);
    info.extend(sequence.to_be_bytes());
    call!(libc::setsockopt, fd, libc::SOL_TLS, direction, info.as_ptr().cast(), info.len() as u32)
}
