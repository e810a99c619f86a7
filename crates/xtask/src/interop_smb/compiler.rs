//! What a C compiler needs in a guest, beside itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::install;

/// A program with the headers of all that are compiled in guests.
const PROBE: &str = "#include <stdio.h>\nint main(void) { return printf(\"\\n\") != 1; }\n";

/// The headers and libraries that tcc opens to make such a program, in a directory for that.
///
/// # Errors
///
/// When it makes none.
pub(super) fn files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let tcc = install::find("tcc").context("there is no tcc")?;
    let source = directory.join("probe.c");
    std::fs::write(&source, PROBE)?;
    // Twice verbose, it names each file that it opens.
    let mut command = Command::new(tcc);
    command.args(["-vv", "-o"]).arg(directory.join("probe")).arg(&source);
    let output = command.output().context("cannot start tcc")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "tcc makes no program: {}", said.trim());
    let files = opened(&String::from_utf8_lossy(&output.stdout), &source);
    ensure!(!files.is_empty(), "tcc does not say what it opens");
    Ok(files)
}

fn opened(said: &str, source: &Path) -> Vec<PathBuf> {
    let paths =
        said.lines().filter_map(|line| Some(PathBuf::from(line.strip_prefix("->")?.trim())));
    paths.filter(|path| path.is_absolute() && path != source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_opened_is_told_from_what_was_looked_for() {
        let said = "tcc version 0.9.27\n-> /tmp/x/probe.c\n->  /usr/include/stdio.h\nnf  /usr/include/x.h\n\
                    -> /usr/lib/crt1.o\n<- /tmp/x/probe\n";
        let files = opened(said, Path::new("/tmp/x/probe.c"));
        assert_eq!(files, ["/usr/include/stdio.h", "/usr/lib/crt1.o"].map(PathBuf::from));
    }
}
