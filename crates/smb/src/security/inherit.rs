//! What a new file gets from the directory that it is made in (MS-DTYP 2.5.3.4).

use super::{Ace, AceFlags, Acl, Control, Descriptor, Sid};

/// Whether what is made in the directory gets this entry.
fn is_for(ace: &Ace, directory: bool) -> bool {
    let flags = ace.flags;
    if !directory {
        return flags.contains(AceFlags::OBJECT_INHERIT);
    }
    // What is for files goes through directories, unless it shall not be passed on.
    flags.contains(AceFlags::CONTAINER_INHERIT)
        || flags.contains(AceFlags::OBJECT_INHERIT) && !flags.contains(AceFlags::NO_PROPAGATE)
}

/// How the entry is passed on by a new directory.
fn passed_on(flags: AceFlags) -> AceFlags {
    if flags.contains(AceFlags::NO_PROPAGATE) {
        return AceFlags::empty();
    }
    let flags = flags.difference(AceFlags::INHERIT_ONLY | AceFlags::INHERITED);
    if flags.contains(AceFlags::CONTAINER_INHERIT) { flags } else { flags | AceFlags::INHERIT_ONLY }
}

/// The descriptor of a new file or directory of `owner` and `group` in a directory with the descriptor
/// `parent`; `None` if nothing is inherited, and the file gets what new files get.
#[must_use]
pub fn inherited(
    parent: &Descriptor,
    owner: Sid,
    group: Sid,
    directory: bool,
) -> Option<Descriptor> {
    let automatic = parent.control.contains(Control::DACL_AUTO_INHERITED);
    let mark = if automatic { AceFlags::INHERITED } else { AceFlags::empty() };
    let mut aces: Vec<Ace> = Vec::new();
    let mut add = |ace: Ace| {
        if !aces.contains(&ace) {
            aces.push(ace);
        }
    };
    for ace in parent.dacl.iter().flat_map(|acl| &acl.aces).filter(|ace| is_for(ace, directory)) {
        let flags = if directory { passed_on(ace.flags) } else { AceFlags::empty() };
        let actual = match ace.sid {
            Sid::CREATOR_OWNER => Some(owner),
            Sid::CREATOR_GROUP => Some(group),
            _ => None,
        };
        match actual {
            // Once for this directory with whom it stands for, once to be inherited further.
            Some(sid) if flags.contains(AceFlags::CONTAINER_INHERIT) => {
                add(Ace { sid, flags: mark, ..*ace });
                add(ace.with(flags | AceFlags::INHERIT_ONLY | mark));
            }
            Some(sid) if !flags.contains(AceFlags::INHERIT_ONLY) => {
                add(Ace { sid, flags: flags | mark, ..*ace });
            }
            _ => add(ace.with(flags | mark)),
        }
    }
    if aces.is_empty() {
        return None;
    }
    let mut child = Descriptor::new(owner, group, Acl { aces });
    if automatic {
        child.control |= Control::DACL_AUTO_INHERITED;
    }
    // A list of the greatest length may become longer by what stands for creators.
    child.fits().then_some(child)
}
