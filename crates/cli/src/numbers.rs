//! Numbers of processes, as they are seen from here. On the board each process says the number that it knows itself by,
//! which in a container is another one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Digits of a container's identity, and how many of them are enough for people, as `docker ps` has it.
const IDENTITY: usize = 64;
const SHOWN: usize = 12;

/// A process by what the board says of it: the inode number of its namespace of process numbers (0: it is not known), and
/// its number there.
pub(crate) type Inner = (u64, u32);

/// Which processes of this host those of other namespaces are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers {
    own: u64,
    others: BTreeMap<Inner, u32>,
}

impl Numbers {
    /// Finds these, as far as we may look at them.
    pub(crate) fn find(wanted: impl IntoIterator<Item = Inner>) -> Self {
        let own = namespace("self").unwrap_or(0);
        let foreign = |inner: &Inner| inner.0 != 0 && inner.0 != own;
        let wanted: BTreeSet<Inner> = wanted.into_iter().filter(foreign).collect();
        if wanted.is_empty() {
            return Self { own, others: BTreeMap::new() };
        }
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let others = numbers
            .filter_map(|number: u32| Some((inner(number)?, number)))
            .filter(|(inner, _)| wanted.contains(inner))
            .collect();
        Self { own, others }
    }

    /// Whether the process is of another namespace than we are.
    pub(crate) const fn is_elsewhere(&self, (namespace, _): Inner) -> bool {
        namespace != 0 && namespace != self.own
    }

    /// The number by which we know the process; `None`: there is none, or we may not look.
    pub(crate) fn here(&self, inner: Inner) -> Option<u32> {
        if self.is_elsewhere(inner) {
            return self.others.get(&inner).copied();
        }
        exists(inner.1).then_some(inner.1)
    }
}

/// Whether a process of that number exists, as far as we can see.
pub(crate) fn exists(pid: u32) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap_or(false)
}

/// How a process of this number here is known where it is.
pub(crate) fn inner(pid: u32) -> Option<Inner> {
    let namespace = namespace(&pid.to_string())?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some((namespace, innermost(&status)?))
}

fn namespace(process: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{process}/ns/pid")).ok().map(|at| at.ino())
}

/// The last of a process's numbers in `/proc/PID/status`: from the outermost namespace that we see to its own.
fn innermost(status: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

/// The container that a process of this number here is in: the beginning of its identity.
pub(crate) fn container(pid: u32) -> Option<String> {
    identity(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// All engines name a container's control group by its identity: `/docker/ID`, `docker-ID.scope`, `libpod-ID.scope`,
/// `cri-containerd-ID.scope`.
fn identity(groups: &str) -> Option<String> {
    let mut parts = groups.split(|c: char| !c.is_ascii_hexdigit());
    let identity = parts.rfind(|part| part.len() == IDENTITY)?;
    Some(identity[..SHOWN].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_known_by_its_control_group() {
        let id = "0123456789abcdef".repeat(4);
        for groups in [
            format!("0::/system.slice/docker-{id}.scope\n"),
            format!("5:memory:/docker/{id}\n1:name=systemd:/docker/{id}\n0::/\n"),
            format!("0::/user.slice/user-1000.slice/libpod-{id}.scope/container\n"),
            format!("0::/kubepods.slice/kubepods-pod12ab.slice/cri-containerd-{id}.scope\n"),
        ] {
            assert_eq!(identity(&groups).as_deref(), Some("0123456789ab"), "{groups}");
        }
        assert_eq!(identity("0::/user.slice/user-1000.slice/session-1.scope\n"), None);
        assert_eq!(identity(&format!("0::/docker/{id}0\n")), None, "longer than that");
        assert_eq!(identity(""), None);
    }

    #[test]
    fn the_innermost_number_is_the_last() {
        assert_eq!(innermost("Name:\tx\nNSpid:\t4012\t17\t1\n"), Some(1));
        assert_eq!(innermost("NSpid:\t7\n"), Some(7));
        assert_eq!(innermost("Name:\tx\n"), None);
        assert_eq!(innermost("NSpid:\n"), None);
    }

    #[test]
    fn who_is_in_our_namespace_has_the_same_number_here() {
        let own = inner(std::process::id()).unwrap();
        let numbers = Numbers::find([own]);
        assert!(!numbers.is_elsewhere(own));
        assert_eq!(numbers.here(own), Some(std::process::id()));
        // A board of one user need not say.
        assert_eq!(numbers.here((0, own.1)), Some(std::process::id()));
        assert_eq!(numbers.here((own.0, u32::MAX)), None);
        let elsewhere = (own.0 + 1, own.1);
        assert!(numbers.is_elsewhere(elsewhere));
        assert_eq!(Numbers::find([elsewhere]).here(elsewhere), None);
    }
}
