//! Where the end-to-end tests find what they start.
//!
//! Tests drive what is shipped: `cargo xtask test` builds the library and the programs in release
//! mode first and says where they are in `SHUNT_BIN_DIR`.

pub mod anew;
pub mod board;
pub mod calls;
pub mod cases;
pub mod differential;
pub mod forks;
pub mod idle;
pub mod load;
pub mod odd;
pub mod peer;
pub mod rally;
pub mod run;
pub mod show;
pub mod stage;
pub mod stepped;
pub mod targets;
pub mod turns;

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The directory of the workspace.
#[must_use]
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Where the built programs are: `SHUNT_BIN_DIR`, or where cargo puts them.
#[must_use]
pub fn bin_dir() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let usual = || workspace_root().join(target).join("release");
    env::var_os("SHUNT_BIN_DIR").map_or_else(usual, PathBuf::from)
}

/// A program or library that this workspace builds, such as `shunt` or `libshunt_preload.so`.
///
/// # Panics
///
/// When it has not been built: that is a mistake in how the tests were started, not a reason to
/// skip them.
#[must_use]
pub fn built(name: &str) -> PathBuf {
    let path = bin_dir().join(name);
    assert!(
        path.is_file(),
        "{} is not built: run the tests by `cargo xtask test`, or build it first with \
         `cargo build --release -p shunt-preload -p shunt-cli -p shunt-testkit`",
        path.display()
    );
    path
}

/// A program of somebody else, if this machine has it: on the path, or where Debian keeps servers,
/// PostgreSQL and Go. A test that does without prints `skipped: ` and why, and ends.
#[must_use]
pub fn installed(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/go/bin"];
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    env::split_paths(&path)
        .chain(usual.map(PathBuf::from))
        .chain(versions.map(|version| version.path().join("bin")))
        .map(|dir| dir.join(name))
        .find(|path| is_executable(path))
}

/// Whether tests should take few seeds and little time: `cargo xtask test --quick`.
#[must_use]
pub fn quick() -> bool {
    env::var_os("SHUNT_TEST_QUICK").is_some_and(|value| value != OsStr::new("0"))
}

/// Whether the CPU is emulated, which `cargo xtask aarch64` says by `SHUNT_TEST_EMULATED=1`.
#[must_use]
pub fn emulated() -> bool {
    env::var_os("SHUNT_TEST_EMULATED").is_some_and(|value| value != OsStr::new("0"))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}
