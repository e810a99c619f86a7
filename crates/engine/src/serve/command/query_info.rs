//! QUERY_INFO (MS-SMB2 3.3.5.20).

use std::borrow::Cow;
use std::sync::Arc;

use smb::fscc::{About, Ea, Facts, FileClass, PosixOwner, QuotaQuery, StreamFacts, VolumeClass};
use smb::security::{SecurityInfo, Sid};
use smb::session::Dialect;
use smb::wire::error::Detail;
use smb::wire::query_info::{self as wire, Request, Subject};
use smb::{Attributes, NtStatus};

use super::super::access::{self, Asker};
use super::super::aside::aside;
use super::super::channel::Exchange;
use super::super::fs;
use super::super::open::{Object, Open};
use super::Answer;

/// SL_RETURN_SINGLE_ENTRY and SL_INDEX_SPECIFIED (MS-SMB2 2.2.37): of extended attributes.
const SINGLE: u32 = 2;
const INDEX: u32 = 4;

pub(super) async fn serve(x: &mut Exchange<'_>) -> Answer {
    let request = Request::parse(x.message)?;
    let most = x.agreed()?.payload;
    if request.output_max > most || request.payload_len() > u64::from(most) {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    x.pay(request.payload_len())?;
    let open = x.open_in_sequence(request.file, false)?;
    match request.subject {
        Subject::File => file(x, &request, &open).await,
        Subject::FileSystem => volume(x, &request, &open).await,
        Subject::Security => security(x, &request, &open).await,
        Subject::Quota => quota(&request),
        Subject::Unknown(_) => Err(NtStatus::INVALID_PARAMETER),
    }
}

/// Bytes that may come back.
fn limit(request: &Request<'_>) -> usize {
    usize::try_from(request.output_max).unwrap_or(usize::MAX)
}

async fn file(x: &mut Exchange<'_>, request: &Request<'_>, open: &Arc<Open>) -> Answer {
    let class = FileClass::from_wire(request.class)?;
    let agreed = x.agreed()?;
    match class {
        FileClass::Posix if !agreed.posix => return Err(NtStatus::INVALID_INFO_CLASS),
        FileClass::NormalizedName if agreed.dialect != Dialect::Smb311 => {
            return Err(NtStatus::NOT_SUPPORTED);
        }
        _ => {}
    }
    if !open.access.contains(class.access()) {
        return Err(NtStatus::ACCESS_DENIED);
    }
    let path = open.path();
    let link = access::name_hash(path.as_str());
    // As it is on the disk, whatever case it was opened in.
    let mut name = open.file().map_or_else(String::new, |file| file.path());
    if open.tree.share.config.map_devices
        && let Cow::Owned(marked) = smb::name::mark_device(&name)
    {
        name = marked;
    }
    if let Some(stream) = open.stream() {
        name.push(':');
        name.push_str(&stream.name());
    }
    let mut about = About {
        access: open.access,
        mode: open.mode.load(std::sync::atomic::Ordering::Relaxed),
        position: open.position.load(std::sync::atomic::Ordering::Relaxed),
        name: &name,
        ..About::default()
    };
    let (short_name, eas, streams, owner);
    match &open.object {
        Object::Pipe(_) => {
            about.facts.attributes = Attributes::NORMAL;
            about.facts.links = 1;
            about.facts.allocated = 4096;
            about.delete_pending = true;
        }
        Object::File(_) => {
            let found = open.aside(move |open| look(open, class)).await?;
            let facts = found.facts;
            about.facts = facts;
            about.delete_pending =
                x.server().with_file(open.key, |shard, _| shard.is_delete_pending(open.key, link));
            match class {
                FileClass::AlternateName => {
                    short_name = smb::name::short(path.name());
                    about.short_name = &short_name;
                }
                FileClass::FullEa => {
                    eas = chosen(found.eas, request)?;
                    about.eas = &eas;
                }
                FileClass::Stream => {
                    streams = found.streams;
                    about.streams = &streams;
                }
                FileClass::Posix => {
                    let (user, group) = (Sid::unix_user(facts.uid), Sid::unix_group(facts.gid));
                    owner = PosixOwner::new(&user, &group);
                    about.owner = Some(&owner);
                }
                _ => {}
            }
        }
    }
    let (out, start) = x.reply.body();
    wire::begin(out, start);
    let fill = class.put(&about, limit(request), out)?;
    wire::finish(out, start);
    Ok(fill.status())
}

/// What the file system says about a file.
struct Seen {
    facts: Facts,
    eas: Vec<fs::Ea>,
    streams: Vec<StreamFacts>,
}

/// As much as an answer of this class has.
fn look(open: &Open, class: FileClass) -> Result<Seen, NtStatus> {
    let (facts, handle) = (open.facts()?, open.must_be_file()?);
    let mut seen = Seen { facts, eas: Vec::new(), streams: Vec::new() };
    match class {
        FileClass::FullEa => seen.eas = handle.eas()?,
        FileClass::Stream => seen.streams = all_streams(handle)?,
        _ => {}
    }
    Ok(seen)
}

/// The extended attributes that a request is about: those that it names, or all, perhaps from an index on.
fn chosen(all: Vec<fs::Ea>, request: &Request<'_>) -> Result<Vec<Ea>, NtStatus> {
    let mut all: Vec<Ea> = all
        .into_iter()
        // What cannot be said on the wire is not there for clients.
        .filter_map(|ea| {
            Some(Ea { flags: 0, name: String::from_utf8(ea.name).ok()?, value: ea.value })
        })
        .collect();
    let names = smb::fscc::parse_ea_names(request.input)?;
    if !names.is_empty() {
        // Each by the name by which it was asked for, as Linux compares them; one that is not there has no value (MS-FSA
        // 2.1.5.12.9).
        let of = |name: String| {
            let same = |ea: &&Ea| ea.name.eq_ignore_ascii_case(&name);
            let found = all.iter().find(|ea| ea.name == name).or_else(|| all.iter().find(same));
            let value = found.map(|ea| ea.value.clone()).unwrap_or_default();
            Ea { flags: 0, name, value }
        };
        return Ok(names.into_iter().map(of).collect());
    }
    if request.flags & INDEX != 0 && request.additional > 0 {
        let skip = usize::try_from(request.additional - 1).unwrap_or(usize::MAX);
        if skip >= all.len() {
            return Err(NtStatus::NONEXISTENT_EA_ENTRY);
        }
        all.drain(..skip);
    }
    if request.flags & SINGLE != 0 {
        all.truncate(1);
    }
    Ok(all)
}

/// The file's own data, if it has any, and its named streams.
fn all_streams(handle: &fs::Handle) -> Result<Vec<StreamFacts>, NtStatus> {
    let facts = handle.facts()?;
    let mut streams = Vec::new();
    if !facts.is_directory() {
        let (size, allocated) = (facts.size, facts.allocated);
        streams.push(StreamFacts { name: String::new(), size, allocated });
    }
    streams.extend(handle.streams()?.into_iter().map(|stream| StreamFacts {
        name: stream.name,
        size: stream.size,
        allocated: stream.size,
    }));
    Ok(streams)
}

async fn volume(x: &mut Exchange<'_>, request: &Request<'_>, open: &Arc<Open>) -> Answer {
    let class = VolumeClass::from_wire(request.class)?;
    if class == VolumeClass::Posix && !x.agreed()?.posix {
        return Err(NtStatus::INVALID_INFO_CLASS);
    }
    let share = open.tree.share.files.as_ref().ok_or(NtStatus::INVALID_DEVICE_REQUEST)?;
    let this = share.clone();
    let facts = aside(share, move || this.volume()).await?;
    let (out, start) = x.reply.body();
    wire::begin(out, start);
    let fill = class.put(&facts, limit(request), out)?;
    wire::finish(out, start);
    Ok(fill.status())
}

/// The security descriptor, as far as it is asked for (MS-SMB2 3.3.5.20.3).
async fn security(x: &mut Exchange<'_>, request: &Request<'_>, open: &Arc<Open>) -> Answer {
    let info = SecurityInfo::from_bits_retain(request.additional);
    if !open.access.contains(info.to_query()) {
        return Err(NtStatus::ACCESS_DENIED);
    }
    let asker = Asker::new(&x.session()?.identity(), &open.tree.share, x.server());
    let look = move |open: &Open| {
        let handle = open.must_be_file()?;
        asker.descriptor(handle, &handle.facts()?)
    };
    let bytes = open.aside(look).await?.only(info).to_bytes();
    if bytes.len() > limit(request) {
        let needs = Detail::Needs(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        let contexts = x.agreed()?.dialect == Dialect::Smb311;
        let (out, start) = x.reply.body();
        needs.encode(contexts, out, start);
        return Ok(NtStatus::BUFFER_TOO_SMALL);
    }
    x.reply.write(&wire::Response { data: &bytes });
    Ok(NtStatus::SUCCESS)
}

/// Nothing keeps quotas here; who asks wrongly is told so first.
fn quota(request: &Request<'_>) -> Answer {
    QuotaQuery::parse(request.input)?;
    Err(NtStatus::NOT_SUPPORTED)
}
