//! One connection: requests out, answers in, credits, signatures, encryption.

use std::io::{ErrorKind, IoSlice, Write};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use rustix::net::sockopt;

use super::keys::{Sealer, Signer, WriteHead};
use super::settings::Settings;
use super::socket;
use super::wire::{self, HEADER, Header, TRANSFORM, command, flag, status};

/// What a request is, alone or in a compound.
pub(crate) struct Request<'a> {
    pub(crate) command: u16,
    pub(crate) body: &'a [u8],
    /// Sent behind `body`.
    pub(crate) data: &'a [u8],
    pub(crate) charge: u16,
    /// It uses the file of the request before it.
    pub(crate) related: bool,
}

impl<'a> Request<'a> {
    /// A request of its own.
    pub(crate) fn new(command: u16, body: &'a [u8]) -> Self {
        Self { command, body, data: &[], charge: 1, related: false }
    }

    /// One that follows another in a compound.
    pub(crate) fn then(command: u16, body: &'a [u8]) -> Self {
        Self { related: true, ..Self::new(command, body) }
    }

    pub(crate) fn charge(self, charge: u16) -> Self {
        Self { charge, ..self }
    }

    pub(crate) fn data(self, data: &'a [u8]) -> Self {
        Self { data, ..self }
    }
}

/// A final answer; its bytes are [`Connection::bytes`] until the next one is received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) message_id: u64,
    pub(crate) command: u16,
    pub(crate) status: u32,
    at: usize,
    len: usize,
    /// Bytes that a READ brought or a WRITE took.
    pub(crate) count: u32,
}

/// More than any server sends: 8 MiB of data and what is around it.
const INBOX_MAX: usize = 9 << 20;
/// What an inbox begins with. One that is as large as it may become takes longer to zero than a session to set up.
const INBOX: usize = 256 << 10;
/// What is looked at of an answer whose data is dropped: header and fixed part of a READ answer.
const LOOK: usize = HEADER + 20;
/// As many credits as a connection keeps asking for.
const CREDITS_MAX: u32 = 4096;
/// Frames from here on are received to their last byte and not further, or dropped.
pub(crate) const BIG: usize = 32768;
/// Bytes in front of a WRITE's data: length, transform header, header and fixed part.
pub(crate) const WRITE_ROOM: usize = 4 + TRANSFORM + HEADER + 48;

pub(crate) struct Connection {
    socket: TcpStream,
    message_id: u64,
    pub(crate) credits: u32,
    pub(crate) session_id: u64,
    pub(crate) tree_id: u32,
    pub(crate) signer: Option<Signer>,
    pub(crate) sealer: Option<Sealer>,
    nonce: u64,
    inbox: Vec<u8>,
    begin: usize,
    end: usize,
    outbox: Vec<u8>,
    /// Answers of at least this length are received exactly, or dropped; else as much as is there.
    pub(crate) big: usize,
    truncates: bool,
    checks: bool,
    timeout: std::time::Duration,
}

impl Connection {
    /// Connects; nothing is said yet.
    pub(crate) fn open(settings: &Settings) -> anyhow::Result<Self> {
        let address = &settings.addr;
        let socket =
            TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(settings.timeout()))?;
        socket.set_write_timeout(Some(settings.timeout()))?;
        if settings.sndbuf > 0 {
            sockopt::set_socket_send_buffer_size(&socket, settings.sndbuf)?;
        }
        if settings.rcvbuf > 0 {
            sockopt::set_socket_recv_buffer_size(&socket, settings.rcvbuf)?;
        }
        Ok(Self {
            socket,
            message_id: 0,
            credits: 1,
            session_id: 0,
            tree_id: 0,
            signer: None,
            sealer: None,
            nonce: 1,
            inbox: vec![0; INBOX],
            begin: 0,
            end: 0,
            outbox: Vec::with_capacity(1 << 16),
            big: usize::MAX,
            truncates: settings.truncates(),
            checks: !settings.nocheck,
            timeout: settings.timeout(),
        })
    }

    /// The number that the next request gets.
    pub(crate) fn next_message_id(&self) -> u64 {
        self.message_id
    }

    /// An answer, from its header on.
    pub(crate) fn bytes(&self, answer: &Answer) -> &[u8] {
        &self.inbox[answer.at..answer.at + answer.len]
    }

    /// The data that a READ answer brought.
    pub(crate) fn data(&self, answer: &Answer) -> anyhow::Result<&[u8]> {
        let bytes = self.bytes(answer);
        let offset = bytes.get(HEADER + 2).context("an answer to READ is cut short")?;
        wire::part(bytes, u32::from(*offset), answer.count)
    }

    fn header(&mut self, request: &Request<'_>, flags: u32, next: u32) -> anyhow::Result<Header> {
        let charge = request.charge.max(1);
        let left = self.credits.checked_sub(u32::from(charge));
        self.credits = left.with_context(|| {
            format!("{charge} credits are wanted and the server has granted {}", self.credits)
        })?;
        let message_id = self.message_id;
        self.message_id += u64::from(charge);
        let more = if self.credits < CREDITS_MAX { 256 } else { 0 };
        Ok(Header {
            command: request.command,
            charge: request.charge,
            credits_wanted: charge.saturating_add(more),
            flags,
            next,
            message_id,
            tree_id: self.tree_id,
            session_id: self.session_id,
        })
    }

    /// Puts a message of one or more requests behind what waits to be sent.
    ///
    /// # Errors
    ///
    /// When there are not enough credits.
    pub(crate) fn queue(&mut self, requests: &[Request<'_>]) -> anyhow::Result<()> {
        let mut out = std::mem::take(&mut self.outbox);
        let begin = out.len();
        let done = self.append(requests, &mut out, begin);
        self.outbox = out;
        done
    }

    fn append(
        &mut self,
        requests: &[Request<'_>],
        out: &mut Vec<u8>,
        begin: usize,
    ) -> anyhow::Result<()> {
        out.extend([0; 4]);
        if self.sealer.is_some() {
            out.extend([0; TRANSFORM]);
        }
        let signs = self.signer.is_some() && self.sealer.is_none();
        for (number, request) in requests.iter().enumerate() {
            let at = out.len();
            let len = HEADER + request.body.len() + request.data.len();
            let last = number + 1 == requests.len();
            let padded = if last { len } else { len.next_multiple_of(8) };
            let next = if last { 0 } else { u32::try_from(padded)? };
            let related = if request.related { flag::RELATED } else { 0 };
            let signed = if signs { flag::SIGNED } else { 0 };
            let header = self.header(request, related | signed, next)?;
            header.append_to(out);
            out.extend_from_slice(request.body);
            out.extend_from_slice(request.data);
            out.resize(at + padded, 0);
            if let Some(signer) = self.signer.as_ref().filter(|_| signs) {
                let signature = signer.sign(header.message_id, false, &out[at..])?;
                out[at + 48..at + 64].copy_from_slice(&signature);
            }
        }
        self.seal(&mut out[begin + 4..])?;
        let len = u32::try_from(out.len() - begin - 4)?;
        out[begin..begin + 4].copy_from_slice(&len.to_be_bytes());
        Ok(())
    }

    /// Encrypts the messages behind the room for a transform header, if this connection encrypts.
    fn seal(&mut self, frame: &mut [u8]) -> anyhow::Result<()> {
        let Some(sealer) = &self.sealer else { return Ok(()) };
        let (room, messages) = frame.split_at_mut(TRANSFORM);
        let mut head = [0; TRANSFORM];
        head[..4].copy_from_slice(b"\xfdSMB");
        head[20..28].copy_from_slice(&self.nonce.to_le_bytes());
        self.nonce += 1;
        head[36..40].copy_from_slice(&u32::try_from(messages.len())?.to_le_bytes());
        head[42] = 1;
        head[44..].copy_from_slice(&self.session_id.to_le_bytes());
        let mut nonce = [0; 12];
        nonce.copy_from_slice(&head[20..32]);
        let tag = sealer.seal(nonce, &head[20..], messages)?;
        head[4..20].copy_from_slice(&tag);
        room.copy_from_slice(&head);
        Ok(())
    }

    /// What waits to be sent: bytes of whole messages, each behind its length.
    pub(crate) fn waiting(&self) -> &[u8] {
        &self.outbox
    }

    /// Sends what waits.
    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        if !self.outbox.is_empty() {
            self.send_all(&[&self.outbox])?;
            self.outbox.clear();
        }
        Ok(())
    }

    fn send_all(&self, parts: &[&[u8]]) -> anyhow::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            match (&self.socket).write_vectored(left) {
                Ok(sent) => IoSlice::advance_slices(&mut left, sent),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.said(error, "take")),
            }
        }
        Ok(())
    }

    fn said(&self, error: std::io::Error, what: &str) -> anyhow::Error {
        if error.kind() == ErrorKind::WouldBlock {
            return anyhow::anyhow!("the server does not {what} anything for {:?}", self.timeout);
        }
        anyhow::Error::from(error).context("the connection failed")
    }

    /// Sends a WRITE whose data is not copied; with `file`, it is sent from there unless it is signed or encrypted.
    /// In front of the data `framed` has [`WRITE_ROOM`] bytes, and what is encrypted is so in place: the data is
    /// something else afterwards.
    pub(crate) fn send_write(
        &mut self,
        body: &[u8],
        framed: &mut [u8],
        charge: u16,
        file: Option<BorrowedFd<'_>>,
    ) -> anyhow::Result<()> {
        self.flush()?;
        let request = Request::new(command::WRITE, body).charge(charge);
        let signs = self.signer.is_some() && self.sealer.is_none();
        let header = self.header(&request, if signs { flag::SIGNED } else { 0 }, 0)?;
        let mut head = Vec::with_capacity(HEADER + body.len());
        header.append_to(&mut head);
        head.extend_from_slice(body);
        let message = WRITE_ROOM.checked_sub(head.len());
        let message = message.context("a WRITE whose fixed part is too long")?;
        framed[message..WRITE_ROOM].copy_from_slice(&head);
        if let Some(signer) = self.signer.as_ref().filter(|_| signs) {
            let signature = signer.sign(header.message_id, false, &framed[message..])?;
            framed[message + 48..message + 64].copy_from_slice(&signature);
        }
        let sealed = if self.sealer.is_some() { TRANSFORM } else { 0 };
        let begin = message - sealed - 4;
        self.seal(&mut framed[begin + 4..])?;
        let len = u32::try_from(framed.len() - begin - 4)?;
        framed[begin..begin + 4].copy_from_slice(&len.to_be_bytes());
        let Some(file) = file.filter(|_| sealed == 0 && !signs) else {
            return self.send_all(&[&framed[begin..]]);
        };
        let (head, len) = (&framed[begin..WRITE_ROOM], framed.len() - WRITE_ROOM);
        let mut sent = 0;
        while sent < head.len() {
            sent += socket::send_more(&self.socket, &head[sent..])
                .map_err(|error| self.said(error, "take"))?;
        }
        let (mut offset, mut left) = (0, len);
        while left > 0 {
            let sent = socket::send_file(&self.socket, file, &mut offset, left)
                .map_err(|error| self.said(error, "take"))?;
            ensure!(sent > 0, "the file with the data is shorter than a request");
            left -= sent;
        }
        Ok(())
    }

    /// Whether it signs by a chain, of which several go side by side.
    pub(crate) fn signs_serially(&self) -> bool {
        self.sealer.is_none() && matches!(self.signer, Some(Signer::Cmac(..)))
    }

    /// Sends several WRITEs of the same data, signed at the same time. `false`: that is nothing for this connection, and
    /// nothing was sent.
    ///
    /// # Errors
    ///
    /// When there are not enough credits, or the connection fails.
    pub(crate) fn send_writes(
        &mut self,
        bodies: &[[u8; 48]],
        data: &[u8],
        charge: u16,
    ) -> anyhow::Result<bool> {
        if !self.signs_serially() {
            return Ok(false);
        }
        self.flush()?;
        let mut heads: Vec<WriteHead> = Vec::with_capacity(bodies.len());
        for body in bodies {
            let request = Request::new(command::WRITE, body).charge(charge);
            let header = self.header(&request, flag::SIGNED, 0)?;
            let mut head = Vec::with_capacity(HEADER + body.len());
            header.append_to(&mut head);
            head.extend_from_slice(body);
            heads.push(head[..].try_into()?);
        }
        let signed = self.signer.as_ref().map(|signer| signer.sign_writes(&mut heads, data));
        ensure!(signed.transpose()? == Some(true), "so many cannot be signed at a time");
        let len = u32::try_from(HEADER + 48 + data.len())?.to_be_bytes();
        let parts: Vec<&[u8]> = heads.iter().flat_map(|head| [&len[..], head, data]).collect();
        self.send_all(&parts)?;
        Ok(true)
    }

    /// Receives behind what is there, at most `room` bytes; with `drop`, nowhere.
    fn receive_some(&mut self, room: usize, drop: bool) -> anyhow::Result<usize> {
        let at = if drop { 0 } else { self.end };
        loop {
            let buffer = &mut self.inbox[at..at + room];
            match socket::recv(&self.socket, buffer, drop) {
                Ok(0) => bail!("the server has closed the connection"),
                Ok(len) => return Ok(len.min(room)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.said(error, "answer")),
            }
        }
    }

    /// Has at least `len` bytes from `begin` on; `exact`: no byte more.
    fn want(&mut self, len: usize, exact: bool) -> anyhow::Result<()> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
        ensure!(len + 16 <= INBOX_MAX, "a message of {len} bytes: no answer is so long");
        self.enlarge(len + 16);
        if self.begin + len + 16 > self.inbox.len() {
            self.inbox.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        while self.end - self.begin < len {
            let missing = len - (self.end - self.begin);
            let room = self.inbox.len() - 16 - self.end;
            self.end += self
                .receive_some(if exact { missing } else { room.min(missing.max(65536)) }, false)?;
        }
        Ok(())
    }

    /// Has an inbox of at least `len` bytes, if it may be so large.
    fn enlarge(&mut self, len: usize) {
        if len > self.inbox.len() {
            self.inbox.resize(len.next_power_of_two().min(INBOX_MAX), 0);
        }
    }

    /// Drops `len` bytes, here or still to come.
    fn drain(&mut self, mut len: usize) -> anyhow::Result<()> {
        let have = (self.end - self.begin).min(len);
        self.begin += have;
        len -= have;
        if len > 0 {
            (self.begin, self.end) = (0, 0);
        }
        self.enlarge(len);
        while len > 0 {
            len -= self.receive_some(len.min(self.inbox.len()), true)?;
        }
        Ok(())
    }

    /// Whether a whole message is here that was not looked at.
    pub(crate) fn has_message(&self) -> bool {
        let here = &self.inbox[self.begin..self.end];
        let len = here.first_chunk().map(|head| u32::from_be_bytes(*head) as usize);
        len.is_some_and(|len| here.len() >= 4 + len)
    }

    /// Waits for a message and appends its final answers, of which there may be none.
    pub(crate) fn receive(&mut self, answers: &mut Vec<Answer>) -> anyhow::Result<()> {
        let exact = self.big != usize::MAX;
        self.want(4, exact)?;
        let head = self.inbox[self.begin..].first_chunk().copied().unwrap_or_default();
        let len = u32::from_be_bytes(head) as usize;
        ensure!(len >= HEADER, "a message of {len} bytes is shorter than its header");
        self.begin += 4;
        if self.truncates && len >= self.big {
            return self.receive_head(len, answers);
        }
        self.want(len, exact)?;
        let (begin, end) = (self.begin, self.begin + len);
        self.begin = end;
        if self.inbox[begin] == 0xfd {
            self.open_sealed(begin, end)?;
            return self.parse(begin + TRANSFORM, end, end, answers);
        }
        if self.signer.is_some() && self.checks {
            self.check(begin, end)?;
        }
        self.parse(begin, end, end, answers)
    }

    /// Looks at the head of a message of `len` bytes and drops the others.
    fn receive_head(&mut self, len: usize, answers: &mut Vec<Answer>) -> anyhow::Result<()> {
        self.want(LOOK, true)?;
        let sealed = self.inbox[self.begin] == 0xfd;
        let look = if sealed { TRANSFORM + LOOK } else { LOOK };
        self.want(look, true)?;
        let begin = self.begin;
        self.begin += look;
        let mut from = begin;
        if sealed {
            let sealer = self.sealer.as_ref().context("an answer is encrypted, unasked")?;
            let mut nonce = [0; 12];
            nonce.copy_from_slice(&self.inbox[begin + 20..begin + 32]);
            from += TRANSFORM;
            sealer.peek(nonce, &mut self.inbox[from..begin + look])?;
        }
        self.parse(from, begin + len, begin + look, answers)?;
        self.drain(len - look)
    }

    fn open_sealed(&mut self, begin: usize, end: usize) -> anyhow::Result<()> {
        let sealer = self.sealer.as_ref().context("an answer is encrypted, unasked")?;
        ensure!(end - begin >= TRANSFORM + HEADER, "an encrypted message is cut short");
        let (mut head, mut tag, mut behind) = ([0; 32], [0; 16], [0; 16]);
        head.copy_from_slice(&self.inbox[begin + 20..begin + TRANSFORM]);
        tag.copy_from_slice(&self.inbox[begin + 4..begin + 20]);
        let mut nonce = [0; 12];
        nonce.copy_from_slice(&head[..12]);
        // The tag has to stand behind the message, where the next message may have begun.
        behind.copy_from_slice(&self.inbox[end..end + 16]);
        self.inbox[end..end + 16].copy_from_slice(&tag);
        let opened = sealer.open(nonce, &head, &mut self.inbox[begin + TRANSFORM..end + 16]);
        self.inbox[end..end + 16].copy_from_slice(&behind);
        opened
    }

    /// Where the message after the one at `at` begins, or `end`.
    fn next(&self, at: usize, end: usize) -> anyhow::Result<(usize, bool)> {
        let next = wire::u32_at(&self.inbox, at + 20)? as usize;
        if next == 0 {
            return Ok((end, true));
        }
        ensure!(
            next >= HEADER && at + next + HEADER <= end,
            "a compound answer leaves its message"
        );
        Ok((at + next, false))
    }

    /// Checks all signatures from `begin` to `end`.
    fn check(&mut self, begin: usize, end: usize) -> anyhow::Result<()> {
        let mut at = begin;
        loop {
            let (next, last) = self.next(at, end)?;
            let message_id = wire::u64_at(&self.inbox, at + 24)?;
            let (code, flags) =
                (wire::u32_at(&self.inbox, at + 8)?, wire::u32_at(&self.inbox, at + 16)?);
            if flags & flag::SIGNED != 0 {
                self.check_one(at, next, message_id)?;
            } else if code != status::PENDING && message_id != u64::MAX {
                bail!("answer {message_id} (status {code:#x}) is not signed");
            }
            if last {
                return Ok(());
            }
            at = next;
        }
    }

    fn check_one(&mut self, at: usize, end: usize, message_id: u64) -> anyhow::Result<()> {
        let field = at + 48..at + 64;
        let mut signature = [0; 16];
        signature.copy_from_slice(&self.inbox[field.clone()]);
        self.inbox[field.clone()].fill(0);
        let signer = self.signer.as_ref().context("no key to check a signature")?;
        let expected = signer.sign(message_id, true, &self.inbox[at..end])?;
        self.inbox[field].copy_from_slice(&signature);
        ensure!(signature == expected, "answer {message_id} has a wrong signature");
        Ok(())
    }

    /// Checks that an answer of this connection is signed, and by whom it says.
    pub(crate) fn check_answer(&mut self, answer: &Answer) -> anyhow::Result<()> {
        let flags = wire::u32_at(self.bytes(answer), 16)?;
        ensure!(flags & flag::SIGNED != 0, "answer {} is not signed", answer.message_id);
        self.check_one(answer.at, answer.at + answer.len, answer.message_id)
    }

    /// Takes credits and final answers from `begin` on; only `have` is here of what ends at `end`.
    fn parse(
        &mut self,
        begin: usize,
        end: usize,
        have: usize,
        answers: &mut Vec<Answer>,
    ) -> anyhow::Result<()> {
        let mut at = begin;
        loop {
            let bytes = &self.inbox[at..have.max(at)];
            ensure!(bytes.starts_with(b"\xfeSMB"), "an answer that is no SMB2 message");
            let (code, command) = (wire::u32_at(bytes, 8)?, wire::u16_at(bytes, 12)?);
            let (granted, flags) = (wire::u16_at(bytes, 14)?, wire::u32_at(bytes, 16)?);
            let message_id = wire::u64_at(bytes, 24)?;
            let moved = code == status::OK && matches!(command, command::READ | command::WRITE);
            let count = if moved { wire::u32_at(bytes, HEADER + 4)? } else { 0 };
            let (next, last) = self.next(at, end)?;
            self.credits = self.credits.saturating_add(u32::from(granted));
            let interim = flags & flag::ASYNC != 0 && code == status::PENDING;
            // The greatest number is that of notices, such as of a lease that breaks: none is ours.
            if !interim && message_id != u64::MAX {
                let len = next.min(have) - at;
                answers.push(Answer { message_id, command, status: code, at, len, count });
            }
            if last {
                return Ok(());
            }
            at = next;
        }
    }

    /// Sends one request and waits for its final answer.
    pub(crate) fn call(&mut self, request: Request<'_>) -> anyhow::Result<Answer> {
        let message_id = self.message_id;
        self.queue(&[request])?;
        self.flush()?;
        self.await_answer(message_id)
    }

    /// Waits for the answer to request `message_id`, which is the only one on its way.
    pub(crate) fn await_answer(&mut self, message_id: u64) -> anyhow::Result<Answer> {
        // What an interim answer does not bring comes within the time of one answer.
        let (deadline, mut answers) = (Instant::now() + self.timeout, Vec::new());
        while answers.is_empty() {
            ensure!(Instant::now() < deadline, "the server does not answer for {:?}", self.timeout);
            self.receive(&mut answers)?;
        }
        let answer = answers[0];
        ensure!(
            answers.len() == 1 && answer.message_id == message_id,
            "the server answers what was not asked: request {}",
            answer.message_id
        );
        Ok(answer)
    }

    /// Asks until the server has granted `wanted` credits, or grants no more.
    pub(crate) fn gather_credits(&mut self, wanted: u32) -> anyhow::Result<()> {
        for _ in 0..400 {
            if self.credits >= wanted {
                break;
            }
            expect_ok(self.call(Request::new(command::ECHO, &wire::ECHO_BODY))?, "ECHO")?;
        }
        Ok(())
    }
}

/// An answer that is not a failure.
///
/// # Errors
///
/// When it is one.
pub(crate) fn expect_ok(answer: Answer, what: &str) -> anyhow::Result<Answer> {
    ensure!(answer.status == status::OK, "{what} failed: status {:#010x}", answer.status);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;

    use clap::Parser as _;

    use super::*;
    use crate::smbload::keys::{Encryption, Signing};

    /// What a WRITE of `data` is on the wire, sent from where it lies and put together by copying.
    fn both_ways(data: &[u8], protect: impl Fn(&mut Connection)) -> [Vec<u8>; 2] {
        [true, false].map(|in_place| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let settings = Settings::try_parse_from(["smbload", "--addr", &address, "write"]);
            let mut connection = Connection::open(&settings.unwrap()).unwrap();
            (connection.session_id, connection.tree_id) = (7, 8);
            protect(&mut connection);
            let body = wire::write(&wire::PREVIOUS, u32::try_from(data.len()).unwrap(), 9);
            if in_place {
                let mut framed = vec![0xaa; WRITE_ROOM];
                framed.extend_from_slice(data);
                connection.send_write(&body, &mut framed, 1, None).unwrap();
            } else {
                let request = Request::new(command::WRITE, &body).data(data);
                connection.queue(&[request]).unwrap();
                connection.flush().unwrap();
            }
            drop(connection);
            let mut sent = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut sent).unwrap();
            sent
        })
    }

    #[test]
    fn a_write_from_where_its_data_lies_is_the_same_on_the_wire() {
        let data = [5; 100];
        let [plain, copied] = both_ways(&data, |_| ());
        assert_eq!(plain, copied);
        assert!(plain.len() == 4 + HEADER + 48 + 100 && plain.ends_with(&data));
        let [signed, copied] = both_ways(&data, |connection| {
            connection.signer = Some(Signer::new(Signing::Gmac, &[1; 16]).unwrap());
        });
        assert_eq!(signed, copied);
        assert!(signed != plain && signed.len() == plain.len());
        let [sealed, copied] = both_ways(&data, |connection| {
            connection.sealer = Some(Sealer::new(Encryption::Gcm128, &[1; 16], &[2; 16]).unwrap());
        });
        assert_eq!(sealed, copied);
        assert_eq!(sealed.len(), plain.len() + TRANSFORM);
    }
}
