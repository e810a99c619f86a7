use std::path::Path;
use std::process::Command;

use proptest::prelude::*;

use super::*;

fn native_file(path: &Path) -> Native {
    match parse(&File::open(path).unwrap()).unwrap() {
        Elf::Native(native) => native,
        foreign @ Elf::Foreign { .. } => panic!("{path:?}: {foreign:?}"),
    }
}

/// A whole small program: this test's own file would be megabytes.
fn true_bytes() -> Vec<u8> {
    std::fs::read("/bin/true").unwrap()
}

#[test]
fn an_ordinary_program_is_dynamic_and_not_go() {
    let native = native_file(Path::new("/bin/true"));
    assert!(native.loadable);
    assert!(base_name(native.interpreter.as_deref().unwrap()).starts_with("ld-linux"));
    assert!(!native.go && !native.is_musl());
    // On Arm's CPUs the loader is named, too: it has what the stack is protected by.
    let needed = native.needed.iter().filter(|name| !name.starts_with("ld-linux"));
    assert_eq!(needed.collect::<Vec<_>>(), ["libc.so.6"]);
    assert_eq!(native.uring(), None);
}

#[test]
fn a_go_program_is_known_with_and_without_its_section_table() {
    if Command::new("go").arg("version").output().is_err() {
        eprintln!("skipped: no `go` in PATH");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("main.go"), "package main\nfunc main() {}\n").unwrap();
    let program = dir.path().join("go-program");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg("main.go")
        .current_dir(dir.path())
        .env("GOFLAGS", "-p=1")
        .env("GO111MODULE", "off")
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let native = native_file(&program);
    assert!(native.go);
    assert_eq!(native.interpreter, None, "Go links statically by default");

    let mut bytes = std::fs::read(&program).unwrap();
    bytes[40..48].fill(0xff);
    let Elf::Native(stripped) = parse(&bytes.as_slice()).unwrap() else { panic!() };
    assert!(stripped.go, "the note is enough");
    let notes = segments(&bytes.as_slice(), &bytes[..64]).unwrap();
    for note in notes.iter().filter(|s| s.kind == PT_NOTE) {
        let start = usize::try_from(note.file.offset).unwrap();
        bytes[start..start + usize::try_from(note.file.len).unwrap()].fill(0);
    }
    let Elf::Native(bare) = parse(&bytes.as_slice()).unwrap() else { panic!() };
    assert!(!bare.go, "and nothing else said so");
}

#[test]
fn a_static_program_names_no_loader() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("main.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let program = dir.path().join("static-program");
    match Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source).output() {
        Ok(built) if built.status.success() => {}
        Ok(built) => {
            eprintln!("skipped: cc -static: {}", String::from_utf8_lossy(&built.stderr));
            return;
        }
        Err(e) => {
            eprintln!("skipped: cc: {e}");
            return;
        }
    }
    let native = native_file(&program);
    assert!(native.loadable);
    assert_eq!(native.interpreter, None);
    assert!(!native.go);
}

#[test]
fn other_machines_and_word_sizes_are_foreign() {
    let mut bytes = true_bytes();
    bytes[18] = 243;
    bytes[19] = 0;
    assert_eq!(parse(&bytes.as_slice()), Ok(Elf::Foreign { bits: 64, machine: 243 }));
    let mut bytes = true_bytes();
    bytes[4] = 1;
    let parsed = parse(&bytes.as_slice());
    assert_eq!(parsed, Ok(Elf::Foreign { bits: 32, machine: OUR_MACHINE }));
    let mut bytes = true_bytes();
    bytes[5] = 2;
    bytes[18..20].copy_from_slice(&22u16.to_be_bytes());
    assert_eq!(parse(&bytes.as_slice()), Ok(Elf::Foreign { bits: 64, machine: 22 }));
}

#[test]
fn musl_and_io_uring_are_seen_in_the_names() {
    let native = |interpreter: &str, needed: &[&str]| Native {
        interpreter: Some(interpreter.into()),
        needed: needed.iter().map(|n| (*n).to_owned()).collect(),
        ..Native::default()
    };
    assert!(native("/lib/ld-musl-x86_64.so.1", &["libc.so"]).is_musl());
    assert!(native("/opt/loader", &["libc.musl-x86_64.so.1"]).is_musl());
    assert!(!native("/lib64/ld-linux-x86-64.so.2", &["libc.so.6"]).is_musl());
    assert_eq!(native("/x", &["libc.so.6", "liburing.so.2"]).uring(), Some("liburing.so.2"));
}

#[test]
fn what_is_not_elf_says_so() {
    for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fEL", b"MZ"] {
        assert_eq!(parse(&bytes), Err(BadElf::NotElf));
    }
}

#[test]
fn no_cut_of_a_real_program_passes_for_a_dynamic_one_without_its_loader() {
    let bytes = true_bytes();
    let whole = parse(&bytes.as_slice()).unwrap();
    // Every cut within the headers, then coarser.
    for len in (0..1200).chain((1200..bytes.len()).step_by(97)) {
        match parse(&&bytes[..len]) {
            Ok(Elf::Native(native)) => {
                let Elf::Native(ref whole) = whole else { panic!() };
                assert_eq!(native.interpreter, whole.interpreter, "cut at {len}");
            }
            Ok(foreign @ Elf::Foreign { .. }) => panic!("cut at {len}: {foreign:?}"),
            Err(BadElf::NotElf) => assert!(len < 4, "cut at {len}"),
            Err(BadElf::Broken(_)) => assert!(len < bytes.len()),
            closed @ Err(BadElf::Closed) => panic!("{closed:?}"),
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let _ = parse(&bytes.as_slice());
    }

    #[test]
    fn arbitrary_bytes_after_a_good_head_never_panic(
        tail in proptest::collection::vec(any::<u8>(), 0..4096),
        changes in proptest::collection::vec((20usize..64, any::<u8>()), 0..12),
    ) {
        let mut bytes = true_bytes()[..64].to_vec();
        for (at, value) in changes {
            bytes[at] = value;
        }
        bytes.extend(tail);
        let _ = parse(&bytes.as_slice());
    }

    #[test]
    fn a_damaged_program_never_panics(
        changes in proptest::collection::vec((0usize..8192, any::<u8>()), 1..64),
    ) {
        let mut bytes = true_bytes();
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        let _ = parse(&bytes.as_slice());
    }
}
