//! What holds a connection for a call that may sleep, or goes on in the kernel.

use super::*;

/// A call in flight on a connection that may sleep: it outlives a `close` by another thread, as it
/// does in the kernel.
pub(crate) struct Held {
    pub(super) w: &'static World,
    pub(super) conn: &'static Conn,
    /// When it began to wait, nanoseconds: from then its time limit runs. 0: it has not.
    pub(super) since: u64,
    /// How far the peer had read when that was looked at last, and since when. Nanoseconds.
    pub(super) still: Option<(u64, u64)>,
    /// What is waited for is the rest of what the call wants: it has some already.
    pub(super) is_rest: bool,
    /// Taken off after all else.
    pub(super) mark: left::Mark,
}

impl Held {
    /// Whether it holds this one.
    pub(crate) fn is_of(&self, conn: &Conn) -> bool {
        std::ptr::eq(self.conn, conn)
    }

    /// `at`: where it is kept, on the stack, for as long as the call lasts.
    ///
    /// # Errors
    ///
    /// `EBADF`: another thread has closed the descriptor meanwhile.
    pub(crate) fn new(
        w: &'static World,
        conn: &'static Conn,
        fd: c_int,
        at: usize,
    ) -> Result<Self, c_int> {
        let mark = left::begin(at);
        if !conn.hold() {
            return Err(libc::EBADF);
        }
        mark.now(Wait::Call(conn));
        let held = Self { w, conn, since: 0, still: None, is_rest: false, mark };
        // The record may have come to serve another connection since it was looked up. What is kept for a connection is
        // in no table.
        let is_it = fds::conn(fd).is_some_and(|found| std::ptr::eq(found, conn))
            || conn.descriptor(-1) == fd;
        if is_it { Ok(held) } else { Err(libc::EBADF) }
    }
}

/// What holds the connection for this call, from its first wait on.
pub(super) fn hold<'a>(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    held: &'a mut Option<Held>,
) -> Result<&'a mut Held, c_int> {
    if held.is_none() {
        let at = std::ptr::from_ref(held) as usize;
        *held = Some(Held::new(w, conn, fd, at)?);
    }
    held.as_mut().ok_or(libc::EBADF)
}

/// A call that has come for the ring goes on in the kernel, and may have moved something already: by the descriptor that this
/// answers, which nobody closes before it has ended. The number it was made by may be another connection's by now.
///
/// # Errors
///
/// `EBADF`: it is.
pub(super) fn goes_on(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    held: &mut Option<Held>,
) -> Result<c_int, c_int> {
    hold(w, conn, fd, held)?;
    Ok(conn.descriptor(fd))
}

impl Drop for Held {
    fn drop(&mut self) {
        let errno = real::errno();
        self.mark.now(Wait::Nothing);
        release(self.w, self.conn);
        real::set_errno(errno);
    }
}

/// A call that holds a connection ends; if it is the last that leads there, it ends the connection.
pub(crate) fn release(w: &'static World, conn: &'static Conn) {
    if conn.let_go() {
        ends(w, conn);
    }
}

/// Nothing leads to a connection any more, and nobody closes a descriptor of it after this.
pub(crate) fn ends(w: &'static World, conn: &'static Conn) {
    ready::forget(w, conn);
    conn.closing(w, conn.descriptor(-1));
    life::kept::let_go(conn);
    w.give_back(conn);
}
