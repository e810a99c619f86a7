//! SET_INFO (MS-SMB2 3.3.5.21).

mod contend;
mod rename;
mod security;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smb::files::notify::NotifyFilter;
use smb::fscc::{Change, Disposal, Ea, SetClass, Times};
use smb::wire::set_info::{Request, Response, Subject};
use smb::{Access, Attributes, FileTime, NtStatus};

use super::super::aside::{AT_ONCE, elsewhere};
use super::super::channel::Exchange;
use super::super::fs::{Handle, SetTimes};
use super::super::open::{Object, Open};
use super::super::watch;
use super::Answer;
use super::write::still_open;

pub(super) async fn serve(x: &mut Exchange<'_>) -> Answer {
    let request = Request::parse(x.message)?;
    if request.payload_len() > u64::from(x.agreed()?.payload) {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    x.pay(request.payload_len())?;
    let open = x.open_in_sequence(request.file, true)?;
    match request.subject {
        Subject::File => {
            let change = SetClass::from_wire(request.class)?.parse(request.data)?;
            apply(x, &open, change).await?;
        }
        Subject::Security => security::set(x, &open, request.additional, request.data).await?,
        // Neither labels nor quotas are changed from afar.
        Subject::FileSystem | Subject::Quota => return Err(NtStatus::NOT_SUPPORTED),
        Subject::Unknown(_) => return Err(NtStatus::INVALID_PARAMETER),
    }
    x.reply.write(&Response);
    Ok(NtStatus::SUCCESS)
}

async fn apply(x: &mut Exchange<'_>, open: &Arc<Open>, change: Change) -> Result<(), NtStatus> {
    if let Object::Pipe(_) = &open.object {
        return match change {
            // Pipes are read in whole messages and nobody waits for them, whatever is said.
            Change::Pipe { .. } => Ok(()),
            _ => Err(NtStatus::NOT_SUPPORTED),
        };
    }
    match change {
        Change::Basic { times, attributes } => basic(x, open, times, attributes).await,
        Change::Position(position) => {
            open.position.store(position, Ordering::Relaxed);
            Ok(())
        }
        Change::Mode(mode) => {
            open.mode.store(mode.bits(), Ordering::Relaxed);
            Ok(())
        }
        Change::EndOfFile(size) => resize(x, open, Length::Size(size)).await,
        Change::Allocation(bytes) => resize(x, open, Length::Allocation(bytes)).await,
        Change::FullEa(eas) => set_eas(open, eas).await,
        Change::Disposition(disposal) => dispose(x, open, disposal).await,
        Change::Rename { target, taken } => rename::rename(x, open, target, taken).await,
        Change::Link { target, taken } => rename::link(x, open, target, taken).await,
        // Both need a privilege that nobody has here (MS-FSA 2.1.5.15.13, 2.1.5.15.16).
        Change::ValidDataLength(_) | Change::ShortName(_) => Err(NtStatus::PRIVILEGE_NOT_HELD),
        Change::Pipe { .. } => Err(NtStatus::INVALID_PARAMETER),
    }
}

/// What an open must be allowed to do.
fn demand(open: &Open, access: Access) -> Result<(), NtStatus> {
    if open.access.contains(access) { Ok(()) } else { Err(NtStatus::ACCESS_DENIED) }
}

/// Times and attributes (MS-FSA 2.1.5.15.2).
async fn basic(
    x: &Exchange<'_>,
    open: &Arc<Open>,
    times: Times,
    attributes: Attributes,
) -> Result<(), NtStatus> {
    demand(open, Access::WRITE_ATTRIBUTES)?;
    let is_directory = open.must_be_file()?.is_folder();
    let (directory, temporary) = (Attributes::DIRECTORY, Attributes::TEMPORARY);
    if attributes.contains(directory) && !is_directory
        || attributes.contains(temporary) && is_directory
    {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let what = open.aside(move |open| set_basic(open, times, attributes)).await?;
    told(x, open, what).await;
    Ok(())
}

/// Sets times and attributes, and says which.
fn set_basic(open: &Open, times: Times, attributes: Attributes) -> Result<NotifyFilter, NtStatus> {
    let handle = open.must_be_file()?;
    let kept = open.before_change();
    let mut set = open.hold_times(times);
    let mut what = NotifyFilter::empty();
    what.set(NotifyFilter::CREATION, set.created.is_time());
    what.set(NotifyFilter::LAST_ACCESS, set.accessed.is_time());
    what.set(NotifyFilter::LAST_WRITE, set.written.is_time());
    // First, as these may be refused who may do the rest: then nothing is done.
    let stamps = SetTimes { accessed: set.accessed, written: set.written, ..SetTimes::default() };
    handle.set_times(stamps)?;
    (set.accessed, set.written) = (FileTime::NONE, FileTime::NONE);
    if !attributes.is_empty() {
        handle.set_attributes(attributes - Attributes::NORMAL)?;
        what |= NotifyFilter::ATTRIBUTES;
    }
    if times.changed != FileTime::THAW && !set.changed.is_time() {
        set.changed = kept.changed;
    }
    // Last, as whatever is changed moves the change time.
    handle.set_times(set)?;
    Ok(what)
}

/// How long something is to be.
#[derive(Clone, Copy)]
enum Length {
    Size(u64),
    Allocation(u64),
}

impl Length {
    fn bytes(self) -> u64 {
        let (Self::Size(bytes) | Self::Allocation(bytes)) = self;
        bytes
    }

    fn set(self, handle: &Handle) -> Result<(), NtStatus> {
        match self {
            Self::Size(bytes) => handle.set_size(bytes),
            Self::Allocation(bytes) => handle.set_allocation(bytes),
        }
    }
}

/// Another size (MS-FSA 2.1.5.15.4), or other blocks (MS-FSA 2.1.5.15.1).
async fn resize(x: &mut Exchange<'_>, open: &Arc<Open>, length: Length) -> Result<(), NtStatus> {
    demand(open, Access::WRITE_DATA)?;
    if open.directory && open.stream().is_none() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let share = open.must_be_file()?.of_share();
    x.server().contend(open);
    if open.aside(move |open| takes_long(open, length)).await? {
        let open = open.clone();
        elsewhere(share, move || set_length(&open, length)).await?;
    } else {
        open.aside(move |open| set_length(open, length)).await?;
    }
    x.server().contend(open);
    told(x, open, NotifyFilter::SIZE | NotifyFilter::LAST_WRITE).await;
    Ok(())
}

/// Whether the file system reserves or frees much.
fn takes_long(open: &Open, length: Length) -> Result<bool, NtStatus> {
    if open.stream().is_some() {
        return Ok(false);
    }
    let facts = open.facts()?;
    let moves = length.bytes().abs_diff(facts.allocated);
    // A file that grows by its size alone gets a hole.
    let grows = length.bytes() >= facts.size && matches!(length, Length::Size(_));
    Ok(moves > AT_ONCE && !grows)
}

fn set_length(open: &Open, length: Length) -> Result<(), NtStatus> {
    still_open(open)?;
    let times = open.before_change();
    match (open.stream(), length) {
        (Some(stream), Length::Size(bytes)) => stream.set_size(bytes)?,
        (Some(stream), Length::Allocation(bytes)) => {
            if bytes < stream.size()? {
                stream.set_size(bytes)?;
            }
        }
        (None, length) => length.set(open.must_be_file()?)?,
    }
    open.after_change(times);
    Ok(())
}

/// Extended attributes (MS-FSA 2.1.5.15.5).
async fn set_eas(open: &Arc<Open>, eas: Vec<Ea>) -> Result<(), NtStatus> {
    demand(open, Access::WRITE_EA)?;
    let set = move |open: &Open| {
        let handle = open.must_be_file()?;
        let times = open.before_change();
        for ea in eas {
            handle.set_ea(ea.name.as_bytes(), &ea.value)?;
        }
        open.after_change(times);
        Ok::<_, NtStatus>(())
    };
    open.aside(set).await?;
    watch::changed(&open.tree.share, &open.path(), NotifyFilter::EA);
    Ok(())
}

/// Whether the file goes with its last open (MS-FSA 2.1.5.15.3), or its name with this one.
async fn dispose(
    x: &mut Exchange<'_>,
    open: &Arc<Open>,
    disposal: Disposal,
) -> Result<(), NtStatus> {
    demand(open, Access::DELETE)?;
    let server = x.server().clone();
    if disposal.on_close {
        // What was said when it was opened stays said.
        return Err(NtStatus::NOT_SUPPORTED);
    }
    if !disposal.delete {
        server.wishes_no_deletion(open);
        return server
            .with_file(open.key, |shard, _| shard.set_delete_pending(open.key, open.id, false));
    }
    let may_go = move |open: &Open| may_go(open, disposal.ignore_readonly);
    open.aside(may_go).await?;
    contend::handles(x, open).await?;
    // Somebody may have been faster meanwhile.
    open.aside(may_go).await?;
    // A stream has nowhere to be without its name.
    let sooner = disposal.posix && open.stream().is_none();
    server.with_file(open.key, |shard, _| match sooner {
        true => shard.set_delete_with(open.key, open.id),
        false => shard.set_delete_pending(open.key, open.id, true),
    })?;
    server.wishes_deletion(open);
    if open.directory {
        watch::deleting(&open.tree.share, &open.path());
    }
    Ok(())
}

/// Whether what is open may be deleted at all.
fn may_go(open: &Open, ignore_readonly: bool) -> Result<(), NtStatus> {
    let path = open.path();
    if path.is_root() && open.stream().is_none() {
        return Err(NtStatus::ACCESS_DENIED);
    }
    let handle = open.must_be_file()?;
    let attributes = handle.facts()?.attributes;
    if attributes.contains(Attributes::READONLY) && !ignore_readonly {
        return Err(NtStatus::CANNOT_DELETE);
    }
    if open.stream().is_none() && handle.is_folder() && !handle.is_empty_folder()? {
        return Err(NtStatus::DIRECTORY_NOT_EMPTY);
    }
    Ok(())
}

/// Others hear that something about a file is different: those who watch, and those who cache its directory.
async fn told(x: &Exchange<'_>, open: &Arc<Open>, what: NotifyFilter) {
    if what.is_empty() {
        return;
    }
    watch::changed(&open.tree.share, &open.path(), what);
    x.server().directory_changed(open).await;
}
