//! WRITE (MS-SMB2 3.3.5.13).

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smb::wire::header::{Command, Flags as HeaderFlags, Header, PROTOCOL_ID};
use smb::wire::write::{Flags, Request, Response};
use smb::{Access, NtStatus};

use super::super::acting::Whose;
use super::super::aside::{self, elsewhere};
use super::super::channel::{Channel, Ending, Exchange, Reply, Serving};
use super::super::fs::SetTimes;
use super::super::open::{Object, Open, Sequenced};
use super::super::transfer::{Progress, ReceiveFile};
use super::super::{fs, runtime};
use super::Answer;

/// Up to this many bytes are written at once, whatever disk is below: the page cache takes them, as a rule.
const INLINE: usize = 64 << 10;

/// Where a file ends at the latest (MS-FSA 2.1.5.4).
const MAXFILESIZE: u64 = 0xfff_ffff_0000;

/// How long data may be in coming once some has come.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is wrong with a write to this open, before it is tried.
fn check(open: &Open, request: &Request, channel: &Channel) -> Result<(), NtStatus> {
    if !open.access.intersects(Access::WRITE_DATA | Access::APPEND_DATA) {
        return Err(NtStatus::ACCESS_DENIED);
    }
    if request.channel != 0 {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let length = request.data.len() as u64;
    let end = request.offset.checked_add(length).filter(|end| i64::try_from(*end).is_ok());
    if end.is_none_or(|end| length > 0 && end > MAXFILESIZE) {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if open.directory && open.stream().is_none() {
        return Err(NtStatus::INVALID_DEVICE_REQUEST);
    }
    // Of who may only append that is asked again when it is his turn.
    if length > 0 && (open.stream().is_some() || !open.keeps_waiting()) {
        open.may_write(request.offset)?;
    }
    not_locked(open, request, channel)?;
    channel.server.contend(open);
    open.note_change();
    Ok(())
}

/// Whether no lock of another open is in the way of a write.
fn not_locked(open: &Open, request: &Request, channel: &Channel) -> Result<(), NtStatus> {
    if !open.flags.is_locked() {
        return Ok(());
    }
    let length = request.data.len() as u64;
    channel.server.with_file(open.key, |shard, _| {
        shard.check_io(open.key, open.id, request.offset, length, true)
    })
}

/// Whether a write whose data takes its time may go on: others are served meanwhile.
fn may_go_on(open: &Open, request: &Request, channel: &Channel) -> Result<(), NtStatus> {
    still_open(open)?;
    not_locked(open, request, channel)
}

pub(super) async fn serve(x: &mut Exchange<'_>) -> Answer {
    let request = Request::parse(x.message)?;
    x.pay(request.payload_len())?;
    let message = x.message;
    let data = message.get(request.data.clone()).ok_or(NtStatus::INVALID_PARAMETER)?;
    if data.len() > x.agreed()?.payload as usize {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let open = x.open_in_sequence(request.file, true)?;
    if let Object::Pipe(pipe) = &open.object {
        pipe.write(data).await?;
        x.reply.write(&Response { count: u32::try_from(data.len()).unwrap_or(u32::MAX) });
        return Ok(NtStatus::SUCCESS);
    }
    check(&open, &request, x.channel)?;
    let times = before_change(&open).await;
    let written = store(&open, request.offset, data).await;
    x.channel.server.contend(&open);
    written?;
    // It is changed, even if it cannot be brought to the disk.
    after_change(&open, times).await;
    if through(&open, request.flags) {
        match open.stream() {
            // It is kept in what is said about the file, which fdatasync(2) may leave out.
            Some(_) => open.sync().await?,
            None if data.is_empty() => {}
            None => open.sync_data().await?,
        }
    }
    x.channel.tally().written(data.len() as u64);
    open.tree.share.moved.written(data.len() as u64);
    x.reply.write(&Response { count: u32::try_from(data.len()).unwrap_or(u32::MAX) });
    Ok(NtStatus::SUCCESS)
}

/// [`Open::before_change`], which asks the file system if times are held.
async fn before_change(open: &Arc<Open>) -> SetTimes {
    if open.holds_times() { open.aside(Open::before_change).await } else { SetTimes::default() }
}

/// [`Open::after_change`].
async fn after_change(open: &Arc<Open>, times: SetTimes) {
    if times != SetTimes::default() {
        open.aside(move |open| open.after_change(times)).await;
    }
}

async fn store(open: &Arc<Open>, offset: u64, data: &[u8]) -> Result<(), NtStatus> {
    let waits = open.keeps_waiting();
    let Some(share) = &open.tree.share.files else { return Err(NtStatus::INVALID_DEVICE_REQUEST) };
    if let Some(stream) = open.stream()
        && !waits
    {
        return share.timed(|| stream.write(offset, data));
    }
    if data.is_empty() {
        return Ok(());
    }
    if open.stream().is_none() && !open.only_appends() {
        let file = open.data()?;
        if file.in_memory() || (data.len() <= INLINE && !waits) {
            let written = share.timed(|| file.overwrite(data, offset));
            return written.map_err(|error| fs::status_of(&error));
        }
    }
    let (data, open) = (data.to_vec(), open.clone());
    if data.len() <= INLINE && waits {
        let far = open.is_far();
        return aside::aside_if(share, far, move || write(&open, &data, offset)).await;
    }
    elsewhere(share, move || write(&open, &data, offset)).await
}

/// What another thread writes, when it has its turn.
fn write(open: &Open, data: &[u8], offset: u64) -> Result<(), NtStatus> {
    still_open(open)?;
    if let Some(stream) = open.stream() {
        return stream.write(offset, data);
    }
    let file = open.data()?;
    let _turn = open.write_in_turn(offset)?;
    file.write_all(data, offset).map_err(|error| fs::status_of(&error))
}

/// Whether an open is there yet, and its client. Who has lost its connection writes again what was not answered; somebody
/// else may have the file by then.
pub(super) fn still_open(open: &Open) -> Result<(), NtStatus> {
    if open.is_closed() || open.is_away() { Err(NtStatus::FILE_CLOSED) } else { Ok(()) }
}

/// Whether what is written must be on the disk before it is answered.
fn through(open: &Open, flags: Flags) -> bool {
    flags.contains(Flags::WRITE_THROUGH) || open.options.contains(smb::CreateOptions::WRITE_THROUGH)
}

/// A WRITE whose data is still in the socket, and goes from there to its file.
pub(in crate::serve) struct DirectWrite {
    header: Header,
    request: Request,
    open: Arc<Open>,
    whose: Whose,
}

impl Channel {
    /// Whether a frame of `len` bytes, of which `head` has come, is a WRITE that needs no look at its data:
    /// alone in its frame, neither signed nor encrypted, and allowed. Whatever is not as plain as that is for
    /// [`serve`], which also says what is wrong with it.
    pub(in crate::serve) fn direct_write(&self, head: &[u8], len: usize) -> Option<DirectWrite> {
        if !head.starts_with(&PROTOCOL_ID) {
            return None;
        }
        let header = Header::parse(head).ok()?;
        let odd =
            HeaderFlags::SIGNED | HeaderFlags::RELATED | HeaderFlags::RESPONSE | HeaderFlags::ASYNC;
        if header.command != Command::Write || header.next != 0 || header.flags.intersects(odd) {
            return None;
        }
        let request = Request::parse_head(head, len).ok()?;
        let bound = self.bound(header.session)?;
        let session = &bound.session;
        if session.must_sign
            || session.must_encrypt
            || session.is_closed()
            || session.is_expired(self.server.now())
        {
            return None;
        }
        let tree = bound.recent.tree(session, header.tree()?)?;
        let open = bound.recent.open(session, request.file.volatile)?;
        let plain = open.file_id == request.file
            && open.tree.id == tree.id
            && !open.is_closed()
            && open.file().is_some()
            && open.stream().is_none()
            && !open.directory
            // Who may only append is asked where the file ends once the data is there.
            && open.access.contains(Access::WRITE_DATA)
            && !tree.share.config.encrypted
            && request.data.end == len
            // What is before the data has come: what follows belongs to the file, from its first byte on.
            && request.data.start <= head.len()
            && request.data.len() <= self.agreed()?.payload as usize
            && !through(&open, request.flags);
        let paid = u64::from(header.credit_charge.max(1));
        if !plain || smb::wire::credit_charge_needed(request.payload_len()) > paid {
            return None;
        }
        let whose = bound.recent.whose(session, &self.server);
        Some(DirectWrite { header, request, open, whose })
    }
}

impl DirectWrite {
    /// Where the data begins, bytes from the header.
    pub(in crate::serve) fn payload_at(&self) -> usize {
        self.request.data.start
    }

    /// On whose behalf it is written.
    pub(in crate::serve) fn whose(&self) -> &Whose {
        &self.whose
    }

    /// Takes the data, of which `early` has come with the header, and answers.
    pub(in crate::serve) async fn receive(
        self,
        channel: &std::rc::Rc<Channel>,
        early: &[u8],
    ) -> Result<(), Ending> {
        let Self { header, request, open, whose: _ } = self;
        let mut serving = Serving::new(channel);
        let began = Instant::now();
        // For what is still to come: it says nothing about how fast we are.
        let mut waited = Duration::ZERO;
        let charge = header.credit_charge.max(1);
        let consumed = channel.window.borrow_mut().consume(header.message_id, charge);
        consumed
            .map_err(|_| Ending::Nonsense("a message id that was not granted, or used before"))?;
        let replay = header.flags.contains(HeaderFlags::REPLAY);
        let begun = Sequenced::begin(&open, header.channel_sequence(), true, replay).map(Arc::new);
        let mut allowed = match &begun {
            Ok(_) => check(&open, &request, channel),
            Err(status) => Err(*status),
        };
        let len = u32::try_from(request.data.len()).unwrap_or(u32::MAX);
        let file = open.data().map_err(|_| Ending::Nonsense("a file that cannot be written"))?;
        let load = channel.load(len);
        let method = channel.chooser().receive(load, &file);
        let times = before_change(&open).await;
        let transfer = ReceiveFile::new(early, file, request.offset, len, method);
        let mut transfer = transfer.from_local(load.loopback);
        if allowed.is_err() {
            transfer.refuse();
        }
        let fd = channel.socket.shared_fd().clone();
        loop {
            if allowed.is_ok() {
                allowed = may_go_on(&open, &request, channel);
                if allowed.is_err() {
                    transfer.refuse();
                }
            }
            let step = transfer.step(fd.as_fd(), channel.pools());
            match step.map_err(|error| Ending::Broken(std::io::Error::other(error)))? {
                Progress::Done => break,
                Progress::SocketBlocked => {
                    channel.socket.source().not_readable();
                    let from = Instant::now();
                    let readable = runtime::timeout(channel.socket.readable(), PATIENCE).await;
                    readable.map_err(|_| Ending::Nonsense("a request took too long to arrive"))?;
                    waited += from.elapsed();
                }
                Progress::WouldWait(job) => {
                    // It is written to its end even if the connection goes, and is under way until then.
                    let kept = begun.as_ref().ok().cloned();
                    transfer.finished(aside::transfer(job, kept).await);
                }
            }
        }
        // Whatever has become of it, something may have been written.
        channel.server.contend(&open);
        after_change(&open, times).await;
        drop(begun);
        channel.count_received(request.data.len() - early.len().min(request.data.len()));
        let written =
            allowed.and_then(|()| transfer.outcome().map_err(|error| fs::status_of(&error)));
        let mut reply = Reply::new(None);
        reply.begin(&header.answer(NtStatus::SUCCESS));
        let status = match written {
            Ok(count) => {
                channel.tally().written(count.into());
                open.tree.share.moved.written(count.into());
                reply.write(&Response { count });
                NtStatus::SUCCESS
            }
            Err(status) => {
                reply.fail(&smb::wire::error::Response::EMPTY);
                status
            }
        };
        let took = began.elapsed().saturating_sub(waited);
        channel.tally().served(Command::Write, status, Some(took));
        let credits = channel.grant(&header);
        reply.complete(status, credits, None);
        channel.send_reply(reply);
        serving.went_well = true;
        Ok(())
    }
}
