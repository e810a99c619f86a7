//! A package as `dpkg` takes it (deb-control(5), deb(5)).

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::{env, iter};

use anyhow::{Context, bail};

use super::output;
use super::tree::Tree;

/// What a package is called and said to be.
pub(super) struct Deb<'a> {
    pub(super) name: &'a str,
    pub(super) section: &'a str,
    pub(super) summary: &'a str,
    /// Its lines, without the blanks before them.
    pub(super) description: &'a [&'a str],
    pub(super) suggests: &'a [&'a str],
    /// Of those in `dist/debian`, which.
    pub(super) scripts: &'a [&'a str],
}

/// Whether this may stand in a version, behind a number and `+` (deb-version(7)).
pub(super) fn is_version(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b".+~".contains(&b))
}

impl Deb<'_> {
    /// Makes it of a tree, which gets the folder `DEBIAN` by that. `version` comes with the time of its files.
    pub(super) fn make(
        &self,
        tree: &Tree,
        (version, time): (&str, &str),
        architecture: &str,
        scripts: &Path,
        to: &Path,
    ) -> anyhow::Result<()> {
        let depends = depends(&tree.needs()?)?;
        let files = tree.files()?;
        let mut bytes = 0;
        for file in &files {
            bytes += fs::metadata(tree.root().join(file))?.len();
        }
        let sums = output(Command::new("md5sum").current_dir(tree.root()).args(&files))?;
        tree.text(&sums, "DEBIAN/md5sums")?;
        tree.text(&self.control(version, architecture, &depends, bytes), "DEBIAN/control")?;
        let settings = files.iter().filter(|file| file.starts_with("etc/"));
        let settings: String = settings.map(|file| format!("/{file}\n")).collect();
        if !settings.is_empty() {
            tree.text(&settings, "DEBIAN/conffiles")?;
        }
        for script in self.scripts {
            let name = format!("DEBIAN/{script}");
            tree.file(&scripts.join(script), &name)?;
            fs::set_permissions(tree.root().join(name), Permissions::from_mode(0o755))?;
        }
        let mut command = Command::new("dpkg-deb");
        command.env("SOURCE_DATE_EPOCH", time);
        command.args(["--build", "--root-owner-group", "-Zxz"]).arg(tree.root()).arg(to);
        output(&mut command).map(drop)
    }

    fn control(&self, version: &str, architecture: &str, depends: &str, bytes: u64) -> String {
        let maker = |name: &str, usual: &str| env::var(name).unwrap_or_else(|_| usual.to_owned());
        let (who, mail) =
            (maker("DEBFULLNAME", "The makers of Shunt"), maker("DEBEMAIL", "shunt@example.org"));
        let mut text = format!(
            "Package: {}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {who} <{mail}>\n\
             Installed-Size: {}\nDepends: {depends}\n",
            self.name,
            bytes.div_ceil(1024)
        );
        if !self.suggests.is_empty() {
            text += &format!("Suggests: {}\n", self.suggests.join(", "));
        }
        text += &format!("Section: {}\nPriority: optional\n", self.section);
        let lines = iter::once(self.summary).chain(self.description.iter().copied());
        text += &format!("Description: {}\n", lines.collect::<Vec<_>>().join("\n "));
        text
    }
}

/// The packages that have what objects need, of what `objdump -p` says of them.
fn depends(said: &[String]) -> anyhow::Result<String> {
    let mut c_library = (2, 0);
    let mut gcc = false;
    for line in said {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["NEEDED", "libgcc_s.so.1"] => gcc = true,
            ["NEEDED", name] if is_of_the_c_library(name) => {}
            ["NEEDED", other] => bail!("it is not known which package has {other}"),
            // "0x06969187 0x00 05 GLIBC_2.27"
            [.., version] => {
                let Some(numbers) = version.strip_prefix("GLIBC_") else { continue };
                let Some((major, minor)) = numbers.split_once('.') else { continue };
                let minor = minor.split('.').next().unwrap_or_default();
                let number = |text: &str| text.parse::<u32>().with_context(|| line.clone());
                c_library = c_library.max((number(major)?, number(minor)?));
            }
            [] => {}
        }
    }
    let (major, minor) = c_library;
    let gcc = if gcc { ", libgcc-s1" } else { "" };
    Ok(format!("libc6 (>= {major}.{minor}){gcc}"))
}

fn is_of_the_c_library(name: &str) -> bool {
    ["libc.so.", "libm.so.", "libdl.so.", "libpthread.so.", "librt.so.", "ld-linux"]
        .iter()
        .any(|own| name.starts_with(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn what_objects_need_becomes_packages() {
        let said = "
            NEEDED               libgcc_s.so.1
            NEEDED               libc.so.6
            NEEDED               ld-linux-x86-64.so.2
            required from libc.so.6:
              0x06969187 0x00 05 GLIBC_2.27
              0x09691974 0x00 03 GLIBC_2.3.4
              0x06969194 0x00 03 GLIBC_2.34
            required from libgcc_s.so.1:
              0x0b792650 0x00 04 GCC_3.0";
        assert_eq!(depends(&lines(said)).unwrap(), "libc6 (>= 2.34), libgcc-s1");
        assert_eq!(
            depends(&lines("NEEDED libm.so.6\n 0x1 0x00 02 GLIBC_2.9")).unwrap(),
            "libc6 (>= 2.9)"
        );
        let why = depends(&lines("NEEDED libssl.so.3")).unwrap_err().to_string();
        assert!(why.contains("libssl.so.3"), "{why}");
    }

    #[test]
    fn what_git_says_may_be_no_part_of_a_version() {
        assert!(is_version("202611270303.9e565cb12"));
        assert!(!is_version("") && !is_version("a b") && !is_version("a-b") && !is_version("a/b"));
    }
}
