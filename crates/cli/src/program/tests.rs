use super::*;

fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[track_caller]
fn follow(path: &Path) -> Program {
    let search = std::env::var_os("PATH");
    Program::follow(path.into(), search.as_deref()).unwrap()
}

#[test]
fn names_are_found_as_execvp_finds_them() {
    let dir = tempfile::tempdir().unwrap();
    script(dir.path(), "prog", "#!/bin/sh\n");
    std::fs::write(dir.path().join("plain"), "x").unwrap();
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    let find = |name: &str| find(name.as_ref(), Some(dir.path().as_os_str()));
    assert_eq!(find("prog").unwrap(), dir.path().join("prog"));
    assert!(matches!(find("absent"), Err(NoProgram::NotFound(_))));
    assert!(matches!(find("/absent/x"), Err(NoProgram::NotFound(_))));
    assert!(matches!(find(""), Err(NoProgram::NotFound(_))));
    assert!(matches!(find("plain"), Err(NoProgram::NotExecutable(_))));
    assert!(matches!(find("folder"), Err(NoProgram::NotExecutable(_))));
    assert_eq!(super::find("true".as_ref(), None).unwrap(), Path::new("/bin/true"));
}

#[test]
fn a_program_that_may_not_be_run_does_not_hide_one_that_may() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(first.path().join("prog"), "x").unwrap();
    let wanted = script(second.path(), "prog", "#!/bin/sh\n");
    let path = std::env::join_paths([first.path(), second.path()]).unwrap();
    assert_eq!(find("prog".as_ref(), Some(&path)).unwrap(), wanted);
}

#[test]
fn a_script_is_followed_to_what_runs_it() {
    let dir = tempfile::tempdir().unwrap();
    let one = script(dir.path(), "one", "#! /bin/sh -e\necho\n");
    let program = follow(&one);
    assert_eq!(program.loaded, Path::new("/bin/sh"));
    assert_eq!(program.scripts, [(one.clone(), PathBuf::from("/bin/sh"))]);
    assert!(matches!(program.elf, Ok(Elf::Native(_))));
    let two = script(dir.path(), "two", &format!("#!{}\n", one.display()));
    assert_eq!(follow(&two).scripts.len(), 2);
    let text = script(dir.path(), "text", "echo no interpreter line\n");
    assert_eq!(follow(&text).loaded, Path::new("/bin/sh"));
}

#[test]
fn env_is_seen_through() {
    let dir = tempfile::tempdir().unwrap();
    for line in [
        "env sh",
        "env -S sh -e",
        "env -S A=1 sh",
        "env -i sh",
        "env -S -u HOME sh",
        "env -S -iuHOME -C /tmp sh",
        "env -Ssh -e",
        "env -S --unset HOME --chdir=/tmp -- A=1 sh",
        "env --split-string=sh -e",
    ] {
        let path = script(dir.path(), "prog", &format!("#!/usr/bin/{line}\n"));
        assert_eq!(follow(&path).loaded.file_name(), Some(OsStr::new("sh")), "{line}");
    }
    let path = script(dir.path(), "prog", "#!/usr/bin/env no-such-interpreter\n");
    assert!(matches!(Program::follow(path, None), Err(NoProgram::NotFound(_))));
}

/// The kernel is asked.
#[test]
fn a_program_has_the_name_that_the_kernel_gives_it() {
    let dir = tempfile::tempdir().unwrap();
    for (name, line) in [
        ("plain.sh", "#!/bin/sh\n"),
        ("by-env", "#!/usr/bin/env sh\n"),
        ("with-a-very-long-name", "#!/bin/sh\n"),
        ("text", ""),
    ] {
        let path = script(dir.path(), name, &format!("{line}cat /proc/$$/comm\n"));
        // While another test starts something, what was just written can be busy.
        let again = "until \"$0\"; do [ $? = 126 ] && [ $((n = n + 1)) -lt 1000 ] || exit; done 2>/dev/null";
        let mut shell = std::process::Command::new("sh");
        let started = shell.args(["-c", again]).arg(&path).output().unwrap();
        let comm = String::from_utf8(started.stdout).unwrap();
        // What a shell runs without any line it runs itself.
        let comm = if line.is_empty() { "sh" } else { comm.trim_end() };
        assert_eq!(follow(&path).comm, comm, "{name}");
    }
    let link = dir.path().join("called-by-another-name");
    std::os::unix::fs::symlink("/bin/true", &link).unwrap();
    assert_eq!(follow(&link).comm, "called-by-anoth");
}

#[test]
fn scripts_that_run_each_other_come_to_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("self");
    let path = script(dir.path(), "self", &format!("#!{}\n", path.display()));
    assert!(matches!(Program::follow(path, None), Err(NoProgram::NotExecutable(_))));
    let path = script(dir.path(), "lost", "#!/no/such/interpreter\n");
    assert!(matches!(Program::follow(path, None), Err(NoProgram::NotFound(_))));
}

#[test]
fn set_user_id_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let path = script(dir.path(), "prog", "x");
    let with = |mode| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        Privileges::of(&path).unwrap()
    };
    assert_eq!(with(0o755), Privileges::default());
    assert!(with(0o4755).set_uid.is_some());
    assert!(with(0o2755).set_gid.is_some());
    assert!(with(0o2745).set_gid.is_none(), "without the group's execute bit");
}
