//! `apt-get` with lists and caches of its own, from the mirror that the machine uses anyway. The machine's own sources stay
//! as they are, and nothing is installed: what comes is unpacked into a directory of ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Which of a release's suites packages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// What the machine itself has: the release and what was mended since.
    Own,
    /// What is newer than the release; the release itself where nothing is.
    Newer,
}

/// `apt-get` in a place of its own.
#[derive(Debug)]
pub struct Apt {
    work: PathBuf,
    options: Vec<String>,
}

impl Apt {
    /// Fetches the lists of an architecture (`arm64`) into this directory.
    ///
    /// # Errors
    ///
    /// What stands in the way: not a Debian, no network.
    pub fn new(work: &Path, architecture: &str, suite: Suite) -> anyhow::Result<Self> {
        for directory in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(work.join(directory))?;
        }
        let codename = codename()?;
        let mut sources = String::new();
        for (site, suites) in places(&codename, suite)? {
            sources += &format!("Types: deb\nURIs: {site}\nSuites: {suites}\nComponents: main\n");
            if Path::new(KEYRING).is_file() {
                sources += &format!("Signed-By: {KEYRING}\n");
            }
            sources.push('\n');
        }
        fs::write(work.join("own.sources"), sources)?;
        let at = work.display();
        let options = [
            format!("Dir::State={at}"),
            format!("Dir::State::lists={at}/lists"),
            "Dir::State::status=/dev/null".to_owned(),
            format!("Dir::Cache={at}/cache"),
            format!("Dir::Etc::sourcelist={at}/own.sources"),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            format!("APT::Architecture={architecture}"),
            format!("APT::Architectures::={architecture}"),
            // What downloads is otherwise another user, who may not write here.
            "APT::Sandbox::User=root".to_owned(),
        ];
        let options = options.into_iter().flat_map(|option| ["-o".to_owned(), option]).collect();
        let apt = Self { work: work.to_owned(), options };
        apt.run("apt-get", &["-q", "update"])?;
        Ok(apt)
    }

    fn run(&self, program: &str, words: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(program)
            .args(&self.options)
            .args(words)
            .current_dir(&self.work)
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot start {program}: packages are Debian's"))?;
        ensure!(output.status.success(), "{program} {} failed", words.join(" "));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The names of packages that match a pattern.
    ///
    /// # Errors
    ///
    /// If `apt-cache` does not work.
    pub fn names(&self, pattern: &str) -> anyhow::Result<Vec<String>> {
        let found = self.run("apt-cache", &["search", "--names-only", pattern])?;
        let names = found.lines().filter_map(|line| line.split(' ').next());
        Ok(names.map(str::to_owned).collect())
    }

    /// Unpacks these packages alone.
    ///
    /// # Errors
    ///
    /// What cannot be fetched or unpacked.
    pub fn unpack(&self, packages: &[&str], into: &Path) -> anyhow::Result<()> {
        let words = ["-q", "download"].iter().chain(packages).copied();
        self.run("apt-get", &words.collect::<Vec<_>>())?;
        unpack(&archives(&self.work)?, into)
    }

    /// Unpacks these packages and all that they need. None is set up.
    ///
    /// # Errors
    ///
    /// What cannot be fetched or unpacked.
    pub fn unpack_all(&self, packages: &[&str], into: &Path) -> anyhow::Result<()> {
        let words = ["-q", "--yes", "--no-install-recommends", "--download-only", "install"];
        self.run("apt-get", &words.iter().chain(packages).copied().collect::<Vec<_>>())?;
        unpack(&archives(&self.work.join("cache/archives"))?, into)
    }
}

fn archives(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let files = fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    let mut archives: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "deb")).collect();
    archives.sort();
    ensure!(!archives.is_empty(), "apt-get left no package in {}", directory.display());
    Ok(archives)
}

fn unpack(archives: &[PathBuf], into: &Path) -> anyhow::Result<()> {
    for archive in archives {
        let status = Command::new("dpkg-deb").arg("-x").args([archive.as_path(), into]).status();
        let status = status.context("cannot start dpkg-deb")?;
        ensure!(status.success(), "cannot unpack {}", archive.display());
    }
    Ok(())
}

fn codename() -> anyhow::Result<String> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |name: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    if value("ID").as_deref() != Some("debian") {
        bail!(
            "packages are fetched on Debian only; elsewhere unpack them and name their directory"
        );
    }
    value("VERSION_CODENAME").context("/etc/os-release names no release")
}

/// Where from, and which suites there.
fn places(codename: &str, suite: Suite) -> anyhow::Result<Vec<(String, String)>> {
    let own = mirror(codename)?;
    if suite == Suite::Newer {
        let suite = match codename {
            "bookworm" => "bookworm-backports",
            other => other,
        };
        return Ok(vec![(own, suite.to_owned())]);
    }
    let mended = format!("{codename}-security");
    let mut places = vec![(own, codename.to_owned())];
    // A machine without a mirror of that does without.
    if let Ok(site) = mirror(&mended) {
        places.push((site, mended));
    }
    Ok(places)
}

/// The mirror that this machine uses for a suite.
fn mirror(suite: &str) -> anyhow::Result<String> {
    let format = ["indextargets", "--format", "$(RELEASE) $(CODENAME) $(SITE)"];
    let output = Command::new("apt-get")
        .args(format)
        .args(["Created-By: Packages", "Component: main"])
        .output()
        .context("cannot start apt-get")?;
    let sites = String::from_utf8_lossy(&output.stdout).into_owned();
    site(&sites, suite)
        .with_context(|| format!("apt knows no mirror of {suite}: run `apt-get update` first"))
}

/// Of lines with a suite by two names and its site, the site of this suite.
fn site(lines: &str, suite: &str) -> Option<String> {
    let site = lines.lines().find_map(|line| {
        let mut words = line.split(' ');
        let names = [words.next()?, words.next()?];
        names.contains(&suite).then(|| words.next())?
    });
    site.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_found_by_either_name() {
        let lines = "bookworm bookworm a/debian\nbookworm-security bookworm-security a/security\n";
        assert_eq!(site(lines, "bookworm").as_deref(), Some("a/debian"));
        assert_eq!(site(lines, "bookworm-security").as_deref(), Some("a/security"));
        assert_eq!(site(lines, "trixie"), None);
        assert_eq!(site("", "trixie"), None);
    }
}
