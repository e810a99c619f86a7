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

/// That file, if its number still leads there: a guest may have closed it past us.
fn file() -> Option<i32> {
    let fd = fd();
    let at = if fd < 0 { return None } else { call::fstat(fd).ok()? };
    let [dev, ino] = [0, 1].map(|i| FILE_IS[i].load(Ordering::Relaxed));
    ((at.st_dev, at.st_ino) == (dev, ino)).then_some(fd)
}

/// Whether what is written to standard error now goes where people look for it.
fn is_standard_error() -> bool {
    let [dev, ino] = [0, 1].map(|i| BEGAN[i].load(Ordering::Relaxed));
    if dev == 0 {
        return true;
    }
    let Ok(at) = call::fstat(STDERR) else { return false };
    if at.st_mode & S_IFMT == S_IFSOCK && is_with_a_peer(STDERR, STDIN) {
        return false;
    }
    let is_same =
        (at.st_dev.wrapping_add(1).max(1), at.st_ino.wrapping_add(1).max(1)) == (dev, ino);
    is_same || is_for_lines(at.st_mode, || call::getfl(STDERR).is_ok_and(|f| f & O_APPEND != 0))
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
        put(file, args);
    } else if is_standard_error() && call::is_writable(STDERR).1 {
        put(STDERR, args);
    }
}

/// Writes one line about something that has gone wrong, cut to 400 bytes: unless there were many of late, or whoever is to
/// read it does not.
pub fn error(args: fmt::Arguments<'_>) {
    let Some(left_out) = LIMIT.pass(call::now_ns() / NS) else { return };
    let to = match file() {
        Some(file) => file,
        None if is_standard_error() && call::is_writable(STDERR).0 => STDERR,
        None => return,
    };
    if left_out > 0 {
        put(to, format_args!("{left_out} lines of a moment ago were left out"));
    }
    put(to, args);
}

fn put(to: i32, args: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 400], len: 0 };
    let _ = write!(line, "shunt[{}]: {args}", call::getpid());
    line.bytes[line.len] = b'\n';
    let _ = call::write(to, &line.bytes[..=line.len]);
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
