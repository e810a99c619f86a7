//! READ (MS-SMB2 3.3.5.12).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smb::wire::Encode;
use smb::wire::header::HEADER_LEN;
use smb::wire::read::{Head, RESPONSE_HEAD_LEN, Request, Response};
use smb::{Access, NtStatus};
use sys::residency::append_at;

use super::super::acting::{self, Whose};
use super::super::aside::elsewhere;
use super::super::channel::{Exchange, Fill};
use super::super::fs;
use super::super::open::{Object, Open};
use super::super::transfer::DataFile;
use super::Answer;

/// Up to this many bytes are read into the answer itself, which then goes out with others.
const INLINE: u32 = 16 << 10;

pub(super) async fn serve(x: &mut Exchange<'_>) -> Answer {
    let request = Request::parse(x.message)?;
    x.pay(request.payload_len())?;
    if request.length > x.agreed()?.payload {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if request.channel != 0 {
        // RDMA was never offered.
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let open = x.open_in_sequence(request.file, false)?;
    if !open.access.intersects(Access::READ_DATA | Access::EXECUTE) {
        return Err(NtStatus::ACCESS_DENIED);
    }
    if request
        .offset
        .checked_add(request.length.into())
        .is_none_or(|end| i64::try_from(end).is_err())
    {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    match &open.object {
        Object::Pipe(pipe) => {
            let chunk = pipe.read(request.length as usize).await?;
            respond(x, &chunk.bytes);
            return Ok(chunk.status());
        }
        Object::File(_) if open.directory && open.stream().is_none() => {
            return Err(NtStatus::INVALID_DEVICE_REQUEST);
        }
        Object::File(_) => {}
    }
    if open.flags.is_locked() {
        let (offset, length) = (request.offset, u64::from(request.length));
        x.server().with_file(open.key, |shard, _| {
            shard.check_io(open.key, open.id, offset, length, false)
        })?;
    }
    if open.stream().is_some() {
        let whose = x.session()?.whose(x.server());
        let (offset, length) = (request.offset, request.length as usize);
        let data = open.aside(move |open| read_stream(open, &whose, offset, length)).await?;
        enough(&open, &request, data.len())?;
        count(x, &open, data.len() as u64);
        respond(x, &data);
        return Ok(NtStatus::SUCCESS);
    }
    let whole = x.may_tail();
    if whole && request.length > INLINE {
        let data = open.data()?;
        let (file, offset, most) = (data.clone(), request.offset, request.length);
        let len = open.aside(move |_| file.clamp(offset, most)).await;
        let len = len.map_err(|error| fs::status_of(&error))?;
        enough(&open, &request, len as usize)?;
        if len > INLINE {
            count(x, &open, len.into());
            let method = x.channel.chooser().send(x.channel.load(len));
            x.reply.write(&Head { data_len: len, ..Head::default() });
            x.reply.tail(data, request.offset, len, method);
            return Ok(NtStatus::SUCCESS);
        }
    }
    let status = into_answer(x, &open, &request).await?;
    if x.channel.padded_reads.get() {
        pad(x);
    }
    Ok(status)
}

fn read_stream(
    open: &Open,
    whose: &Whose,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, NtStatus> {
    let stream = open.stream().ok_or(NtStatus::INVALID_DEVICE_REQUEST)?;
    let mut data = vec![0; length];
    // An attribute is read each time, and not from what was opened.
    let read = acting::act(whose, || stream.read(offset, &mut data));
    let read = read.map_err(|error| fs::status_of(&error))??;
    data.truncate(read);
    Ok(data)
}

/// Moves the data eight bytes on, which clients must be able to read as well. A test code.
fn pad(x: &mut Exchange<'_>) {
    let (bytes, start) = x.reply.body();
    let (head, data) = (start + HEADER_LEN, start + HEADER_LEN + RESPONSE_HEAD_LEN);
    bytes.splice(data..data, [0; 8]);
    // DataOffset.
    bytes[head + 2] += 8;
}

/// Whether so many bytes are what was asked for.
fn enough(open: &Open, request: &Request<'_>, read: usize) -> Result<(), NtStatus> {
    if (read == 0 && request.length > 0) || read < request.minimum as usize {
        return Err(NtStatus::END_OF_FILE);
    }
    // What FilePositionInformation tells (MS-FSA 2.1.5.3).
    open.position.store(request.offset.saturating_add(read as u64), Ordering::Relaxed);
    Ok(())
}

fn respond(x: &mut Exchange<'_>, data: &[u8]) {
    x.reply.write(&Response { data, ..Response::default() });
}

/// From this length on what is signed or encrypted may be worth another core.
const ELSEWHERE: usize = 128 << 10;

/// Reads into the answer: what is small, and what is signed or encrypted.
async fn into_answer(x: &mut Exchange<'_>, open: &Arc<Open>, request: &Request<'_>) -> Answer {
    let data = open.data()?;
    let length = match request.length {
        small @ ..=INLINE => small as usize,
        // No memory for what is not there.
        large => {
            let (file, offset) = (data.clone(), request.offset);
            let there = open.aside(move |_| file.clamp(offset, large)).await;
            there.map_err(|error| fs::status_of(&error))? as usize
        }
    };
    let making = (length > INLINE as usize).then(|| x.channel.make(length));
    x.reply.make_room(RESPONSE_HEAD_LEN + length, making);
    let (bytes, start) = x.reply.body();
    Head::default().encode(bytes, start);
    if length >= ELSEWHERE
        && let Some(lane) = x.may_go_elsewhere()
    {
        enough(open, request, length)?;
        count(x, open, length as u64);
        let least = request.minimum as usize;
        x.reply.fill(Fill { file: data, offset: request.offset, len: length, least, lane });
        return Ok(NtStatus::SUCCESS);
    }
    let (bytes, _) = x.reply.body();
    let mut bytes = std::mem::take(bytes);
    let is_local = open.must_be_file()?.is_local();
    let ready = if !is_local {
        // Even of what is in memory it may ask elsewhere whether that is still so.
        None
    } else if length <= INLINE as usize && !data.in_memory() {
        small(&data, &mut bytes, length, request.offset)
    } else {
        data.resident(request.offset, request.length.into())
            .then(|| append(&data, &mut bytes, length, request.offset))
    };
    let (bytes, read) = match ready {
        Some(read) => (bytes, read),
        None => {
            let offset = request.offset;
            let read = move || {
                let read = append(&data, &mut bytes, length, offset);
                (bytes, read)
            };
            elsewhere(open.must_be_file()?.of_share(), read).await
        }
    };
    *x.reply.body().0 = bytes;
    let read = read.map_err(|error| fs::status_of(&error))?;
    enough(open, request, read)?;
    count(x, open, read as u64);
    let (bytes, start) = x.reply.body();
    debug_assert_eq!(
        bytes.len(),
        start + HEADER_LEN + RESPONSE_HEAD_LEN + read,
        "the data follows the head at once"
    );
    announce(bytes, start, read);
    Ok(NtStatus::SUCCESS)
}

/// Says in an answer that begins at `start` how many bytes were read.
pub(in crate::serve) fn announce(bytes: &mut [u8], start: usize, read: usize) {
    let data_len = u32::try_from(read).unwrap_or(u32::MAX);
    let head = start + HEADER_LEN;
    let written = Head { data_len, ..Head::default() }.to_bytes();
    bytes[head..head + RESPONSE_HEAD_LEN].copy_from_slice(&written);
}

/// Reads what is in memory. `None`: a disk would have to be waited for.
fn small(
    file: &DataFile,
    bytes: &mut Vec<u8>,
    length: usize,
    offset: u64,
) -> Option<io::Result<usize>> {
    match append_at(file.as_fd(), bytes, length, offset, true) {
        Ok(read) if read < length && read > 0 => {
            // The rest may be on disk only, or not be at all: that is known by asking again.
            let more = append(file, bytes, length - read, offset + read as u64);
            Some(more.map(|more| read + more))
        }
        Ok(read) => Some(Ok(read)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        // A file system that does not say whether it would wait: FUSE.
        Err(_) => {
            let there = file.clamp(offset, u32::try_from(length).unwrap_or(u32::MAX));
            let ready = there.is_ok_and(|there| file.resident(offset, there.into()));
            ready.then(|| append(file, bytes, length, offset))
        }
    }
}

/// Reads until `length` bytes or the end of the file.
pub(in crate::serve) fn append(
    file: &DataFile,
    bytes: &mut Vec<u8>,
    length: usize,
    offset: u64,
) -> io::Result<usize> {
    let mut read = file.append_mapped(bytes, offset, length);
    while read < length {
        match append_at(file.as_fd(), bytes, length - read, offset + read as u64, false) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// So much of a file was read.
fn count(x: &Exchange<'_>, open: &Open, bytes: u64) {
    x.channel.tally().read(bytes);
    open.tree.share.moved.read(bytes);
}
