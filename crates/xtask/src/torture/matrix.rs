//! Which of smbtorture's suites run, on which share, and for how long.

use crate::smbd::Share;
use std::path::Path;

/// A suite on a share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// The suite, and after a colon what is special about the share.
    pub(crate) name: &'static str,
    pub(crate) share: &'static str,
    /// After this many seconds the suite is ended and what is left of it run one by one.
    pub(crate) seconds: u32,
}

impl Case {
    /// What smbtorture has to be told about it.
    pub(crate) fn options(&self) -> &'static [&'static str] {
        match self.name {
            "smb2.delete-on-close-perms:delete_readonly" => {
                &["--option=torture:delete_readonly=yes"]
            }
            _ => &[],
        }
    }

    /// The EA in which ours or Samba's server keeps descriptors, for who asks whether clients can write it.
    pub(crate) fn kept_by(&self, ours: bool) -> Option<&'static str> {
        let name = if ours { "shunt.NTACL" } else { "acl" };
        (self.name == "smb2.ea").then_some(name)
    }

    /// Settings of ours that are about no share.
    pub(crate) fn settings(&self) -> &'static [&'static str] {
        match self.name {
            // It wants everybody refused whose password is wrong, and whom nobody knows, too.
            "smb2.secleak" => &[],
            "smb2.session-require-signing" => &["--guest", "--signing=required"],
            _ => &["--guest"],
        }
    }

    /// The same of Samba's server.
    pub(crate) fn global(&self) -> &'static [&'static str] {
        match self.name {
            "smb2.session-require-signing" => &["server signing = mandatory"],
            "smb2.secleak" => &["map to guest = Never"],
            _ => &[],
        }
    }

    /// The file system that its folders are to be on, if it matters: one whose files can share blocks.
    pub(crate) fn file_system(&self) -> Option<&'static str> {
        (self.name == "smb2.ioctl:btrfs").then_some("btrfs")
    }

    /// The port of the server, if it matters and is free: one of the tests connects to no other.
    pub(crate) fn port(&self) -> Option<u16> {
        (self.name == "smb2.multichannel").then_some(445)
    }

    /// What smbtorture calls it.
    pub(crate) fn suite(&self) -> &'static str {
        self.name.split_once(':').map_or(self.name, |(suite, _)| suite)
    }
}

const fn case(name: &'static str, share: &'static str, seconds: u32) -> Case {
    Case { name, share, seconds }
}

/// All of them. Not here, and why: smb2.scan has no tests; smb2.hold-oplock, .hold-sharemode,
/// .check-sharemode, .durable-open-disconnect, .set-sparse-ioctl and .zero-data-ioctl are for a
/// person who looks on; smb2.twrp and .async_dosmode want snapshots; smb2.aio_delay and
/// .compound_async want a module that delays, which nobody packages; .change_notify_disabled wants a server that is
/// set up to refuse.
pub(crate) const CASES: &[Case] = &[
    case("smb2.getinfo", "tmp", 60),
    case("smb2.lock", "tmp", 90),
    case("smb2.lock:aio", "aio", 90),
    case("smb2.read", "tmp", 60),
    case("smb2.bench", "tmp", 90),
    case("smb2.create", "tmp", 90),
    case("smb2.fileid:fruit", "vfs_fruit_xattr", 60),
    case("smb2.fileid", "tmp", 60),
    case("smb2.acls", "tmp", 60),
    case("smb2.acls_non_canonical", "acls_non_canonical", 60),
    case("smb2.notify", "tmp", 180),
    case("smb2.notify-inotify", "tmp", 60),
    case("smb2.durable-open", "durable", 90),
    case("smb2.durable-v2-open", "durable", 90),
    case("smb2.durable-v2-delay", "durable", 60),
    case("smb2.dir", "tmp", 90),
    case("smb2.lease", "tmp", 300),
    case("smb2.compound", "tmp", 60),
    case("smb2.compound:aio", "aio", 60),
    case("smb2.compound_find", "tmp", 60),
    case("smb2.compound_find:async", "compound_find", 60),
    case("smb2.oplock", "tmp", 240),
    case("smb2.kernel-oplocks", "kernel_oplocks", 60),
    case("smb2.streams", "tmp", 60),
    case("smb2.streams:streams_xattr", "streams_xattr", 60),
    case("smb2.ioctl", "tmp", 90),
    case("smb2.ioctl:btrfs", "tmp", 120),
    case("smb2.rename", "tmp", 60),
    case("smb2.sharemode", "tmp", 60),
    case("smb2.session", "tmp", 90),
    case("smb2.session:enc", "tmpenc", 90),
    case("smb2.replay", "durable", 300),
    case("smb2.credits", "tmp", 60),
    case("smb2.delete-on-close-perms", "tmp", 60),
    case("smb2.delete-on-close-perms:delete_readonly", "delete_readonly", 60),
    case("smb2.multichannel", "tmp", 300),
    case("smb2.samba3misc", "tmpguest", 60),
    case("smb2.timestamps", "tmp", 90),
    case("smb2.timestamp_resolution", "tmp", 60),
    case("smb2.rw", "tmp", 60),
    case("smb2.charset", "tmp", 60),
    case("smb2.deny", "tmp", 60),
    case("smb2.ea", "ea_acl_xattr", 60),
    case("smb2.create_no_streams", "nostreams", 60),
    case("smb2.connect", "tmp", 60),
    case("smb2.setinfo", "tmp", 60),
    case("smb2.ioctl-on-stream", "tmp", 60),
    case("smb2.dosmode", "dosmode", 60),
    case("smb2.maxfid", "tmp", 120),
    case("smb2.openattr", "tmp", 60),
    case("smb2.winattr", "tmp", 60),
    case("smb2.sdread", "tmp", 60),
    case("smb2.maximum_allowed", "tmp", 60),
    case("smb2.mangle", "tmp", 60),
    case("smb2.tcon", "tmp", 60),
    case("smb2.mkdir", "tmp", 60),
    case("smb2.secleak", "tmp", 60),
    case("smb2.session-require-signing", "tmp", 60),
    case("smb2.session-id", "tmp", 60),
];

/// What smbd is told for all shares, as Samba's own tests do.
pub(crate) const GLOBAL: &[&str] = &[
    "server min protocol = SMB2_02",
    "smbd:FSCTL_SMBTORTURE = yes",
    "smbd:validate_oplock_cache_period = 1",
    "map archive = no",
    "map hidden = no",
    "map system = no",
    "map readonly = no",
    "store dos attributes = yes",
    "dos filemode = yes",
    "strict rename = yes",
    "kernel change notify = no",
    "kernel oplocks = no",
    "vfs objects = acl_xattr xattr_tdb streams_depot",
];

/// Each share with what smbd is told about it. To our server they are folders and nothing more:
/// what is special to a share of Samba's is always so with ours, or never. Encryption is not, nor are [`NO_STREAMS`].
const SHARES: &[(&str, &[&str])] = &[
    ("tmp", &[]),
    ("aio", &["aio read size = 1", "aio write size = 1"]),
    ("durable", &["kernel share modes = no", "kernel oplocks = no", "posix locking = no"]),
    ("tmpenc", &["smb encrypt = required"]),
    ("tmpguest", &[]),
    ("hideunread", &["hide unreadable = yes"]),
    (CLOSED, &[]),
    ("streams_xattr", &["vfs objects = acl_xattr streams_xattr xattr_tdb"]),
    ("compound_find", &["smbd:find async delay usec = 10000"]),
    ("delete_readonly", &["delete readonly = yes"]),
    ("kernel_oplocks", &["kernel oplocks = yes", "vfs objects = streams_xattr xattr_tdb"]),
    ("acls_non_canonical", &["acl flag inherited canonicalization = no"]),
    ("dosmode", &["vfs objects = acl_xattr xattr_tdb", "hide files = /hidefile/"]),
    (NO_STREAMS, &["vfs objects = xattr_tdb"]),
    ("ea_acl_xattr", &["vfs objects = acl_xattr", "acl_xattr:security_acl_name = user.acl"]),
    (
        "vfs_fruit_xattr",
        &[
            "vfs objects = catia fruit streams_xattr acl_xattr xattr_tdb",
            "fruit:resource = file",
            "fruit:metadata = netatalk",
            "fruit:locking = netatalk",
            "fruit:encoding = native",
        ],
    ),
];

/// A share without named streams.
pub(crate) const NO_STREAMS: &str = "nostreams";

/// A share whose folder nobody may enter.
pub(crate) const CLOSED: &str = "noperm";

/// A share of this name is all that smb2.lease wants of it.
const DYNAMIC: &str = "dynamic_share";

/// The folders in `dir`, one for each share.
pub(crate) fn shares(dir: &Path) -> Vec<Share> {
    let share = |(name, settings): &(&'static str, &'static [&'static str])| Share {
        name: (*name).into(),
        path: dir.join(name),
        settings: settings.to_vec(),
    };
    SHARES.iter().chain([&(DYNAMIC, &[][..])]).map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_its_share_and_its_name_once() {
        let shares = shares(Path::new("/x"));
        for case in CASES {
            assert!(shares.iter().any(|share| share.name == case.share), "{}", case.name);
            let same = CASES.iter().filter(|other| other.name == case.name);
            assert_eq!(same.count(), 1, "{}", case.name);
        }
        assert_eq!(case("smb2.lock:aio", "aio", 1).suite(), "smb2.lock");
    }
}
