//! Libraries that a program loads while it runs, with a scope of their own (`RTLD_DEEPBIND`): their calls go past whatever
//! is preloaded, unless that sees to it.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::run::{BoardDir, Under, command, outcome, plain_only};

const LIMIT: Duration = Duration::from_secs(60);

/// Has a connection with itself. Some of what is done to it a library does.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

const char *whose(void) { return "the program's"; }

static int fails(const char *what, int round) {
    printf("%s in round %d\n", what, round);
    return 1;
}

int main(int count, char **words) {
    void *library = dlopen(words[1], RTLD_LAZY | RTLD_DEEPBIND);
    if (!library)
        return fails(dlerror(), 0);
    long (*gives)(int, const void *, long) = dlsym(library, "gives");
    long (*takes)(int, void *, long) = dlsym(library, "takes");
    int (*waits)(int) = dlsym(library, "waits");
    const char *(*asks)(void) = dlsym(library, "asks");
    printf("%s\n", asks());

    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, len) || listen(listener, 8) || getsockname(listener, (void *)&at, &len))
        return fails("no listener", 0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(client, (void *)&at, len))
        return fails("not connected", 0);
    int server = accept(listener, 0, 0);
    for (int round = 0; round < 8; round++) {
        /* First the program alone, so that the two ends meet. */
        int by_library = round > 3;
        char sent[100], came[100];
        for (int way = 0; way < 2; way++) {
            int from = way ? server : client, to = way ? client : server;
            memset(sent, 'a' + 2 * round + way, sizeof sent);
            /* By turns: its bytes are taken by the other one. */
            int gives_it = by_library && (round & 1), takes_it = by_library && !(round & 1);
            if ((gives_it ? gives(from, sent, 100) : send(from, sent, 100, 0)) != 100)
                return fails("not sent", round);
            if (by_library && waits(to) != 1)
                return fails("nothing there", round);
            if ((takes_it ? takes(to, came, 100) : recv(to, came, 100, MSG_WAITALL)) != 100)
                return fails("not received", round);
            if (memcmp(sent, came, 100))
                return fails("something else came", round);
        }
    }
    puts("done");
    return 0;
}
"#;

/// Does calls on descriptors; by a table as well, which holds an address from the beginning.
const LIBRARY: &str = r#"
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>
extern const char *whose(void);
static ssize_t (*const by_table[])(int, void *, size_t, int) = {recv};
long gives(int fd, const void *bytes, long n) { return send(fd, bytes, n, MSG_DONTWAIT); }
long takes(int fd, void *bytes, long n) {
    return n < 2 ? recv(fd, bytes, n, MSG_DONTWAIT) : by_table[n & 1](fd, bytes, n, MSG_DONTWAIT);
}
int waits(int fd) {
    struct pollfd one = {fd, POLLIN, 0};
    return poll(&one, 1, 5000);
}
const char *asks(void) { return whose(); }
"#;

/// Loads libraries in several threads at once, again and again: those of words that begin with a plus sign without a scope of
/// their own.
const LOADS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void *loads(void *word) {
    const char *path = word;
    int flags = RTLD_LAZY | RTLD_DEEPBIND;
    if (*path == '+') {
        flags = RTLD_LAZY;
        path++;
    }
    for (int i = 0; i < 2000; i++) {
        void *library = dlopen(path, flags);
        const char *failed = dlerror();
        if (!library || failed) {
            puts(failed);
            exit(1);
        }
        dlclose(library);
    }
    return 0;
}

int main(int count, char **words) {
    pthread_t threads[8];
    for (int i = 1; i < count; i++)
        pthread_create(&threads[i], 0, loads, words[i]);
    for (int i = 1; i < count; i++)
        pthread_join(threads[i], 0);
    puts("done");
    return 0;
}
"#;

/// What a library needs, and what it is itself then: something that has a name of the program's, too.
const OWN_NAME: &str = r#"const char *whose(void) { return "the library's own"; }"#;

struct Built(PathBuf);

impl Built {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("shunt-plugins-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    /// Compiles a file, and answers where.
    fn cc(&self, name: &str, text: &str, words: &[&str]) -> PathBuf {
        let (source, built) = (self.0.join(format!("{name}.c")), self.0.join(name));
        fs::write(&source, text).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-o"]).arg(&built).arg(&source).args(words).arg("-ldl");
        let made = cc.current_dir(&self.0).output().expect("cc runs: it links our own programs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        built
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The program with a library of that name; whether it had a connection that left TCP.
#[track_caller]
fn plays(program: &Path, library: &Path, environment: &[(&str, &Path)]) -> bool {
    let board = BoardDir::new();
    let mut command = command(program, Under::Shunt(&board));
    command.arg(library).envs(environment.iter().copied());
    let got = outcome(&mut command, LIMIT);
    assert_eq!(got.out, "the library's own\ndone\n", "{library:?}: {got:?}\n{}", board.summary());
    board.attached() > 0
}

/// However its calls are bound, whether they are its own or those of a library that it needs, and however it is found.
#[test]
fn a_library_with_a_scope_of_its_own_does_to_connections_what_the_program_does() {
    let built = Built::new("calls");
    let program = built.cc("program", PROGRAM, &["-rdynamic"]);
    let shared = ["-shared", "-fPIC"];
    let own_name = format!("{LIBRARY}{OWN_NAME}");
    for (name, how) in [("lazy.so", "-Wl,-z,lazy"), ("sealed.so", "-Wl,-z,now,-z,relro")] {
        let library = built.cc(name, &own_name, &[&shared[..], &[how]].concat());
        assert!(plays(&program, &library, &[]) || plain_only(), "{name}: it stayed on TCP");
        // One of which only a search finds where it is.
        let by_name = plays(&program, Path::new(name), &[("LD_LIBRARY_PATH", &built.0)]);
        assert!(by_name || plain_only(), "{name}: it stayed on TCP");
    }
    built.cc("libinner.so", &own_name, &shared);
    let needs = ["-Wl,--no-as-needed", "-L.", "-linner", "-Wl,-rpath,$ORIGIN"];
    let outer = built.cc("outer.so", "", &[&shared[..], &needs].concat());
    assert!(plays(&program, &outer, &[]) || plain_only(), "it stayed on TCP");
}

/// The loader looks at who asks: a library that is found by the program's own paths is found by them under Shunt.
#[test]
fn a_library_is_found_where_the_program_says() {
    let built = Built::new("paths");
    let rpath = format!("-Wl,-rpath,{},--enable-new-dtags", built.0.join("private").display());
    let program = built.cc("program", PROGRAM, &["-rdynamic", &rpath]);
    fs::create_dir(built.0.join("private")).unwrap();
    let text = format!("{LIBRARY}{OWN_NAME}");
    let library = built.cc("private/found.so", &text, &["-shared", "-fPIC"]);
    for name in [Path::new("found.so"), &library] {
        let board = BoardDir::new();
        // Without a connection that leaves TCP: those that are found so are not seen.
        let mut command = command(&program, Under::Shunt(&board));
        command.arg(name).env("SHUNT_EXCLUDE", "addr:127.0.0.0/8");
        let got = outcome(&mut command, LIMIT);
        assert_eq!(got.out, "the library's own\ndone\n", "{name:?}: {got:?}");
    }
    // `$ORIGIN` is where the program lies.
    let got = outcome(
        command(&program, Under::Shunt(&BoardDir::new()))
            .arg("$ORIGIN/private/found.so")
            .env("SHUNT_EXCLUDE", "addr:127.0.0.0/8"),
        LIMIT,
    );
    assert_eq!(got.out, "the library's own\ndone\n", "{got:?}");
}

/// A library loads others where it begins, while the loader is held; one has addresses in its code, which is not written to;
/// one lacks what we have as well. None of them ends the program, or stops it, or is said to have failed.
#[test]
fn libraries_of_all_kinds_are_loaded_by_threads_at_once() {
    const BEGINS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
static void *other;
__attribute__((constructor)) static void begins(void) {
    other = dlopen(getenv("OTHER"), RTLD_LAZY | RTLD_DEEPBIND);
}
__attribute__((destructor)) static void ends(void) { dlclose(other); }
"#;
    const IN_CODE: &str = r#"
#include <sys/types.h>
extern ssize_t recv(int, void *, size_t, int);
__attribute__((section(".text"))) ssize_t (*const in_code)(int, void *, size_t, int) = recv;
"#;
    const LACKS: &str = r#"
extern int io_uring_queue_init(unsigned, void *, unsigned) __attribute__((weak));
int has(void) { return io_uring_queue_init != 0; }
"#;
    let built = Built::new("kinds");
    let program = built.cc("program", LOADS, &["-pthread"]);
    let own_name = format!("{LIBRARY}{OWN_NAME}");
    let shared = ["-shared", "-fPIC", "-Wl,-z,lazy"];
    let other = built.cc("other.so", &own_name, &shared);
    let lazy = built.cc("lazy.so", &own_name, &shared);
    let begins = built.cc("begins.so", BEGINS, &shared);
    let in_code = built.cc("in-code.so", IN_CODE, &["-shared", "-fPIC", "-Wl,-z,notext"]);
    let lacks = built.cc("lacks.so", LACKS, &shared);
    let board = BoardDir::new();
    let mut command = command(&program, Under::Shunt(&board));
    command.args([&lazy, &in_code, &lacks]).arg(format!("+{}", begins.display()));
    let got = outcome(command.env("OTHER", other), LIMIT);
    assert_eq!(got.out, "done\n", "{got:?}");
}

/// `DT_RPATH` is also for what the objects load that such an object needs.
#[test]
fn a_library_is_found_where_another_one_says() {
    const ASKS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
int asks(void) { return !dlopen("found.so", RTLD_NOW | RTLD_DEEPBIND); }
"#;
    const HANDS_ON: &str = "int asks(void); int hands_on(void) { return asks(); }";
    const MAIN: &str = "int hands_on(void); int main(void) { return hands_on(); }";
    let built = Built::new("handed-on");
    let here = built.0.display();
    let old = format!("-Wl,-rpath,{here}/private:{here},--disable-new-dtags");
    let new = format!("-Wl,-rpath,{here},-rpath-link,{here},--enable-new-dtags");
    let shared = ["-shared", "-fPIC", "-L."];
    fs::create_dir(built.0.join("private")).unwrap();
    built.cc("private/found.so", OWN_NAME, &shared);
    built.cc("libasks.so", ASKS, &shared);
    built.cc("libhands.so", HANDS_ON, &[&shared[..], &["-lasks", &old]].concat());
    let program = built.cc("program", MAIN, &["-L.", "-lhands", &new]);
    let got = outcome(&mut command(&program, Under::Shunt(&BoardDir::new())), LIMIT);
    assert!(got.ok(), "{got:?}");
}
