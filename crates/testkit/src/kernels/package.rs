//! A kernel to boot: Debian's package, unpacked into a directory of ours.
//!
//! It is fetched by `apt-get` with lists and caches of its own, from the mirror that the machine uses
//! anyway; the machine's own sources stay as they are, and nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

/// The series that speaks SMC-R over a RoCE device of software.
pub const SERIES: &str = "6.12";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// As `uname -r` says.
    pub release: String,
    /// What boots.
    pub image: PathBuf,
    /// The directory of its modules.
    pub modules: PathBuf,
}

impl Kernel {
    /// The kernel in this directory, if there is one.
    #[must_use]
    pub fn find(directory: &Path) -> Option<Self> {
        let entries = fs::read_dir(directory.join("lib/modules")).ok()?;
        let kernel = entries.flatten().next().map(|entry| {
            let release = entry.file_name().to_string_lossy().into_owned();
            let image = directory.join(format!("boot/vmlinuz-{release}"));
            Self { release, image, modules: entry.path() }
        })?;
        kernel.image.is_file().then_some(kernel)
    }

    /// Fetches the newest kernel of the series and unpacks it into this directory.
    ///
    /// # Errors
    ///
    /// What stands in the way: not a Debian, no network.
    pub fn fetch(directory: &Path) -> anyhow::Result<Self> {
        // Complete or not there: unpacked beside, then moved.
        let parent = directory.parent().context("a directory has a parent")?;
        let work = parent.join("fetching");
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(&work)?;
        let apt = Apt::new(&work)?;
        let package = apt.newest()?;
        apt.download(&package)?;
        let archive = fs::read_dir(&work)?.flatten().map(|entry| entry.path());
        let archive = archive.into_iter().find(|path| path.extension().is_some_and(|e| e == "deb"));
        let archive = archive.with_context(|| format!("apt-get did not leave {package}"))?;
        let root = work.join("root");
        let status = Command::new("dpkg-deb").arg("-x").args([&archive, &root]).status();
        ensure!(status.context("cannot start dpkg-deb")?.success(), "cannot unpack {package}");
        let _ = fs::remove_dir_all(directory);
        fs::rename(&root, directory)?;
        fs::remove_dir_all(&work)?;
        Self::find(directory).with_context(|| format!("there is no kernel in {package}"))
    }

    /// Whether what could be a module is in the kernel itself.
    #[must_use]
    pub fn has_built_in(&self, module: &str) -> bool {
        let list = fs::read_to_string(self.modules.join("modules.builtin")).unwrap_or_default();
        let name =
            |line: &str| Path::new(line).file_stem().map(|s| s.to_string_lossy().replace('-', "_"));
        list.lines().any(|line| name(line).as_deref() == Some(module))
    }
}

/// `apt-get` in a place of its own.
struct Apt {
    work: PathBuf,
    options: Vec<String>,
}

impl Apt {
    fn new(work: &Path) -> anyhow::Result<Self> {
        for directory in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(work.join(directory))?;
        }
        let codename = codename()?;
        let mut sources = format!("Types: deb\nURIs: {}\n", mirror(&codename)?);
        sources += &format!("Suites: {}\nComponents: main\n", suite(&codename));
        if Path::new(KEYRING).is_file() {
            sources += &format!("Signed-By: {KEYRING}\n");
        }
        fs::write(work.join("kernel.sources"), sources)?;
        let at = work.display();
        let options = [
            format!("Dir::State={at}"),
            format!("Dir::State::lists={at}/lists"),
            "Dir::State::status=/dev/null".to_owned(),
            format!("Dir::Cache={at}/cache"),
            format!("Dir::Etc::sourcelist={at}/kernel.sources"),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "APT::Architecture=amd64".to_owned(),
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
            .with_context(|| format!("cannot start {program}: kernels come as Debian packages"))?;
        ensure!(output.status.success(), "{program} {} failed", words.join(" "));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn newest(&self) -> anyhow::Result<String> {
        let pattern = format!("^linux-image-{}\\.", SERIES.replace('.', "\\."));
        let found = self.run("apt-cache", &["search", "--names-only", &pattern])?;
        let names = found.lines().filter_map(|line| line.split(' ').next());
        let newest = names.filter_map(|name| Some((version(name)?, name))).max();
        let newest = newest.map(|(_, name)| name.to_owned());
        newest.with_context(|| format!("this mirror has no kernel {SERIES}"))
    }

    fn download(&self, package: &str) -> anyhow::Result<()> {
        self.run("apt-get", &["-q", "download", package]).map(drop)
    }
}

/// The number behind the series, and whether it is the signed package, of a package for PCs.
fn version(package: &str) -> Option<(u32, bool)> {
    let rest = package.strip_prefix("linux-image-")?.strip_prefix(SERIES)?.strip_prefix('.')?;
    let (number, rest) = rest.split_once('+')?;
    let (_, flavour) = rest.split_once('-')?;
    let signed = match flavour {
        "amd64" => true,
        "amd64-unsigned" => false,
        _ => return None,
    };
    Some((number.parse().ok()?, signed))
}

fn codename() -> anyhow::Result<String> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |name: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    if value("ID").as_deref() != Some("debian") {
        bail!("kernels are fetched on Debian only; elsewhere unpack one and name its directory");
    }
    value("VERSION_CODENAME").context("/etc/os-release names no release")
}

/// Where a release has the series.
fn suite(codename: &str) -> String {
    if codename == "bookworm" { "bookworm-backports".to_owned() } else { codename.to_owned() }
}

/// The mirror that this machine uses for its release.
fn mirror(codename: &str) -> anyhow::Result<String> {
    let release = format!("Codename: {codename}");
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(SITE)", "Created-By: Packages"])
        .args([release.as_str(), "Component: main"])
        .output()
        .context("cannot start apt-get")?;
    let sites = String::from_utf8_lossy(&output.stdout).into_owned();
    let site = sites.lines().next().map(str::to_owned);
    site.with_context(|| format!("apt knows no mirror of {codename}: run `apt-get update` first"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_for_pcs_is_taken() {
        let names = [
            "linux-image-6.12.9+deb12-amd64",
            "linux-image-6.12.43+deb12-amd64-unsigned",
            "linux-image-6.12.43+deb12-amd64",
            "linux-image-6.12.95+deb12-cloud-amd64",
            "linux-image-6.12.95+deb12-amd64-dbg",
            "linux-image-6.1.0-44-amd64",
        ];
        let newest = names.into_iter().filter_map(|name| Some((version(name)?, name))).max();
        assert_eq!(newest.unwrap().1, "linux-image-6.12.43+deb12-amd64");
    }

    #[test]
    fn a_directory_without_a_kernel_has_none() {
        assert!(Kernel::find(Path::new("/proc")).is_none());
    }
}
