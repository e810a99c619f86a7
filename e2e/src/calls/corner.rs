//! Calls with what few programs give them: times that come back, sets of many descriptors, control data of
//! receives.

use super::*;

/// The bytes of each message, or an errno.
pub type Messages = Result<Vec<Vec<u8>>, i32>;

/// `recvmmsg` into buffers of these sizes with this time limit, given as it is: the bytes, and the limit as
/// the call has left it.
pub fn recvmmsg_until(
    fd: c_int,
    sizes: &[usize],
    flags: c_int,
    limit: (i64, i64),
) -> (Messages, (i64, i64)) {
    let mut parts = buffers(sizes);
    let mut iov = slices_mut(&mut parts);
    let mut all = one_each(&mut iov);
    let mut time = libc::timespec { tv_sec: limit.0, tv_nsec: limit.1 };
    let (at, n) = (all.as_mut_ptr(), all.len() as u32);
    let got = call!(libc::recvmmsg, fd, at, n, flags, &raw mut time);
    (got.map(|got| received(parts, &all, got)), (time.tv_sec, time.tv_nsec))
}

/// `recvmsg`: the bytes, and the level and type of each control message.
pub fn control_of(fd: c_int, len: usize, flags: c_int) -> (Bytes, Vec<(c_int, c_int)>) {
    let mut buffer = vec![0u8; len];
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: len };
    let mut control = [0u64; 32];
    let mut msg = zero!(libc::msghdr);
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control);
    let got = call!(libc::recvmsg, fd, &raw mut msg, flags);
    let mut kinds = Vec::new();
    if got.is_ok() {
        // SAFETY: the header says what was written into `control`.
        let mut at = unsafe { libc::CMSG_FIRSTHDR(&raw const msg) };
        while !at.is_null() {
            // SAFETY: inside of the control data, as both functions see to.
            unsafe {
                kinds.push(((*at).cmsg_level, (*at).cmsg_type));
                at = libc::CMSG_NXTHDR(&raw const msg, at);
            }
        }
    }
    (filled(buffer, got), kinds)
}

/// `recvmsg` with so much room for control data: the bytes, the flags, the room that was used, and its first bytes, up to 24.
pub fn control_within(
    fd: c_int,
    len: usize,
    flags: c_int,
    room: usize,
) -> (Bytes, c_int, usize, Vec<u8>) {
    let mut buffer = vec![0u8; len];
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: len };
    let mut control = [0u64; 8];
    let mut msg = zero!(libc::msghdr);
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    if room > 0 {
        msg.msg_control = control.as_mut_ptr().cast();
    }
    msg.msg_controllen = room.min(size_of_val(&control));
    let got = call!(libc::recvmsg, fd, &raw mut msg, flags);
    let used = msg.msg_controllen.min(24);
    let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).take(used).collect();
    (filled(buffer, got), msg.msg_flags, msg.msg_controllen, bytes)
}

/// `select` for bytes with a set of `n` bits, of which those of `fds` are on, for at most this time. What
/// lies behind the set in memory is all ones up to `beyond` bits. How many are ready, and which.
pub fn select_of_many(
    n: c_int,
    bits: usize,
    beyond: usize,
    fds: &[c_int],
    limit: Duration,
) -> Result<(usize, Vec<c_int>), i32> {
    let mut words = vec![0u64; bits.div_ceil(64)];
    words.resize(beyond.max(bits).div_ceil(64), u64::MAX);
    for fd in fds {
        words[*fd as usize / 64] |= 1 << (fd % 64);
    }
    let mut time =
        libc::timeval { tv_sec: limit.as_secs() as i64, tv_usec: i64::from(limit.subsec_micros()) };
    let set = words.as_mut_ptr().cast::<libc::fd_set>();
    let ready = call!(libc::select, n, set, null_mut(), null_mut(), &raw mut time)?;
    let on = |fd: &c_int| words[*fd as usize / 64] >> (fd % 64) & 1 == 1;
    Ok((ready, fds.iter().copied().filter(on).collect()))
}

/// The limit of descriptors, as `getdtablesize` has it.
#[must_use]
pub fn table_size() -> c_int {
    // SAFETY: cannot fail.
    unsafe { libc::getdtablesize() }
}

/// `connect` to no address family, with so many bytes of an address.
pub fn disconnect_by(fd: c_int, len: u32) -> Ret {
    let addr = zero!(libc::sockaddr_in);
    call!(libc::connect, fd, (&raw const addr).cast(), len)
}
