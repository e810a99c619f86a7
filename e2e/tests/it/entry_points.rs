//! Every call of libc that moves the bytes of a connection, says whether they are there, or makes,
//! copies and ends descriptors leads to the library; or it is listed here why it need not.

use std::collections::BTreeSet;
use std::process::Command;

use e2e::run::library;

mod counted;

/// Calls on the descriptor itself.
const OF_A_CONNECTION: &str = "
    socket listen connect accept accept4 shutdown getpeername getsockname getsockopt setsockopt ioctl sockatmark
    fcntl fcntl64
    read readv preadv2 preadv64v2 recv recvfrom recvmsg recvmmsg
    write writev pwritev2 pwritev64v2 send sendto sendmsg sendmmsg
    sendfile sendfile64 splice dprintf vdprintf fdopen fclose syscall
    __read_chk __recv_chk __recvfrom_chk __dprintf_chk __vdprintf_chk
    __socket __connect __fcntl __read __write __send __recv __sendmmsg
    aio_read aio_read64 aio_write aio_write64 lio_listio lio_listio64 io_submit
    io_uring_setup io_uring_queue_init io_uring_queue_init_params io_uring_queue_init_mem
    io_uring_submit io_uring_submit_and_wait io_uring_submit_and_get_events io_uring_submit_and_wait_timeout
    io_uring_submit_and_wait_min_timeout io_uring_submit_and_wait_reg
    io_uring_wait_cqes io_uring_wait_cqes_min_timeout io_uring_wait_cqe_timeout io_uring_enter io_uring_enter2
    io_uring_register io_uring_register_files io_uring_register_files_tags
    io_uring_register_files_update io_uring_register_files_update_tag";

/// Calls that wait.
const READINESS: &str = "
    poll ppoll select pselect __poll __select __poll_chk __ppoll_chk
    epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2";

/// Calls that copy and end descriptors and processes, or give up what we need later.
const LIFETIME: &str = "
    close __close close_range closefrom dup dup2 __dup2 dup3
    fork __fork _Fork vfork __vfork clone __clone daemon login_tty posix_spawn posix_spawnp posix_spawn_file_actions_adddup2 system popen
    execl execle execlp execv execve execvp execvpe execveat fexecve
    _exit _Exit quick_exit setuid seteuid setreuid setresuid chroot prctl";

/// Calls on memory that would reach what is the library's.
const MEMORY: &str = "mlockall setrlimit setrlimit64 getrlimit getrlimit64 prlimit prlimit64";

/// Calls that hand out numbers, which may be ones that we still believe to be connections.
const NUMBERS: &str = "
    socketpair pipe pipe2 __pipe open open64 openat openat64 __open __open64 __open_2 __open64_2
    __openat_2 __openat64_2 creat creat64 memfd_create eventfd timerfd_create signalfd inotify_init
    inotify_init1 pidfd_open pidfd_getfd";

/// Calls that bring code whose calls would go past the library.
const CODE: &str = "dlopen";

/// What the library does for programs of ours that ask whether it is there.
const OF_OURS: &str = "shunt_carries shunt_take shunt_put";

/// Calls that need no help, because the program's descriptor is the kernel's socket: what they are
/// and why.
const LEFT_TO_LIBC: &[(&str, &str)] = &[
    ("bind isfdtype fstat", "the kernel's answer is right"),
    ("pread pread64 pwrite pwrite64 preadv preadv64 pwritev pwritev64", "ESPIPE on a socket"),
    ("__pread_chk __pread64_chk", "ESPIPE on a socket"),
    ("tee vmsplice copy_file_range", "EINVAL on a socket"),
    ("mmap mmap64", "what is mapped is asked for by TCP_ZEROCOPY_RECEIVE, which getsockopt sees"),
    ("__fdelt_chk", "looks at a number only"),
    ("exit abort", "destructors see the first; the kernel closes after the second"),
    ("freopen fcloseall pclose", "a stream's connection is on TCP since fdopen"),
    ("sigaction signal pthread_create pthread_cancel", "no handler and no thread is ours"),
];

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split_whitespace()
}

/// What a shared object exports (`defined`), or all names that it offers.
fn exported(object: &std::path::Path) -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(object).output();
    let output = output.expect("nm runs: it comes with the linker");
    assert!(output.status.success(), "nm {}: {output:?}", object.display());
    let text = String::from_utf8_lossy(&output.stdout);
    let name = |line: &str| line.split_whitespace().last().map(|name| name.replace("@@", "@"));
    let names = text.lines().filter_map(name);
    names.map(|name| name.split('@').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn each_call_leads_to_the_library() {
    let have = exported(&library());
    let wanted = [OF_A_CONNECTION, READINESS, LIFETIME, MEMORY, NUMBERS, CODE, OF_OURS];
    let wanted: BTreeSet<&str> = wanted.into_iter().flat_map(words).collect();
    let missing: Vec<&&str> = wanted.iter().filter(|name| !have.contains(**name)).collect();
    assert!(missing.is_empty(), "not exported by the library: {missing:?}");
    let more: Vec<&String> = have.iter().filter(|name| !wanted.contains(name.as_str())).collect();
    assert!(more.is_empty(), "exported, and listed nowhere: {more:?}");
}

/// All that the programs of the oracle are made of.
fn cases() -> String {
    let mut text = String::new();
    let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("our sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                text += &std::fs::read_to_string(&path).expect("a source");
            }
        }
    }
    text
}

/// Whether a source names a function as one that it calls: by path, or as text for the linker. (Not as a word of its
/// own, nor as a function that it defines.)
fn names_it(source: &str, name: &str) -> bool {
    source.match_indices(name).any(|(at, _)| {
        let before = &source[..at];
        let after = source[at + name.len()..].chars().next();
        ["c::", "makers::", "call!(", "\""].iter().any(|mark| before.ends_with(mark))
            && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

#[test]
fn each_call_is_named_in_a_case() {
    let cases = cases();
    let unnamed: Vec<&str> = calls().filter(|name| !names_it(&cases, name)).collect();
    assert!(unnamed.is_empty(), "exported, and named in no case: {unnamed:?}");
}

/// The calls that the library stands in front of. First what others are loaded by: see `counted::text_of`.
fn calls() -> impl Iterator<Item = &'static str> {
    [CODE, OF_A_CONNECTION, READINESS, LIFETIME, MEMORY, NUMBERS].into_iter().flat_map(words)
}

#[test]
fn what_is_left_to_libc_is_not_exported() {
    let have = exported(&library());
    for (names, why) in LEFT_TO_LIBC {
        for name in words(names) {
            assert!(!have.contains(name), "{name} is exported, and said to need no help: {why}");
        }
    }
}

/// What the libc that is in use exports.
fn of_libc() -> BTreeSet<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("our own maps");
    let libc = maps.lines().filter_map(|line| line.split_whitespace().last());
    let libc = libc.filter(|path| path.contains("/libc.so") || path.contains("/libc-"));
    let libc = libc.map(std::path::PathBuf::from).next().expect("libc is mapped");
    exported(&libc)
}

/// A name that libc has never had would be interposed in vain.
#[test]
fn names_are_those_of_libc() {
    let have = of_libc();
    // Of libaio and liburing; and of later versions of libc than some that are in use.
    let elsewhere = "io_submit _Fork closefrom close_range epoll_pwait2 login_tty pidfd_open pidfd_getfd __openat64_2 execveat";
    let elsewhere: BTreeSet<&str> = words(elsewhere).collect();
    let unknown: Vec<&str> = calls()
        .filter(|name| {
            !have.contains(*name) && !elsewhere.contains(name) && !name.starts_with("io_uring_")
        })
        .collect();
    assert!(unknown.is_empty(), "libc has none of these: {unknown:?}");
}
