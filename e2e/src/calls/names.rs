//! Functions of libc that programs reach by other names than those in its manual: what a compiler with
//! `_FORTIFY_SOURCE`, older programs and libc's own headers make of them. Found by name at run time, as the
//! linker would find them.

use super::*;

/// The function of this name, if this libc has it. What is preloaded comes first.
#[must_use]
pub fn find(name: &str) -> Option<*mut c_void> {
    let name = text(name);
    // SAFETY: a name that ends.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!at.is_null()).then_some(at)
}

/// Whether the C library itself has it, whoever else does: on Arm's CPUs it has few of its old names.
pub fn libc_has(name: &str) -> bool {
    let name = text(name);
    // SAFETY: a name that ends; the library is there already, and stays.
    let library =
        unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    // SAFETY: a library or none, and a name that ends.
    !library.is_null() && !unsafe { libc::dlsym(library, name.as_ptr()) }.is_null()
}

/// Calls a function by name: `ENOSYS` if there is none.
macro_rules! named {
    ($name:expr, ($($a:expr),* $(,)?) as ($($t:ty),*) -> $r:ty) => {
        match $crate::calls::names::find($name) {
            None => Err(libc::ENOSYS),
            Some(at) => {
                // SAFETY: libc's function of that name has this signature.
                let f = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($t),*) -> $r>(at)
                };
                // SAFETY: plain numbers, and buffers with their true lengths that live through the call.
                ret(unsafe { f($($a),*) } as isize)
            }
        }
    };
}

type At = *mut c_void;

/// `__read_chk`, `__recv_chk` or `__recvfrom_chk`: into a buffer of `len` bytes, and what the compiler knows
/// of its size.
pub fn receive_checked(name: &str, fd: c_int, len: usize) -> Bytes {
    let mut buffer = vec![0u8; len];
    let at: At = buffer.as_mut_ptr().cast();
    let got = match name {
        "__read_chk" => named!(name, (fd, at, len, len) as (c_int, At, usize, usize) -> isize),
        "__recv_chk" => {
            named!(name, (fd, at, len, len, 0) as (c_int, At, usize, usize, c_int) -> isize)
        }
        _ => named!(name, (fd, at, len, len, 0, null_mut(), null_mut())
            as (c_int, At, usize, usize, c_int, At, *mut u32) -> isize),
    };
    filled(buffer, got)
}

/// `__read` or `__recv`.
pub fn receive(name: &str, fd: c_int, len: usize) -> Bytes {
    let mut buffer = vec![0u8; len];
    let at: At = buffer.as_mut_ptr().cast();
    let got = match name {
        "__read" => named!(name, (fd, at, len) as (c_int, At, usize) -> isize),
        _ => named!(name, (fd, at, len, 0) as (c_int, At, usize, c_int) -> isize),
    };
    filled(buffer, got)
}

/// `__write` or `__send`.
pub fn send(name: &str, fd: c_int, bytes: &[u8]) -> Ret {
    let (at, len) = (bytes.as_ptr().cast_mut().cast::<c_void>(), bytes.len());
    match name {
        "__write" => named!(name, (fd, at, len) as (c_int, At, usize) -> isize),
        _ => named!(name, (fd, at, len, 0) as (c_int, At, usize, c_int) -> isize),
    }
}

/// `__poll`, `__poll_chk` or `__ppoll_chk` for bytes: `revents`.
pub fn poll(name: &str, fd: c_int, ms: c_int) -> Result<i16, i32> {
    let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let (at, size) = ((&raw mut one).cast::<c_void>(), size_of::<libc::pollfd>());
    let time = timespec(Duration::from_millis(ms as u64));
    let time: At = (&raw const time).cast_mut().cast();
    match name {
        "__poll" => named!(name, (at, 1, ms) as (At, u64, c_int) -> c_int),
        "__poll_chk" => named!(name, (at, 1, ms, size) as (At, u64, c_int, usize) -> c_int),
        _ => named!(name, (at, 1, time, null_mut(), size) as (At, u64, At, At, usize) -> c_int),
    }?;
    Ok(one.revents)
}

/// `__select` for bytes: how many are ready.
pub fn select(fd: c_int, ms: i64) -> Ret {
    let mut set = fd_set(&[fd]);
    let mut time = libc::timeval { tv_sec: ms / 1000, tv_usec: ms % 1000 * 1000 };
    let (set, time): (At, At) = ((&raw mut set).cast(), (&raw mut time).cast());
    named!("__select", (fd + 1, set, null_mut(), null_mut(), time)
        as (c_int, At, At, At, At) -> c_int)
}

/// `__socket`.
pub fn socket() -> Result<c_int, i32> {
    let family = address::family();
    named!("__socket", (family, libc::SOCK_STREAM, 0) as (c_int, c_int, c_int) -> c_int)
        .map(|fd| fd as c_int)
}

/// `__connect`.
pub fn connect(fd: c_int, port: u16) -> Ret {
    let (addr, len) = address::storage(address::there(), port);
    let at: At = (&raw const addr).cast_mut().cast();
    named!("__connect", (fd, at, len) as (c_int, At, u32) -> c_int)
}

/// `__close`.
pub fn close(fd: c_int) -> Ret {
    named!("__close", (fd) as (c_int) -> c_int)
}

/// `__dup2`.
pub fn dup2(fd: c_int, to: c_int) -> Ret {
    named!("__dup2", (fd, to) as (c_int, c_int) -> c_int)
}

/// `__fcntl` or `fcntl64`, which take their argument as `fcntl` does, behind the dots.
pub fn fcntl(name: &str, fd: c_int, command: c_int, value: usize) -> Ret {
    let Some(at) = find(name) else { return Err(libc::ENOSYS) };
    // SAFETY: libc's function of that name has this signature.
    let f =
        unsafe { std::mem::transmute::<At, unsafe extern "C" fn(c_int, c_int, ...) -> c_int>(at) };
    // SAFETY: plain numbers.
    ret(unsafe { f(fd, command, value) } as isize)
}

/// `__sendmmsg` of one message.
pub fn sendmmsg(fd: c_int, bytes: &[u8]) -> Ret {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut one = zero!(libc::mmsghdr);
    one.msg_hdr.msg_iov = &raw mut part;
    one.msg_hdr.msg_iovlen = 1;
    let at: At = (&raw mut one).cast();
    named!("__sendmmsg", (fd, at, 1, 0) as (c_int, At, u32, c_int) -> c_int)?;
    Ok(one.msg_len as usize)
}

/// `pwritev64v2`.
pub fn pwritev64v2(fd: c_int, parts: &[&[u8]]) -> Ret {
    let iov = slices(parts);
    let (at, n): (At, _) = (iov.as_ptr().cast_mut().cast(), iov.len() as c_int);
    named!("pwritev64v2", (fd, at, n, -1, 0) as (c_int, At, c_int, i64, c_int) -> isize)
}

/// `preadv64v2` into buffers of these sizes.
pub fn preadv64v2(fd: c_int, sizes: &[usize]) -> Bytes {
    let mut parts = buffers(sizes);
    let iov = slices_mut(&mut parts);
    let (at, n): (At, _) = (iov.as_ptr().cast_mut().cast(), iov.len() as c_int);
    let got = named!("preadv64v2", (fd, at, n, -1, 0) as (c_int, At, c_int, i64, c_int) -> isize);
    joined(parts, got)
}

/// `sendfile64` from the file's position.
pub fn sendfile64(to: c_int, from: c_int, len: usize) -> Ret {
    named!("sendfile64", (to, from, null_mut(), len) as (c_int, c_int, At, usize) -> isize)
}

/// An argument list as x86-64 lays it out, with nothing in registers.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct Arguments {
    general_at: u32,
    float_at: u32,
    on_the_stack: At,
    saved: At,
}

/// `vdprintf(fd, "%s %d", line, number)`, or the same by `__vdprintf_chk`. `ENOSYS` where we do not know how
/// arguments are laid out.
#[cfg(target_arch = "x86_64")]
pub fn vdprintf(name: &str, fd: c_int, line: &str, number: i32) -> Ret {
    let line = text(line);
    let stack = [line.as_ptr() as u64, number as u64];
    // Offsets past the registers that could hold any.
    let mut list = Arguments {
        general_at: 48,
        float_at: 176,
        on_the_stack: stack.as_ptr().cast_mut().cast(),
        saved: null_mut(),
    };
    let (format, list): (At, At) = (c"%s %d".as_ptr().cast_mut().cast(), (&raw mut list).cast());
    match name {
        "vdprintf" => named!(name, (fd, format, list) as (c_int, At, At) -> c_int),
        _ => named!(name, (fd, 1, format, list) as (c_int, c_int, At, At) -> c_int),
    }
}

/// `vdprintf`.
#[cfg(not(target_arch = "x86_64"))]
pub fn vdprintf(_: &str, _: c_int, _: &str, _: i32) -> Ret {
    Err(libc::ENOSYS)
}

/// Ways to make another program of a process, or to start one.
pub const STARTS: &[&str] = &[
    "execl", "execle", "execlp", "execv", "execve", "execvp", "execvpe", "fexecve", "execveat",
    BY_NUMBER,
];

/// `execve` by its number.
const BY_NUMBER: &str = "syscall";

/// Becomes `path` with three arguments by the function of this name: an errno when it failed. The
/// environment is the process's own.
pub fn become_by(name: &str, path: &str, args: [&str; 3]) -> i32 {
    let (file, [a, b, c]) = (text(path), args.map(text));
    let list = words(&[path, args[0], args[1], args[2]]);
    let all: Vec<String> =
        std::env::vars().map(|(name, value)| format!("{name}={value}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let env = words(&all);
    let (at, argv, envp) = (file.as_ptr(), list.at.as_ptr(), env.at.as_ptr());
    let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_ptr());
    let end = null::<libc::c_char>();
    if name == "execveat" {
        let (file, argv, envp): (At, At, At) =
            (at.cast_mut().cast(), argv.cast_mut().cast(), envp.cast_mut().cast());
        let answer = named!(name, (libc::AT_FDCWD, file, argv, envp, 0)
            as (c_int, At, At, At, c_int) -> c_int);
        return answer.err().unwrap_or(0);
    }
    // SAFETY: C strings, and lists that end with a null pointer.
    unsafe {
        match name {
            "execl" => libc::execl(at, at, a, b, c, end),
            "execlp" => libc::execlp(at, at, a, b, c, end),
            "execle" => libc::execle(at, at, a, b, c, end, envp),
            "execv" => libc::execv(at, argv),
            "execve" => libc::execve(at, argv, envp),
            "execvp" => libc::execvp(at, argv),
            "execvpe" => libc::execvpe(at, argv, envp),
            BY_NUMBER => libc::syscall(libc::SYS_execve, at, argv, envp) as c_int,
            _ => libc::fexecve(libc::open(at, libc::O_RDONLY), argv, envp),
        }
    };
    errno()
}

/// `execl`, `execlp` or `execle` of a program with three arguments and so many more, 27 or 60, of which it makes nothing: an
/// errno when it failed. The environment is the process's own.
pub fn become_with_many(name: &str, path: &str, args: [&str; 3], more: usize) -> i32 {
    macro_rules! tens {
        ($function:path, $first:expr, $($last:expr),*) => {{
            let [p, a, b, c] = $first;
            let o = c"more".as_ptr();
            if more == 27 {
                $function(p, p, a, b, c,
                    o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o,
                    o, o, o, o, o, o, o,
                    $($last),*)
            } else {
                $function(p, p, a, b, c,
                    o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o,
                    o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o,
                    o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o,
                    $($last),*)
            }
        }};
    }
    let (file, args) = (text(path), args.map(text));
    let first = [file.as_ptr(), args[0].as_ptr(), args[1].as_ptr(), args[2].as_ptr()];
    let all: Vec<String> =
        std::env::vars().map(|(name, value)| format!("{name}={value}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let (env, end) = (words(&all), null::<libc::c_char>());
    // SAFETY: C strings, and lists that end with a null pointer.
    unsafe {
        match name {
            "execl" => tens!(libc::execl, first, end),
            "execlp" => tens!(libc::execlp, first, end),
            _ => tens!(libc::execle, first, end, env.at.as_ptr()),
        }
    };
    errno()
}

/// `posix_spawnp` of a program with three arguments.
pub fn spawnp(path: &str, args: [&str; 3]) -> Result<i32, i32> {
    let list = words(&[path, args[0], args[1], args[2]]);
    let all: Vec<String> =
        std::env::vars().map(|(name, value)| format!("{name}={value}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let (path, env) = (text(path), words(&all));
    let (argv, envp) = (list.at.as_ptr().cast::<*mut _>(), env.at.as_ptr().cast::<*mut _>());
    let mut pid = 0;
    // SAFETY: C strings, and lists that end with a null pointer.
    let e = unsafe { libc::posix_spawnp(&raw mut pid, path.as_ptr(), null(), null(), argv, envp) };
    if e == 0 { Ok(pid) } else { Err(e) }
}

/// A command started by `popen`.
#[derive(Debug)]
pub struct Command(*mut libc::FILE);

/// `popen(command, "r")`.
pub fn popen(command: &str) -> Result<Command, i32> {
    let command = text(command);
    // SAFETY: C strings.
    let file = unsafe { libc::popen(command.as_ptr(), c"r".as_ptr()) };
    if file.is_null() { Err(errno()) } else { Ok(Command(file)) }
}

impl Command {
    /// `pclose`: the status.
    pub fn close(self) -> Ret {
        call!(libc::pclose, self.0)
    }
}

/// `daemon(1, 1)`: the caller's process ends, and a child of it goes on.
pub fn daemon() -> Ret {
    call!(libc::daemon, 1, 1)
}

/// `fork` by libc's own name for it.
pub fn fork() -> Result<Forked, i32> {
    Ok(match named!("__fork", () as () -> c_int)? {
        0 => Forked::Child,
        pid => Forked::Parent(pid as i32),
    })
}

/// [`vfork_exec`] by libc's own name for `vfork`, with the process's environment.
pub fn vfork_exec(path: &str, args: &[&str], stdio: c_int) -> Result<i32, i32> {
    let Some(at) = find("__vfork") else { return Err(libc::ENOSYS) };
    // SAFETY: libc's function of that name has this signature.
    let vfork = unsafe { std::mem::transmute::<At, unsafe extern "C" fn() -> c_int>(at) };
    let (path, args) = (text(path), words(args));
    let (path_at, args_at) = (path.as_ptr(), args.at.as_ptr());
    // SAFETY: the child only calls dup2, execv and _exit on values made before.
    let pid = unsafe { vfork() };
    if pid == 0 {
        // SAFETY: as above.
        unsafe {
            libc::dup2(stdio, 0);
            libc::dup2(stdio, 1);
            libc::execv(path_at, args_at);
            libc::_exit(127);
        }
    }
    fd_ret(pid)
}
