//! The initramfs of a guest: BusyBox, the kernel's modules in the order in which they load, `smcpeer` as the
//! first process, and what else the guest is for. An archive in the form of `cpio -H newc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use super::package::Kernel;

/// What every guest needs that may be a module. The checksums are asked for by name when they are used, so
/// no module says that it needs them.
const MODULES: &[&str] = &["virtio_net", "crc32_generic", "crc32c_generic"];
/// What a guest needs to speak SMC-R.
pub const SMC: &[&str] = &["rdma_rxe", "smc", "smc_diag", "sch_netem"];
/// What a guest needs to have a folder of the host's.
pub const FOLDER: &[&str] = &["9pnet_virtio", "9p"];
/// What a guest needs to mount shares of SMB, with the ciphers and digests that it asks for by name.
pub const CIFS: &[&str] = &[
    "ccm",
    "cmac",
    "ecb",
    "gcm",
    "ghash_generic",
    "hmac",
    "md5",
    "sha256_generic",
    "sha512_generic",
    "nls_utf8",
    "cifs",
];
/// Where the guest finds modules, and the file that lists them in order.
pub const MODULES_DIR: &str = "/modules";
/// The list's name in that directory.
pub const ORDER: &str = "order";

/// Of a system, what no program opens.
const UNREAD: &[&str] =
    &["boot", "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"];

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const SYMLINK: u32 = 0o120_777;

/// An archive in the making.
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    files: u32,
}

impl Archive {
    fn put(&mut self, name: &str, mode: u32, content: &[u8]) -> anyhow::Result<()> {
        let (size, name_size) = (u32::try_from(content.len())?, u32::try_from(name.len() + 1)?);
        self.files += 1;
        let links = 1;
        let fields = [self.files, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0]
            .map(|n| format!("{n:08x}"));
        self.bytes.extend(b"070701");
        self.bytes.extend(fields.concat().bytes());
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
        Ok(())
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// The directories above a place, each once, the upper first.
    fn put_parents(&mut self, place: &str, made: &mut BTreeSet<String>) -> anyhow::Result<()> {
        for (at, _) in place.match_indices('/') {
            if made.insert(place[..at].to_owned()) {
                self.put(&place[..at], DIRECTORY, &[])?;
            }
        }
        Ok(())
    }

    fn put_busybox(&mut self, busybox: &Path) -> anyhow::Result<()> {
        let program = read(busybox)?;
        let advice = "needs libraries: busybox-static does not";
        ensure!(is_static(&program), "{} {advice}", busybox.display());
        self.put("bin/busybox", PROGRAM, &program)?;
        let list = Command::new(busybox).arg("--list").output().context("busybox --list")?;
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        for applet in list.lines().filter(|name| *name != "busybox") {
            self.put(&format!("bin/{applet}"), SYMLINK, b"busybox")?;
        }
        Ok(())
    }

    /// What is in a directory, without what people read, by the modes that it has there.
    fn put_tree(
        &mut self,
        top: &Path,
        at: &Path,
        made: &mut BTreeSet<String>,
    ) -> anyhow::Result<()> {
        let entries = fs::read_dir(at).with_context(|| format!("cannot read {}", at.display()))?;
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let below = path.strip_prefix(top)?;
            if UNREAD.iter().any(|unread| below == Path::new(unread)) {
                continue;
            }
            let (name, meta) = (below.to_string_lossy(), fs::symlink_metadata(&path)?);
            if meta.is_dir() {
                made.insert(name.clone().into_owned());
                self.put(&name, meta.mode(), &[])?;
                self.put_tree(top, &path, made)?;
            } else if meta.is_symlink() {
                let target = fs::read_link(&path)?;
                // What it leads to is a directory already, if it is one.
                made.insert(name.clone().into_owned());
                self.put(&name, SYMLINK, target.as_os_str().as_bytes())?;
            } else if meta.is_file() {
                self.put(&name, meta.mode(), &read(&path)?)?;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<Vec<u8>> {
        self.put("TRAILER!!!", 0, &[])?;
        Ok(self.bytes)
    }
}

/// What a guest's shell and its tools are.
#[derive(Clone, Copy, Debug)]
pub enum Tools<'a> {
    /// BusyBox, linked statically, for this machine's architecture.
    Busybox(&'a Path),
    /// A whole system, of any architecture, laid at the top; with a `bin/busybox`.
    System(&'a Path),
}

/// What differs between guests.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// Modules of the kernel, by name; those that they need come by themselves.
    pub modules: Vec<&'static str>,
    /// More programs for `/bin`. Those that are linked dynamically bring their libraries.
    pub programs: Vec<PathBuf>,
    /// Files that stand there where they stand here.
    pub files: Vec<PathBuf>,
    /// Symbolic links: the path below the top, and where it leads to.
    pub links: Vec<(String, String)>,
}

/// Makes the initramfs, with these programs.
///
/// # Errors
///
/// What is absent or cannot be read.
pub fn make(
    kernel: &Kernel,
    tools: Tools<'_>,
    peer: &Path,
    contents: &Contents,
) -> anyhow::Result<Vec<u8>> {
    let mut archive = Archive::default();
    let mut made = BTreeSet::new();
    if let Tools::System(tree) = tools {
        archive.put_tree(tree, tree, &mut made)?;
    }
    for directory in ["bin", "dev", "proc", "sys", "tmp", "run", "modules"] {
        if made.insert(directory.to_owned()) {
            archive.put(directory, DIRECTORY, &[])?;
        }
    }
    let program = read(peer)?;
    ensure!(is_static(&program), "{} is not linked statically", peer.display());
    archive.put("init", PROGRAM, &program)?;
    archive.put("bin/smcpeer", SYMLINK, b"/init")?;
    if let Tools::Busybox(busybox) = tools {
        archive.put_busybox(busybox)?;
    }
    let mut order = String::new();
    for module in modules(kernel, &contents.modules)? {
        archive.put(&format!("modules/{}.ko", module.name), FILE, &module.content)?;
        order += &format!("{}.ko\n", module.name);
    }
    archive.put(&format!("modules/{ORDER}"), FILE, order.as_bytes())?;
    let mut places = BTreeMap::new();
    for program in &contents.programs {
        let name = program.file_name().context("a program without a name")?.to_string_lossy();
        places.insert(format!("bin/{name}"), program.clone());
        if !is_static(&read(program)?) {
            let libraries = libraries(program)?.into_iter();
            places.extend(libraries.map(|path| (below_top(&path), path)));
        }
    }
    places.extend(contents.files.iter().map(|path| (below_top(path), path.clone())));
    for place in places.keys().chain(contents.links.iter().map(|(place, _)| place)) {
        archive.put_parents(place, &mut made)?;
    }
    for (place, path) in &places {
        archive.put(place, PROGRAM, &read(path)?)?;
    }
    for (place, target) in &contents.links {
        archive.put(place, SYMLINK, target.as_bytes())?;
    }
    archive.finish()
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn below_top(path: &Path) -> String {
    path.to_string_lossy().trim_start_matches('/').to_owned()
}

/// The libraries of a program, as the loader finds them, and the loader.
fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot start ldd")?;
    ensure!(output.status.success(), "ldd does not understand {}", program.display());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(paths.map(PathBuf::from).collect())
}

/// Whether an ELF file asks for no interpreter (a program header of type 3).
fn is_static(elf: &[u8]) -> bool {
    let half =
        |at: usize| elf.get(at..at + 2).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])));
    let (Some(size), Some(count)) = (half(54), half(56)) else { return false };
    let at = elf[32..40].try_into().map_or(0, u64::from_le_bytes);
    let Ok(at) = usize::try_from(at) else { return false };
    let kind = |i: usize| elf.get(at + i * size..at + i * size + 4);
    elf.starts_with(b"\x7fELF\x02")
        && (0..count).all(|i| kind(i).is_some_and(|k| k != [3, 0, 0, 0]))
}

#[derive(Debug)]
struct Module {
    name: String,
    content: Vec<u8>,
}

/// The modules and those that they need, each after what it needs.
fn modules(kernel: &Kernel, more: &[&str]) -> anyhow::Result<Vec<Module>> {
    let (mut loaded, mut order) = (BTreeSet::new(), Vec::new());
    for name in MODULES.iter().chain(more) {
        gather(kernel, name, &mut loaded, &mut order)?;
    }
    Ok(order)
}

fn gather(
    kernel: &Kernel,
    name: &str,
    loaded: &mut BTreeSet<String>,
    order: &mut Vec<Module>,
) -> anyhow::Result<()> {
    let name = name.replace('-', "_");
    if !loaded.insert(name.clone()) {
        return Ok(());
    }
    let Some(path) = find(&kernel.modules.join("kernel"), &name) else {
        if kernel.has_built_in(&name) {
            return Ok(());
        }
        bail!("the kernel {} has no module {name}", kernel.release);
    };
    let content = unpacked(&path)?;
    for needed in needs(&content) {
        gather(kernel, &needed, loaded, order)?;
    }
    order.push(Module { name, content });
    Ok(())
}

/// The file of a module, packed or not.
fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    let mut later = Vec::new();
    for entry in fs::read_dir(directory).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            later.push(path);
        } else if let Some((stem, _)) = entry.file_name().to_string_lossy().split_once(".ko")
            && stem.replace('-', "_") == name
        {
            return Some(path);
        }
    }
    later.iter().find_map(|directory| find(directory, name))
}

fn unpacked(path: &Path) -> anyhow::Result<Vec<u8>> {
    let program = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).with_context(|| format!("cannot read {}", path.display())),
    };
    let output = Command::new(program)
        .arg("-dc")
        .arg(path)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "{program} cannot unpack {}", path.display());
    Ok(output.stdout)
}

/// The modules that a module says it needs.
fn needs(module: &[u8]) -> Vec<String> {
    const TAG: &[u8] = b"\0depends=";
    let Some(at) = module.windows(TAG.len()).position(|window| window == TAG) else {
        return Vec::new();
    };
    let list = module[at + TAG.len()..].split(|b| *b == 0).next().unwrap_or_default();
    let list = String::from_utf8_lossy(list);
    list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_what_the_kernel_reads() {
        let mut archive = Archive::default();
        archive.put("a", FILE, b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(&bytes[..6], b"070701");
        // Header of 110 bytes, name of 2, content at the next multiple of 4.
        assert_eq!(&bytes[54..62], b"00000005", "size");
        assert_eq!(&bytes[94..102], b"00000002", "size of the name");
        assert_eq!(&bytes[110..112], b"a\0");
        assert_eq!(&bytes[112..117], b"hello");
        assert_eq!(&bytes[120..126], b"070701", "the next entry");
        assert!(bytes.windows(10).any(|w| w == b"TRAILER!!!"));
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn what_a_module_needs_is_read_from_it() {
        assert_eq!(needs(b"..\0depends=a,b\0name=c\0"), ["a", "b"]);
        assert!(needs(b"..\0depends=\0name=c\0").is_empty());
        assert!(needs(b"nothing").is_empty());
    }

    #[test]
    fn directories_come_once_and_before_what_is_in_them() {
        let (mut archive, mut made) = (Archive::default(), BTreeSet::new());
        archive.put_parents("lib/x/a", &mut made).unwrap();
        archive.put_parents("lib/b", &mut made).unwrap();
        assert_eq!(archive.files, 2);
        assert_eq!(made.into_iter().collect::<Vec<_>>(), ["lib", "lib/x"]);
        let own = std::env::current_exe().unwrap();
        assert!(
            libraries(&own).unwrap().iter().any(|path| path.to_string_lossy().contains("libc"))
        );
    }

    #[test]
    fn a_program_that_needs_libraries_is_told_from_one_that_does_not() {
        let own = fs::read("/proc/self/exe").unwrap();
        assert!(!is_static(&own));
        assert!(!is_static(b"#!/bin/sh"));
    }
}
