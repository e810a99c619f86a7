//! The program as people run it: what it executes, with which environment, and its exit status.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SHUNT: &str = env!("CARGO_BIN_EXE_shunt");
const LIBRARY: &str = "libshunt_preload.so";

/// A place of its own: a home without configuration, no board, and a library that does nothing.
struct Place {
    dir: tempfile::TempDir,
    /// In memory, as a board should be.
    boards: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let boards = tempfile::tempdir_in("/dev/shm").expect("temporary directory");
        let place = Self { dir, boards };
        // Any shared library will do: what is tested is who loads it, and not what it does.
        std::fs::copy(some_shared_library(), place.library()).expect("copy");
        place
    }

    fn library(&self) -> PathBuf {
        self.dir.path().join(LIBRARY)
    }

    fn board(&self) -> PathBuf {
        self.boards.path().join("board")
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SHUNT_") || name == "LD_PRELOAD" {
                command.env_remove(name);
            }
        }
        command.env("HOME", self.dir.path()).env_remove("XDG_CONFIG_HOME");
        command.env("SHUNT_PRELOAD", self.library());
        command.env("SHUNT_DIR", self.board());
        command
    }

    fn shunt(&self, arguments: &[&str]) -> Output {
        self.command(SHUNT).args(arguments).output().expect("shunt")
    }
}

/// One that this process has loaded itself, so it is for this machine.
fn some_shared_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let path = |line: &str| line.find('/').map(|at| line[at..].to_owned());
    let is_plain = |path: &String| path.contains("/libgcc_s.so") || path.contains("/libm.so");
    maps.lines().filter_map(path).find(is_plain).expect("libgcc_s or libm is loaded").into()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn exits(output: &Output, status: i32) {
    assert_eq!(output.status.code(), Some(status), "{}", text(&output.stderr));
}

#[test]
fn the_program_replaces_shunt_and_its_exit_status_is_its_own() {
    let place = Place::new();
    exits(&place.shunt(&["run", "--", "sh", "-c", "exit 7"]), 7);
    let mut child = place.command(SHUNT);
    child.args(["run", "sh", "-c", "echo $$ $0 $1", "a", "--log"]);
    let child = child.stdout(std::process::Stdio::piped()).spawn().expect("shunt");
    let id = child.id();
    let output = child.wait_with_output().expect("shunt");
    assert_eq!(text(&output.stdout), format!("{id} a --log\n"), "same process, same arguments");
    assert_eq!(text(&output.stderr), "", "not a word");
}

#[test]
fn the_program_gets_the_library_and_the_settings() {
    let place = Place::new();
    let other = place.dir.path().join("other.so");
    std::fs::copy(some_shared_library(), &other).expect("copy");
    let script =
        "echo $LD_PRELOAD; echo $SHUNT_SPIN_US $SHUNT_LOG; grep -c shunt_preload /proc/$$/maps";
    let output = place
        .command(SHUNT)
        .env("LD_PRELOAD", &other)
        .env("SHUNT_SPIN_US", "7")
        // Nested, which must not add it twice.
        .args([
            "run",
            "--log",
            "info",
            "--",
            SHUNT,
            "run",
            "--spin-us",
            "9",
            "--",
            "sh",
            "-c",
            script,
        ])
        .output()
        .expect("shunt");
    exits(&output, 0);
    let stdout = text(&output.stdout);
    let mut lines = stdout.lines();
    let expected = format!("{}:{}", place.library().display(), other.display());
    assert_eq!(lines.next(), Some(expected.as_str()));
    assert_eq!(lines.next(), Some("9 info"));
    assert_ne!(lines.next(), Some("0"), "it is loaded");
}

/// Builds a program or library of C; what cannot be built is told.
fn compiled(compiler: &str, source: &str, arguments: &[&str], to: &Path) -> Option<()> {
    let file = to.with_extension("c");
    std::fs::write(&file, source).expect("write");
    let built = Command::new(compiler).arg(&file).arg("-o").arg(to).args(arguments).output();
    match built {
        Ok(built) if built.status.success() => Some(()),
        Ok(built) => {
            eprintln!("skipped: {compiler}: {}", text(&built.stderr));
            None
        }
        Err(e) => {
            eprintln!("skipped: {compiler}: {e}");
            None
        }
    }
}

#[test]
fn what_a_program_starts_may_have_another_c_library() {
    let place = Place::new();
    let dir = place.dir.path().canonicalize().expect("path");
    let musl = dir.join("musl");
    let source = "#include <unistd.h>\nint main() { return write(1, \"here\", 4) != 4; }\n";
    let Some(()) = compiled("musl-gcc", source, &[], &musl) else { return };
    // As packages have it; and it asks for what only glibc has.
    let library = dir.join("shunt").join(LIBRARY);
    let multiarch = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    for lib in ["lib", "lib64", &multiarch] {
        let at = dir.join("shunt").join(lib);
        std::fs::create_dir_all(&at).expect("directory");
        std::os::unix::fs::symlink(&library, at.join(LIBRARY)).expect("link");
    }
    let source = "int gnu_get_libc_version();\nint ours() { return gnu_get_libc_version(); }\n";
    let Some(()) = compiled("cc", source, &["-shared", "-fPIC"], &library) else { return };
    let script = format!("grep -c shunt_preload /proc/$$/maps; exec {}", musl.display());
    let mut command = place.command(SHUNT);
    let command = command.env("SHUNT_PRELOAD", &library);
    let output = command.args(["run", "--", "bash", "-c", &script]).output().expect("shunt");
    exits(&output, 0);
    assert_eq!(text(&output.stderr), "", "not a word");
    let (loaded, said) =
        text(&output.stdout).split_once('\n').map(|(a, b)| (a != "0", b == "here")).expect("lines");
    assert!(loaded && said, "{}", text(&output.stdout));
}

#[test]
fn off_loads_nothing() {
    let place = Place::new();
    let script = "echo \"[$LD_PRELOAD] $SHUNT_ENABLED\"";
    let output = place.shunt(&["run", "--off", "--", "sh", "-c", script]);
    assert_eq!(text(&output.stdout), "[] off\n");
    let output = place.shunt(&["run", "--", SHUNT, "run", "--off", "--", "sh", "-c", script]);
    assert_eq!(text(&output.stdout), "[] off\n");
    std::fs::remove_file(place.library()).expect("remove");
    exits(&place.shunt(&["run", "--off", "--", "true"]), 0);
}

#[test]
fn failures_have_the_statuses_of_env() {
    let place = Place::new();
    let missing = place.shunt(&["run", "--", "no-such-program"]);
    exits(&missing, 127);
    assert_eq!(text(&missing.stderr), "shunt: no-such-program: not found in PATH\n");
    exits(&place.shunt(&["run", "--", "/no/such/program"]), 127);
    let plain = place.dir.path().join("plain");
    std::fs::write(&plain, "x").expect("write");
    exits(&place.shunt(&["run", "--", plain.to_str().expect("UTF-8")]), 126);
    exits(&place.shunt(&["run", "--spin-us", "5000", "--", "true"]), 125);
    exits(&place.shunt(&["run", "--no-such-option", "--", "true"]), 125);
    exits(&place.shunt(&["run"]), 125);
    exits(&place.shunt(&["run", "--help"]), 0);
    std::fs::remove_file(place.library()).expect("remove");
    let lost = place.shunt(&["run", "--", "true"]);
    exits(&lost, 125);
    assert!(text(&lost.stderr).contains(LIBRARY), "{}", text(&lost.stderr));
}

#[test]
fn a_mistake_in_what_is_for_all_programs_leaves_them_on_tcp_and_is_told() {
    let place = Place::new();
    let file = place.dir.path().join("shunt.toml");
    let config = ["--config", file.to_str().expect("UTF-8")];
    let write = |text: &str| std::fs::write(&file, text).expect("write");
    let script = "echo \"[$LD_PRELOAD] $SHUNT_ENABLED\"; exit 3";
    let run = |more: &[&str]| {
        place.shunt(&[&["run"][..], &config, more, &["--", "sh", "-c", script]].concat())
    };
    write("log = \"error\"\nring_mini = \"64K\"\n");
    let words =
        format!("shunt: {}:2: no such setting: ring_mini (did you mean ring_min?)", file.display());
    let output = run(&[]);
    exits(&output, 3);
    assert_eq!(text(&output.stdout), "[] off\n");
    assert_eq!(text(&output.stderr), format!("{words}; so sh runs on TCP\n"));
    assert_eq!(text(&run(&["--log", "off"]).stderr), "");
    let strict = run(&["--strict"]);
    exits(&strict, 125);
    assert_eq!(text(&strict.stderr), format!("{words}\n"));
    // The file cannot ask for that.
    write("strict = true\nspin_us = \"many\"\n");
    let output = run(&[]);
    exits(&output, 3);
    assert!(text(&output.stderr).contains("(and 1 more); so sh runs on TCP"));
    // Options are for whoever types them, also where something else is wrong.
    exits(&run(&["--spin-us", "5000"]), 125);
    write("ring_min = \"256K\"\n");
    exits(&run(&["--ring-max", "64K"]), 125);
    exits(&place.shunt(&["run", "--config", "/no/such/file", "--", "true"]), 125);
    for (name, value) in [("SHUNT_SPIN_US", "many"), ("SHUNT_CONFIG", "/no/such/file")] {
        let with = |strict: &[&str]| {
            let mut command = place.command(SHUNT);
            let command = command.env(name, value).arg("run").args(strict);
            command.args(["--", "sh", "-c", script]).output().expect("shunt")
        };
        let output = with(&[]);
        exits(&output, 3);
        assert_eq!(text(&output.stdout), "[] off\n", "{name}");
        assert!(text(&output.stderr).contains(name), "{}", text(&output.stderr));
        exits(&with(&["--strict"]), 125);
    }
}

#[test]
fn who_looks_minds_the_directory_alone() {
    let place = Place::new();
    let file = place.dir.path().join("shunt.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("write");
    let stat = |more: &[&str]| {
        let mut command = place.command(SHUNT);
        let command = command.env("SHUNT_CONFIG", &file).env_remove("SHUNT_DIR").arg("stat");
        command.args(more).output().expect("shunt")
    };
    let dir = place.dir.path().join("elsewhere");
    write(&format!("spin_u = 3\ndir = \"{}\"\n", dir.display()));
    let output = stat(&[]);
    exits(&output, 0);
    assert!(text(&output.stdout).contains("elsewhere/board-"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("no such setting: spin_u"), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr).lines().count(), 1);
    assert_eq!(text(&stat(&["--json"]).stderr), "");
    for unknown in ["dir = \"elsewhere\"\n", "drr = \"/elsewhere\"\n", "spin_us = \n"] {
        write(unknown);
        exits(&stat(&[]), 1);
        exits(&stat(&["--json"]), 1);
        exits(&stat(&["--dir", dir.to_str().expect("UTF-8")]), 0);
    }
}

#[test]
fn a_directory_that_is_named_and_not_in_memory_is_told() {
    let place = Place::new();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-such-board");
    let kind = Command::new("stat").args(["-f", "-c", "%T", env!("CARGO_TARGET_TMPDIR")]).output();
    if ["tmpfs", "ramfs"].contains(&text(&kind.expect("stat").stdout).trim()) {
        println!("skipped: the target directory is in memory itself");
        return;
    }
    let run = |more: &[&str]| {
        let dir = dir.to_str().expect("UTF-8");
        place.shunt(&[&["run", "--dir", dir][..], more, &["--", "true"]].concat())
    };
    let output = run(&[]);
    exits(&output, 0);
    let said = text(&output.stderr);
    assert!(said.contains("no-such-board (--dir) is not in memory"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!dir.exists(), "we make none, and nor does a library that does nothing");
    for more in [["--log", "off"], ["--dir", "/dev/shm/shunt-named"]] {
        let output = match more {
            ["--dir", dir] => place.shunt(&["run", "--dir", dir, "--", "true"]),
            more => run(&more),
        };
        exits(&output, 0);
        assert_eq!(text(&output.stderr), "", "{more:?}");
    }
}

#[test]
fn a_variable_that_is_mistyped_is_told() {
    let place = Place::new();
    let run = |more: &[&str]| {
        let mut command = place.command(SHUNT);
        let command = command.env("SHUNT_SPINUS", "0").arg("run").args(more);
        command.args(["--", "true"]).output().expect("shunt")
    };
    let output = run(&[]);
    exits(&output, 0);
    assert_eq!(
        text(&output.stderr),
        "shunt: SHUNT_SPINUS is in the environment, and no setting: say SHUNT_SPIN_US, if that is meant\n"
    );
    assert_eq!(text(&run(&["--log", "off"]).stderr), "");
}

#[test]
fn signals_are_inherited_as_they_were() {
    let place = Place::new();
    for trap in ["", "trap '' PIPE;", "trap '' INT PIPE;"] {
        let look = "grep SigIgn /proc/self/status";
        let script = format!("{trap} {look}; {SHUNT} run -- {look}");
        let output = place.command("sh").args(["-c", &script]).output().expect("sh");
        let stdout = text(&output.stdout);
        let lines: Vec<&str> = stdout.lines().collect();
        assert_eq!(lines.len(), 2, "{}", text(&output.stderr));
        assert_eq!(lines[0], lines[1], "{trap}");
    }
}

#[test]
fn a_program_that_stays_on_tcp_runs_after_one_line() {
    let place = Place::new();
    let program = place.dir.path().join("static");
    let source = "int main(void) { return 3; }\n";
    let Some(()) = compiled("cc", source, &["-static"], &program) else { return };
    let program = program.to_str().expect("UTF-8");
    let output = place.shunt(&["run", "--", program]);
    exits(&output, 3);
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with(&format!("shunt: {program} stays on TCP: statically linked")),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1);
    let quiet = place.shunt(&["run", "--log", "off", "--", program]);
    exits(&quiet, 3);
    assert_eq!(text(&quiet.stderr), "");
    let verdict = place.shunt(&["doctor", program]);
    exits(&verdict, 1);
    assert!(text(&verdict.stdout).contains("stays on TCP: statically linked"));
}

#[test]
fn a_program_with_address_sanitizer_runs_without_the_library() {
    let place = Place::new();
    let program = place.dir.path().join("checked");
    let source = "int main(void) { return 3; }\n";
    let Some(()) = compiled("cc", source, &["-fsanitize=address"], &program) else { return };
    // Started by itself first: in some places it cannot be.
    let alone = place.command(&program).output().expect("the program");
    if alone.status.code() != Some(3) {
        eprintln!("skipped: AddressSanitizer does not work here: {}", text(&alone.stderr));
        return;
    }
    let program = program.to_str().expect("UTF-8");
    let output = place.shunt(&["run", "--", program]);
    exits(&output, 3);
    let stays = format!("shunt: {program} stays on TCP: AddressSanitizer (libasan");
    assert!(text(&output.stderr).starts_with(&stays), "{}", text(&output.stderr));
    exits(&place.shunt(&["doctor", program]), 1);
    let told = |arguments: &[&str]| {
        let mut command = place.command(SHUNT);
        command.args(arguments).env("ASAN_OPTIONS", "verify_asan_link_order=0").output()
    };
    let told = told(&["run", "--", program]).expect("shunt");
    exits(&told, 3);
    assert_eq!(text(&told.stderr), "");
}

/// As with setcap(8), which root's processes would not tell.
#[test]
fn rights_by_the_file_cost_parts_of_the_environment() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let place = Place::new();
    let at = |mode| std::fs::Permissions::from_mode(mode);
    let other = place.dir.path().join("shunt");
    std::fs::set_permissions(place.dir.path(), at(0o755)).expect("mode");
    // By another process: while a test starts something, what this one has written can be busy.
    let copied = Command::new("cp").arg(SHUNT).arg(&other).status().expect("cp");
    assert!(copied.success());
    if chown(&other, Some(65_534), None).is_err() {
        eprintln!("skipped: only root gives a file to somebody else");
        return;
    }
    std::fs::set_permissions(&other, at(0o4755)).expect("mode");
    let run = |arguments: &[&str]| place.command(&other).arg("run").args(arguments).output();
    let output = run(&["true"]).expect("shunt");
    if text(&run(&["--off", "id", "-u"]).expect("shunt").stdout) == "0\n" {
        eprintln!("skipped: set-user-id has no effect here");
        return;
    }
    exits(&output, 0);
    assert!(text(&output.stderr).contains("LD_PRELOAD"), "{}", text(&output.stderr));
    let quiet = run(&["--log", "off", "true"]).expect("shunt");
    exits(&quiet, 0);
    assert_eq!(text(&quiet.stderr), "");
}

#[test]
fn config_says_what_is_wrong_and_what_is_in_force() {
    let place = Place::new();
    let file = place.dir.path().join("shunt.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("write");
    let config = |more: &[&str]| {
        let mut command = place.command(SHUNT);
        let command = command.env("SHUNT_CONFIG", &file).env("SHUNT_LOG", "debug");
        command.arg("config").args(more).output().expect("shunt")
    };
    write("log = \"info\"\nspin_u = 3\nnap_us = 7\n[serve]\nguests = true\n");
    let check = config(&["check"]);
    exits(&check, 1);
    let at = file.display();
    let told = format!(
        "{at}:2: no such setting: spin_u (did you mean spin_us?)\n\
         {at}:5: no such setting: guests (did you mean guest?)\n{at}: 2 mistakes\n"
    );
    assert_eq!(text(&check.stdout), told);
    assert_eq!(text(&check.stderr), "");
    let json = config(&["check", "--json"]);
    exits(&json, 1);
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(report["valid"], false);
    assert_eq!(report["mistakes"][1]["line"], 5);
    // What is right counts, and who wins says so.
    let show = config(&["show"]);
    exits(&show, 1);
    assert_eq!(text(&show.stderr).lines().count(), 2, "{}", text(&show.stderr));
    let said = text(&show.stdout);
    for (setting, source) in [
        ("log = \"debug\"", "SHUNT_LOG in the environment".to_owned()),
        ("nap_us = 7", format!("{at}:3")),
        ("spin_us = 100", "default".to_owned()),
    ] {
        let line = said.lines().find(|line| line.starts_with(setting));
        assert!(line.is_some_and(|line| line.ends_with(&source)), "{setting}: {said}");
    }
    write("log = \"info\"\n");
    let check = config(&["check"]);
    exits(&check, 0);
    assert_eq!(text(&check.stdout), format!("{at}: valid\n"));
    exits(&config(&["show", "--json"]), 0);
    // Who may log on the command line of the server may say.
    write("[serve.share.a]\npath = \"/\"\n");
    exits(&config(&["check"]), 0);
    write("[serve]\nguest = false\n[serve.share.a]\npath = \"/\"\n");
    exits(&config(&["check"]), 1);
    let absent = config(&["check", "/not/there"]);
    exits(&absent, 1);
    assert!(text(&absent.stdout).contains("/not/there"), "{}", text(&absent.stdout));
    exits(&config(&["show", "/not/there"]), 1);
    exits(&config(&[]), 2);
}

#[test]
fn doctor_answers_by_text_and_status() {
    let place = Place::new();
    let good = place.shunt(&["doctor", "true"]);
    exits(&good, 0);
    assert!(text(&good.stdout).ends_with("true can be accelerated\n"), "{}", text(&good.stdout));
    let json = place.shunt(&["doctor", "--json", "true"]);
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(report["accelerated"], true);
    assert_eq!(report["reason"], serde_json::Value::Null);
    let off = place.command(SHUNT).env("SHUNT_ENABLED", "off").args(["doctor", "true"]).output();
    let off = off.expect("shunt");
    exits(&off, 1);
    assert!(text(&off.stdout).contains("switched off by SHUNT_ENABLED in the environment"));
    exits(&place.shunt(&["doctor", "no-such-program"]), 1);
    let host = place.shunt(&["doctor"]);
    exits(&host, 0);
    let said = text(&host.stdout);
    assert!(said.ends_with("\nprograms can be accelerated here\n"), "{said}");
    for name in [
        "kernel",
        "library",
        "directory",
        "space",
        "engine",
        "descriptors",
        "io_uring",
        "rdma",
        "systemd",
    ] {
        let is_of_it = |line: &str| line.split_whitespace().nth(1) == Some(name);
        assert!(said.lines().any(is_of_it), "{name}: {said}");
    }
    let json = text(&place.shunt(&["doctor", "--json"]).stdout);
    assert!(json.contains("\"program\": null") && json.contains("\"name\": \"rdma\""), "{json}");
    exits(&place.shunt(&["doctor", "true", "--pid", "1"]), 2);
}

#[test]
fn doctor_reads_the_sections_of_others_as_well() {
    let place = Place::new();
    let file = place.dir.path().join("shunt.toml");
    let told = |config: &str| {
        std::fs::write(&file, config).expect("write");
        let file = file.to_str().expect("UTF-8");
        let output = place.shunt(&["doctor", "--config", file, "true"]);
        exits(&output, 0);
        let is_told = |line: &&str| line.starts_with("warn  settings");
        text(&output.stdout).lines().filter(is_told).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(told("[engine]\nmax_conns = 20\n[serve]\nguest = true\n"), Vec::<String>::new());
    let bad = told("[engine]\nmax_conns = 2000\n[serve]\ngast = true\n");
    assert_eq!(bad.len(), 2, "{bad:?}");
    assert!(
        bad[0].contains(":2: max_conns") && bad[1].contains(":4: no such setting: gast"),
        "{bad:?}"
    );
}

#[test]
fn doctor_sees_that_a_board_may_be_too_large_a_file() {
    let place = Place::new();
    let script = format!("ulimit -f 2000; {SHUNT} doctor true");
    let output = place.command("sh").args(["-c", &script]).output().expect("sh");
    exits(&output, 1);
    assert!(text(&output.stdout).contains("ulimit -f unlimited"), "{}", text(&output.stdout));
}

#[test]
fn doctor_sees_the_library_in_a_process() {
    let place = Place::new();
    let mut child = place.command(SHUNT).args(["run", "--", "sleep", "60"]).spawn().expect("shunt");
    let id = child.id().to_string();
    let loaded = || text(&place.shunt(&["doctor", "--pid", &id]).stdout);
    let mut seen = String::new();
    // The one that is loaded here comes to no board.
    let stays = format!("sleep (process {id}) stays on TCP: {}", place.board().display());
    for _ in 0..3000 {
        seen = loaded();
        if seen.contains(&stays) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert!(seen.contains(&place.library().display().to_string()), "{seen}");
    assert!(seen.contains(&stays), "{seen}");
}

#[test]
fn stat_without_a_board_is_empty_and_no_failure() {
    let place = Place::new();
    let output = place.shunt(&["stat"]);
    exits(&output, 0);
    assert!(text(&output.stdout).starts_with("no board at "), "{}", text(&output.stdout));
    let json = place.shunt(&["stat", "--json", "--all"]);
    let object: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(object["connections"], serde_json::json!([]));
    assert!(!place.board().exists(), "looking makes nothing");
}

#[test]
fn stat_of_a_process_that_is_not_there_is_a_failure() {
    let place = Place::new();
    let mut child = Command::new("true").spawn().expect("true");
    child.wait().expect("its end");
    let gone = place.shunt(&["stat", "--pid", &child.id().to_string()]);
    exits(&gone, 1);
    assert!(text(&gone.stderr).contains("there is no process"), "{}", text(&gone.stderr));
    let other = place.shunt(&["stat", "--pid", &std::process::id().to_string()]);
    exits(&other, 1);
    assert!(text(&other.stderr).contains("is not on the board"), "{}", text(&other.stderr));
    exits(&place.shunt(&["stat", "--pid", "0"]), 2);
}

#[test]
fn top_wants_a_terminal() {
    let place = Place::new();
    let output = place.shunt(&["top"]);
    exits(&output, 1);
    assert!(text(&output.stderr).contains("shunt stat --watch"));
}

/// Has `shunt top` take a terminal, and says how that is after each signal: cooked, if it was given back.
const TOP: &str = r#"
import os, pty, signal, sys, termios, time
def until(what):
    begun = time.monotonic()
    while not what():
        assert time.monotonic() - begun < 60
        time.sleep(0.01)
for name in sys.argv[2:]:
    pid, terminal = pty.fork()
    if pid == 0:
        # In a group that somebody could have go on, or the kernel stops nothing.
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(0, os.getpgrp())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            os.execv(sys.argv[1], ["shunt", "top"])
        os.waitpid(child, os.WUNTRACED)
        time.sleep(600)
    is_cooked = lambda: bool(termios.tcgetattr(terminal)[3] & termios.ICANON)
    until(lambda: not is_cooked())
    os.kill(os.tcgetpgrp(terminal), getattr(signal, name))
    until(is_cooked)
    print(name, "cooked")
    os.kill(pid, signal.SIGKILL)
    os.close(terminal)
"#;

#[test]
fn top_gives_the_terminal_back_to_whoever_stops_or_ends_it() {
    let place = Place::new();
    let signals = ["SIGTERM", "SIGQUIT", "SIGTSTP"];
    let mut command = place.command("python3");
    let command = command.env("TERM", "xterm").args(["-c", TOP, SHUNT]).args(signals);
    let Ok(output) = command.output() else {
        return println!("skipped: there is no python3");
    };
    let said = signals.map(|name| format!("{name} cooked\n")).concat();
    assert_eq!(text(&output.stdout), said, "{}", text(&output.stderr));
}

#[test]
fn an_engine_says_which_directory_is_open_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let board = place.board();
    std::fs::create_dir(&board).expect("a directory");
    std::fs::set_permissions(&board, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let output = place.shunt(&["engine"]);
    exits(&output, 1);
    let said = text(&output.stderr);
    assert!(said.contains(&format!("{}: the directory belongs to", board.display())), "{said}");
    assert!(!said.contains("remove"), "it may be /tmp: {said}");
    let file = place.dir.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let output = place.command(SHUNT).env("SHUNT_DIR", &file).arg("engine").output();
    let said = text(&output.expect("shunt").stderr);
    assert!(said.contains(&format!("{}: this is not a directory", file.display())), "{said}");
    assert!(!said.contains("remove"), "it may be /etc/passwd: {said}");
}

/// What is live counts from then on; the rest is told; with a mistake nothing changes.
#[test]
fn a_hang_up_has_an_engine_read_its_settings_again() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let place = Place::new();
    let file = place.dir.path().join("shunt.toml");
    let config = ["--config", file.to_str().expect("UTF-8")];
    let write = |text: &str| std::fs::write(&file, text).expect("write");
    write("[engine]\nmax_conns = 20\n");
    let mut engine = place.command(SHUNT);
    let engine = engine.args(["engine", "--cgroup", "none", "--vectors", "1"]).args(config);
    let engine = engine.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut engine = engine.expect("shunt");
    let mut out = BufReader::new(engine.stdout.take().expect("a pipe")).lines();
    let mut err = BufReader::new(engine.stderr.take().expect("a pipe")).lines();
    let Some(Ok(ready)) = out.next() else {
        println!("skipped: no engine here: {:?} {:?}", err.next(), engine.wait());
        return;
    };
    assert!(ready.starts_with("ready"), "{ready}");
    let pid = engine.id().to_string();
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &pid]).status().expect("kill");
        assert!(sent.success());
    };
    let mut told = || {
        signal("-HUP");
        // What it says of its start comes before.
        let mut lines = err.by_ref().map_while(Result::ok);
        lines.find(|line| line.contains("reloaded")).expect("a line")
    };
    let max_conns = || {
        let status = place.shunt(&[&["engine", "status", "--json"][..], &config].concat());
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
        status["settings"]["max_conns"].as_str().map(str::to_owned)
    };
    write("[engine]\nmax_conns = 21\nsegments = 7\n");
    assert_eq!(
        told(),
        "shunt engine: reloaded: max_conns=21; changed, and to count once the engine is started again: segments"
    );
    assert_eq!(max_conns().as_deref(), Some("21"));
    write("[engine]\nmax_conns = 22\nmax_lynks = 1\n");
    let words = told();
    assert!(words.starts_with("shunt engine: not reloaded, all is as it was: "), "{words}");
    assert!(words.contains(":3: no such setting: max_lynks"), "{words}");
    assert_eq!(max_conns().as_deref(), Some("21"));
    signal("-TERM");
    assert!(engine.wait().expect("its end").success());
}

/// Who asks it to end does not know that it is still starting.
#[test]
fn an_engine_that_is_to_drain_while_it_starts_ends() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::process::Stdio;
    use std::time::{Duration, Instant};
    let place = Place::new();
    let mut path = None;
    // Asked as soon as it can be, which is not always before it has started.
    for round in 0..6 {
        let mut engine = place.command(SHUNT);
        let engine = engine.args(["engine", "--cgroup", "none", "--vectors", "1"]);
        let engine = engine.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut engine = engine.expect("shunt");
        let mut stream = loop {
            if path.is_none() {
                let all = std::fs::read_dir(place.board()).into_iter().flatten().flatten();
                let mut all = all.map(|entry| entry.path());
                path = all.find(|path| path.to_string_lossy().ends_with("-control"));
            }
            if let Some(stream) = path.as_ref().and_then(|path| UnixStream::connect(path).ok()) {
                break stream;
            }
            if engine.try_wait().expect("a child").is_some() {
                let mut said = String::new();
                let _ = engine.stderr.take().expect("a pipe").read_to_string(&mut said);
                println!("skipped: no engine here: {said:?}");
                return;
            }
        };
        stream.write_all(b"{\"drain\":true}\n").expect("asked");
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("answered");
        assert_eq!(line, "{\"ok\":{}}\n");
        drop(stream);
        let begun = Instant::now();
        let ended = loop {
            match engine.try_wait().expect("a child") {
                None if begun.elapsed() < Duration::from_secs(60) => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                ended => break ended,
            }
        };
        let _ = engine.kill();
        assert!(ended.is_some_and(|ended| ended.success()), "{round}: {ended:?}");
    }
}

#[test]
fn a_server_for_a_cpu_that_is_not_there_says_so() {
    let place = Place::new();
    let share = place.dir.path().to_str().expect("UTF-8");
    let words = ["serve", "--guest", "--listen", "127.0.0.1:0", "--pin", "1023", share];
    let output = place.shunt(&words);
    exits(&output, 1);
    let said = text(&output.stderr);
    assert!(said.contains("CPU 1023 is not there"), "{said}");
}

#[test]
fn an_input_that_holds_nothing_is_called_what_it_is() {
    let place = Place::new();
    let (empty, out) = (place.dir.path().join("empty"), place.dir.path().join("out"));
    std::fs::write(&empty, "").expect("write");
    for (input, words) in [(place.dir.path(), "is a directory"), (&*empty, "is empty")] {
        let mut command = place.command(SHUNT);
        let output = command.arg("defrag").arg(input).arg(&out).output().expect("shunt");
        let said = text(&output.stderr);
        assert!(said.ends_with(&format!("{words}\n")) || said.contains("and no capture"), "{said}");
        assert!(said.contains(words) && !said.contains("damaged"), "{said}");
    }
}

/// What cannot be written is not told; what was to be done is done.
#[test]
fn standard_error_may_be_full() {
    let place = Place::new();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let status = |command: &mut Command| command.stderr(full()).status().expect("shunt").code();
    assert_eq!(status(place.command(SHUNT).args(["run", "--", "no-such-program"])), Some(127));
    // Nor read: it is not ended by a signal.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = place.command(SHUNT);
    let unread = command.args(["run", "--", "no-such-program"]).stderr(writer).status();
    assert_eq!(unread.expect("shunt").code(), Some(127));
    let alone = place.dir.path().join("static");
    if compiled("cc", "int main(void) { return 3; }\n", &["-static"], &alone).is_some() {
        assert_eq!(status(place.command(SHUNT).args(["run", "--"]).arg(&alone)), Some(3));
    }

    let shares = place.dir.path().join("shares");
    std::fs::create_dir(&shares).expect("directory");
    let socket = place.dir.path().join("control");
    let mut command = place.command(SHUNT);
    command.args(["serve", "--guest", "--listen", "127.0.0.1:0", "--control"]).arg(&socket);
    let command = command.arg(&shares).stderr(full()).stdout(std::process::Stdio::piped());
    let mut server = command.spawn().expect("shunt");
    let mut line = String::new();
    let out = server.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("a line");
    assert!(line.starts_with("ready:"), "{line}");
    let socket = socket.to_str().expect("UTF-8");
    let told = ["reload", "stop"].map(|what| place.shunt(&["serve", what, "--control", socket]));
    if !told[1].status.success() {
        let _ = server.kill();
    }
    let ended = server.wait().expect("wait");
    told.iter().for_each(|told| exits(told, 0));
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn there_may_be_little_stack() {
    let place = Place::new();
    let mut shell = place.command("sh");
    let script =
        "ulimit -s 64 || exit 1; \"$0\" --help >/dev/null && exec \"$0\" run -- sh -c 'exit 7'";
    exits(&shell.args(["-c", script, SHUNT]).output().expect("a shell"), 7);
}

/// Statistics that nobody gets end what makes them.
#[test]
fn standard_output_may_be_full() {
    let place = Place::new();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let mut command = place.command(SHUNT);
    command.args(["defrag", "--interface", "lo", "--json", "--seconds", "60"]).stdout(full());
    let output = command.output().expect("shunt");
    let stderr = text(&output.stderr);
    if stderr.contains("CAP_NET_RAW") || stderr.contains("lo is down") {
        eprintln!("skipped: {stderr}");
        return;
    }
    exits(&output, 2);
    assert!(stderr.contains("No space left on device"), "{stderr}");
}
