//! Finding the folders beneath those that are watched, a step at a time.
//!
//! A step looks at one folder, or at one name in it, for all who listen and have the same rights. What it finds there
//! are further steps. Those that follow from what the kernel told come first: the others, of watches that have just
//! begun, may be many.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;

use super::super::super::acting;
use super::super::Identity;
use super::super::facts::{device, file_type, stat, stat_at};
use super::folders::{Heard, Name, Number, Root, Tree};
use super::{Adrift, ChangeKind, Watch, Watcher};

/// Steps that wait.
const STEPS_MAX: usize = 1 << 18;

/// Why somebody looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A watch begins, or what is there came as it is: that is nothing new.
    Begun,
    /// The folder is new, and all that is in it.
    New,
    /// Some events were lost, or there was no room. Each folder once in a round.
    Again(u32),
}

#[derive(Debug)]
pub(super) struct Step {
    pub(super) folder: Number,
    /// The one name to look at; `None`: all.
    pub(super) only: Option<Name>,
    /// Who listens; all of one user.
    pub(super) who: Arc<[Watch]>,
    pub(super) why: Why,
}

/// The steps that wait.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Of what has just happened.
    fresh: VecDeque<Step>,
    others: VecDeque<Step>,
}

impl Steps {
    pub(super) fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.others.is_empty()
    }

    pub(super) fn fresh(&self) -> usize {
        self.fresh.len()
    }

    /// Whether there was room.
    fn push(&mut self, step: Step, fresh: bool) -> Result<(), Step> {
        if self.fresh.len() + self.others.len() >= STEPS_MAX {
            return Err(step);
        }
        if fresh { &mut self.fresh } else { &mut self.others }.push_back(step);
        Ok(())
    }

    /// The next one, and whether it is of what has just happened.
    fn pop(&mut self) -> Option<(Step, bool)> {
        let next = self.fresh.pop_front().map(|step| (step, true));
        next.or_else(|| self.others.pop_front().map(|step| (step, false)))
    }
}

impl Tree {
    /// A folder of the tree; a link on the way is not followed.
    fn open(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let path = if path.is_empty() { b"." } else { path };
        rustix::fs::openat2(&self.folder, path, flags, Mode::empty(), resolve)
    }
}

/// Whether something is gone or not for this user, not missed for a lack of something.
fn is_nothing(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::PERM)
}

fn identity_of(fd: &OwnedFd) -> Result<Identity, Errno> {
    stat(fd).map(|stat| Identity { device: device(&stat), inode: stat.stx_ino })
}

/// What a step is done with.
struct At<'s> {
    step: &'s Step,
    folder: OwnedFd,
    fresh: bool,
}

impl Watcher {
    /// Looks at a name later, for those who listen to all beneath the folder that it is in.
    pub(super) fn look_at(&mut self, folder: Number, name: &Name, why: Why) {
        let who: Vec<Watch> = self.folders.of_trees(folder).collect();
        for who in self.by_user(who) {
            let step = Step { folder, only: Some(name.clone()), who, why };
            self.push(step, true);
        }
    }

    /// Looks at all that a watch is of.
    pub(super) fn look_at_all(&mut self, folder: Number, watch: Watch) {
        let who = Arc::from([watch]);
        self.push(Step { folder, only: None, who, why: Why::Begun }, false);
    }

    /// Watches of the same user together.
    fn by_user(&self, who: Vec<Watch>) -> Vec<Arc<[Watch]>> {
        let whose = |watch: &Watch| {
            let tree = self.folders.roots.get(watch).and_then(|root| root.tree.as_ref());
            tree.and_then(|tree| tree.whose.as_ref()).map(Arc::as_ptr)
        };
        let mut who = who;
        who.sort_unstable_by_key(whose);
        who.chunk_by(|a, b| whose(a) == whose(b)).map(Arc::from).collect()
    }

    fn push(&mut self, step: Step, fresh: bool) {
        if let Err(step) = self.steps.push(step, fresh) {
            // Looked at when there is time.
            self.miss(&step.who);
        }
    }

    /// These have missed something, and are looked at again.
    fn miss(&mut self, who: &[Watch]) {
        for watch in who {
            if let Some(root) = self.folders.roots.get_mut(watch) {
                root.again = true;
                self.lost.insert(*watch);
            }
        }
    }

    /// These have missed something.
    fn lose(&mut self, who: &[Watch]) {
        let roots = &self.folders.roots;
        self.lost.extend(who.iter().copied().filter(|watch| roots.contains_key(watch)));
    }

    /// Takes so many steps, if there are.
    pub(super) fn take_steps(&mut self, most: usize) {
        for _ in 0..most {
            let Some((step, fresh)) = self.steps.pop() else { return };
            self.step(step, fresh);
        }
    }

    fn step(&mut self, step: Step, fresh: bool) {
        let chain = self.folders.chain(step.folder);
        // Any of them will do to get there: all may do the same.
        let by = step.who.iter().find_map(|watch| {
            let root = self.folders.roots.get(watch)?;
            let tree = root.tree.as_ref()?;
            Some((tree, chain.below(root.folder)?))
        });
        let Some((tree, path)) = by else { return };
        let Some(known) = self.folders.get(step.folder).map(|folder| folder.identity) else {
            return;
        };
        let whose = tree.whose.clone();
        let opened = acting::act(&whose, || tree.open(&path));
        // Without memory to be that user, and without descriptors, it is missed.
        let Ok(opened) = opened else { return self.lose(&step.who) };
        let folder = match opened {
            Ok(folder) => folder,
            Err(errno) if is_nothing(errno) => return,
            Err(_) => return self.lose(&step.who),
        };
        // Another one has the name by now: what the kernel says of that is still to come.
        if identity_of(&folder) != Ok(known) {
            return;
        }
        let at = At { step: &step, folder, fresh };
        let done = acting::act(&whose, || match &step.only {
            Some(name) => drop(self.visit(&at, name)),
            None => self.read(&at),
        });
        if done.is_err() {
            self.lose(&step.who);
        }
    }

    /// Looks at all that is in a folder.
    fn read(&mut self, at: &At<'_>) {
        let (step, why) = (at.step, at.step.why);
        if matches!(why, Why::Again(_)) {
            self.check_known(at);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&at.folder, c".", flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(errno) if is_nothing(errno) => return,
            Err(_) => return self.lose(&step.who),
        };
        let mut buffer = Vec::with_capacity(32 << 10);
        let spare: &mut [MaybeUninit<u8>] = buffer.spare_capacity_mut();
        let mut entries = RawDir::new(fd, spare);
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not say.
                FileType::Unknown => {
                    stat_at(&at.folder, name).map_or(FileType::Unknown, |stat| file_type(&stat))
                }
                kind => kind,
            };
            let folder = kind == FileType::Directory;
            if why == Why::New {
                self.tell(step.folder, &step.who, ChangeKind::Added, name, folder, 0);
            }
            if folder && !self.visit(at, &Name::from(name)) && why != Why::New {
                // Nobody has room: the rest is no use.
                return;
            }
        }
    }

    /// Folders that are in this one no longer are not watched on. Which ones, events that were lost had said.
    fn check_known(&mut self, at: &At<'_>) {
        for (name, number) in self.folders.all_inside(at.step.folder) {
            let there = stat_at(&at.folder, &*name);
            let there = there.map(|stat| Identity { device: device(&stat), inode: stat.stx_ino });
            let known = self.folders.get(number).map(|folder| folder.identity);
            match there {
                Ok(there) if Some(there) == known => {}
                // Not for this user.
                Err(Errno::ACCESS | Errno::PERM) => {}
                _ => {
                    let from = self.folders.detach(number);
                    self.adrift.insert(number, Adrift { from, age: 0 });
                }
            }
        }
    }

    /// Watches one folder in another, for those who look. Whether there was room for somebody.
    fn visit(&mut self, at: &At<'_>, name: &Name) -> bool {
        let step = at.step;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&at.folder, &**name, flags, Mode::empty());
        let found = opened.and_then(|fd| identity_of(&fd).map(|identity| (fd, identity)));
        let (fd, identity) = match found {
            Ok(found) => found,
            Err(errno) if is_nothing(errno) => return true,
            Err(_) => {
                self.lose(&step.who);
                return true;
            }
        };
        let number = match self.ask(fd.as_fd()) {
            Ok(number) => number,
            Err(errno) if is_nothing(errno) => return true,
            Err(_) => {
                self.lose(&step.who);
                // The kernel has no more for this user.
                return false;
            }
        };
        let (mut new, mut full) = (false, 0);
        for watch in &*step.who {
            if !self.folders.roots.contains_key(watch) {
                full += 1;
                continue;
            }
            match self.folders.hear(number, identity, *watch) {
                Heard::New => {
                    new = true;
                    if matches!(step.why, Why::Again(_)) {
                        self.lost.insert(*watch);
                    }
                }
                Heard::Already => {}
                Heard::Full => {
                    full += 1;
                    self.is_short(*watch, step.why);
                }
            }
        }
        if self.folders.get(number).is_none() {
            self.ask_no_longer(number);
            return full < step.who.len();
        }
        self.put(number, step.folder, name);
        let looked = match step.why {
            Why::Again(round) => self.folders.begins_round(number, round),
            _ => false,
        };
        if new || looked {
            let next = Step { folder: number, only: None, who: step.who.clone(), why: step.why };
            self.push(next, at.fresh);
        }
        full < step.who.len()
    }

    /// There is no room for all that a watch is of. Its client is told once, and again when something new is missed.
    fn is_short(&mut self, watch: Watch, why: Why) {
        let Some(root) = self.folders.roots.get_mut(&watch) else { return };
        if !std::mem::replace(&mut root.short, true) || why == Why::New {
            self.lost.insert(watch);
        }
    }

    /// A folder was found in another.
    fn put(&mut self, number: Number, above: Number, name: &Name) {
        if self.folders.place_of(number) == Some((above, name)) {
            return;
        }
        let was = self.folders.place_of(number).is_some() || self.adrift.remove(&number).is_some();
        self.place(number, above, name);
        if was {
            // It has been moved, as is still to be heard; or is in two places, by a mount: then it goes by one of
            // them, and who watches the other has to look.
            let lost: Vec<Watch> = self.settle(number).into_iter().collect();
            self.lose(&lost);
        }
    }

    /// Looks again at what has been missed, as far as there is room. Whether there is something to do now.
    pub(super) fn look_again(&mut self) -> bool {
        let again = |(watch, root): (&Watch, &Root)| {
            let due = root.again || (root.short && self.folders.has_room_again(*watch));
            (due && root.tree.is_some()).then_some((root.folder, *watch))
        };
        let due: Vec<_> = self.folders.roots.iter().filter_map(again).collect();
        // One folder in a round: those of others are for the next.
        let Some(folder) = due.iter().map(|(folder, _)| *folder).min() else { return false };
        let who: Vec<Watch> =
            due.into_iter().filter(|due| due.0 == folder).map(|(_, watch)| watch).collect();
        let Some(who) = self.by_user(who).into_iter().next() else { return false };
        for watch in &*who {
            if let Some(root) = self.folders.roots.get_mut(watch) {
                (root.again, root.short) = (false, false);
            }
        }
        self.round = self.round.wrapping_add(1);
        self.push(Step { folder, only: None, who, why: Why::Again(self.round) }, false);
        true
    }
}
