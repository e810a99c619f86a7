//! Which calls are made while the cases run, seen by a library that stands in front of libc under each name, notes the
//! call, and goes on to libc.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use e2e::calls::unseen::Submit;
use e2e::calls::uring;
use e2e::run::{Under, command, noted, outcome, skipped};

const GUEST: &str = env!("CARGO_BIN_EXE_oracle-guest");
const LIMIT: Duration = Duration::from_secs(40);
/// One page of notes: as many names as there may be.
const NOTES: usize = 4096;

/// Libraries that bring names which are not libc's.
const OTHERS: &[(&str, &str)] = &[("io_submit", "libaio.so.1"), ("io_uring_", "liburing.so.2")];

/// Where a name comes from, besides libc.
fn library_of(name: &str) -> Option<&'static str> {
    OTHERS.iter().find(|(begin, _)| name.starts_with(begin)).map(|(_, library)| *library)
}

/// The library that notes calls, and what it notes.
struct Noting {
    dir: PathBuf,
    names: Vec<&'static str>,
}

impl Noting {
    fn new(names: Vec<&'static str>) -> Self {
        assert!(names.len() < NOTES);
        let dir = std::env::temp_dir().join(format!("shunt-noting-{}", std::process::id()));
        fs::create_dir(&dir).expect("a directory");
        let source = dir.join("noting.c");
        fs::write(&source, text_of(&names)).expect("a source");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-w", "-o"]).arg(dir.join("noting.so")).arg(&source);
        let built = cc.arg("-ldl").output().expect("cc runs: it links our own programs");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        File::create(dir.join("notes")).and_then(|f| f.set_len(NOTES as u64)).expect("notes");
        Self { dir, names }
    }

    /// Names that nobody has called yet.
    fn uncalled(&self) -> Vec<&'static str> {
        let notes = fs::read(self.dir.join("notes")).expect("notes");
        let uncalled = self.names.iter().zip(notes).filter(|(_, note)| *note == 0);
        uncalled.map(|(name, _)| *name).collect()
    }

    /// Has a case run over kernel TCP, its connections being ours to make.
    fn run(&self, case: &str) {
        let mut command = command(GUEST, Under::Tcp);
        let library = self.dir.join("noting.so");
        command.args([case, "client"]).env("E2E_HOST", "127.0.0.1");
        // What the peer calls for its orders is called as well.
        command.env("LD_PRELOAD", &library).env("E2E_PEER_PRELOAD", &library);
        let got = outcome(command.env("E2E_NOTES", self.dir.join("notes")), LIMIT);
        if !got.ok() {
            noted(&format!("{case}, its calls noted: exit {} {}{:?}", got.code, got.err, got.hung));
        }
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Each function changes no register, so that whatever its arguments are, and however often it returns, libc's sees
/// what the caller has said.
fn text_of(names: &[&str]) -> String {
    let mut text = format!(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <fcntl.h>\n#include <stdlib.h>\n#include <sys/mman.h>\n\
         __attribute__((visibility(\"hidden\"), aligned({NOTES}))) char called[{NOTES}];\n\
         __attribute__((visibility(\"hidden\"))) void *real[{NOTES}];\n"
    );
    for (i, name) in names.iter().enumerate() {
        let at = i * 8;
        let body = if cfg!(target_arch = "x86_64") {
            format!("movb $1, called+{i}(%rip)\\n jmp *real+{at}(%rip)")
        } else {
            format!(
                "adrp x16, called\\n add x16, x16, :lo12:called\\n mov w17, #1\\n strb w17, [x16, #{i}]\\n \
                 adrp x16, real\\n add x16, x16, :lo12:real\\n ldr x16, [x16, #{at}]\\n br x16"
            )
        };
        let _ = writeln!(
            text,
            "asm(\".text\\n .globl {name}\\n .type {name}, %function\\n{name}: {body}\\n .size {name}, .-{name}\");"
        );
    }
    text += "__attribute__((constructor)) static void begin(void) {\n";
    for (i, name) in names.iter().enumerate() {
        let from = library_of(name).map_or_else(
            || "RTLD_NEXT".to_owned(),
            |library| format!("dlopen(\"{library}\", RTLD_NOW)"),
        );
        let _ = writeln!(text, "real[{i}] = dlsym({from}, \"{name}\");");
    }
    // By libc's own, which note nothing.
    text += "int (*opens)(const char *, int) = dlsym(RTLD_NEXT, \"open\");\n\
        int (*closes)(int) = dlsym(RTLD_NEXT, \"close\");\n\
        int fd = opens(getenv(\"E2E_NOTES\"), O_RDWR);\n\
        if (fd < 0 || mmap(called, sizeof called, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != called) \
        abort();\ncloses(fd);\n}\n";
    text
}

/// Those that make most of the calls which others do not make first.
const FIRST: &[&str] = &["names", "entries", "descriptors", "transfer", "readiness", "processes"];

macro_rules! by_module {
    ($($module:ident { $($case:ident)* })*) => {
        const CASES: &[(&str, &str)] = &[$($((stringify!($module), stringify!($case)),)*)*];
    };
}
e2e::oracle_cases!(by_module);

/// What the cases do beside their calls, in the runtime of their language, is noted as well: of this alone a name could be
/// there that `each_call_is_named_in_a_case` finds in a case which nobody runs.
#[test]
fn each_call_is_made_while_the_cases_run() {
    let libc = super::of_libc();
    let there = |name: &str| match library_of(name) {
        None => libc.contains(name),
        Some("liburing.so.2") => uring::has(name),
        Some(_) => Submit::ByLibrary.is_there(),
    };
    let (names, absent): (Vec<_>, Vec<_>) = super::calls().partition(|name| there(name));
    if !absent.is_empty() {
        skipped(&format!("not here, and so not called: {}", absent.join(" ")));
    }
    let noting = Noting::new(names);
    let rank = |module: &str| FIRST.iter().position(|m| *m == module).unwrap_or(FIRST.len());
    let mut cases = CASES.to_vec();
    // It takes any library that is preloaded for ours.
    cases.retain(|(_, case)| *case != "io_uring_is_refused");
    cases.sort_by_key(|(module, _)| std::cmp::Reverse(rank(module)));
    let left = Mutex::new(cases);
    let next = || left.lock().ok().and_then(|mut left| left.pop());
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while !noting.uncalled().is_empty() {
                    let Some((_, case)) = next() else { return };
                    noting.run(case);
                }
            });
        }
    });
    let uncalled: BTreeSet<&str> = noting.uncalled().into_iter().collect();
    assert!(uncalled.is_empty(), "exported, and called in no case: {uncalled:?}");
}
