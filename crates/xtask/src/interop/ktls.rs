//! Kernel TLS on a connection in shared memory, on a kernel that has it: the oracle's case, in a guest.
//!
//! The machine is emulated and alone; both ends are in it. What it says on plain TCP is what it must say with both ends
//! under Shunt: the connection goes back to TCP, and the kernel seals and opens what is sent from then on.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use testkit::kernels::guest::{Guest, Image, Shape};
use testkit::kernels::image::{self, Contents, Tools};
use testkit::kernels::network::Network;
use testkit::kernels::package::Kernel;

use crate::{bench, install};

/// How the case is called.
pub(super) const NAME: &str = "kernel TLS takes a connection back to TCP";

/// The oracle's case.
const CASE: &str = "kernel_tls_refused_or_not";
/// What TLS needs: itself, and its cipher, which it asks for by name. And what tells the library who is at the other end.
const MODULES: &[&str] = &["tls", "gcm", "ghash_generic", "tcp_diag"];
/// An emulated machine at the lowest priority.
const LIMIT: Duration = Duration::from_secs(300);
/// What the library says of a connection that has been attached.
const ATTACHED: &str = " attached after ";
/// And of one that has gone back.
const BACK: &str = " back on TCP at ring offset ";

/// Builds what the guest runs, with its kernel.
///
/// # Errors
///
/// What does not build or is absent.
pub(super) fn image(
    root: &Path,
    kernel: &Kernel,
    peer: &Path,
    directory: &Path,
) -> anyhow::Result<Image> {
    bench::build(root, &["shunt-preload"])?;
    let library = bench::built(root).join("libshunt_preload.so");
    let contents = Contents {
        modules: MODULES.to_vec(),
        programs: vec![oracle(root)?, library],
        ..Contents::default()
    };
    let busybox = install::find("busybox").context("there is no busybox")?;
    let initramfs = directory.join("initramfs-tls");
    std::fs::write(&initramfs, image::make(kernel, Tools::Busybox(&busybox), peer, &contents)?)?;
    Ok(kernel.with(initramfs))
}

/// Builds the oracle's program. What is measured elsewhere is built with all optimisations; this one is not.
fn oracle(root: &Path) -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "-p", "shunt-e2e", "--bin", "oracle-guest"])
        .current_dir(root)
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "oracle-guest does not build");
    let built = bench::built(root);
    Ok(built.parent().context("a directory has a parent")?.join("debug/oracle-guest"))
}

/// Boots a machine and plays the case there, as the client and as the server of the connection.
///
/// # Errors
///
/// In what the two ways differ, or that TLS has not been used.
pub(super) fn play(image: &Image, limit: Duration) -> anyhow::Result<()> {
    let network = Network::new().context("a network namespace with a bridge")?;
    let addresses = vec![Ipv4Addr::new(10, 99, 0, 1)];
    let guest = Guest::boot(&network, image, Shape::small("tls", addresses, limit))?;
    for role in ["client", "server"] {
        let plain = said(&guest, &format!("oracle-guest {CASE} {role} 2>/tmp/errors"))?;
        // What was sealed comes back opened, and the peer, which has no key, has seen a record of application data.
        let sealed = plain.contains("back\\20again") && plain.contains("kind: 23");
        ensure!(sealed, "the kernel has not done TLS on plain TCP:\n{plain}");
        let board = format!("/tmp/board-{role}");
        guest.check(&format!("mkdir -m 700 {board}"))?;
        let shunt = said(
            &guest,
            &format!(
                "LD_PRELOAD=/bin/libshunt_preload.so E2E_PEER_PRELOAD=/bin/libshunt_preload.so SHUNT_LOG=debug \
                 SHUNT_DIR={board} E2E_ATTACH_BOARD={board} oracle-guest {CASE} {role} 2>/tmp/errors"
            ),
        )?;
        ensure!(shunt == plain, "as the {role}, on TCP:\n{plain}\nunder Shunt:\n{shunt}");
        let log = guest.check("cat /tmp/errors")?;
        for what in [ATTACHED, BACK] {
            ensure!(log.contains(what), "as the {role}: no connection is said to be{what}:\n{log}");
        }
    }
    Ok(())
}

/// What a command of the guest says; where it fails, its errors besides.
fn said(guest: &Guest, command: &str) -> anyhow::Result<String> {
    let output = guest.run_for(command, LIMIT)?;
    if output.status != 0 {
        let errors = guest.check("cat /tmp/errors")?;
        anyhow::bail!("`{command}` ended with {}: {}\n{errors}", output.status, output.text);
    }
    Ok(output.text)
}
