//! What is known of the folders that the kernel watches: where each is, and who listens.
//!
//! A folder has one record, however many listen to it, and says its name and the folder that it is in; what it is
//! called from somebody's folder follows from that ([`Folders::chain`]). So a folder that gets another name takes what is
//! beneath it along.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::super::super::acting::Whose;
use super::super::Identity;
use super::{Limits, Watch};

/// Folders in each other at most; a deeper one is not told of by its name.
const DEPTH_MAX: usize = 2048;

/// The kernel's number of a folder that it watches.
pub(super) type Number = i32;
pub(super) type Name = Arc<[u8]>;

/// A folder that the kernel watches.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) identity: Identity,
    /// In which other one it is, and its name there. `None` if that is not watched, or not known now.
    place: Option<(Number, Name)>,
    inside: BTreeMap<Name, Number>,
    /// In order.
    listeners: Vec<Watch>,
    /// When it was looked at again last.
    round: u32,
}

impl Folder {
    fn hears(&self, watch: Watch) -> bool {
        self.listeners.binary_search(&watch).is_ok()
    }
}

/// Where a watch begins.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) folder: Number,
    /// Folders that are watched for it now.
    count: usize,
    /// If it is of what is beneath, too.
    pub(super) tree: Option<Tree>,
    /// There was no room for all of it.
    pub(super) short: bool,
    /// It is to be looked at again.
    pub(super) again: bool,
}

/// By which a tree is looked at.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) folder: OwnedFd,
    /// On whose behalf.
    pub(super) whose: Whose,
}

/// What became of a wish to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    New,
    Already,
    /// There is no room.
    Full,
}

/// A folder and those that it is in, from the inside.
pub(super) struct Chain(Vec<(Number, Option<Name>)>);

impl Chain {
    /// The path from `root`, as on disk; `None` if that is not above.
    pub(super) fn below(&self, root: Number) -> Option<Vec<u8>> {
        let at = self.0.iter().position(|(number, _)| *number == root)?;
        let names = self.0.get(..at)?.iter().rev().filter_map(|(_, name)| name.as_deref());
        let mut path = Vec::new();
        for name in names {
            super::join(&mut path, name);
        }
        Some(path)
    }

    /// The outermost that is known.
    pub(super) fn top(&self) -> Option<Number> {
        self.0.last().map(|(number, _)| *number)
    }
}

#[derive(Debug)]
pub(super) struct Folders {
    by_number: HashMap<Number, Folder>,
    pub(super) roots: HashMap<Watch, Root>,
    /// Of all folders together.
    listeners: usize,
    limits: Limits,
}

impl Folders {
    pub(super) fn new(limits: Limits) -> Self {
        Self { by_number: HashMap::new(), roots: HashMap::new(), listeners: 0, limits }
    }

    pub(super) fn get(&self, number: Number) -> Option<&Folder> {
        self.by_number.get(&number)
    }

    /// The folder of this name in another.
    pub(super) fn inside(&self, number: Number, name: &[u8]) -> Option<Number> {
        self.get(number)?.inside.get(name).copied()
    }

    /// All that are known to be in a folder.
    pub(super) fn all_inside(&self, number: Number) -> Vec<(Name, Number)> {
        let inside = self.get(number).into_iter().flat_map(|folder| &folder.inside);
        inside.map(|(name, number)| (name.clone(), *number)).collect()
    }

    pub(super) fn listeners(&self, number: Number) -> &[Watch] {
        self.get(number).map_or(&[], |folder| &folder.listeners)
    }

    /// Who listens to a folder and to what is beneath it.
    pub(super) fn of_trees(&self, number: Number) -> impl Iterator<Item = Watch> {
        let listeners = self.listeners(number).iter().copied();
        listeners.filter(|watch| self.roots.get(watch).is_some_and(|root| root.tree.is_some()))
    }

    /// Whether `watch` may listen to one more folder.
    pub(super) fn has_room(&self, watch: Watch) -> bool {
        self.listeners < self.limits.listeners
            && self.roots.get(&watch).is_some_and(|root| root.count < self.limits.tree)
    }

    /// Whether a watch that had no room has some now: not just a little, or it would be tried each time.
    pub(super) fn has_room_again(&self, watch: Watch) -> bool {
        let well_below = |count: usize, most: usize| count < most - most / 4;
        well_below(self.listeners, self.limits.listeners)
            && well_below(self.by_number.len(), self.limits.folders)
            && self.roots.get(&watch).is_some_and(|root| well_below(root.count, self.limits.tree))
    }

    /// The folder that a watch is of; for that there is always room, since there are not so many watches.
    pub(super) fn begin(
        &mut self,
        number: Number,
        identity: Identity,
        watch: Watch,
        tree: Option<Tree>,
    ) {
        let root = Root { folder: number, count: 0, tree, short: false, again: false };
        self.roots.insert(watch, root);
        self.listen(number, identity, watch);
    }

    /// `watch` listens to one more folder, if there is room.
    pub(super) fn hear(&mut self, number: Number, identity: Identity, watch: Watch) -> Heard {
        match self.get(number) {
            Some(folder) if folder.hears(watch) => return Heard::Already,
            None if self.by_number.len() >= self.limits.folders => return Heard::Full,
            _ if !self.has_room(watch) => return Heard::Full,
            _ => {}
        }
        self.listen(number, identity, watch);
        Heard::New
    }

    fn listen(&mut self, number: Number, identity: Identity, watch: Watch) {
        let folder = self.by_number.entry(number).or_insert_with(|| Folder {
            identity,
            place: None,
            inside: BTreeMap::new(),
            listeners: Vec::new(),
            round: 0,
        });
        if let Err(at) = folder.listeners.binary_search(&watch) {
            folder.listeners.insert(at, watch);
        }
        self.listeners += 1;
        if let Some(root) = self.roots.get_mut(&watch) {
            root.count += 1;
        }
    }

    /// Those listeners of a folder that `stays` says no of listen no longer. Whether somebody does.
    fn retain(&mut self, number: Number, mut stays: impl FnMut(Watch) -> bool) -> bool {
        let Some(folder) = self.by_number.get_mut(&number) else { return false };
        let (roots, listeners) = (&mut self.roots, &mut self.listeners);
        folder.listeners.retain(|watch| {
            let stays = stays(*watch);
            if !stays {
                *listeners -= 1;
                if let Some(root) = roots.get_mut(watch) {
                    root.count -= 1;
                }
            }
            stays
        });
        if folder.listeners.capacity() > 4 * folder.listeners.len() + 4 {
            // Else what many had once would stay when others have their share elsewhere.
            folder.listeners.shrink_to_fit();
        }
        !folder.listeners.is_empty()
    }

    /// A watch has ended. Which folders nobody listens to any more; they are not known any longer.
    pub(super) fn forget(&mut self, watch: Watch) -> Vec<Number> {
        let heard = self.by_number.iter().filter(|(_, folder)| folder.hears(watch));
        let numbers: Vec<Number> = heard.map(|(number, _)| *number).collect();
        let mut deaf = Vec::new();
        for number in numbers {
            if !self.retain(number, |listener| listener != watch) {
                self.remove(number);
                deaf.push(number);
            }
        }
        self.roots.remove(&watch);
        deaf
    }

    /// A folder is gone.
    pub(super) fn remove(&mut self, number: Number) {
        self.retain(number, |_| false);
        self.detach(number);
        let Some(gone) = self.by_number.remove(&number) else { return };
        for inside in gone.inside.values() {
            if let Some(folder) = self.by_number.get_mut(inside) {
                folder.place = None;
            }
        }
    }

    /// A folder is not where it was, and nobody knows yet where it is. In which one it was.
    pub(super) fn detach(&mut self, number: Number) -> Option<Number> {
        let (above, name) = self.by_number.get_mut(&number)?.place.take()?;
        if let Some(folder) = self.by_number.get_mut(&above)
            && folder.inside.get(&name) == Some(&number)
        {
            folder.inside.remove(&name);
        }
        Some(above)
    }

    /// A folder is in this one. The folder that was known under this name until now, if it is another.
    pub(super) fn place(&mut self, number: Number, above: Number, name: &Name) -> Option<Number> {
        self.detach(number);
        let displaced = self.inside(above, name);
        if let Some(displaced) = displaced {
            self.detach(displaced);
        }
        if let Some(folder) = self.by_number.get_mut(&above) {
            folder.inside.insert(name.clone(), number);
            if let Some(folder) = self.by_number.get_mut(&number) {
                folder.place = Some((above, name.clone()));
            }
        }
        displaced
    }

    pub(super) fn place_of(&self, number: Number) -> Option<(Number, &Name)> {
        self.get(number)?.place.as_ref().map(|(above, name)| (*above, name))
    }

    /// Whether a folder is looked at for the first time in this round.
    pub(super) fn begins_round(&mut self, number: Number, round: u32) -> bool {
        let folder = self.by_number.get_mut(&number);
        folder.is_some_and(|folder| std::mem::replace(&mut folder.round, round) != round)
    }

    pub(super) fn chain(&self, number: Number) -> Chain {
        let mut chain = Vec::new();
        let mut next = self.get(number).map(|folder| (number, folder));
        while let Some((number, folder)) = next
            && chain.len() < DEPTH_MAX
        {
            chain.push((number, folder.place.as_ref().map(|(_, name)| name.clone())));
            next = folder
                .place
                .as_ref()
                .and_then(|(above, _)| Some((*above, self.by_number.get(above)?)));
        }
        Chain(chain)
    }

    fn subtree(&self, number: Number) -> HashSet<Number> {
        let mut found = HashSet::from([number]);
        let mut todo = vec![number];
        while let Some(number) = todo.pop() {
            for inside in self.get(number).into_iter().flat_map(|folder| folder.inside.values()) {
                if found.insert(*inside) {
                    todo.push(*inside);
                }
            }
        }
        found
    }

    /// A folder has come to another place: who listens to that, and who began beneath, goes on to listen; others do no
    /// longer. Who has lost something, and which folders nobody listens to any more; those are not known any longer.
    pub(super) fn settle(&mut self, number: Number) -> (HashSet<Watch>, Vec<Number>) {
        let moved = self.subtree(number);
        let above = self.place_of(number).map(|(above, _)| above);
        let goes_on: HashSet<Watch> =
            above.into_iter().flat_map(|above| self.of_trees(above)).collect();
        let begun: HashSet<Watch> = self
            .roots
            .iter()
            .filter(|(_, root)| moved.contains(&root.folder))
            .map(|(watch, _)| *watch)
            .collect();
        let (mut lost, mut deaf) = (HashSet::new(), Vec::new());
        for number in moved {
            let heard = self.retain(number, |watch| {
                let stays = goes_on.contains(&watch) || begun.contains(&watch);
                if !stays {
                    lost.insert(watch);
                }
                stays
            });
            if !heard {
                self.remove(number);
                deaf.push(number);
            }
        }
        (lost, deaf)
    }
}
