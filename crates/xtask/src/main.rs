//! `cargo xtask`: what cargo cannot do alone.

mod aarch64;
mod account;
mod autogroup;
mod bench;
mod conformance;
mod demo;
mod fuzz;
mod install;
mod interop;
mod interop_smb;
mod package;
mod page;
mod programs;
mod smbd;
mod test;
mod torture;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND [OPTIONS]

  aarch64      the tests on an Arm CPU's Linux, in an emulated machine; `cargo xtask aarch64 --help`
  demo         show real programs side by side, on TCP and under Shunt
  test         everything a contributor must pass
                 --install   fetch the Debian packages (and three of PyPI) that are absent
                 --lacking   run without what is absent
                 --quick     fewer seeds, no loom models, no documentation
  bench        measure in pairs against TCP; `cargo xtask bench --help`
  conformance  CPython's socket tests, plain and under Shunt; `cargo xtask conformance --help`
  fuzz         each parser and state machine with hostile input, in turn; `cargo xtask fuzz --help`
  interop      SMC-R with real Linux kernels in emulated machines
                 --install   fetch the Debian packages and the kernel that are absent
                 --quick     leave out what takes long
  interop-smb  `shunt serve` with the SMB client of a real Linux kernel in an emulated machine
  package      packages for Debian and its kin, and an archive for others; `cargo xtask package --help`
  programs     programs of Debian, plain and under Shunt, each as it is used; `cargo xtask programs --help`
  torture      Samba's tests of SMB2 servers against `shunt serve`; `cargo xtask torture --help`
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = args.split_first() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let outcome = match command.as_str() {
        "aarch64" => aarch64::main(rest),
        "bench" => bench::main(rest).map(|()| ExitCode::SUCCESS),
        "conformance" => conformance::main(rest).map(|()| ExitCode::SUCCESS),
        "demo" => demo::main(rest).map(|()| ExitCode::SUCCESS),
        "fuzz" => fuzz::main(rest).map(|()| ExitCode::SUCCESS),
        "interop" => interop::main(rest),
        "interop-smb" => interop_smb::main(rest),
        "package" => package::main(rest).map(|()| ExitCode::SUCCESS),
        "programs" => programs::main(rest).map(|()| ExitCode::SUCCESS),
        "test" => test::main(rest),
        "torture" => torture::main(rest).map(|()| ExitCode::SUCCESS),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        other => {
            eprintln!("there is no `cargo xtask {other}`\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    outcome.unwrap_or_else(|e| {
        eprintln!("error: {e:#}");
        ExitCode::FAILURE
    })
}

/// The directory of the workspace: where cargo says this package is, two up.
fn workspace_root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.join("../..").canonicalize().unwrap_or(package)
}
