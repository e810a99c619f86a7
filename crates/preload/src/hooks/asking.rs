//! What a program may ask that knows of us. Its names for this are in `sys::stream`.

use super::*;

/// Whether bytes of this descriptor are in shared memory or may come to be; with a negative number, whether we
/// are at work in this process at all.
#[unsafe(no_mangle)]
pub extern "C" fn shunt_carries(fd: c_int) -> c_int {
    if fd < 0 {
        return c_int::from(fds::world().is_some());
    }
    // What has gone to TCP stays there.
    c_int::from(fds::conn(fd).is_some_and(|conn| conn.phase() != Phase::Tcp))
}
