//! Other names: renames and hard links (MS-FSA 2.1.5.15.6, 2.1.5.15.11).

use std::sync::Arc;

use smb::files::notify::NotifyFilter;
use smb::files::{FileKey, Held, Opener, Shard, share_conflict};
use smb::fscc::{Facts, Taken, Target};
use smb::name::{Path, Stream as StreamName};
use smb::security::Descriptor;
use smb::{Access, Attributes, NtStatus, ShareAccess};

use super::super::super::access::{self, Asker};
use super::super::super::channel::Exchange;
use super::super::super::fs::{Destination, Handle, STREAM_MAX};
use super::super::super::open::Open;
use super::super::super::server::{Server, SharePoint};
use super::super::super::watch;
use super::{contend, demand};

/// Another name for what is open.
pub(super) async fn rename(
    x: &mut Exchange<'_>,
    open: &Arc<Open>,
    target: Target,
    taken: Taken,
) -> Result<(), NtStatus> {
    demand(open, Access::DELETE)?;
    let path = match (target, open.stream().is_some()) {
        (Target::Stream(to), true) => return rename_stream(x, open, &to, taken.replace).await,
        (Target::Stream(_), false) => return Err(NtStatus::INVALID_PARAMETER),
        (Target::Path(path), _) => path,
    };
    let renaming = Renaming::new(open, path)?;
    renaming.check_folder(x.server()).await?;
    if open.stream().is_some() || renaming.to.stream().is_some() {
        // A stream stays with its file, and a file is no stream.
        return Err(NtStatus::INVALID_PARAMETER);
    }
    renaming.rename(x, taken).await
}

/// One more name for a file.
pub(super) async fn link(
    x: &mut Exchange<'_>,
    open: &Arc<Open>,
    target: Target,
    taken: Taken,
) -> Result<(), NtStatus> {
    let Target::Path(path) = target else { return Err(NtStatus::INVALID_PARAMETER) };
    if open.stream().is_some() || path.stream().is_some() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    Renaming::new(open, path)?.link(x, taken).await
}

/// A name that is about to change.
struct Renaming<'o> {
    open: &'o Arc<Open>,
    handle: &'o Arc<Handle>,
    point: &'o SharePoint,
    from: Path,
    to: Path,
}

/// Where a file is to have a name.
fn destination(open: &Open, to: &Path) -> Result<Destination, NtStatus> {
    let handle = open.must_be_file()?;
    handle.of_share().destination(handle, to, open.posix)
}

/// Whether the new name may be added to its directory.
fn may_add(open: &Open, asker: &Asker, to: &Destination) -> Result<(), NtStatus> {
    let stored = to.folder_security()?;
    let stored = stored.map(|bytes| Descriptor::parse(&bytes)).transpose()?;
    let adds = if open.directory { Access::APPEND_DATA } else { Access::WRITE_DATA };
    asker.may_add(&folder_facts(open, to)?, stored.as_ref(), adds)
}

/// Whether what has the new name is what was asked for whether it may go.
fn still_there(to: &Destination, found: &Destination) -> Result<(), NtStatus> {
    let same = to.existing().map(Handle::identity) == found.existing().map(Handle::identity);
    if same { Ok(()) } else { Err(NtStatus::SHARING_VIOLATION) }
}

fn folder_facts(open: &Open, to: &Destination) -> Result<Facts, NtStatus> {
    to.folder_facts(open.must_be_file()?.of_share())
}

/// A name that is about to be another file's, or that of a file which is about to hold something else.
struct Replacing<'s> {
    server: &'s Server,
    point: &'s SharePoint,
    key: FileKey,
    link: u64,
}

impl Replacing<'_> {
    /// It is.
    fn done(self) {
        self.server.forget_deletion(self.key, self.link);
    }
}

impl Drop for Replacing<'_> {
    fn drop(&mut self) {
        self.point.count_deletion();
        let (key, link) = (self.key, self.link);
        self.server.with_file(key, |shard, effects| shard.deleted(key, link, effects));
    }
}

impl<'o> Renaming<'o> {
    fn new(open: &'o Arc<Open>, to: Path) -> Result<Self, NtStatus> {
        let from = open.path();
        if from.is_root() {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        Ok(Self { open, handle: open.must_be_file()?, point: &open.tree.share, from, to })
    }

    /// The path of the file that is to be.
    fn path(&self) -> Path {
        self.to.clone().without_stream()
    }

    async fn destination(&self) -> Result<Arc<Destination>, NtStatus> {
        let to = self.path();
        self.open.aside(move |open| destination(open, &to)).await.map(Arc::new)
    }

    /// The directory of the new name is opened, as it were, to add a file: who has it open to delete or rename
    /// it is in the way.
    async fn check_folder(&self, server: &Server) -> Result<(), NtStatus> {
        let to = self.path();
        let look = move |open: &Open| folder_facts(open, &destination(open, &to)?);
        let key = folder_key(&self.open.aside(look).await?);
        let parent = self.to.parent().unwrap_or_default();
        let link = access::name_hash(parent.as_str());
        server.with_file(key, |shard, _| {
            if shard.is_delete_pending(key, link) {
                return Err(NtStatus::DELETE_PENDING);
            }
            let adds = (Access::WRITE_DATA, ShareAccess::READ | ShareAccess::WRITE);
            let in_the_way = |held: Held| {
                held.opener.open != self.open.id && share_conflict(adds, (held.access, held.share))
            };
            match shard.held_of(key).any(in_the_way) {
                true => Err(NtStatus::SHARING_VIOLATION),
                false => Ok(()),
            }
        })
    }

    async fn rename(&self, x: &mut Exchange<'_>, taken: Taken) -> Result<(), NtStatus> {
        let server = x.server().clone();
        let first = self.destination().await?;
        self.make_way(x, &first, taken).await?;
        contend::handles(x, self.open).await?;
        if self.open.directory {
            self.children_close(x).await?;
        }
        let (path, asker) = (self.path(), self.asker(x)?);
        let found = first.clone();
        let rename = move |open: &Open| {
            let handle = open.must_be_file()?;
            // What was found may have changed while others were waited for.
            let to = destination(open, &path)?;
            may_add(open, &asker, &to)?;
            still_there(&to, &found)?;
            let old = handle.folder_facts()?;
            handle.rename(&to, taken.replace)?;
            let new = folder_facts(open, &to);
            Ok::<_, NtStatus>((old, new, to.existing().is_some()))
        };
        // What follows would mix up the names of two at a time.
        let busy = NtStatus::SHARING_VIOLATION;
        let _alone = server.begin_rename(self.open.key).ok_or(busy)?;
        if self.open.path() != self.from {
            return Err(busy);
        }
        let going = self.reserve(&server, &first, taken)?;
        let (old, new, replaced) = self.open.aside(rename).await?;
        if let Some(going) = going {
            going.done();
        }
        self.follow(&server);
        let new = new?;
        if server.has_directory_leases() {
            server.contend_directory(folder_key(&new), self.open);
            if let Some(old) = old.filter(|old| folder_key(old) != folder_key(&new)) {
                server.contend_directory(folder_key(&old), self.open);
            }
        }
        if replaced {
            watch::removed(self.point, &self.to, false);
        }
        watch::renamed(self.point, &self.from, &self.to, self.open.directory);
        Ok(())
    }

    async fn link(&self, x: &mut Exchange<'_>, taken: Taken) -> Result<(), NtStatus> {
        if self.open.directory {
            return Err(NtStatus::FILE_IS_A_DIRECTORY);
        }
        let first = self.destination().await?;
        self.make_way(x, &first, taken).await?;
        let (path, asker) = (self.path(), self.asker(x)?);
        let server = x.server();
        let going = self.reserve(server, &first, taken)?;
        let found = first.clone();
        let link = move |open: &Open| {
            // As with a rename.
            let to = destination(open, &path)?;
            may_add(open, &asker, &to)?;
            still_there(&to, &found)?;
            open.must_be_file()?.link(&to, taken.replace)?;
            Ok::<_, NtStatus>((folder_facts(open, &to), to.existing().is_some()))
        };
        let (folder, replaced) = self.open.aside(link).await?;
        if let Some(going) = going {
            going.done();
        }
        let folder = folder?;
        if server.has_directory_leases() {
            server.contend_directory(folder_key(&folder), self.open);
        }
        if replaced {
            watch::removed(self.point, &self.to, false);
        }
        watch::created(self.point, &self.to, false);
        Ok(())
    }

    fn asker(&self, x: &Exchange<'_>) -> Result<Asker, NtStatus> {
        Ok(Asker::new(&x.session()?.identity(), self.point, x.server()))
    }

    /// What has the new name goes, if it may: nobody has it open, except to cache it; or, as on Unix, to share its
    /// deletion.
    async fn make_way(
        &self,
        x: &mut Exchange<'_>,
        to: &Arc<Destination>,
        taken: Taken,
    ) -> Result<(), NtStatus> {
        let Some(existing) = to.existing() else { return Ok(()) };
        if !taken.replace {
            return Err(NtStatus::OBJECT_NAME_COLLISION);
        }
        let facts = existing.first_facts();
        let kept = facts.attributes.contains(Attributes::READONLY) && !taken.ignore_readonly;
        if existing.is_folder() || kept {
            return Err(NtStatus::ACCESS_DENIED);
        }
        let (asker, there) = (self.asker(x)?, to.clone());
        let may_go = move |_: &Open| match there.existing() {
            Some(existing) => {
                asker.rights(existing, existing.first_facts(), Access::DELETE, false).map(drop)
            }
            None => Ok(()),
        };
        self.open.aside(may_go).await?;
        contend::all_handles(x, key_of(existing)).await?;
        x.server().with_file(key_of(existing), |shard, _| self.is_free(shard, existing, taken))
    }

    /// Whether nobody has the file that is in the way by its name, or all of them share its deletion.
    fn is_free(&self, shard: &Shard, existing: &Handle, taken: Taken) -> Result<(), NtStatus> {
        let (key, link) = (key_of(existing), access::name_hash(self.to.as_str()));
        if shard.is_delete_pending(key, link) {
            return Err(NtStatus::DELETE_PENDING);
        }
        // The file may be the same one by another name.
        let mut others = shard.held_of(key).filter(|held| held.opener.open != self.open.id);
        if taken.posix {
            let deletes = (Access::DELETE, ShareAccess::all());
            match others.any(|held| share_conflict(deletes, (held.access, held.share))) {
                true => Err(NtStatus::SHARING_VIOLATION),
                false => Ok(()),
            }
        } else if others.next().is_some() {
            Err(NtStatus::ACCESS_DENIED)
        } else {
            Ok(())
        }
    }

    /// As long as what is answered is there, nobody opens what is in the way. Who had opened it meanwhile stays.
    fn reserve<'s>(
        &'s self,
        server: &'s Server,
        to: &Destination,
        taken: Taken,
    ) -> Result<Option<Replacing<'s>>, NtStatus> {
        let Some(existing) = to.existing() else { return Ok(None) };
        let (key, link) = (key_of(existing), access::name_hash(self.to.as_str()));
        let open = self.open;
        let by = Opener { client: open.client, session: open.session, open: open.id };
        server.with_file(key, |shard, _| {
            self.is_free(shard, existing, taken)?;
            shard.begin_replacement(key, link, by);
            Ok::<_, NtStatus>(())
        })?;
        Ok(Some(Replacing { server, point: self.point, key, link }))
    }

    /// A directory in which somebody has something open cannot be renamed.
    async fn children_close(&self, x: &mut Exchange<'_>) -> Result<(), NtStatus> {
        let server = x.server().clone();
        let mut asked = None;
        while let Some(child) = server.opens.find(|other| self.is_beneath(other)) {
            if asked == Some(child.id) {
                return Err(NtStatus::ACCESS_DENIED);
            }
            asked = Some(child.id);
            contend::all_handles(x, child.key).await?;
        }
        Ok(())
    }

    fn is_beneath(&self, other: &Open) -> bool {
        if !std::ptr::eq(&*other.tree.share, self.point) || other.is_closed() {
            return false;
        }
        let path = other.path();
        let (path, above) = (smb::name::fold(path.as_str()), smb::name::fold(self.from.as_str()));
        path.strip_prefix(&*above).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Everybody who has it open by the old name has it open by the new one.
    fn follow(&self, server: &Server) {
        let (old, new) =
            (access::name_hash(self.from.as_str()), access::name_hash(self.to.as_str()));
        let open = self.open;
        let held: Vec<_> = server.with_file(open.key, |shard, _| {
            shard.renamed(open.key, open.id, new);
            shard.held_of(open.key).map(|held| held.opener.open).collect()
        });
        server.deletion_renamed(open, old, new);
        for other in held.into_iter().filter_map(|id| server.opens.get(id)) {
            let path = other.path();
            if access::name_hash(path.as_str()) != old {
                continue;
            }
            let stream = path.stream().cloned();
            other.state().path = self.to.clone().with_stream(stream);
            if let Some(handle) = other.file() {
                // As it is on the disk, which may have another case than was said.
                handle.moved_with(self.handle);
            }
        }
    }
}

/// A file as the state of files knows it.
fn key_of(file: &Handle) -> FileKey {
    let identity = file.identity();
    FileKey { device: identity.device, inode: identity.inode, stream: 0 }
}

/// A directory as the state of files knows it.
fn folder_key(facts: &Facts) -> FileKey {
    FileKey { device: facts.device, inode: facts.index, stream: 0 }
}

/// Another name for a stream, within its file.
async fn rename_stream(
    x: &mut Exchange<'_>,
    open: &Arc<Open>,
    to: &StreamName,
    replace: bool,
) -> Result<(), NtStatus> {
    let name = match to {
        StreamName::Named(name) => name,
        StreamName::Data => return becomes_data(x, open, replace).await,
        StreamName::Index => return Err(NtStatus::INVALID_PARAMETER),
    };
    let key = FileKey { stream: access::name_hash(name), ..open.key };
    if key != open.key {
        is_unused(x.server(), key)?;
    }
    contend::handles(x, open).await?;
    let name = name.clone();
    let rename = move |open: &Open| match open.stream() {
        Some(stream) => stream.rename(&name, replace),
        None => Err(NtStatus::INVALID_PARAMETER),
    };
    open.aside(rename).await?;
    let from = open.path();
    let new = from.clone().with_stream(Some(to.clone()));
    open.state().path = new.clone();
    watch::renamed(&open.tree.share, &from, &new, false);
    Ok(())
}

/// Nobody has a stream open that is to be replaced.
fn is_unused(server: &Server, key: FileKey) -> Result<(), NtStatus> {
    server.with_file(key, |shard, _| not_held(shard, key))
}

fn not_held(shard: &Shard, key: FileKey) -> Result<(), NtStatus> {
    match shard.held_of(key).any(|held| held.key.stream == key.stream) {
        true => Err(NtStatus::ACCESS_DENIED),
        false => Ok(()),
    }
}

/// A stream becomes what the file holds.
async fn becomes_data(
    x: &mut Exchange<'_>,
    open: &Arc<Open>,
    replace: bool,
) -> Result<(), NtStatus> {
    let server = x.server().clone();
    let asker = Arc::new(Asker::new(&x.session()?.identity(), &open.tree.share, &server));
    let asks = asker.clone();
    open.aside(move |open| may_replace_data(open, &asks, replace)).await?;
    let data = FileKey { stream: 0, ..open.key };
    is_unused(&server, data)?;
    contend::handles(x, open).await?;
    let alone = reserve_data(&server, open, data)?;
    // What was found may have changed while others were waited for.
    let become_data = move |open: &Open| {
        may_replace_data(open, &asker, replace)?;
        move_to_data(open)
    };
    open.aside(become_data).await?;
    drop(alone);
    watch::removed(&open.tree.share, &open.path(), false);
    watch::changed(&open.tree.share, &open.path().without_stream(), NotifyFilter::SIZE);
    Ok(())
}

/// Whether what a file holds may be another thing. That a stream of it may be deleted says nothing of that: it is asked
/// as if the data were opened to be overwritten (MS-FSA 2.1.5.1.2.1).
fn may_replace_data(open: &Open, asker: &Asker, replace: bool) -> Result<(), NtStatus> {
    let handle = open.must_be_file()?;
    let facts = handle.facts()?;
    if facts.is_directory() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if facts.size > 0 && !replace {
        return Err(NtStatus::OBJECT_NAME_COLLISION);
    }
    if facts.attributes.contains(Attributes::READONLY) {
        return Err(NtStatus::ACCESS_DENIED);
    }
    asker.rights(handle, &facts, Access::WRITE_DATA, false).map(drop)
}

/// As long as what is answered is there, nobody opens the data by the name that the stream was opened by. Who has it open
/// already is in the way.
fn reserve_data<'s>(
    server: &'s Server,
    open: &'s Open,
    key: FileKey,
) -> Result<Replacing<'s>, NtStatus> {
    let link = access::name_hash(open.path().as_str());
    let by = Opener { client: open.client, session: open.session, open: open.id };
    server.with_file(key, |shard, _| {
        not_held(shard, key)?;
        shard.begin_replacement(key, link, by);
        Ok::<_, NtStatus>(())
    })?;
    Ok(Replacing { server, point: &open.tree.share, key, link })
}

/// Writes what a stream holds to its file, and deletes the stream.
fn move_to_data(open: &Open) -> Result<(), NtStatus> {
    let stream = open.stream().ok_or(NtStatus::INVALID_PARAMETER)?;
    let mut bytes = vec![0; usize::try_from(STREAM_MAX).unwrap_or(0)];
    let len = stream.read(0, &mut bytes)?;
    open.must_be_file()?.hold(&bytes[..len])?;
    stream.delete()
}
