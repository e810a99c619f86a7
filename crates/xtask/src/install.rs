//! The programs of other people that tests and benchmarks drive: which are absent, and the one
//! command that brings them.
//!
//! Nothing is installed unless a person wrote `--install`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, bail};
use nix::unistd::geteuid;

use crate::{bench, workspace_root};

/// How to see that something is there.
#[derive(Clone, Copy, Debug)]
enum Sign {
    /// A program of this name can be found.
    Program(&'static str),
    /// Some Python has this module.
    PythonModule(&'static str),
    /// A shared library of this name can be loaded.
    Library(&'static str),
    /// There is a header of this name.
    Header(&'static str),
    /// Samba has this module for its file systems.
    SambaModule(&'static str),
    /// There is this file.
    File(&'static str),
}

/// Something that tests want, and the Debian package that has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    sign: Sign,
    package: &'static str,
    why: &'static str,
}

const fn program(name: &'static str, package: &'static str, why: &'static str) -> Need {
    Need { sign: Sign::Program(name), package, why }
}

/// Everything that `cargo xtask test` can make use of. Debian 12 has all of it.
const NEEDS: &[Need] = &[
    program("cc", "build-essential", "links Rust, and is what Go and the C test programs need"),
    program("nginx", "nginx-light", "web server and proxy under load"),
    program("wrk", "wrk", "load for web servers"),
    program("redis-server", "redis-server", "pipelining, BGSAVE, replication"),
    program("redis-benchmark", "redis-tools", "load for redis"),
    program("memcached", "memcached", "threads and event loops"),
    program("haproxy", "haproxy", "a proxy that splices"),
    program("iperf3", "iperf3", "bulk transfer"),
    program("sockperf", "sockperf", "latency of one message"),
    program("postgres", "postgresql", "a server that forks for each connection"),
    program("pgbench", "postgresql-contrib", "load for PostgreSQL"),
    program("smbd", "samba", "the file server that ours is compared with"),
    Need {
        sign: Sign::SambaModule("io_uring"),
        package: "samba-vfs-modules",
        why: "one of the configurations of smbd that ours is compared with",
    },
    program("smbclient", "smbclient", "a client of file servers"),
    program("rclone", "rclone", "another one, that copies trees"),
    program("smbtorture", "samba-testsuite", "Samba's own tests of file servers"),
    program("mkfs.btrfs", "btrfs-progs", "a file system on which files share blocks"),
    program("mkfs.xfs", "xfsprogs", "another one"),
    program("krb5kdc", "krb5-kdc", "a realm whose users file servers let in"),
    program("kadmin.local", "krb5-admin-server", "puts users into it"),
    program("kinit", "krb5-user", "gets their tickets"),
    program("ip", "iproute2", "networks of a test's own"),
    program("ethtool", "ethtool", "sets how many queues interfaces have"),
    program("nft", "nftables", "addresses that are translated on the way"),
    program("tshark", "tshark", "judges what `shunt defrag` writes"),
    program("systemctl", "systemd", "starts servers in the sandbox of their unit"),
    program("strace", "strace", "counts system calls"),
    program("curl", "curl", "a client that forks nothing"),
    program("python3", "python3", "asyncio and prefork servers"),
    Need {
        sign: Sign::PythonModule("test.test_socket"),
        package: "libpython3.11-testsuite",
        why: "CPython's own socket tests",
    },
    program("go", "golang-go", "programs that must stay on TCP unharmed"),
    program("musl-gcc", "musl-tools", "programs of another C library"),
    program("node", "nodejs", "http and cluster"),
    program("java", "default-jdk-headless", "NIO selectors"),
    Need {
        sign: Sign::Library("liburing.so.2"),
        package: "liburing2",
        why: "io_uring past the C library",
    },
    Need {
        sign: Sign::Header("infiniband/verbs.h"),
        package: "libibverbs-dev",
        why: "RDMA devices, and what their library's calls look like",
    },
];

/// Clients of file servers that Debian 12 lacks, or has too old (impacket 0.10 signs no tree connect): modules of Python,
/// and the packages of PyPI that have them.
const CLIENTS: &[(&str, &str)] = &[
    ("smbclient", "smbprotocol"),
    ("impacket.smbconnection", "impacket"),
    ("smb.SMBConnection", "pysmb"),
];

/// What checks spelling, as PyPI has it: a program, ready made. Of one version, because each knows other words.
const TYPOS: &str = "typos";
const TYPOS_VERSION: &str = "1.52.0";

/// By this file it is known that the C library for Arm's CPUs is here.
pub(crate) const CROSS_LIBRARY: &str = "/usr/aarch64-linux-gnu/lib/crt1.o";
/// What only those want that name it.
const NEEDS_OF_FEW: &[Need] = &[
    program("qemu-system-x86_64", "qemu-system-x86", "machines for other kernels"),
    program("busybox", "busybox-static", "a shell for such machines"),
    program("tcpdump", "tcpdump", "captures what they send"),
    program("qemu-system-aarch64", "qemu-system-arm", "machines with Arm's CPUs"),
    program("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu", "links programs for them"),
    Need {
        sign: Sign::File(CROSS_LIBRARY),
        package: "libc6-dev-arm64-cross",
        why: "the C library that these are linked to",
    },
    program("xz", "xz-utils", "unpacks modules of kernels"),
    program("git", "git", "repositories on what such machines mount"),
    program("tcc", "tcc", "a compiler that is small enough for them"),
    program("make", "make", "builds there"),
];

/// Services must not start when they are installed: they would take the ports of the tests, and
/// nobody asked for them. The file is how Debian is told; it goes when we have put it there.
const APT_SCRIPT: &str = r#"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install --yes --no-remove --no-install-recommends "$@" && exit 0
echo "apt-get could not install all of it; trying one by one" >&2
for package in "$@"; do
    apt-get install --yes --no-remove --no-install-recommends "$package" ||
        echo "could not install $package" >&2
done
"#;

impl Need {
    fn is_met(&self) -> bool {
        match self.sign {
            Sign::Program(name) => find(name).is_some(),
            Sign::PythonModule(name) => python_with(name).is_some(),
            Sign::Library(name) => {
                is_in(&["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"], name)
            }
            Sign::Header(name) => is_in(&["/usr/include", "/usr/local/include"], name),
            Sign::File(path) => Path::new(path).exists(),
            Sign::SambaModule(name) => {
                is_in(&["/usr/lib", "/usr/lib64"], &format!("samba/vfs/{name}.so"))
            }
        }
    }

    fn name(&self) -> &'static str {
        match self.sign {
            Sign::Program(name)
            | Sign::PythonModule(name)
            | Sign::Library(name)
            | Sign::Header(name)
            | Sign::SambaModule(name)
            | Sign::File(name) => name,
        }
    }
}

/// Names what `cargo xtask COMMAND` could use and this machine lacks, with the one command that
/// brings it; with `install`, brings it. `programs`: only these; none means all. Answers how many are absent after
/// that.
///
/// # Errors
///
/// When `install` is asked for and cannot be tried. That a package could not be installed is told,
/// not an error: what wants it is skipped with its reason.
pub(crate) fn check(command: &str, programs: &[&str], install: bool) -> anyhow::Result<usize> {
    let mut absent = absent(programs, Need::is_met);
    if install && !absent.is_empty() {
        apt_install(&packages(&absent))?;
        absent.retain(|need| !need.is_met());
    }
    if install && programs.is_empty() {
        let own = [environment().join("bin/python3")];
        let has = |(module, _): &(&str, &str)| python_of(own.clone().into_iter(), module).is_some();
        if !CLIENTS.iter().all(has) || !is_typos_here() {
            // All of them, for the environment is made anew.
            let typos = format!("{TYPOS}=={TYPOS_VERSION}");
            let clients = CLIENTS.iter().map(|(_, package)| *package);
            pip_install(&clients.chain([typos.as_str()]).collect::<Vec<_>>());
        }
    }
    if absent.is_empty() {
        println!("every program that `cargo xtask {command}` uses is here");
    } else {
        print!("{}", told(command, &absent));
    }
    Ok(absent.len())
}

/// The one command that brings what `cargo xtask COMMAND` lacks.
pub(crate) fn remedy(command: &str) -> String {
    format!("cargo xtask {command} --install")
}

/// What people are told of what is absent.
fn told(command: &str, absent: &[Need]) -> String {
    let mut text = "not on this machine, so what wants it is skipped:\n".to_owned();
    for need in absent {
        text += &format!("  {:18} {}\n", need.name(), need.why);
    }
    let packages = packages(absent).join(" ");
    text += &format!("one command brings it:  {}\n", remedy(command));
    text + &format!("or, by hand:            apt-get install --no-install-recommends {packages}\n")
}

fn absent(programs: &[&str], is_met: impl Fn(&Need) -> bool) -> Vec<Need> {
    let few = NEEDS_OF_FEW.iter().filter(|need| programs.contains(&need.name()));
    let wanted = |need: &&Need| programs.is_empty() || programs.contains(&need.name());
    NEEDS.iter().filter(wanted).chain(few).filter(|need| !is_met(need)).copied().collect()
}

fn packages(needs: &[Need]) -> Vec<&'static str> {
    needs.iter().map(|need| need.package).collect()
}

pub(crate) fn apt_install(packages: &[&str]) -> anyhow::Result<()> {
    if find("apt-get").is_none() {
        bail!(
            "--install knows apt-get only, and this machine has none; these Debian packages are \
             wanted, under the names your system has for them: {}",
            packages.join(" ")
        );
    }
    println!("installing: {}", packages.join(" "));
    let mut command = if geteuid().is_root() {
        Command::new("sh")
    } else if find("sudo").is_some() {
        let mut sudo = Command::new("sudo");
        sudo.arg("sh");
        sudo
    } else {
        bail!(
            "--install needs root: run `apt-get install {}` as root, then this again",
            packages.join(" ")
        );
    };
    let status = command
        .args(["-uc", APT_SCRIPT, "install"])
        .args(packages)
        .stdin(Stdio::null())
        .status()
        .context("cannot start the package manager")?;
    if !status.success() {
        println!("the package manager ended with {status}");
    }
    Ok(())
}

/// Brings packages of PyPI into an environment of its own. What does not work is told: the tests that want it are
/// skipped with their reason.
fn pip_install(packages: &[&str]) {
    println!("installing from PyPI: {}", packages.join(" "));
    let environment = environment();
    let ends_well = |command: &mut Command| {
        let ended = command.stdin(Stdio::null()).status();
        ended.is_ok_and(|status| status.success())
    };
    let made =
        find("python3").into_iter().chain([PathBuf::from("/usr/bin/python3")]).any(|python| {
            ends_well(Command::new(python).args(["-m", "venv", "--clear"]).arg(&environment))
        });
    let python = environment.join("bin/python3");
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    if !made || !ends_well(Command::new(python).args(pip).args(packages)) {
        println!("could not; Debian's python3-venv and a way to PyPI are wanted");
    }
}

/// What checks spelling: ours, or else whatever is on the path.
pub(crate) fn typos() -> Option<PathBuf> {
    let own = environment().join("bin").join(TYPOS);
    if is_executable(&own) { Some(own) } else { find(TYPOS) }
}

/// Whether ours is here, and of the version that is wanted.
fn is_typos_here() -> bool {
    let said = Command::new(environment().join("bin").join(TYPOS)).arg("--version").output();
    said.is_ok_and(|said| is_wanted_typos(&String::from_utf8_lossy(&said.stdout)))
}

fn is_wanted_typos(said: &str) -> bool {
    said.split_whitespace().next_back() == Some(TYPOS_VERSION)
}

/// Where such packages are put, below the target directory: an environment that is nobody else's.
fn environment() -> PathBuf {
    bench::built(&workspace_root()).with_file_name("python")
}

/// Whether a file of this name is in one of the directories, or in one of theirs for this machine's architecture.
fn is_in(dirs: &[&str], name: &str) -> bool {
    let triple = format!("{}-linux-gnu", env::consts::ARCH);
    dirs.iter()
        .map(Path::new)
        .any(|dir| dir.join(name).exists() || dir.join(&triple).join(name).exists())
}

/// Where a program is: on the path, or where Debian keeps servers, PostgreSQL and Go.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    find_in(&search_path(), name)
}

fn find_in(dirs: &[PathBuf], name: &str) -> Option<PathBuf> {
    dirs.iter().map(|dir| dir.join(name)).find(|path| is_executable(path))
}

/// The Python that can import `module`, if there is one.
///
/// Two are asked, because a Python of one's own in front of the distribution's hides its packages.
pub(crate) fn python_with(module: &str) -> Option<PathBuf> {
    python_of(find("python3").into_iter().chain([PathBuf::from("/usr/bin/python3")]), module)
}

fn python_of(mut pythons: impl Iterator<Item = PathBuf>, module: &str) -> Option<PathBuf> {
    let imports = |python: &PathBuf| {
        let quiet = Command::new(python)
            .args(["-c", &format!("import {module}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        quiet.is_ok_and(|status| status.success())
    };
    pythons.find(imports)
}

fn search_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = env::split_paths(&path).collect();
    dirs.extend(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/go/bin"].map(PathBuf::from));
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    dirs.extend(versions.map(|version| version.path().join("bin")));
    dirs
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_only_if_they_can_run() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-at-all").is_none());
        assert!(!is_executable(Path::new("/proc/version")));
        assert!(!is_executable(Path::new("/usr/bin")), "a directory is no program");
    }

    /// Whether a program would be found on a path with nothing in it but this.
    fn is_met_by(dirs: &[PathBuf]) -> impl Fn(&Need) -> bool {
        move |need| find_in(dirs, need.name()).is_some()
    }

    #[test]
    fn on_an_empty_path_each_program_is_named_with_the_command_that_brings_it() {
        let programs = crate::demo::PROGRAMS;
        let absent = absent(programs, is_met_by(&[]));
        let text = told("demo", &absent);
        for program in programs {
            assert!(text.lines().any(|line| line.trim().starts_with(program)), "{program}: {text}");
        }
        assert!(text.contains("one command brings it:  cargo xtask demo --install\n"), "{text}");
        let by_hand =
            "apt-get install --no-install-recommends nginx-light wrk redis-server redis-tools\n";
        assert!(text.ends_with(by_hand), "{text}");
    }

    #[test]
    fn what_is_there_is_not_asked_for() {
        let dir = tempdir_with("wrk");
        let absent = absent(crate::demo::PROGRAMS, is_met_by(std::slice::from_ref(&dir)));
        let text = told("demo", &absent);
        fs::remove_dir_all(&dir).unwrap();
        assert!(
            !text.contains("wrk") && text.contains("nginx-light redis-server redis-tools\n"),
            "{text}"
        );
    }

    /// A directory with a program that does nothing.
    fn tempdir_with(program: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let dir = env::temp_dir().join(format!("shunt-install-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(program), "#!/bin/sh\n").unwrap();
        fs::set_permissions(dir.join(program), fs::Permissions::from_mode(0o755)).unwrap();
        dir
    }

    #[test]
    fn each_package_is_asked_for_once() {
        let mut names = packages(NEEDS);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NEEDS.len());
    }

    #[test]
    fn what_guests_of_file_servers_want_can_be_installed() {
        let programs = crate::interop_smb::PROGRAMS;
        assert_eq!(absent(programs, is_met_by(&[])).len(), programs.len());
    }

    #[test]
    fn a_checker_of_another_version_is_brought_again() {
        assert!(is_wanted_typos(&format!("typos-cli {TYPOS_VERSION}\n")));
        assert!(!is_wanted_typos("typos-cli 1.0.0\n"));
        assert!(!is_wanted_typos(""));
    }

    #[test]
    fn the_install_script_is_a_script() {
        let status = Command::new("sh").args(["-nuc", APT_SCRIPT]).status().unwrap();
        assert!(status.success());
    }
}
