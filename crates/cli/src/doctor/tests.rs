use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use super::*;

fn native() -> Native {
    let interpreter = Some("/lib64/ld-linux-x86-64.so.2".into());
    Native { loadable: true, interpreter, go: false, needed: vec!["libc.so.6".into()] }
}

fn program(elf: Result<Elf, BadElf>) -> Program {
    let path = PathBuf::from("/bin/x");
    Program {
        path: path.clone(),
        scripts: Vec::new(),
        loaded: path,
        comm: "x".into(),
        elf,
        privileges: Privileges::default(),
    }
}

#[track_caller]
fn stays(elf: Elf, why: &str) {
    let reason = reason_for_tcp(&program(Ok(elf))).expect("stays on TCP");
    assert!(reason.contains(why), "{reason}");
}

#[test]
fn verdicts() {
    let loader = elf_of_true().interpreter;
    let plain = Native { interpreter: loader, ..native() };
    assert_eq!(reason_for_tcp(&program(Ok(Elf::Native(plain.clone())))), None);
    let uring = Native { needed: vec!["liburing.so.2".into()], ..plain.clone() };
    assert_eq!(reason_for_tcp(&program(Ok(Elf::Native(uring)))), None, "only a warning");
    stays(Elf::Native(Native { interpreter: None, ..native() }), "statically linked");
    stays(Elf::Native(Native { go: true, ..plain.clone() }), "Go");
    stays(Elf::Native(Native { go: true, interpreter: None, ..native() }), "Go");
    let musl = Some("/lib/ld-musl-x86_64.so.1".into());
    stays(Elf::Native(Native { interpreter: musl, ..native() }), "musl");
    stays(Elf::Native(Native { interpreter: Some("/no/loader".into()), ..native() }), "/no/loader");
    stays(Elf::Native(Native { loadable: false, ..plain }), "object file");
    stays(Elf::Foreign { bits: 32, machine: 3 }, "32 bits");
    let broken = reason_for_tcp(&program(Err(BadElf::NotElf))).unwrap();
    assert!(broken.contains("not an ELF file"), "{broken}");
    assert_eq!(reason_for_tcp(&program(Err(BadElf::Closed))), None, "it runs all the same");
}

#[test]
fn a_loader_that_could_choke_on_the_library_does_not_get_it() {
    let refuses = |elf| program(elf).refuses_preload();
    let musl = Native { interpreter: Some("/lib/ld-musl-x86_64.so.1".into()), ..native() };
    assert!(refuses(Ok(Elf::Native(musl))));
    assert!(refuses(Ok(Elf::Foreign { bits: 32, machine: 3 })));
    assert!(!refuses(Ok(Elf::Native(native()))));
    // Harmless there, and of use to what it starts.
    assert!(!refuses(Ok(Elf::Native(Native { interpreter: None, ..native() }))));
    assert!(!refuses(Ok(Elf::Native(Native { go: true, ..native() }))));
}

#[test]
fn names_cannot_speak_to_the_terminal() {
    let report = Report::new("prog\x1b[2J".into(), None, vec![Check::ok("a", "x\ry\nok")]);
    assert_eq!(report.text(), "ok    a  x?y?ok\nprog?[2J can be accelerated\n");
}

fn elf_of_true() -> Native {
    match Program::follow("/bin/true".into(), None).unwrap().elf.unwrap() {
        Elf::Native(native) => native,
        foreign @ Elf::Foreign { .. } => panic!("{foreign:?}"),
    }
}

#[test]
fn privileges_matter_where_they_change_who_we_are() {
    let outcome = |p: Privileges, uid: u32, name: &str| {
        let checks = privilege_checks(p, uid);
        checks.iter().find(|c| c.name == name).unwrap().outcome
    };
    let to_root = Privileges { set_uid: Some(0), ..Privileges::default() };
    assert_eq!(outcome(to_root, 1000, "set-uid"), Outcome::No);
    assert_eq!(outcome(to_root, 0, "set-uid"), Outcome::Ok);
    let other_group = nix::unistd::getgid().as_raw() + 1;
    let to_group = Privileges { set_gid: Some(other_group), ..Privileges::default() };
    assert_eq!(outcome(to_group, 1000, "set-uid"), Outcome::No);
    let both = Privileges { set_uid: Some(1000), set_gid: Some(other_group), capabilities: false };
    assert_eq!(outcome(both, 1000, "set-uid"), Outcome::No);
    let capable = Privileges { capabilities: true, ..Privileges::default() };
    assert_eq!(outcome(capable, 1000, "capabilities"), Outcome::No);
    assert_eq!(outcome(capable, 0, "capabilities"), Outcome::Ok);
}

#[test]
fn the_directory_must_be_ours_and_closed() {
    let at = tempfile::tempdir().unwrap();
    let mode = |mode| {
        std::fs::set_permissions(at.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let uid = sys::call::geteuid();
    mode(0o700);
    assert_eq!(directory_check(at.path(), true, uid).outcome, Outcome::Ok);
    assert_eq!(directory_check(at.path(), true, uid + 1).outcome, Outcome::No);
    mode(0o750);
    let open = directory_check(at.path(), true, uid);
    assert_eq!(open.outcome, Outcome::No);
    // It may be `/tmp`.
    assert!(!open.advice.unwrap().contains("chmod"));
    let usual = directory_check(at.path(), false, uid);
    assert!(usual.advice.unwrap().starts_with("chmod 700"));
    mode(0o700);
    assert_eq!(directory_check(&at.path().join("new"), false, uid).outcome, Outcome::Ok);
    // It may be another one than was meant.
    assert_eq!(directory_check(&at.path().join("new"), true, uid).outcome, Outcome::Warn);
    assert_eq!(directory_check(&at.path().join("no/such"), true, uid).outcome, Outcome::No);
    // Of root, for its group, if it was named; and not of somebody else.
    let is_roots = uid == 0;
    for (bits, named, good) in [(0o2770, true, true), (0o2770, false, false), (0o2775, true, false)]
    {
        mode(bits);
        let good = if good && is_roots { Outcome::Ok } else { Outcome::No };
        assert_eq!(directory_check(at.path(), named, uid).outcome, good, "{bits:o} {named}");
    }
    mode(0o700);
    let file = at.path().join("file");
    std::fs::write(&file, "").unwrap();
    let named = directory_check(&file, true, uid);
    assert_eq!(named.outcome, Outcome::No);
    assert!(!named.advice.unwrap().contains("remove"));
    let link = at.path().join("link");
    std::os::unix::fs::symlink(at.path(), &link).unwrap();
    assert_eq!(
        directory_check(&link, true, uid).outcome,
        Outcome::No,
        "a link could lead anywhere"
    );
}

#[test]
fn limits_are_read_as_the_kernel_writes_them() {
    let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                  Max open files            256                  1048576              files     \n\
                  Max address space         unlimited            unlimited            bytes     \n";
    assert_eq!(soft_limit(limits, "Max open files"), Some(256));
    assert_eq!(soft_limit(limits, "Max address space"), None);
    assert_eq!(descriptors_check(Some(256)).outcome, Outcome::Warn);
    assert_eq!(hard_limit(limits, "Max open files"), Some(1_048_576));
    let [small, large] = [Some(1 << 30), Some(1 << 40)];
    let outcome = |soft, hard| address_space_check(soft, hard).outcome;
    assert_eq!(outcome(None, None), Outcome::Ok);
    for (soft, hard) in [(small, small), (large, large)] {
        assert_eq!(outcome(soft, hard), Outcome::No, "what there is the program may need");
    }
    for (soft, hard) in [(small, large), (small, None), (large, None)] {
        assert_eq!(outcome(soft, hard), Outcome::Ok);
    }
    let outcome = |n: &str| seccomp_check(&format!("Name:\tx\nSeccomp:\t{n}\n")).unwrap().outcome;
    assert_eq!(
        [outcome("0"), outcome("1"), outcome("2")],
        [Outcome::Ok, Outcome::No, Outcome::Warn]
    );
    assert_eq!(process_limits("self").len(), 3, "this kernel writes all three");
}

#[test]
fn rules_that_name_the_program_are_told() {
    let outcome = |include: &str, exclude: &str| {
        let mut limits = Limits::default();
        limits.set("include", include).unwrap();
        limits.set("exclude", exclude).unwrap();
        rules_check(&limits, "nginx").map(|c| c.outcome)
    };
    assert_eq!(outcome("", ""), None);
    assert_eq!(outcome("", "program:nginx"), Some(Outcome::No));
    assert_eq!(outcome("program:redis", ""), Some(Outcome::No));
    assert_eq!(outcome("program:redis,port:80", ""), Some(Outcome::Warn));
    assert_eq!(outcome("program:nginx", ""), Some(Outcome::Warn));
    // As the kernel cuts names.
    let mut limits = Limits::default();
    limits.set("exclude", "program:a-very-long-program-name").unwrap();
    assert_eq!(rules_check(&limits, "a-very-long-pro").map(|c| c.outcome), Some(Outcome::No));
}

#[test]
fn a_process_without_the_library_is_told_apart() {
    let report = examine_process(std::process::id());
    assert_eq!(report.accelerated, Some(false));
    assert_eq!(report.reason.as_deref(), Some("the library is not loaded"));
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let gone = examine_process(child.id());
    assert_eq!(gone.reason, Some(format!("there is no process {}", child.id())));
}

#[test]
fn an_engine_that_speaks_from_no_address_is_told() {
    let check = |said| engine_check(Some((7, 0)), &said);
    let fine = check(serde_json::json!({"addresses": ["10.0.0.1"], "problem": null}));
    assert_eq!(fine.outcome, Outcome::Ok);
    assert_eq!(check(serde_json::Value::Null).outcome, Outcome::Ok, "it does not answer us");
    let deaf = check(serde_json::json!({"addresses": [], "problem": "the port is taken"}));
    assert_eq!(deaf.outcome, Outcome::Warn);
    assert!(deaf.found.contains("no connections to other hosts: the port is taken"));
}

#[test]
fn the_verdict_names_the_first_reason() {
    let checks = vec![
        Check::ok("a", "fine"),
        Check::no("b", "first reason", "do this"),
        Check::no("c", "second reason", "do that"),
    ];
    let report = Report::new("prog".into(), None, checks);
    let text = report.text();
    assert!(text.contains("no    b  first reason; do this\n"), "{text}");
    assert!(text.ends_with("prog stays on TCP: first reason\n"), "{text}");
    let report = Report::new("prog".into(), None, vec![Check::ok("a", "fine")]);
    assert_eq!(report.text(), "ok    a  fine\nprog can be accelerated\n");
}
