//! The header says what the library does, and a C program can use it.

use std::path::{Path, PathBuf};
use std::process::Command;

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).into()
}

/// `SHUNT_WRITE_HEADER=1 cargo test -p shunt-frag-c` writes it anew.
#[test]
fn the_header_is_current() {
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml")).expect("cbindgen.toml");
    let made = cbindgen::Builder::new().with_src(here().join("src/lib.rs")).with_config(config);
    let mut text = Vec::new();
    made.generate().expect("the library's face can be said in C").write(&mut text);
    let path = here().join("include/shunt_frag.h");
    if std::env::var_os("SHUNT_WRITE_HEADER").is_some() {
        std::fs::write(&path, &text).expect("the header can be written");
    }
    let there = std::fs::read(&path).unwrap_or_default();
    assert!(
        there == text,
        "include/shunt_frag.h is old: SHUNT_WRITE_HEADER=1 cargo test -p shunt-frag-c"
    );
}

/// A call of a sink comes from within a shard: whatever takes a shard says that it must not be one that calls.
#[test]
fn what_takes_a_shard_alone_is_not_for_calls_of_a_sink() {
    let text = std::fs::read_to_string(here().join("include/shunt_frag.h")).expect("the header");
    let mut seen = 0;
    // A function, behind a line without anything and its comment.
    for item in text.split("\n\n") {
        let code: String = item.lines().filter(|line| !line.starts_with("//")).collect();
        let takes = code.contains("(struct shunt_frag_shard *")
            || code.contains("(const struct shunt_frag_shard *");
        // Who has a sink, too, is one of those that call.
        if takes && !code.contains("struct shunt_frag_sink *") {
            seen += 1;
            assert!(item.contains("calls of a `Sink` is under way"), "{item}");
        }
    }
    assert!(seen >= 2, "free and count");
}

/// Where cargo has put the static library: beside this test.
fn library() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    test.ancestors().map(|dir| dir.join("libshunt_frag.a")).find(|path| path.exists())
}

/// Builds an example and runs it; what it says. `None`, with the reason on standard output: it cannot be built here.
fn run(example: &str) -> Option<String> {
    let Some(library) = library() else {
        println!("skipped: no libshunt_frag.a; `cargo build -p shunt-frag-c` makes it");
        return None;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join(example);
    let built = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(here().join("include"))
        .arg(here().join("examples").join(example).with_extension("c"))
        .arg(library)
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .output();
    let built = match built {
        Ok(built) => built,
        Err(error) => {
            println!("skipped: no C compiler: {error}");
            return None;
        }
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(program).output().expect("the program runs");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said}");
    Some(said)
}

#[test]
fn a_program_in_c_can_use_it() {
    let Some(said) = run("defrag") else { return };
    assert!(said.contains("2 fragments, 35 bytes: perhaps"), "{said}");
    assert!(said.contains("ICMPv6 type 3 code 1, header of 40 bytes"), "{said}");
}

#[test]
fn a_program_in_c_can_have_several_cores_and_chains_of_buffers() {
    let Some(said) = run("mbufs") else { return };
    let all = "300 datagrams, 0 wrong, 0 fragments dropped, 0 buffers left; handed over: some";
    assert!(said.contains(all), "{said}");
}
