//! A kernel to boot: Debian's package, unpacked into a directory of ours.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::apt::{Apt, Suite};
use super::architecture::Architecture;
use super::guest::Image;

/// The series that speaks SMC-R over a RoCE device of software.
pub const SERIES: &str = "6.12";

/// Which kernels of the series there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// For PCs.
    Pc,
    /// For Arm's 64-bit CPUs.
    Arm,
    /// The same, with pages of 16 KiB.
    Arm16k,
}

impl Flavour {
    /// Whose programs it runs.
    #[must_use]
    pub const fn architecture(self) -> Architecture {
        match self {
            Self::Pc => Architecture::X86_64,
            Self::Arm | Self::Arm16k => Architecture::Aarch64,
        }
    }

    /// As the names of Debian's packages end.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pc => "amd64",
            Self::Arm => "arm64",
            Self::Arm16k => "arm64-16k",
        }
    }
}

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// As `uname -r` says.
    pub release: String,
    /// What boots.
    pub image: PathBuf,
    /// The directory of its modules.
    pub modules: PathBuf,
    /// Whose programs it runs.
    pub architecture: Architecture,
}

impl Kernel {
    /// The kernel in this directory, if there is one.
    #[must_use]
    pub fn find(directory: &Path, architecture: Architecture) -> Option<Self> {
        let entries = fs::read_dir(directory.join("lib/modules")).ok()?;
        let kernel = entries.flatten().next().map(|entry| {
            let release = entry.file_name().to_string_lossy().into_owned();
            let image = directory.join(format!("boot/vmlinuz-{release}"));
            Self { release, image, modules: entry.path(), architecture }
        })?;
        kernel.image.is_file().then_some(kernel)
    }

    /// Fetches the newest kernel of the series and unpacks it into this directory.
    ///
    /// # Errors
    ///
    /// What stands in the way: not a Debian, no network.
    pub fn fetch(directory: &Path, flavour: Flavour) -> anyhow::Result<Self> {
        // Complete or not there: unpacked beside, then moved.
        let parent = directory.parent().context("a directory has a parent")?;
        let work = parent.join("fetching");
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(&work)?;
        let apt = Apt::new(&work, flavour.architecture().debian(), Suite::Newer)?;
        let names = apt.names(&format!("^linux-image-{}\\.", SERIES.replace('.', "\\.")))?;
        let newest = newest(names.iter().map(String::as_str), flavour);
        let newest = newest.with_context(|| format!("this mirror has no kernel {SERIES}"))?;
        let root = work.join("root");
        apt.unpack(&[newest], &root)?;
        let _ = fs::remove_dir_all(directory);
        fs::rename(&root, directory)?;
        fs::remove_dir_all(&work)?;
        let found = Self::find(directory, flavour.architecture());
        found.with_context(|| format!("there is no kernel in {newest}"))
    }

    /// What boots it into this archive.
    #[must_use]
    pub fn with(&self, initramfs: PathBuf) -> Image {
        Image { kernel: self.image.clone(), initramfs, architecture: self.architecture }
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

fn newest<'a>(packages: impl Iterator<Item = &'a str>, flavour: Flavour) -> Option<&'a str> {
    let found = packages.filter_map(|name| Some((version(name, flavour)?, name)));
    found.max().map(|(_, name)| name)
}

/// The number behind the series, and whether it is the signed package, of a package of this flavour.
fn version(package: &str, flavour: Flavour) -> Option<(u32, bool)> {
    let rest = package.strip_prefix("linux-image-")?.strip_prefix(SERIES)?.strip_prefix('.')?;
    let (number, rest) = rest.split_once('+')?;
    let (_, rest) = rest.split_once('-')?;
    let signed = match rest.strip_prefix(flavour.name())? {
        "" => true,
        "-unsigned" => false,
        _ => return None,
    };
    Some((number.parse().ok()?, signed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_of_a_flavour_is_taken() {
        let names = [
            "linux-image-6.12.9+deb12-amd64",
            "linux-image-6.12.43+deb12-amd64-unsigned",
            "linux-image-6.12.43+deb12-amd64",
            "linux-image-6.12.95+deb12-cloud-amd64",
            "linux-image-6.12.95+deb12-amd64-dbg",
            "linux-image-6.1.0-44-amd64",
            "linux-image-6.12.9+deb12-arm64",
            "linux-image-6.12.10+deb12-arm64",
            "linux-image-6.12.95+deb12-rt-arm64",
            "linux-image-6.12.11+deb12-arm64-16k",
        ];
        let newest = |flavour| newest(names.into_iter(), flavour).unwrap();
        assert_eq!(newest(Flavour::Pc), "linux-image-6.12.43+deb12-amd64");
        assert_eq!(newest(Flavour::Arm), "linux-image-6.12.10+deb12-arm64");
        assert_eq!(newest(Flavour::Arm16k), "linux-image-6.12.11+deb12-arm64-16k");
    }

    #[test]
    fn a_directory_without_a_kernel_has_none() {
        assert!(Kernel::find(Path::new("/proc"), Architecture::X86_64).is_none());
    }
}
