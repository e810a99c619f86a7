//! What runs in the machine, built here.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use testkit::kernels::apt::{Apt, Suite};
use testkit::kernels::architecture::Architecture;

use super::ARCHITECTURE;
use super::suite::Program;

const LINKER: &str = "aarch64-linux-gnu-gcc";
/// Debian's own compiler, whose standard library there is for each of its architectures.
const COMPILER: &[&str] = &["rustc-web", "libstd-rust-web-dev"];
const STANDARD_LIBRARY: &str = "libstd-rust-web-dev";
/// Where it and its libraries are, below where it was unpacked; nobody looks for libraries there unless told to.
const UNPACKED: [&str; 2] = ["usr/bin/rustc", "usr/lib/x86_64-linux-gnu"];
/// Programs that the tests start, and the library that is loaded into programs.
const PROGRAMS: &[&str] = &["-p", "shunt-preload", "-p", "shunt-cli", "-p", "shunt-testkit"];

/// A program of tests, and the directory in which it expects to be started.
#[derive(Clone, Debug)]
pub(super) struct Tests {
    pub(super) path: PathBuf,
    pub(super) package: PathBuf,
    name: String,
}

/// All that was built.
#[derive(Debug)]
pub(super) struct Built {
    /// The directory of programs that tests start.
    pub(super) programs: PathBuf,
    /// The machine's first process.
    pub(super) peer: PathBuf,
    /// Where tests write, as cargo has told them when they were built. On a disk as a rule; not on a tmpfs, at least.
    pub(super) scratch: PathBuf,
    tests: Vec<Tests>,
}

impl Built {
    /// Builds it into this target directory; without `build`, finds what was built before.
    ///
    /// # Errors
    ///
    /// What does not build, or that no compiler for this architecture is here.
    pub(super) fn new(
        root: &Path,
        target: &Path,
        install: bool,
        build: bool,
    ) -> anyhow::Result<Self> {
        let cargo = Cargo::new(root, target, install)?;
        let programs = cargo.output.join("release");
        let peer = cargo.guest_peer(build)?;
        if build {
            cargo.run(&[&["build", "--release"], PROGRAMS].concat())?;
        }
        // Where nothing has changed this says where they are.
        let tests = cargo.tests()?;
        let scratch = cargo.output.join("tmp");
        std::fs::create_dir_all(&scratch)?;
        Ok(Self { programs, peer, scratch, tests })
    }

    /// The programs of tests of a suite.
    ///
    /// # Errors
    ///
    /// When there are none.
    pub(super) fn tests(&self, program: Program) -> anyhow::Result<Vec<Tests>> {
        let wanted = |tests: &&Tests| match program {
            Program::Package(name) => tests.package_name() == name && tests.name != "it",
            Program::EndToEnd => tests.package_name() == "shunt-e2e" && tests.name == "it",
        };
        let found: Vec<_> = self.tests.iter().filter(wanted).cloned().collect();
        ensure!(!found.is_empty(), "cargo has built no tests for {program:?}");
        Ok(found)
    }
}

impl Tests {
    /// Packages lie in directories of their names, without what all begin with; the end-to-end tests too.
    fn package_name(&self) -> String {
        let directory = self.package.file_name().unwrap_or_default();
        format!("shunt-{}", directory.to_string_lossy())
    }
}

/// Cargo, for that architecture.
struct Cargo<'a> {
    root: &'a Path,
    target: &'a Path,
    /// Where cargo puts what it builds for the architecture.
    output: PathBuf,
    compiler: Option<Compiler>,
}

/// A compiler that is not the usual one.
#[derive(Debug)]
struct Compiler {
    program: PathBuf,
    libraries: PathBuf,
}

impl Compiler {
    fn unpacked(at: &Path) -> Self {
        let [program, libraries] = UNPACKED.map(|place| at.join(place));
        Self { program, libraries }
    }

    fn works(&self) -> bool {
        let mut command = Command::new(&self.program);
        has_standard_library(command.env("LD_LIBRARY_PATH", &self.libraries))
    }
}

impl<'a> Cargo<'a> {
    fn new(root: &'a Path, target: &'a Path, install: bool) -> anyhow::Result<Self> {
        let output = target.join(ARCHITECTURE.target());
        let compiler = if has_standard_library(&mut Command::new("rustc")) {
            None
        } else {
            let place = target.join("compiler");
            let ours = Compiler::unpacked(&place);
            if !ours.works() {
                ensure!(
                    install,
                    "rustc has no standard library for {0}: `rustup target add {0}`, or --install, by which Debian's own \
                     compiler is used",
                    ARCHITECTURE.target()
                );
                fetch_compiler(target, &place)?;
                ensure!(ours.works(), "Debian's compiler does not work here");
            }
            Some(ours)
        };
        Ok(Self { root, target, output, compiler })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(self.root).env("CARGO_TARGET_DIR", self.target);
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
        // Nothing is measured here: built in minutes.
        command.env("CARGO_PROFILE_RELEASE_LTO", "off");
        command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        if let Some(Compiler { program, libraries }) = &self.compiler {
            command.env("RUSTC", program).env("LD_LIBRARY_PATH", libraries);
        }
        command
    }

    fn run(&self, words: &[&str]) -> anyhow::Result<()> {
        let mut command = self.command();
        command.args(words).args(["--target", ARCHITECTURE.target()]);
        let status = command.status().context("cannot start cargo")?;
        ensure!(status.success(), "cargo {} failed", words.join(" "));
        Ok(())
    }

    /// The first process of the machine needs no library; what it does not use is not built for it.
    fn guest_peer(&self, build: bool) -> anyhow::Result<PathBuf> {
        let target = self.target.join("static");
        if build {
            let mut command = self.command();
            command.args(["build", "--release", "-p", "shunt-testkit", "--no-default-features"]);
            command.args(["--bin", "smcpeer", "--target", ARCHITECTURE.target()]);
            command.env("CARGO_TARGET_DIR", &target);
            command.env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols");
            ensure!(
                command.status().context("cannot start cargo")?.success(),
                "smcpeer does not build"
            );
        }
        Ok(target.join(ARCHITECTURE.target()).join("release/smcpeer"))
    }

    fn tests(&self) -> anyhow::Result<Vec<Tests>> {
        let mut command = self.command();
        command.args(["test", "--release", "--no-run", "--workspace", "--exclude", "xtask"]);
        command.args(["--target", ARCHITECTURE.target()]);
        command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
        let output = command.output().context("cannot start cargo")?;
        ensure!(output.status.success(), "the tests do not build");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let tests: Vec<_> = said.lines().filter_map(parse).collect();
        if tests.is_empty() {
            bail!("cargo names no tests that it has built");
        }
        Ok(tests)
    }
}

/// What cargo says that it has built, if it is tests.
fn parse(line: &str) -> Option<Tests> {
    let said: Value = serde_json::from_str(line).ok()?;
    let is_test = said.get("profile")?.get("test")?.as_bool()?;
    let path = PathBuf::from(said.get("executable")?.as_str()?);
    let manifest = Path::new(said.get("manifest_path")?.as_str()?);
    let name = said.get("target")?.get("name")?.as_str()?.to_owned();
    is_test.then_some(Tests { path, package: manifest.parent()?.to_owned(), name })
}

fn has_standard_library(compiler: &mut Command) -> bool {
    compiler.args(["--print", "target-libdir", "--target", ARCHITECTURE.target()]);
    let said = compiler.stderr(Stdio::null()).output();
    said.is_ok_and(|said| {
        let directory = String::from_utf8_lossy(&said.stdout).trim().to_owned();
        let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
        files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
    })
}

/// Debian's compiler for this machine, and its standard library for that one beside.
fn fetch_compiler(target: &Path, into: &Path) -> anyhow::Result<()> {
    println!("fetching Debian's compiler ...");
    let (work, whole) = (target.join("fetching-compiler"), target.join("compiler-unpacked"));
    for old in [into, &whole] {
        let _ = std::fs::remove_dir_all(old);
    }
    for (architecture, packages) in
        [(Architecture::X86_64, COMPILER), (ARCHITECTURE, &[STANDARD_LIBRARY])]
    {
        let _ = std::fs::remove_dir_all(&work);
        let apt = Apt::new(&work, architecture.debian(), Suite::Own)?;
        match architecture {
            // With the libraries that the compiler itself is linked to.
            Architecture::X86_64 => apt.unpack_all(packages, &whole)?,
            Architecture::Aarch64 => apt.unpack(packages, &whole)?,
        }
    }
    // Complete or not there.
    std::fs::rename(&whole, into)?;
    std::fs::remove_dir_all(&work)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_tests_are_told_from_others() {
        let line = |test: &str, executable: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"manifest_path\":\"/x/crates/local/Cargo.toml\",\"target\":\
                 {{\"name\":\"local\"}},\"profile\":{{\"test\":{test}}},\"executable\":{executable}}}"
            )
        };
        let tests = parse(&line("true", "\"/t/local-1\"")).unwrap();
        assert_eq!(
            (tests.path.as_path(), tests.package_name()),
            (Path::new("/t/local-1"), "shunt-local".to_owned())
        );
        assert!(parse(&line("false", "\"/t/local\"")).is_none());
        assert!(parse(&line("true", "null")).is_none());
        assert!(parse("{\"reason\":\"build-finished\",\"success\":true}").is_none());
        assert!(parse("").is_none());
    }
}
