//! Folders and the names in them, beside a model of both.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use testkit::fragments::Random;

#[derive(Args, Debug)]
pub(crate) struct Tree {
    /// A folder; made if it is not there, and must be empty
    folder: PathBuf,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 400)]
    operations: u32,
    /// Hard links, too
    #[arg(long)]
    hard_links: bool,
    /// Symbolic links, too
    #[arg(long)]
    symbolic_links: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Folder,
    /// Which of the contents it has.
    File(usize),
    Symbolic(String),
}

struct Run<'a> {
    tree: &'a Tree,
    random: Random,
    /// By path below the folder.
    nodes: BTreeMap<String, Node>,
    contents: Vec<Vec<u8>>,
    names: u32,
}

#[derive(Clone, Debug)]
enum Step {
    MakeFolder(String),
    MakeFile(String, usize),
    Overwrite(String, usize),
    Rename(String, String),
    Remove(String),
    HardLink(String, String),
    Symbolic(String, String),
    List(String),
    Read(String),
}

impl Tree {
    pub(crate) fn run(&self) -> anyhow::Result<String> {
        fs::create_dir_all(&self.folder)?;
        ensure!(fs::read_dir(&self.folder)?.next().is_none(), "the folder is not empty");
        let random = Random::new(self.seed);
        let (nodes, contents) = (BTreeMap::new(), Vec::new());
        let mut run = Run { tree: self, random, nodes, contents, names: 0 };
        for number in 0..self.operations {
            let Some(step) = run.choose() else { continue };
            let said = || format!("seed {}, operation {number}, {step:?}", self.seed);
            run.take(&step).with_context(said)?;
        }
        run.compare().with_context(|| format!("seed {}, at the end", self.seed))?;
        let nodes = run.nodes.len();
        run.remove_all().context("removing all")?;
        Ok(format!("operations={} nodes={nodes}", self.operations))
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl Run<'_> {
    fn at(&self, path: &str) -> PathBuf {
        self.tree.folder.join(path)
    }

    fn pick(&mut self, wanted: impl Fn(&Node) -> bool) -> Option<String> {
        let all: Vec<&String> =
            self.nodes.iter().filter(|(_, node)| wanted(node)).map(|(path, _)| path).collect();
        if all.is_empty() {
            return None;
        }
        let at = self.random.below(all.len());
        Some(all[at].clone())
    }

    /// The top is a folder, too.
    fn pick_folder(&mut self) -> String {
        if self.random.below(4) == 0 {
            return String::new();
        }
        self.pick(|node| *node == Node::Folder).unwrap_or_default()
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        let folder = self.pick_folder();
        let number = self.names;
        let name = match self.random.below(6) {
            0 => format!("with some spaces {number}"),
            1 => format!("Ünïcødé-文件-{number}"),
            2 => format!("{}-{number}", "long".repeat(40)),
            3 => format!("UPPER.lower.{number}"),
            _ => format!("n{number}"),
        };
        if folder.is_empty() { name } else { format!("{folder}/{name}") }
    }

    fn choose(&mut self) -> Option<Step> {
        let file = |node: &Node| matches!(node, Node::File(_));
        Some(match self.random.below(100) {
            0..14 => Step::MakeFolder(self.new_name()),
            14..42 => {
                let name = self.new_name();
                Step::MakeFile(name, self.random.below(30_000))
            }
            42..50 => {
                let name = self.pick(file)?;
                Step::Overwrite(name, self.random.below(50_000))
            }
            50..64 => {
                let from = self.pick(|_| true)?;
                // At times onto another file, which it replaces.
                let to = match self.random.below(4) {
                    0 if file(&self.nodes[&from]) => self.pick(file)?,
                    _ => self.new_name(),
                };
                Step::Rename(from, to)
            }
            64..76 => Step::Remove(self.pick(|_| true)?),
            76..82 if self.tree.hard_links => {
                let from = self.pick(file)?;
                Step::HardLink(from, self.new_name())
            }
            82..87 if self.tree.symbolic_links => {
                let target = format!("to/nowhere/{}", self.names);
                Step::Symbolic(target, self.new_name())
            }
            87..94 => Step::List(self.pick_folder()),
            _ => Step::Read(self.pick(file)?),
        })
    }

    fn take(&mut self, step: &Step) -> anyhow::Result<()> {
        match step {
            Step::MakeFolder(path) => {
                fs::create_dir(self.at(path))?;
                self.nodes.insert(path.clone(), Node::Folder);
                let again = fs::create_dir(self.at(path));
                ensure!(
                    again.is_err_and(|e| e.kind() == io::ErrorKind::AlreadyExists),
                    "it is made a second time"
                );
            }
            Step::MakeFile(path, len) => {
                let bytes = self.fresh(*len);
                fs::write(self.at(path), &bytes)?;
                self.contents.push(bytes);
                self.nodes.insert(path.clone(), Node::File(self.contents.len() - 1));
            }
            Step::Overwrite(path, len) => {
                let bytes = self.fresh(*len);
                fs::write(self.at(path), &bytes)?;
                let Node::File(content) = self.nodes[path] else { bail!("no file") };
                self.contents[content] = bytes;
            }
            Step::Rename(from, to) => self.rename(from, to)?,
            Step::Remove(path) => self.remove(path)?,
            Step::HardLink(from, to) => {
                fs::hard_link(self.at(from), self.at(to))?;
                self.nodes.insert(to.clone(), self.nodes[from].clone());
            }
            Step::Symbolic(target, path) => {
                std::os::unix::fs::symlink(target, self.at(path))?;
                self.nodes.insert(path.clone(), Node::Symbolic(target.clone()));
            }
            Step::List(path) => self.compare_folder(path)?,
            Step::Read(path) => self.compare_node(path, &self.nodes[path])?,
        }
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> anyhow::Result<()> {
        let below = |path: &str| path == from || path.starts_with(&format!("{from}/"));
        if below(to) {
            ensure!(
                to == from || fs::rename(self.at(from), self.at(to)).is_err(),
                "a folder is moved into itself"
            );
            return Ok(());
        }
        fs::rename(self.at(from), self.at(to))?;
        // Two names of one file: nothing happens, says rename(2).
        if self.nodes.get(to).is_some_and(|node| *node == self.nodes[from]) {
            let both = self.at(from).exists();
            if both {
                return Ok(());
            }
        }
        let moved: Vec<String> = self.nodes.keys().filter(|path| below(path)).cloned().collect();
        for path in moved {
            if let Some(node) = self.nodes.remove(&path) {
                self.nodes.insert(format!("{to}{}", &path[from.len()..]), node);
            }
        }
        ensure!(fs::symlink_metadata(self.at(from)).is_err(), "the old name is still there");
        Ok(())
    }

    fn remove(&mut self, path: &str) -> anyhow::Result<()> {
        let is_folder = self.nodes[path] == Node::Folder;
        if !is_folder {
            fs::remove_file(self.at(path))?;
            self.nodes.remove(path);
            ensure!(fs::symlink_metadata(self.at(path)).is_err(), "it is still there");
            return Ok(());
        }
        let removed = fs::remove_dir(self.at(path));
        if self.nodes.keys().any(|other| parent(other) == path) {
            let kind = removed.err().map(|e| e.kind());
            ensure!(kind == Some(io::ErrorKind::DirectoryNotEmpty), "not empty, but {kind:?}");
            return Ok(());
        }
        removed?;
        self.nodes.remove(path);
        Ok(())
    }

    fn fresh(&mut self, len: usize) -> Vec<u8> {
        let random = &mut self.random;
        std::iter::repeat_with(|| random.word().to_le_bytes()).flatten().take(len).collect()
    }

    fn compare_folder(&self, path: &str) -> anyhow::Result<()> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.at(path))? {
            found.push(entry?.file_name().to_string_lossy().into_owned());
        }
        found.sort_unstable();
        let inside = self.nodes.keys().filter(|other| parent(other) == path);
        let name = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
        let mut wanted: Vec<String> = inside.map(name).collect();
        wanted.sort_unstable();
        ensure!(found == wanted, "{path:?} has {found:?}, not {wanted:?}");
        Ok(())
    }

    fn compare_node(&self, path: &str, node: &Node) -> anyhow::Result<()> {
        let at = self.at(path);
        let facts = fs::symlink_metadata(&at).with_context(|| path.to_owned())?;
        match node {
            Node::Folder => {
                ensure!(facts.is_dir(), "{path} is no folder");
                self.compare_folder(path)
            }
            Node::Symbolic(target) => {
                ensure!(fs::read_link(&at)? == Path::new(target), "{path} leads elsewhere");
                Ok(())
            }
            Node::File(content) => {
                let wanted = &self.contents[*content];
                let found = fs::read(&at).with_context(|| path.to_owned())?;
                ensure!(
                    facts.len() == wanted.len() as u64 || !self.tree.hard_links,
                    "{path} is said to have {} bytes",
                    facts.len()
                );
                let (f, w) = (found.len(), wanted.len());
                ensure!(found == *wanted, "{path} has other bytes: {f} of them, not {w}");
                Ok(())
            }
        }
    }

    fn compare(&self) -> anyhow::Result<()> {
        self.compare_folder("")?;
        self.nodes.iter().try_for_each(|(path, node)| self.compare_node(path, node))
    }

    fn remove_all(&mut self) -> anyhow::Result<()> {
        // What is inside comes behind what it is in.
        while let Some((path, _)) = self.nodes.last_key_value() {
            let path = path.clone();
            self.remove(&path).with_context(|| path.clone())?;
            ensure!(!self.nodes.contains_key(&path), "{path} stays");
        }
        ensure!(fs::read_dir(&self.tree.folder)?.next().is_none(), "something is left");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_this_machine_are_what_folders_are() {
        let directory = testkit::kernels::ending::Directory::new().unwrap();
        for seed in 0..4 {
            let folder = directory.path().join(format!("tree-{seed}"));
            let (hard_links, symbolic_links) = (true, true);
            let tree = Tree { folder, seed, operations: 400, hard_links, symbolic_links };
            tree.run().unwrap();
        }
    }

    #[test]
    fn a_name_that_nobody_made_is_noticed() {
        let directory = testkit::kernels::ending::Directory::new().unwrap();
        let folder = directory.path().to_owned();
        let tree =
            Tree { folder, seed: 1, operations: 1, hard_links: false, symbolic_links: false };
        let (nodes, contents) = (BTreeMap::new(), Vec::new());
        let mut run = Run { tree: &tree, random: Random::new(1), nodes, contents, names: 0 };
        run.take(&Step::MakeFile("a".into(), 10)).unwrap();
        run.compare().unwrap();
        fs::write(directory.path().join("a"), "other").unwrap();
        assert!(run.compare().is_err());
        run.take(&Step::Overwrite("a".into(), 10)).unwrap();
        fs::write(directory.path().join("b"), "new").unwrap();
        assert!(run.compare().is_err());
    }
}
