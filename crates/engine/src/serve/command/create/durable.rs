//! Opens that outlive their connection, and creates that are sent again (MS-SMB2 3.3.5.9.6 to 3.3.5.9.13).

use std::sync::Arc;

use smb::files::{OpenId, Opener};
use smb::wire::create::Request;
use smb::wire::header::Flags;
use smb::{CreateAction, NtStatus};

use super::super::super::channel::Exchange;
use super::super::super::open::Open;
use super::super::Answer;
use super::{grant, keep};

/// A client comes back for an open.
pub(super) fn reconnect(x: &mut Exchange<'_>, request: &Request<'_>) -> Answer {
    let contexts = &request.contexts;
    let server = x.server().clone();
    let session = x.session()?.clone();
    if contexts.reconnect.is_some() && contexts.reconnect_v2.is_some() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let (wanted, create_guid) = match (contexts.reconnect, contexts.reconnect_v2) {
        (Some(file), _) => (file, None),
        (None, Some(v2)) => (v2.file, Some(v2.create)),
        (None, None) => return Err(NtStatus::INVALID_PARAMETER),
    };
    let old = server.open(OpenId(wanted.persistent)).ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
    let durable = old.durable.ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
    let version = if create_guid.is_some() { 2 } else { 1 };
    let same_share = Arc::ptr_eq(&old.tree.share, &x.tree()?.share);
    if durable.version != version
        || old.create_guid.filter(|_| version == 2) != create_guid
        || old.client != session.client
        || !same_share
        || old.is_closed()
    {
        return Err(NtStatus::OBJECT_NAME_NOT_FOUND);
    }
    if !old.owner.same_user(&session.identity()) {
        return Err(NtStatus::ACCESS_DENIED);
    }
    let lease = contexts.lease.map(|lease| lease.key);
    if old.lease.map(|lease| lease.key) != lease {
        return Err(NtStatus::OBJECT_NAME_NOT_FOUND);
    }
    if old.lease.is_some() {
        let path = smb::name::Path::parse(request.name)?;
        if !smb::name::same(path.as_str(), old.path().as_str()) {
            return Err(NtStatus::INVALID_PARAMETER);
        }
    }
    let opener = Opener { client: session.client, session: session.id, open: old.id };
    let key = old.key;
    let granted = server.with_file(key, |shard, _| shard.reconnect(key, opener, lease))?;
    let tree = x.tree()?.clone();
    let open = old.reconnected(session.id, session.client, tree, granted.flags.clone());
    let open = Arc::new(open);
    keep(x, &open)?;
    let facts = open.facts()?;
    grant::answer(x, request, &open, &facts, CreateAction::Opened, &granted, open.access);
    Ok(NtStatus::SUCCESS)
}

/// A create that was sent before, and whose answer was lost: the same answer.
pub(super) fn replay(
    x: &mut Exchange<'_>,
    request: &Request<'_>,
) -> Result<Option<NtStatus>, NtStatus> {
    let Some(v2) = request.contexts.durable_v2 else { return Ok(None) };
    let session = x.session()?.clone();
    let server = x.server().clone();
    let same = |open: &Open| {
        open.create_guid == Some(v2.create) && open.client == session.client && !open.is_closed()
    };
    let Some(open) = server.find_open(same) else { return Ok(None) };
    if !x.header.flags.contains(Flags::REPLAY) {
        return Err(NtStatus::DUPLICATE_OBJECTID);
    }
    if open.session != session.id {
        return Err(NtStatus::DUPLICATE_OBJECTID);
    }
    let granted = server.with_file(open.key, |shard, _| shard.granted(open.key, open.id));
    let granted = granted.ok_or(NtStatus::FILE_NOT_AVAILABLE)?;
    let facts = open.facts()?;
    x.leave_open(open.clone());
    grant::answer(x, request, &open, &facts, CreateAction::Opened, &granted, open.access);
    Ok(Some(NtStatus::SUCCESS))
}
