//! The files of the workspace, as the rules read them.

use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

use e2e::workspace_root;

/// A text file; its path is relative to the workspace.
pub(super) struct Source {
    pub(super) path: String,
    pub(super) text: String,
}

/// The manifest of one crate.
pub(super) struct Manifest {
    /// The crate's folder: `sys`, `e2e`.
    pub(super) folder: String,
    pub(super) text: String,
    pub(super) dependencies: Vec<Dependency>,
}

/// A line under `[dependencies]` and the like.
pub(super) struct Dependency {
    pub(super) name: String,
    pub(super) from_workspace: bool,
    /// Under `[dev-dependencies]`.
    pub(super) for_tests: bool,
}

impl Dependency {
    /// Which of `ours` this is, under its short or its full name.
    pub(super) fn ours<'a>(&self, ours: &[&'a str]) -> Option<&'a str> {
        let name = self.name.strip_prefix("shunt-").unwrap_or(&self.name);
        ours.iter().copied().find(|our| *our == name)
    }
}

impl Manifest {
    /// Those of all members.
    pub(super) fn all() -> Vec<Self> {
        let root = workspace_root();
        let crates = entries(&root.join("crates")).into_iter().map(|entry| entry.path());
        let mut folders: Vec<PathBuf> = crates.chain([root.join("e2e")]).collect();
        folders.sort();
        folders.iter().filter_map(|folder| Self::read(folder)).collect()
    }

    fn read(folder: &Path) -> Option<Self> {
        let text = fs::read_to_string(folder.join("Cargo.toml")).ok()?;
        let folder = folder.file_name()?.to_str()?.to_owned();
        let dependencies = parse_dependencies(&text);
        Some(Self { folder, text, dependencies })
    }
}

fn parse_dependencies(manifest: &str) -> Vec<Dependency> {
    let (mut inside, mut for_tests) = (false, false);
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]");
            for_tests = line.ends_with("dev-dependencies]");
        } else if let Some((key, value)) = line.split_once('=').filter(|_| inside) {
            let name = key.trim().trim_end_matches(".workspace").to_owned();
            let from_workspace = line.contains("workspace = true") || key.contains(".workspace");
            // An alias does not hide what is used.
            let package =
                value.split("package = \"").nth(1).and_then(|rest| rest.split('"').next());
            let name = package.map_or(name, str::to_owned);
            found.push(Dependency { name, from_workspace, for_tests });
        }
    }
    found
}

/// Each Rust file of the workspace, and of `fuzz`.
pub(super) fn rust_sources() -> Vec<Source> {
    let sources: Vec<_> = text_files().into_iter().filter(|s| s.path.ends_with(".rs")).collect();
    assert!(sources.len() > 10, "found only {} files: looking in the wrong place", sources.len());
    sources
}

/// Each file that is text and ours: not what cargo or the fuzzer made.
pub(super) fn text_files() -> Vec<Source> {
    let root = workspace_root();
    let mut found = Vec::new();
    walk(&root, &root, &mut found);
    found
}

fn entries(folder: &Path) -> Vec<DirEntry> {
    fs::read_dir(folder).expect("the workspace can be read").flatten().collect()
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<Source>) {
    for entry in entries(folder) {
        let (path, name) = (entry.path(), entry.file_name());
        // In a second work tree `.git` is a file.
        if matches!(name.to_str(), Some("target" | ".git" | "corpus" | "artifacts")) {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(root, &path, found);
        } else if let Ok(text) = fs::read_to_string(&path) {
            let path = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            found.push(Source { path, text });
        }
    }
}

#[test]
fn dependencies_are_seen_in_each_form() {
    let manifest = "\
[package]
name = \"x\"
[dependencies]
sys.workspace = true
clap = { workspace = true, features = [\"derive\"] }
other = { package = \"shunt-engine\", path = \"../engine\" }
[target.'cfg(loom)'.dependencies]
loom = \"0.7\"
[dev-dependencies]
testkit.workspace = true
[features]
fast = []
";
    let found =
        parse_dependencies(manifest).into_iter().map(|d| (d.name, d.from_workspace, d.for_tests));
    let expected = [
        ("sys", true, false),
        ("clap", true, false),
        ("shunt-engine", false, false),
        ("loom", false, false),
        ("testkit", true, true),
    ];
    assert!(found.eq(expected.map(|(name, from, tests)| (name.to_owned(), from, tests))));
}
