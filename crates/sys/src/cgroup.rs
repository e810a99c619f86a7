//! Control groups (version 2): which directory stands for which, wherever it is mounted.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::call::{self, Failure};
use crate::interface::own;

/// The tree of all groups of version 2 that we can see.
///
/// Where no directory shows it (no such mount, or `/sys` of a network namespace hides it) it is mounted
/// for this process alone, at no path.
#[derive(Debug)]
pub struct Hierarchy {
    root: Arc<File>,
}

impl Hierarchy {
    /// Finds the tree where it is mounted, or mounts it.
    ///
    /// # Errors
    ///
    /// The errno of the mount: `EPERM` without `CAP_SYS_ADMIN`, `ENODEV` if the kernel has no cgroups.
    pub fn open() -> Result<Self, Failure> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounted = mounts.lines().find_map(mount_point).map(open_directory);
        let root = match mounted {
            Some(Ok(root)) => root,
            Some(Err(_)) | None => mount()?,
        };
        Ok(Self { root: Arc::new(root) })
    }

    /// The group that this process is in, as a path from the top, like `/user.slice`; `None`: the
    /// kernel does not say.
    #[must_use]
    pub fn own_path() -> Option<PathBuf> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        groups.lines().find_map(|line| line.strip_prefix("0::")).map(PathBuf::from)
    }

    /// Opens the group at this path from the top.
    ///
    /// # Errors
    ///
    /// The errno: `ENOENT` if there is none.
    pub fn group(&self, path: &Path) -> Result<Group, Failure> {
        let path = self.place(path);
        let directory = open_directory(path.clone()).map_err(failed("open the cgroup"))?;
        Ok(Group { directory, path, _root: self.root.clone(), made: false })
    }

    /// Makes a group at this path from the top. It is removed when it is dropped and nobody is in it.
    ///
    /// # Errors
    ///
    /// The errno: `EEXIST` if there is one, `EACCES` or `EPERM` without the right to.
    pub fn make(&self, path: &Path) -> Result<Group, Failure> {
        let place = self.place(path);
        fs::create_dir(place).map_err(failed("make a cgroup"))?;
        let mut group = self.group(path)?;
        group.made = true;
        Ok(group)
    }

    /// A path by which our descriptor's mount is reached even if no directory shows it.
    fn place(&self, path: &Path) -> PathBuf {
        let below = path.strip_prefix("/").unwrap_or(path);
        PathBuf::from(format!("/proc/self/fd/{}", self.root.as_raw_fd())).join(below)
    }
}

/// A group: processes come in by [`Group::join`] or by being started by one that is in.
#[derive(Debug)]
pub struct Group {
    directory: File,
    /// Leads through the descriptor of the root, which therefore stays open.
    path: PathBuf,
    _root: Arc<File>,
    made: bool,
}

impl Group {
    /// Moves this process in, with all its threads.
    ///
    /// # Errors
    ///
    /// The errno: `EACCES` without the right to, `EOPNOTSUPP` if the group is one for threads.
    pub fn join(&self) -> Result<(), Failure> {
        self.write("cgroup.procs", "0").map_err(failed("join the cgroup"))
    }

    /// Makes it a group for single threads of a process that is in the group above.
    ///
    /// # Errors
    ///
    /// The errno: `EOPNOTSUPP` where the group above cannot have such.
    pub fn take_threads(&self) -> Result<(), Failure> {
        self.write("cgroup.type", "threaded").map_err(failed("make it a cgroup for threads"))
    }

    /// Moves this thread in. Sockets that it makes from now on belong to the group.
    ///
    /// # Errors
    ///
    /// The errno: `EOPNOTSUPP` if the group is not one for threads.
    pub fn join_thread(&self) -> Result<(), Failure> {
        self.write("cgroup.threads", "0").map_err(failed("move the thread into the cgroup"))
    }

    fn write(&self, file: &str, what: &str) -> std::io::Result<()> {
        let at = format!("/proc/self/fd/{}/{file}", self.directory.as_raw_fd());
        fs::write(at, what)
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.made {
            // It stays while somebody is in it, which is not ours to change.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

fn open_directory(path: PathBuf) -> std::io::Result<File> {
    File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC).open(path)
}

/// Where a line of `mountinfo` says that cgroups of version 2 are.
fn mount_point(line: &str) -> Option<PathBuf> {
    let (place, kind) = line.split_once(" - ")?;
    let is_ours = kind.split(' ').next() == Some("cgroup2");
    // The kernel writes a blank as \040; nobody mounts cgroups at such a place.
    place.split(' ').nth(4).filter(|_| is_ours).map(PathBuf::from)
}

fn mount() -> Result<File, Failure> {
    let mount = call::mount_detached(c"cgroup2").map_err(Failure::at("mount cgroups"))?;
    Ok(File::from(own(mount)))
}

fn failed(step: &'static str) -> impl FnOnce(std::io::Error) -> Failure {
    move |e| Failure { step, errno: e.raw_os_error().unwrap_or(libc::EIO) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_kind() {
        let line = "35 24 0:29 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw";
        assert_eq!(mount_point(line), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        let v1 = "36 24 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        assert_eq!(mount_point(v1), None);
        assert_eq!(mount_point("nonsense"), None);
    }

    #[test]
    fn a_group_is_made_and_removed() {
        let name = PathBuf::from(format!("/shunt-test-{}", std::process::id()));
        for open in [Hierarchy::open, || Ok(Hierarchy { root: Arc::new(mount()?) })] {
            let made = open().and_then(|tree| Ok((tree.make(&name)?, tree)));
            let (group, tree) = match made {
                Ok(made) => made,
                Err(e) => return println!("skipped: {e}"),
            };
            assert_eq!(tree.make(&name).unwrap_err().errno, libc::EEXIST);
            drop(group);
            assert_eq!(tree.group(&name).unwrap_err().errno, libc::ENOENT);
        }
    }
}
