//! CREATE (MS-SMB2 3.3.5.9; MS-FSA 2.1.5.1).

mod apple;
mod check;
mod durable;
mod grant;
mod locate;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smb::files::{
    Caching, Durability, FileKey, LeaseRequest, LeaseVersion, OpenId, Opener, Outcome,
};
use smb::fscc::Facts;
use smb::name::{Path, Stream as StreamName};
use smb::security::Descriptor;
use smb::wire::context::LeaseFlags;
use smb::wire::create::{IMPERSONATION_MAX, Request, Response};
use smb::{Access, Attributes, CreateAction, CreateOptions, NtStatus, OplockLevel};

use super::super::access::{self, Asker};
use super::super::aside::{AT_ONCE, aside, aside_if, elsewhere};
use super::super::channel::{Exchange, PATIENCE};
use super::super::fs::{Share, Want};
use super::super::open::{Durable, Given, Object, Open, OpenLease};
use super::super::pipe::Pipe;
use super::super::runtime;
use super::super::server::{SharePoint, WaitingFor};
use super::super::watch;
use super::{Answer, tree};
use check::check;
use grant::Told;
use locate::Made;

/// How often a look-up is begun again because somebody else was faster.
const ATTEMPTS: usize = 16;

/// How often a request that has lost its connection looks whether its session is still there.
const ORPHAN_LOOK: Duration = Duration::from_secs(1);

/// Attributes that a client may set on a file that it creates.
const SETTABLE: Attributes = Attributes::READONLY
    .union(Attributes::HIDDEN)
    .union(Attributes::SYSTEM)
    .union(Attributes::ARCHIVE)
    .union(Attributes::TEMPORARY)
    .union(Attributes::OFFLINE)
    .union(Attributes::NOT_CONTENT_INDEXED)
    .union(Attributes::NORMAL);

pub(super) async fn serve(x: &mut Exchange<'_>) -> Answer {
    let request = Request::parse(x.message)?;
    let tree = x.tree()?.clone();
    let session = x.session()?;
    // What it has open stays as it is; more it may open only as who it is now.
    if session.has_turned() && !tree::admits(x.server(), &tree.share, &session.identity()) {
        return Err(NtStatus::ACCESS_DENIED);
    }
    has_room(x)?;
    let again = request.contexts.reconnects();
    let Some(share) = &tree.share.files else {
        return if again { Err(NtStatus::OBJECT_NAME_NOT_FOUND) } else { pipe(x, &request) };
    };
    if again {
        // Of what else the request says nothing counts (MS-SMB2 3.3.5.9.7, 3.3.5.9.12).
        return durable::reconnect(x, &request).await;
    }
    if request.impersonation > IMPERSONATION_MAX {
        return Err(NtStatus::BAD_IMPERSONATION_LEVEL);
    }
    let place = match durable::begin(x, &request).await? {
        durable::Begin::Answered => return Ok(NtStatus::SUCCESS),
        durable::Begin::New(place) => place,
    };
    check(&request)?;
    if request.contexts.timewarp.is_some() {
        // There are no earlier versions.
        return Err(NtStatus::OBJECT_NAME_NOT_FOUND);
    }
    let path = Path::parse(request.name)?;
    if request.options.contains(CreateOptions::DIRECTORY_FILE)
        && matches!(path.stream(), Some(StreamName::Named(_) | StreamName::Data))
    {
        return Err(NtStatus::NOT_A_DIRECTORY);
    }
    let answer = Creating { x, request: &request, share, point: &tree.share, path }.run().await;
    // Until now a replay of this request was told to come back later.
    drop(place);
    answer
}

/// Whether the session may have one more open.
fn has_room(x: &Exchange<'_>) -> Result<(), NtStatus> {
    let limit = x.server().config.limits.opens;
    let room = x.session()?.state().opens.len() < limit;
    if room { Ok(()) } else { Err(NtStatus::INSUFFICIENT_RESOURCES) }
}

/// A named pipe.
fn pipe(x: &mut Exchange<'_>, request: &Request<'_>) -> Answer {
    let server = x.server().clone();
    let name = smb::name::utf16::decode(request.name)?;
    let session = x.session()?.clone();
    let pipe = Pipe::open(&server, &name, &session)?;
    let (id, object) = (OpenId(server.next_id()), Object::Pipe(Arc::new(pipe)));
    let given =
        Given { options: request.options, ..Given::plain(id, &session, x.tree()?.clone(), object) };
    let open = Arc::new(Open::new(given, x.header.channel_sequence(), Path::default()));
    keep(x, &open, None)?;
    x.reply.write(&Response {
        action: CreateAction::Opened,
        attributes: Attributes::NORMAL,
        allocation: 4096,
        file: open.file_id,
        ..Response::default()
    });
    Ok(NtStatus::SUCCESS)
}

/// The open belongs to its session from now on. `old`: it did before, to another one.
fn keep(x: &mut Exchange<'_>, open: &Arc<Open>, old: Option<&Open>) -> Result<(), NtStatus> {
    let session = x.session()?.clone();
    let server = x.server();
    match old {
        Some(old) => server.opens.replace(old, open),
        None => server.opens.add(open),
    }
    open.tree.opens.fetch_add(1, Ordering::Relaxed);
    let volatile = open.file_id.volatile;
    session.state().opens.insert(volatile, open.clone());
    let gone = session.is_closed();
    // Looked at after it was put in: who ends either of them looks for opens after that.
    if gone || session.tree(open.tree.id).is_none() {
        // It ended while this was going on, and knows nothing of this open.
        if session.state().opens.remove(&volatile).is_some() {
            if x.channel.shared.is_open() {
                server.close(open);
            } else {
                server.leave(open);
            }
        }
        let ended =
            if gone { NtStatus::USER_SESSION_DELETED } else { NtStatus::NETWORK_NAME_DELETED };
        return Err(ended);
    }
    x.leave_open(open.clone());
    Ok(())
}

/// Whether a request has lost its connection, and its session has others.
fn is_orphan(x: &Exchange<'_>) -> Result<bool, NtStatus> {
    Ok(!x.channel.shared.is_open() && !x.session()?.is_closed())
}

/// Asks for the open until it is granted or refused, which may take as long as others take to let go. `again`:
/// the client may ask for it again on another of its connections when it loses this one, and is to find it.
async fn granted(
    x: &mut Exchange<'_>,
    key: FileKey,
    mut asked: smb::files::Request,
    again: bool,
) -> Result<smb::files::Granted, NtStatus> {
    let server = x.server().clone();
    let mut orphan = false;
    let mut waiting: Option<WaitingFor> = None;
    loop {
        let changed = waiting.as_ref().map(|waiting| waiting.waiting.changed());
        let now = server.now_ms();
        let outcome = server.with_file(key, |shard, effects| shard.open(now, key, &asked, effects));
        match (outcome, changed) {
            (Outcome::Granted(granted), _) => return Ok(granted),
            (Outcome::Refused(status), _) => return Err(status),
            (Outcome::Wait { .. }, Some(changed)) if orphan => {
                // Nobody can cancel it any more but the end of its session.
                let _ = runtime::timeout(changed, ORPHAN_LOOK).await;
                if x.session()?.is_closed() {
                    return Err(NtStatus::CANCELLED);
                }
            }
            (Outcome::Wait { .. }, Some(changed)) => match x.wait(changed, PATIENCE).await {
                Err(NtStatus::CANCELLED) if again && is_orphan(x)? => orphan = true,
                waited => waited?,
            },
            // Most opens wait for nobody. Who does must be known to others before it asks.
            (Outcome::Wait { .. }, None) => {
                let begun = server.begin_waiting(key);
                server.with_file(key, |shard, _| shard.forget(key, asked.waiter));
                asked.waiter = begun.waiter;
                asked.again = true;
                waiting = Some(begun);
            }
        }
    }
}

/// A create that is being served.
struct Creating<'c, 'x, 'm> {
    x: &'c mut Exchange<'x>,
    request: &'c Request<'m>,
    share: &'c Share,
    point: &'c Arc<SharePoint>,
    path: Path,
}

impl Creating<'_, '_, '_> {
    async fn run(mut self) -> Answer {
        for _ in 0..ATTEMPTS {
            let deletions = self.point.deletions();
            let opened = match self.locate().await {
                Ok(made) => self.open(made, deletions).await,
                Err(status) => {
                    if status == NtStatus::STOPPED_ON_SYMLINK {
                        self.tell_link().await;
                    }
                    return Err(status);
                }
            };
            if let Some(status) = opened? {
                return Ok(status);
            }
        }
        Err(NtStatus::DELETE_PENDING)
    }

    /// Says where the link leads that is on the way (MS-SMB2 2.2.2.2.1): it is the client's to follow.
    async fn tell_link(self) {
        let (share, path) = (self.share.clone(), self.path);
        let stopped = aside(self.share, move || share.stopped_on(&path)).await;
        let Some((target, behind)) = stopped else { return };
        let behind = u16::try_from(2 * behind.encode_utf16().count()).unwrap_or(u16::MAX);
        self.x.detail = super::ioctl::reparse::link(&target).to_error(behind);
    }

    /// Who asks.
    fn asker(&self) -> Result<Asker, NtStatus> {
        let identity = self.x.session()?.identity();
        Ok(Asker::new(&identity, self.point, self.x.server()))
    }

    /// `deletions`: how many files had gone when the file was looked up. `None`: it has gone meanwhile, and another may be
    /// there or come to be.
    async fn open(&mut self, mut made: Made, deletions: u64) -> Result<Option<NtStatus>, NtStatus> {
        let (access, maximal) = self.rights(&made).await?;
        let access = self.equip(&mut made, access).await?;
        let mut options = self.request.options;
        if options.contains(CreateOptions::DELETE_ON_CLOSE) && !made.is_new_file() {
            options.set(CreateOptions::DELETE_ON_CLOSE, self.may_go(&made).await?);
        }
        let server = self.x.server().clone();
        let session = self.x.session()?.clone();
        let key = made.key();
        self.replace_instance(&made, maximal)?;
        let lease = self.lease_wanted(&made);
        let caching = match (lease, self.request.oplock) {
            (Some(lease), _) => Caching::Lease(lease),
            (None, OplockLevel::None | OplockLevel::Lease) => Caching::None,
            (None, _) if made.is_directory() || !server.config.leases => Caching::None,
            (None, level) => Caching::Oplock(level),
        };
        let claim = match lease {
            Some(lease) => Some(server.claim_lease(session.client, lease.key, key)?),
            None => None,
        };
        let wanted = self.durability();
        let id = OpenId(server.next_id());
        let asked = smb::files::Request {
            opener: Opener { client: session.client, session: session.id, open: id },
            access,
            share: self.request.share,
            overwrites: made.overwrites(),
            created: made.is_new(),
            delete_on_close: options.contains(CreateOptions::DELETE_ON_CLOSE),
            directory: made.is_directory(),
            caching,
            untold: true,
            durability: wanted.map_or(Durability::None, |durable| {
                let timeout_ms = u64::from(durable.timeout_ms);
                Durability::Durable { timeout_ms }
            }),
            link: access::name_hash(self.path.as_str()),
            ..smb::files::Request::default()
        };
        let replays = self.request.contexts.durable_v2.is_some();
        let granted = granted(self.x, key, asked, replays).await?;
        if self.point.has_lost(&made.object.handle, deletions) {
            let deleted = server.with_file(key, |shard, effects| {
                let closed = shard.close(key, id, effects);
                // Whatever has that name now stays.
                let delete = closed.and_then(|closed| closed.delete)?;
                shard.deleted(key, delete.link, effects);
                Some(delete.link)
            });
            if let Some(link) = deleted {
                server.forget_deletion(key, link);
            }
            return Ok(None);
        }
        // From here to where the session has it nothing waits, and nothing can be lost.
        let leased = lease.filter(|_| granted.oplock == OplockLevel::Lease);
        if let Some(claim) = claim.filter(|_| leased.is_some()) {
            claim.keep();
        }
        let given = Given {
            id,
            key,
            session: session.id,
            client: session.client,
            tree: self.x.tree()?.clone(),
            object: Object::File(made.object.clone()),
            access,
            share: self.request.share,
            options,
            directory: made.is_directory(),
            lease: leased.map(|lease| OpenLease {
                client: session.client,
                key: lease.key,
                parent: lease.parent,
            }),
            create_guid: self.request.contexts.durable_v2.map(|durable| durable.create),
            app_instance: self.request.contexts.app_instance,
            app_version: self.request.contexts.app_version,
            owner: session.identity(),
            durable: wanted.filter(|_| granted.durable),
            flags: granted.flags.clone(),
            action: made.action,
            posix: self.posix_mode().is_some(),
        };
        let sequence = self.x.header.channel_sequence();
        let open = Arc::new(Open::new(given, sequence, self.path.clone()));
        keep(self.x, &open, None)?;
        let facts = match self.furnish(&mut made, &open).await {
            Ok(facts) => facts,
            Err(status) => {
                if made.is_new() {
                    // What could not be made as it was wished for is not left behind. That it was closed
                    // meanwhile is no loss.
                    let _ =
                        server.with_file(key, |shard, _| shard.set_delete_pending(key, id, true));
                }
                session.state().opens.remove(&open.file_id.volatile);
                let closing = server.close(&open);
                self.x.forget_open();
                drop((open, made));
                closing.done().await;
                return Err(status);
            }
        };
        if made.is_new() {
            watch::created(self.point, &self.path, made.is_directory());
            server.directory_changed(&open).await;
        }
        // While the file was made what it is to be, another open may have had broken what this one was granted: a lease, of
        // which its client has been told, or an oplock, of which it is told with the answer what is left.
        let caches = granted.oplock != OplockLevel::None;
        let now = caches.then(|| server.with_file(key, |shard, _| shard.granted(key, id)));
        let granted = now.flatten().unwrap_or(granted);
        let mut answer = Told::new(&open, facts, &granted);
        let keeps = matches!(granted.oplock, OplockLevel::Batch | OplockLevel::Lease);
        answer.durable = open.durable.filter(|_| keeps);
        answer.maximal = maximal;
        answer.write(self.x, self.request);
        if caches && leased.is_none() {
            self.x.reply.tells_of(key, id);
        }
        Ok(Some(NtStatus::SUCCESS))
    }

    /// Another run of the same program has the file open, on a machine that is perhaps no more: it gives way
    /// (MS-SMB2 3.3.5.9.13).
    fn replace_instance(&self, made: &Made, maximal: Access) -> Result<(), NtStatus> {
        let contexts = &self.request.contexts;
        let Some(app) = contexts.app_instance.filter(|_| contexts.durable_v2.is_some()) else {
            return Ok(());
        };
        let server = self.x.server();
        let client = self.x.session()?.client;
        for open in server.opens.of_program(app) {
            let same_share = Arc::ptr_eq(&open.tree.share, self.point);
            if open.key != made.key() || open.client == client || !same_share {
                continue;
            }
            if !maximal.contains(Access::FILE_READ) {
                continue;
            }
            if let (Some(theirs), Some(ours)) = (open.app_version, contexts.app_version)
                && theirs >= ours
            {
                return Err(NtStatus::FILE_FORCED_CLOSED);
            }
            if let Some(session) = server.session(open.session) {
                session.state().opens.remove(&open.file_id.volatile);
            }
            server.close(&open);
        }
        Ok(())
    }

    /// What the open may do, and what its user may do at most.
    async fn rights(&self, made: &Made) -> Result<(Access, Access), NtStatus> {
        let request = self.request;
        let desired = request.access.expanded();
        let readonly = made.facts.attributes.contains(Attributes::READONLY) && !made.is_directory();
        let writes = Access::WRITE_DATA | Access::APPEND_DATA;
        let mut asks = desired;
        if made.action == CreateAction::Superseded {
            asks |= Access::DELETE | Access::WRITE_DATA;
        }
        if made.action == CreateAction::Overwritten {
            asks |= Access::WRITE_DATA;
        }
        if request.options.contains(CreateOptions::DELETE_ON_CLOSE) {
            // Which MAXIMUM_ALLOWED need not come to.
            asks |= Access::DELETE;
        }
        // Whoever creates a file may do with this open what it asked for; who adds a stream, what it might with the file.
        if made.is_new_file() {
            asks = Access::MAXIMUM_ALLOWED;
        } else if readonly && !made.is_new() && asks.intersects(writes) {
            return Err(NtStatus::ACCESS_DENIED);
        }
        let contexts = &request.contexts;
        let maximal = contexts.maximal_access.is_some() || contexts.app_instance.is_some();
        let (asker, handle, facts) = (self.asker()?, made.object.handle.clone(), made.facts);
        let look = move || asker.rights(&handle, &facts, asks, maximal);
        let far = made.object.handle.is_far();
        let rights = aside_if(self.share, far, look).await?;
        let named = desired - Access::MAXIMUM_ALLOWED;
        let mut access = named;
        if desired.contains(Access::MAXIMUM_ALLOWED) {
            let all = rights.granted;
            access |= if readonly && !made.is_new() { all - writes } else { all };
        }
        if request.options.contains(CreateOptions::DELETE_ON_CLOSE) && readonly && !made.is_new() {
            return Err(NtStatus::CANNOT_DELETE);
        }
        Ok((access, rights.maximal))
    }

    /// What was opened before it was known what may be done with it (MAXIMUM_ALLOWED) is opened for that. What the host
    /// refuses then, as to write what is mounted read-only or is running, is granted as little as what a mode denies.
    async fn equip(&self, made: &mut Made, access: Access) -> Result<Access, NtStatus> {
        let handle = &made.object.handle;
        let has = handle.good_for();
        let all = Want { link: has.link, ..Want::by_access(access) };
        let lacks = all.read && !has.read || all.write && !has.write;
        let facts = handle.first_facts();
        let no_file = facts.is_directory() || facts.reparse_tag != 0;
        if !lacks || no_file || made.object.stream.is_some() {
            return Ok(access);
        }
        let handle = handle.clone();
        let again = aside_if(self.share, handle.is_far(), move || {
            let ways = [all, Want { write: has.write, ..all }, Want { read: has.read, ..all }];
            for way in ways.into_iter().filter(|way| *way != has) {
                match handle.reopen(way) {
                    Err(NtStatus::ACCESS_DENIED | NtStatus::MEDIA_WRITE_PROTECTED) => {}
                    done => return done.map(Some),
                }
            }
            Ok(None)
        });
        if let Some(again) = again.await? {
            let object = Arc::get_mut(&mut made.object).ok_or(NtStatus::INTERNAL_ERROR)?;
            object.turn_to(again);
        }
        let good = made.object.handle.good_for();
        let mut granted = access;
        if !good.read {
            granted -= Access::READ_DATA | Access::EXECUTE;
        }
        if !good.write {
            granted -= Access::WRITE_DATA | Access::APPEND_DATA;
        }
        Ok(granted)
    }

    /// Whether what was there goes with this open, which asks for that. A folder that holds something stays, and its open
    /// is granted all the same (MS-FSA 2.1.5.5): nobody else is to find it on its way out, where it is not.
    ///
    /// # Errors
    ///
    /// ACCESS_DENIED for the root of the share, and what `getdents(2)` says.
    async fn may_go(&self, made: &Made) -> Result<bool, NtStatus> {
        if self.path.is_root() && made.object.stream.is_none() {
            return Err(NtStatus::ACCESS_DENIED);
        }
        if !made.is_directory() {
            return Ok(true);
        }
        let handle = made.object.handle.clone();
        aside_if(self.share, handle.is_far(), move || handle.is_empty_folder()).await
    }

    /// The lease that the client would like, if it may have any.
    fn lease_wanted(&self, made: &Made) -> Option<LeaseRequest> {
        let lease = self.request.contexts.lease?;
        if self.request.oplock != OplockLevel::Lease || !self.x.server().config.leases {
            return None;
        }
        let agreed = self.x.agreed().ok()?;
        if made.is_directory()
            && !agreed.capabilities.contains(smb::wire::negotiate::Capabilities::DIRECTORY_LEASING)
        {
            return None;
        }
        let v2 = lease.v2.filter(|_| agreed.dialect.is_smb3());
        if lease.v2.is_some() && v2.is_none() {
            return None;
        }
        let parent = v2.filter(|_| lease.flags.contains(LeaseFlags::PARENT_KEY_SET));
        Some(LeaseRequest {
            key: lease.key,
            state: lease.state,
            version: if v2.is_some() { LeaseVersion::Two } else { LeaseVersion::One },
            epoch: v2.map_or(0, |v2| v2.epoch),
            parent: parent.map(|v2| v2.parent),
        })
    }

    /// A lease that is asked for with a file that is not there yet must name no other (MS-SMB2 3.3.5.9.8): said
    /// before the file is made.
    fn lease_is_free(&self) -> Result<(), NtStatus> {
        let Some(lease) = self.request.contexts.lease else { return Ok(()) };
        let server = self.x.server();
        let used = server.config.leases
            && server.lease_file(self.x.session()?.client, lease.key).is_some();
        if used { Err(NtStatus::INVALID_PARAMETER) } else { Ok(()) }
    }

    /// What the client would like to have kept when its connection goes.
    fn durability(&self) -> Option<Durable> {
        let limit =
            u32::try_from(self.x.server().config.limits.durable.as_millis()).unwrap_or(u32::MAX);
        if let Some(v2) = self.request.contexts.durable_v2 {
            // Of the file system's own accord nothing is persistent here: what survives the server is data.
            let timeout_ms =
                if v2.timeout_ms == 0 { limit.min(60_000) } else { v2.timeout_ms.min(limit) };
            return Some(Durable { version: 2, timeout_ms, persistent: false });
        }
        let timeout_ms = limit.min(16 * 60_000);
        self.request.contexts.durable.then_some(Durable {
            version: 1,
            timeout_ms,
            persistent: false,
        })
    }

    /// The open is granted: what the file is to hold and be.
    async fn furnish(&self, made: &mut Made, open: &Arc<Open>) -> Result<Facts, NtStatus> {
        let contexts = &self.request.contexts;
        let allocation = contexts.allocation.filter(|_| {
            let has_data = made.object.stream.is_none() && !made.is_directory();
            has_data && made.action != CreateAction::Opened
        });
        if !made.overwrites() && !made.is_new_file() && allocation.is_none() {
            return Ok(made.facts);
        }
        let mut furniture = Furniture {
            overwrites: made.overwrites(),
            attributes: self.request.attributes & SETTABLE,
            allocation,
            ..Furniture::default()
        };
        if made.is_new_file() {
            furniture.first = Some(First {
                asker: self.asker()?,
                eas: contexts.ea.map(smb::fscc::parse_eas).transpose()?.unwrap_or_default(),
                security: contexts.security.map(<[u8]>::to_vec),
                folder: made.folder.take(),
            });
        }
        let was_there = made.facts.allocated;
        // The file system takes its time to free that much, or to reserve it.
        let takes_long =
            furniture.overwrites && was_there > AT_ONCE || allocation.is_some_and(|n| n > AT_ONCE);
        if furniture.overwrites {
            open.note_change();
        }
        let overwrites = furniture.overwrites;
        let (this, facts) = (open.clone(), made.facts);
        let put = move || furniture.put(&this, facts);
        let put = match takes_long {
            true => elsewhere(self.share, put).await,
            false => aside_if(self.share, open.is_far(), put).await,
        };
        if overwrites {
            self.x.server().contend_as_new(open);
        }
        put
    }
}

/// What a create wishes that a file be and hold.
#[derive(Default)]
struct Furniture {
    /// Nothing of what it held.
    overwrites: bool,
    attributes: Attributes,
    first: Option<First>,
    allocation: Option<u64>,
}

/// The same of a new file.
struct First {
    /// Who makes it.
    asker: Asker,
    eas: Vec<smb::fscc::Ea>,
    security: Option<Vec<u8>>,
    /// What it may inherit.
    folder: Option<Descriptor>,
}

impl Furniture {
    /// Gives it to the file of an open, of which `facts` were known. What is known now.
    fn put(self, open: &Open, facts: Facts) -> Result<Facts, NtStatus> {
        let handle = open.must_be_file()?;
        let mut changed = self.overwrites;
        if self.overwrites {
            match open.stream() {
                Some(stream) => stream.set_size(0)?,
                None => {
                    // They are of what it held, here as in Samba.
                    handle.remove_streams()?;
                    handle.set_size(0)?;
                    // Linux has no word for them: they stay.
                    if !open.posix {
                        let attributes = self.attributes | Attributes::ARCHIVE;
                        handle.set_attributes(attributes - Attributes::NORMAL)?;
                    }
                }
            }
        }
        if let Some(First { asker, eas, security, folder }) = self.first {
            for ea in &eas {
                handle.set_ea(ea.name.as_bytes(), &ea.value)?;
                changed = true;
            }
            changed |= asker.set_first(handle, &facts, security.as_deref(), folder.as_ref())?;
        }
        if let Some(bytes) = self.allocation {
            handle.set_allocation(bytes)?;
            changed = true;
        }
        // A descriptor that was opened for attributes alone, and turned out to be good for more.
        if changed { open.facts() } else { Ok(facts) }
    }
}
