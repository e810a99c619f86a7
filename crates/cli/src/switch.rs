//! `shunt off` and `shunt on`: what is in `local::board`, for a directory or for all of them.

use std::io::Write;

use anyhow::{anyhow, bail, ensure};
use local::board;

use crate::say;
use crate::stat::prometheus::Whose;

/// Said wherever the state of a directory is shown, while it is off.
pub(crate) const SWITCHED_OFF: &str =
    "switched off: new connections stay on TCP (`shunt on` ends that)";

/// Has new connections of programs in this directory (or the usual one) stay on TCP, or not any more.
pub(crate) fn switch(dir: Option<&str>, off: bool) -> anyhow::Result<()> {
    let shown = board::directory(dir);
    board::switch(dir, off).map_err(|e| anyhow!("{shown}: {e}"))?;
    told(&shown, off)
}

/// The same in those of all users.
pub(crate) fn switch_all(off: bool) -> anyhow::Result<()> {
    ensure!(sys::call::geteuid() == 0, "--everyone is for root: sudo shunt off --everyone");
    let all = Whose::Everyones.directories();
    ensure!(!all.is_empty(), "there is no directory of anybody in {}", board::HOME);
    let mut failed = 0;
    for dir in all {
        match board::switch(Some(&dir), off) {
            Ok(()) => told(&dir, off)?,
            Err(e) => {
                failed += 1;
                say::line(format_args!("shunt: {dir}: {e}"));
            }
        }
    }
    match failed {
        0 => Ok(()),
        1 => bail!("one directory was not switched"),
        n => bail!("{n} directories were not switched"),
    }
}

fn told(dir: &str, off: bool) -> anyhow::Result<()> {
    let words = match off {
        true => "off: new connections stay on TCP until `shunt on`; those in shared memory go on",
        false => "on",
    };
    writeln!(std::io::stdout(), "{dir} is switched {words}")?;
    Ok(())
}
