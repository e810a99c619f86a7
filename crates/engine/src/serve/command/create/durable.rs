//! Opens that outlive their connection, and creates that are sent again (MS-SMB2 3.3.5.9.6 to 3.3.5.9.13).

use std::sync::Arc;

use smb::files::{OpenId, Opener};
use smb::wire::create::Request;
use smb::wire::header::Flags;
use smb::{CreateAction, NtStatus, OplockLevel};

use super::super::super::channel::Exchange;
use super::super::super::open::{Begun, Open, Place};
use super::super::Answer;
use super::{Told, keep};

/// A client comes back for an open.
pub(super) async fn reconnect(x: &mut Exchange<'_>, request: &Request<'_>) -> Answer {
    let contexts = &request.contexts;
    let gone = NtStatus::OBJECT_NAME_NOT_FOUND;
    if !contexts.reconnects_alone() {
        return Err(gone);
    }
    let (wanted, create) = match (contexts.reconnect, contexts.reconnect_v2) {
        (Some(file), None) => (file, None),
        (None, Some(v2)) => (v2.file, Some(v2.create)),
        _ => return Err(NtStatus::INVALID_PARAMETER),
    };
    let old = x.server().opens.get(OpenId(wanted.persistent)).ok_or(gone)?;
    // An open of version 2 may be had again by a request of version 1, which names it as well as a client can.
    if create.is_some_and(|create| create != old.create_guid.unwrap_or_default()) {
        return Err(gone);
    }
    again(x, request, &old, None).await
}

/// Gives an open whose client was away to this session. `action`: of what the request tells the client.
async fn again(
    x: &mut Exchange<'_>,
    request: &Request<'_>,
    old: &Arc<Open>,
    replayed: Option<CreateAction>,
) -> Answer {
    let gone = NtStatus::OBJECT_NAME_NOT_FOUND;
    let session = x.session()?.clone();
    let tree = x.tree()?.clone();
    if old.durable.is_none() || old.is_closed() || !Arc::ptr_eq(&old.tree.share, &tree.share) {
        return Err(gone);
    }
    let lease = request.contexts.lease.map(|lease| lease.key);
    if old.lease.map(|lease| lease.key) != lease {
        return Err(gone);
    }
    if old.lease.is_some() {
        if old.client != session.client {
            return Err(gone);
        }
        let path = smb::name::Path::parse(request.name)?;
        if !smb::name::same(path.as_str(), old.path().as_str()) {
            return Err(NtStatus::INVALID_PARAMETER);
        }
    }
    if !old.owner.same_user(&session.identity()) {
        return Err(NtStatus::ACCESS_DENIED);
    }
    let opener = Opener { client: session.client, session: session.id, open: old.id };
    let key = old.key;
    let granted = x.server().with_file(key, |shard, _| shard.reconnect(key, opener, lease))?;
    // Whoever still holds the value of before does nothing more with it.
    old.close();
    let sequence = x.header.channel_sequence();
    let flags = granted.flags.clone();
    let open = Arc::new(old.reconnected(session.id, session.client, tree, flags, sequence));
    keep(x, &open, Some(old))?;
    let facts = open.aside(Open::facts).await?;
    let mut told = Told::new(&open, facts, &granted);
    told.action = replayed.unwrap_or(CreateAction::Opened);
    told.durable = open.durable.filter(|_| replayed.is_some());
    told.write(x, request);
    Ok(NtStatus::SUCCESS)
}

/// How a create begins.
pub(super) enum Begin {
    /// It was sent before, and is answered as it was then.
    Answered,
    /// It is to be done. As long as the place is held, those that are sent again are told to come back later.
    New(Option<Place>),
}

/// Whether a create was sent before, and its answer lost (MS-SMB2 3.3.5.9.10).
pub(super) async fn begin(x: &mut Exchange<'_>, request: &Request<'_>) -> Result<Begin, NtStatus> {
    let Some(v2) = request.contexts.durable_v2 else { return Ok(Begin::New(None)) };
    let session = x.session()?.clone();
    let open = match x.server().opens.begin(session.client, v2.create)? {
        Begun::First(place) => return Ok(Begin::New(Some(place))),
        Begun::Done(open) => open,
    };
    if !x.header.flags.contains(Flags::REPLAY) {
        return Err(NtStatus::DUPLICATE_OBJECTID);
    }
    if open.is_away() {
        return again(x, request, &open, Some(open.action)).await.map(|_| Begin::Answered);
    }
    let wanted = request.contexts.lease.map(|lease| lease.key);
    if wanted.is_some() && wanted != open.lease.map(|lease| lease.key) {
        return Err(NtStatus::ACCESS_DENIED);
    }
    if open.session != session.id {
        // It belongs to another session of the same client: a session that knows nothing of it.
        return Err(NtStatus::DUPLICATE_OBJECTID);
    }
    let (key, id) = (open.key, open.id);
    let granted = x.server().with_file(key, |shard, effects| shard.tell(key, id, effects));
    let granted = granted.ok_or(NtStatus::FILE_NOT_AVAILABLE)?;
    let facts = open.aside(Open::facts).await?;
    x.leave_open(open.clone());
    let mut told = Told::new(&open, facts, &granted);
    // As Windows answers: what is said of an oplock is what was asked for now, whatever the open has.
    told.oplock = request.oplock;
    let by_handle = matches!(request.oplock, OplockLevel::Batch | OplockLevel::Lease);
    told.durable = open.durable.filter(|_| by_handle);
    told.write(x, request);
    Ok(Begin::Answered)
}
