//! Lines on standard error, written at once and without the guest's allocator or locks.
//!
//! It is the guest's standard error. A daemon closes it, and what it opens next has its number: a socket, or a file of
//! data. So nothing is written there unless it is what it was when we began, or what is made to be written lines to. Nor is
//! it where that is a connection with a peer, which a superserver (inetd) gives to the programs that it starts. And what we
//! say unasked is not much and waits for nobody: many lines a second say no more than a few, and who started the guest may
//! not read them.
//!
//! Or they go to a file of our own ([`to_file`]), by a descriptor that is kept out of the guest's way as the others are; and
//! before each line it is looked whether the number still leads there.
//!
//! A file may be written up to a size that the program is given, or gives itself (`RLIMIT_FSIZE`), and a write beyond it ends
//! the program. It has not asked for ours, so a line that would come near that is not written. What the limit is
//! [is said](files_end_at) by who sees it set: to ask for it at each line would be one more call that a filter may not allow.

use std::ffi::CStr;
use std::fmt::{self, Write};

use sys::call;
use sys::sync::{AtomicU32, AtomicU64, Ordering};

/// The descriptors.
const STDIN: i32 = 0;
const STDERR: i32 = 2;
/// Lines a second that are written unasked.
const MANY: u64 = 10;
const NS: u64 = 1_000_000_000;
/// Bytes that others may write to the same file between our look at it and our line.
const OTHERS: u64 = 4096;

const O_WRONLY: i32 = 1;
const O_CREAT: i32 = 0o100;
const O_NOCTTY: i32 = 0o400;
const O_APPEND: i32 = 0o2000;
const O_NONBLOCK: i32 = 0o4000;
const O_CLOEXEC: i32 = 0o2_000_000;
const EINVAL: i32 = 22;
const S_IFMT: u32 = 0o170_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFREG: u32 = 0o100_000;
const S_IFSOCK: u32 = 0o140_000;

struct Line {
    bytes: [u8; 400],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = self.bytes.len() - 1 - self.len;
        let n = s.len().min(room);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// Device and inode of standard error when the program began, each plus one; 0: nobody has [said](begin).
static BEGAN: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// The descriptor of a file of our own, plus one; 0: there is none.
static FILE: AtomicU32 = AtomicU32::new(0);
/// Its device and inode.
static FILE_IS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static LIMIT: Limit = Limit(AtomicU64::new(0));
/// Size up to which files may be written; all ones: any.
static FILES_END: AtomicU64 = AtomicU64::new(u64::MAX);

/// From now on the kernel lets this process write files up to this size (`RLIMIT_FSIZE`, the soft one).
pub fn files_end_at(bytes: u64) {
    FILES_END.store(bytes, Ordering::Relaxed);
}

/// To be called before the program may have opened anything: what is standard error now is so later. Without it all is.
pub fn begin() {
    // Where it is closed it is nothing that could come again.
    let (dev, ino) = call::fstat(STDERR).map_or((u64::MAX, u64::MAX), |at| (at.st_dev, at.st_ino));
    BEGAN[0].store(dev.wrapping_add(1).max(1), Ordering::Relaxed);
    BEGAN[1].store(ino.wrapping_add(1).max(1), Ordering::Relaxed);
}

/// Has lines go to the end of this file, and no more to standard error. `high`: where descriptors of ours go.
///
/// # Errors
///
/// Errno: it cannot be opened, or is no file that lines are written to. They go where they went.
pub fn to_file(path: &CStr, high: i32) -> Result<(), i32> {
    // A pipe that nobody reads would hold up the guest.
    let flags = O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_NONBLOCK | O_CLOEXEC;
    let first = call::open(path, flags, 0o600)?;
    let about = call::fstat(first);
    let is_file = about.as_ref().is_ok_and(|at| is_for_lines(at.st_mode, || true));
    let up = if is_file { call::dup_aside(first, high) } else { Err(EINVAL) };
    let _ = call::close(first);
    let (fd, about) = (up?, about?);
    FILE_IS[0].store(about.st_dev, Ordering::Relaxed);
    FILE_IS[1].store(about.st_ino, Ordering::Relaxed);
    FILE.store(fd.cast_unsigned() + 1, Ordering::Release);
    Ok(())
}

/// The descriptor of that file, which the guest must not close; negative: there is none.
#[must_use]
pub fn fd() -> i32 {
    FILE.load(Ordering::Acquire).cast_signed() - 1
}

/// Moves it off a number that the guest is about to use. `false`: there is no other number.
#[must_use]
pub fn moves(fd: i32, high: i32) -> bool {
    let Ok(up) = call::dup_aside(fd, high) else { return false };
    let (from, to) = (fd.cast_unsigned() + 1, up.cast_unsigned() + 1);
    if FILE.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        // Somebody else has, meanwhile.
        let _ = call::close(up);
    }
    true
}

/// Where a line goes.
struct To {
    fd: i32,
    /// Where in a file it would begin, if that matters.
    at: Option<u64>,
}

impl To {
    /// What it is, and how large. `None`: nobody knows where in it a line would come to stand, and that matters.
    fn new(fd: i32, (mode, bytes): (u32, i64), appends: bool) -> Option<Self> {
        let is_limited = FILES_END.load(Ordering::Relaxed) != u64::MAX;
        if !is_limited || mode & S_IFMT != S_IFREG {
            return Some(Self { fd, at: None });
        }
        let end = u64::try_from(bytes).unwrap_or(u64::MAX);
        if appends {
            return Some(Self { fd, at: Some(end) });
        }
        // These calls the program need not make.
        if call::is_filtered() && !call::may_read_filtered() {
            return None;
        }
        let appends = call::getfl(fd).is_ok_and(|flags| flags & O_APPEND != 0);
        let at = if appends { Some(end) } else { call::place(fd).ok().map(|at| at as u64) };
        at.map(|at| Self { fd, at: Some(at) })
    }

    /// Whether a line of so many bytes may be written there.
    fn has_room(&self, bytes: usize) -> bool {
        let behind = |at: u64| at.saturating_add(bytes as u64).saturating_add(OTHERS);
        self.at.is_none_or(|at| behind(at) <= FILES_END.load(Ordering::Relaxed))
    }
}

/// That file, if its number still leads there: a guest may have closed it past us.
fn file() -> Option<To> {
    let fd = fd();
    let at = if fd < 0 { return None } else { call::fstat(fd).ok()? };
    let [dev, ino] = [0, 1].map(|i| FILE_IS[i].load(Ordering::Relaxed));
    if (at.st_dev, at.st_ino) == (dev, ino) {
        To::new(fd, (at.st_mode, at.st_size), true)
    } else {
        None
    }
}

/// Standard error, if what is written there now goes where people look for it.
fn standard_error() -> Option<To> {
    let [dev, ino] = [0, 1].map(|i| BEGAN[i].load(Ordering::Relaxed));
    if dev == 0 {
        return Some(To { fd: STDERR, at: None });
    }
    let at = call::fstat(STDERR).ok()?;
    if at.st_mode & S_IFMT == S_IFSOCK && is_with_a_peer(STDERR, STDIN) {
        return None;
    }
    let is_same =
        (at.st_dev.wrapping_add(1).max(1), at.st_ino.wrapping_add(1).max(1)) == (dev, ino);
    let appends = || call::getfl(STDERR).is_ok_and(|f| f & O_APPEND != 0);
    let is_for_us = is_same || is_for_lines(at.st_mode, appends);
    if is_for_us { To::new(STDERR, (at.st_mode, at.st_size), false) } else { None }
}

/// Whether that socket is a connection whose other end reads what the program answers, and not, as the journal's is, there
/// for lines: it is one of a network, or what the program reads comes by it, too.
fn is_with_a_peer(socket: i32, input: i32) -> bool {
    let place = |fd| call::fstat(fd).map(|at| (at.st_dev, at.st_ino)).ok();
    let is_of_a_network = matches!(call::name(socket, false), Ok(Some(_)));
    is_of_a_network || place(socket) == place(input)
}

/// Whether a descriptor that has come to be standard error was made so: a terminal or `/dev/null`, or a file to whose end
/// all is written.
fn is_for_lines(mode: u32, appends: impl Fn() -> bool) -> bool {
    match mode & S_IFMT {
        S_IFCHR => true,
        S_IFREG => appends(),
        _ => false,
    }
}

/// Writes one line that was asked for ([`Level`](crate::Level) above `error`), or that is the last; cut to 400 bytes.
pub fn line(args: fmt::Arguments<'_>) {
    if let Some(file) = file() {
        put(&file, args);
    } else if let Some(to) = standard_error()
        && call::is_writable(STDERR).1
    {
        put(&to, args);
    }
}

/// Writes one line about something that has gone wrong, cut to 400 bytes: unless there were many of late, or whoever is to
/// read it does not.
pub fn error(args: fmt::Arguments<'_>) {
    let Some(left_out) = LIMIT.pass(call::now_ns() / NS) else { return };
    let to = file().or_else(|| standard_error().filter(|_| call::is_writable(STDERR).0));
    let Some(to) = to else { return };
    if left_out > 0 {
        put(&to, format_args!("{left_out} lines of a moment ago were left out"));
    }
    put(&to, args);
}

fn put(to: &To, args: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 400], len: 0 };
    let _ = write!(line, "shunt[{}]: {args}", call::getpid());
    line.bytes[line.len] = b'\n';
    if to.has_room(line.len + 1) {
        let _ = call::write(to.fd, &line.bytes[..=line.len]);
    }
}

/// A second, in the upper half, and how many lines it has had.
struct Limit(AtomicU64);

impl Limit {
    /// Whether one more line may be written in that second: how many were left out before.
    fn pass(&self, second: u64) -> Option<u64> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (then, count) = (word >> 32, word & u64::from(u32::MAX));
            let is_new = then != second & u64::from(u32::MAX);
            let next = match is_new {
                true => second << 32 | 1,
                // It does not come round: nobody writes so many in a second.
                false => word + 1,
            };
            match self.0.compare_exchange_weak(word, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) if is_new => return Some(count.saturating_sub(MANY)),
                Ok(_) => return (count < MANY).then_some(0),
                Err(other) => word = other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn of_many_lines_in_a_second_a_few_are_written_and_the_others_counted() {
        let limit = Limit(AtomicU64::new(0));
        let passed = |second| (0..1000).filter_map(|_| limit.pass(second)).collect::<Vec<_>>();
        assert_eq!(passed(7), [0; 10]);
        assert_eq!(passed(7), [], "the same second");
        let after = passed(8);
        assert_eq!((after[0], after.len()), (1990, 10));
        assert_eq!(limit.pass(9), Some(990));
        assert_eq!(limit.pass(10), Some(0), "there was one");
        // The first second of a machine that has been up for longer than a word counts.
        assert_eq!(limit.pass(1 << 32 | 10), Some(0));
    }

    #[test]
    fn a_line_is_not_written_where_a_file_must_end() {
        const END: u64 = 100_000;
        files_end_at(END);
        let has_room = |at: u64| To { fd: STDERR, at: Some(at) }.has_room(400);
        assert!(has_room(0) && has_room(END - OTHERS - 400) && !has_room(END - OTHERS - 399));
        assert!(!has_room(END) && !has_room(u64::MAX));
        assert!(To { fd: STDERR, at: None }.has_room(400), "no file");
        files_end_at(u64::MAX);
        assert!(has_room(u64::MAX), "no limit");
    }

    #[test]
    fn what_has_taken_the_place_of_standard_error_is_written_to_if_it_is_for_lines() {
        const S_IFIFO: u32 = 0o010_000;
        let with = |mode: u32, appends: bool| is_for_lines(mode | 0o644, || appends);
        assert!(with(S_IFCHR, false), "a terminal");
        assert!(with(S_IFREG, true) && !with(S_IFREG, false), "a log, and a file of data");
        assert!(!with(S_IFSOCK, true) && !with(S_IFIFO, true));
    }

    #[test]
    fn a_socket_is_for_lines_unless_it_is_of_a_network_or_read_from() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let is = |socket: &dyn AsRawFd, input: &dyn AsRawFd| {
            is_with_a_peer(socket.as_raw_fd(), input.as_raw_fd())
        };
        assert!(!is(&one, &other), "the journal's");
        assert!(is(&one, &one.try_clone().unwrap()) && is(&listener, &other));
    }
}
