//! Who may do what with a file is said anew (MS-FSA 2.1.5.17).

use std::sync::Arc;

use smb::NtStatus;
use smb::files::notify::NotifyFilter;
use smb::security::{Descriptor, SecurityInfo, Sid};

use super::super::super::access::{self, Asker};
use super::super::super::channel::Exchange;
use super::super::super::fs::{Handle, Posix};
use super::super::super::open::Open;
use super::super::super::watch;
use super::demand;

pub(super) async fn set(
    x: &Exchange<'_>,
    open: &Arc<Open>,
    additional: u32,
    bytes: &[u8],
) -> Result<(), NtStatus> {
    let info = SecurityInfo::from_bits_truncate(additional) & SecurityInfo::all();
    demand(open, info.to_set())?;
    if open.file().is_none() {
        return Err(NtStatus::NOT_SUPPORTED);
    }
    let said = Descriptor::parse(bytes)?;
    let asker = Asker::new(&x.session()?.identity(), &open.tree.share, x.server());
    open.aside(move |open| store(open, info, &said, &asker)).await?;
    watch::changed(&open.tree.share, &open.path(), NotifyFilter::SECURITY);
    Ok(())
}

fn store(
    open: &Open,
    info: SecurityInfo,
    said: &Descriptor,
    asker: &Asker,
) -> Result<(), NtStatus> {
    let handle = open.must_be_file()?;
    let facts = handle.facts()?;
    if open.posix
        && info == SecurityInfo::DACL
        && let Some(mode) = said.mode()
    {
        // A mode takes the place of whatever was said before: of rights, and of an owner that is none of this machine and of
        // what is audited only if those may be set as well.
        if let Some(stored) = access::stored(handle, &facts)? {
            let plain = asker.plain(&facts);
            let mut lost = SecurityInfo::empty();
            lost.set(SecurityInfo::OWNER, stored.owner != plain.owner);
            lost.set(SecurityInfo::GROUP, stored.group != plain.group);
            lost.set(SecurityInfo::SACL, stored.sacl.is_some());
            demand(open, lost.to_set())?;
        }
        handle.set_posix(Posix { mode: Some(mode), ..Posix::default() })?;
        if facts.secured {
            handle.set_security(None)?;
        }
        return Ok(());
    }
    let now = asker.descriptor(handle, &facts)?;
    let new = now.changed(said, info)?;
    if new.owner != now.owner && !new.owner.is_some_and(|owner| asker.may_own(&owner)) {
        return Err(NtStatus::INVALID_OWNER);
    }
    belongs(
        handle,
        new.owner.filter(|_| new.owner != now.owner),
        new.group.filter(|_| new.group != now.group),
    )?;
    asker.store(handle, &handle.facts()?, &new)
}

/// Gives a file to another owner and group, as far as these are any on this machine.
fn belongs(handle: &Handle, owner: Option<Sid>, group: Option<Sid>) -> Result<(), NtStatus> {
    let uid = owner.and_then(|sid| sid.to_uid());
    let gid = group.and_then(|sid| sid.to_gid());
    if uid.is_none() && gid.is_none() {
        return Ok(());
    }
    handle.set_posix(Posix { uid, gid, ..Posix::default() })
}
