//! A client of SMB, as much as tests need: one request at a time, of any bytes, and the messages by our codecs.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use smb::auth::NtHash;
use smb::auth::ntlm::client::Client as Ntlm;
use smb::auth::spnego::{NTLMSSP, NegTokenInit, NegTokenResp};
use smb::crypto::{KeySchedule, PreauthHash, SessionKeys, Signer, SigningAlgorithm};
use smb::wire::header::{Command, Flags, Header, Target};
use smb::wire::negotiate::{Capabilities, Context, SecurityMode, dialect};
use smb::wire::query_info::Subject;
use smb::wire::{
    Encode, U16s, close, create, flush, negotiate, query_info, read, session_setup, set_info,
    tree_connect, write,
};
use smb::{
    Access, CreateOptions, Disposition, FileId, FileTime, Guid, MessageId, NtStatus, OplockLevel,
    SessionId, TreeId,
};

/// Longer than the server waits for anything here.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
pub(crate) const USER: &str = "smbtest";
pub(crate) const PASSWORD: &str = "pw";
pub(crate) const SHARE: &str = "tmp";

/// A connection, and what is known of it.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    dialect: u16,
    guid: Guid,
    next: u64,
    pub(crate) session: SessionId,
    pub(crate) tree: TreeId,
    signer: Option<Signer>,
    preauth: PreauthHash,
    /// Every request that was sent: what hostile clients begin with.
    pub(crate) sent: Vec<Vec<u8>>,
    /// Messages that nobody asked for.
    pub(crate) unasked: VecDeque<Vec<u8>>,
}

/// An answer that is not the one that was wanted.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server refused.
    Status(NtStatus),
    /// The connection is broken.
    Io(io::Error),
    /// It is no answer.
    Message(String),
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

impl From<smb::wire::BadMessage> for Failure {
    fn from(e: smb::wire::BadMessage) -> Self {
        Self::Message(e.to_string())
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(status) => write!(f, "refused with {status:?}"),
            Self::Io(e) => write!(f, "broken: {e}"),
            Self::Message(what) => write!(f, "no answer: {what}"),
        }
    }
}

impl Failure {
    /// The status that the server refused with.
    pub(crate) fn status(&self) -> Option<NtStatus> {
        match self {
            Self::Status(status) => Some(*status),
            _ => None,
        }
    }
}

pub(crate) type Answer<T> = Result<T, Failure>;

/// UTF-16LE.
pub(crate) fn wide(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// Who everybody is here.
fn ntlm() -> Ntlm {
    Ntlm {
        user: USER.to_owned(),
        domain: String::new(),
        workstation: "CLIENT".to_owned(),
        nt_hash: Some(NtHash::of_password(PASSWORD)),
        mic: true,
    }
}

/// What to open, and how.
#[derive(Clone, Copy)]
pub(crate) struct Wish<'a> {
    pub(crate) name: &'a str,
    pub(crate) disposition: Disposition,
    pub(crate) options: CreateOptions,
    pub(crate) oplock: OplockLevel,
    pub(crate) contexts: smb::wire::context::Requested<'a>,
}

impl<'a> Wish<'a> {
    /// To read and write, made if it is not there.
    pub(crate) fn file(name: &'a str) -> Self {
        Self {
            name,
            disposition: Disposition::OpenIf,
            options: CreateOptions::NON_DIRECTORY_FILE,
            oplock: OplockLevel::None,
            contexts: smb::wire::context::Requested::default(),
        }
    }

    fn body<'b>(&'b self, name: &'b [u8]) -> create::Request<'b> {
        create::Request {
            oplock: self.oplock,
            access: Access::FILE_READ | Access::FILE_WRITE | Access::DELETE,
            disposition: self.disposition,
            options: self.options,
            name,
            contexts: self.contexts,
            ..create::Request::default()
        }
    }

    /// The CREATE that asks for it, to be sent.
    pub(crate) fn request(&self, client: &mut Client) -> Vec<u8> {
        let name = wide(self.name);
        client.request(Command::Create, 1, &self.body(&name))
    }
}

impl Client {
    /// Connects and negotiates.
    pub(crate) fn connect(port: u16, dialect: u16) -> Answer<Self> {
        let stream = TcpStream::connect(testkit::loopback(port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let mut client = Self {
            stream,
            dialect,
            guid: Guid(std::array::from_fn(|i| u8::try_from(i).unwrap_or(0) + 1)),
            next: 0,
            session: SessionId(0),
            tree: TreeId(0),
            signer: None,
            preauth: PreauthHash::default(),
            sent: Vec::new(),
            unasked: VecDeque::new(),
        };
        let dialects = U16s::bytes_of(&[dialect]);
        let hashes = U16s::bytes_of(&[1]);
        let signing = U16s::bytes_of(&[1]);
        let contexts = vec![
            Context::Preauth { hashes: U16s::new(&hashes), salt: b"a grain of it" },
            Context::Signing(U16s::new(&signing)),
        ];
        let request = negotiate::Request {
            security_mode: SecurityMode::SIGNING_ENABLED,
            capabilities: Capabilities::LARGE_MTU | Capabilities::LEASING,
            client: client.guid,
            dialects: U16s::new(&dialects),
            contexts: if dialect == dialect::SMB_3_1_1 { contexts } else { Vec::new() },
        };
        let (_, answer) = client.ask(Command::Negotiate, 1, &request)?;
        let spoken = negotiate::Response::parse(&answer)?.dialect;
        if spoken != dialect {
            return Err(Failure::Message(format!("it speaks {spoken:#06x}")));
        }
        Ok(client)
    }

    /// Connects, logs on, and connects to the share.
    pub(crate) fn ready(port: u16, dialect: u16) -> Answer<Self> {
        let mut client = Self::connect(port, dialect)?;
        client.log_on(SessionId(0))?;
        client.connect_tree()?;
        Ok(client)
    }

    /// Logs on, perhaps in place of a session of before.
    pub(crate) fn log_on(&mut self, previous: SessionId) -> Answer<()> {
        let ntlm = ntlm();
        let token = NegTokenInit::emit(&[NTLMSSP], Some(&Ntlm::negotiate()));
        let setup = |token| session_setup::Request {
            flags: session_setup::RequestFlags::empty(),
            security_mode: SecurityMode::SIGNING_ENABLED,
            capabilities: Capabilities::empty(),
            previous_session: previous,
            token,
        };
        let (header, answer) = self.exchange(Command::SessionSetup, 1, &setup(&token))?;
        if header.status != NtStatus::MORE_PROCESSING_REQUIRED {
            return Err(Failure::Status(header.status));
        }
        self.session = header.session;
        let bad = |what: &str| Failure::Message(what.to_owned());
        let answer = session_setup::Response::parse(&answer)?;
        let theirs = NegTokenResp::parse(answer.token).map_err(|e| bad(&e.to_string()))?;
        let challenge = theirs.token.ok_or_else(|| bad("no challenge"))?;
        let now = FileTime(133_000_000_000_000_000);
        let ours = ntlm
            .authenticate(challenge, ([7; 8], [9; 16]), now)
            .map_err(|e| bad(&e.to_string()))?;
        let token = NegTokenResp { token: Some(&ours.token), ..NegTokenResp::default() }.emit();
        // The hash that keys are made of ends with the last request.
        let request = self.request(Command::SessionSetup, 1, &setup(&token));
        self.preauth.update(&request);
        self.send(&request)?;
        let schedule = match self.dialect {
            dialect::SMB_2_1 => KeySchedule::Smb2,
            dialect::SMB_3_1_1 => KeySchedule::Smb311(&self.preauth),
            _ => KeySchedule::Smb30,
        };
        let algorithm = match self.dialect {
            dialect::SMB_2_1 => SigningAlgorithm::HmacSha256,
            _ => SigningAlgorithm::AesCmac,
        };
        let keys = SessionKeys::derive(schedule, &ours.session_key(), None);
        let signer = Signer::new(algorithm, &keys.signing);
        let (header, answer) = self.receive()?;
        if header.status != NtStatus::SUCCESS {
            return Err(Failure::Status(header.status));
        }
        signer.verify_message(&answer).map_err(|_| bad("the last answer is not signed right"))?;
        self.signer = Some(signer);
        Ok(())
    }

    /// Has its session authenticated again, as nobody.
    pub(crate) fn become_nobody(&mut self) -> Answer<()> {
        self.authenticate_again(&Ntlm {
            user: String::new(),
            domain: String::new(),
            workstation: "CLIENT".to_owned(),
            nt_hash: None,
            mic: false,
        })
    }

    /// Has its session authenticated again, as who began it.
    pub(crate) fn log_on_again(&mut self) -> Answer<()> {
        self.authenticate_again(&ntlm())
    }

    /// The session keeps its keys: what is answered is signed with them.
    fn authenticate_again(&mut self, ntlm: &Ntlm) -> Answer<()> {
        let setup = |token| session_setup::Request {
            flags: session_setup::RequestFlags::empty(),
            security_mode: SecurityMode::SIGNING_ENABLED,
            capabilities: Capabilities::empty(),
            previous_session: SessionId(0),
            token,
        };
        let token = NegTokenInit::emit(&[NTLMSSP], Some(&Ntlm::negotiate()));
        let (header, answer) = self.exchange(Command::SessionSetup, 1, &setup(&token))?;
        if header.status != NtStatus::MORE_PROCESSING_REQUIRED {
            return Err(Failure::Status(header.status));
        }
        let bad = |what: &str| Failure::Message(what.to_owned());
        let answer = session_setup::Response::parse(&answer)?;
        let theirs = NegTokenResp::parse(answer.token).map_err(|e| bad(&e.to_string()))?;
        let challenge = theirs.token.ok_or_else(|| bad("no challenge"))?;
        let now = FileTime(133_000_000_000_000_000);
        let ours = ntlm.authenticate(challenge, ([8; 8], [3; 16]), now);
        let ours = ours.map_err(|e| bad(&e.to_string()))?;
        let token = NegTokenResp { token: Some(&ours.token), ..NegTokenResp::default() }.emit();
        self.ask(Command::SessionSetup, 1, &setup(&token)).map(drop)
    }

    /// Leaves its requests as they are from now on, as a server that does not insist lets it.
    pub(crate) fn signs_no_more(&mut self) {
        self.signer = None;
    }

    pub(crate) fn connect_tree(&mut self) -> Answer<()> {
        self.connect_tree_of(SHARE)
    }

    pub(crate) fn connect_tree_of(&mut self, share: &str) -> Answer<()> {
        let path = wide(&format!("\\\\127.0.0.1\\{share}"));
        let request = tree_connect::Request { path: &path, ..tree_connect::Request::default() };
        let (header, _) = self.ask(Command::TreeConnect, 1, &request)?;
        self.tree = header.tree().ok_or_else(|| Failure::Message("no tree".to_owned()))?;
        Ok(())
    }

    /// Opens, and answers what was granted, as it came.
    pub(crate) fn create(&mut self, wish: &Wish<'_>) -> Answer<(FileId, Vec<u8>)> {
        let name = wide(wish.name);
        let (_, answer) = self.ask(Command::Create, 1, &wish.body(&name))?;
        let file = create::Response::parse(&answer)?.file;
        Ok((file, answer))
    }

    pub(crate) fn open(&mut self, name: &str) -> Answer<FileId> {
        self.create(&Wish::file(name)).map(|(file, _)| file)
    }

    /// Writes, at most a megabyte; answers how much was written.
    pub(crate) fn write(
        &mut self,
        file: FileId,
        offset: u64,
        bytes: &[u8],
        through: bool,
    ) -> Answer<u32> {
        let message = self.write_request(file, offset, bytes, through);
        self.send(&message)?;
        let (header, answer) = self.receive()?;
        if header.status != NtStatus::SUCCESS {
            return Err(Failure::Status(header.status));
        }
        Ok(write::Response::parse(&answer)?.count)
    }

    pub(crate) fn write_request(
        &mut self,
        file: FileId,
        offset: u64,
        bytes: &[u8],
        through: bool,
    ) -> Vec<u8> {
        let flags = if through { write::Flags::WRITE_THROUGH } else { write::Flags::empty() };
        let body = write::Request { offset, file, flags, ..write::Request::default() };
        let charge = u16::try_from(bytes.len().div_ceil(65_536).max(1)).unwrap_or(u16::MAX);
        let mut out = Vec::with_capacity(bytes.len() + 112);
        let start = self.header(Command::Write, charge).encode(&mut out);
        body.encode_with(&mut out, start, &[], bytes);
        self.sign(&mut out);
        out
    }

    pub(crate) fn read(&mut self, file: FileId, offset: u64, length: u32) -> Answer<Vec<u8>> {
        let request = read::Request { length, offset, file, ..read::Request::default() };
        let charge = u16::try_from(length.div_ceil(65_536).max(1)).unwrap_or(u16::MAX);
        let (_, answer) = self.ask(Command::Read, charge, &request)?;
        Ok(read::Response::parse(&answer)?.data.to_vec())
    }

    pub(crate) fn flush(&mut self, file: FileId) -> Answer<()> {
        self.ask(Command::Flush, 1, &flush::Request { file, ..flush::Request::default() }).map(drop)
    }

    pub(crate) fn close(&mut self, file: FileId) -> Answer<()> {
        self.ask(Command::Close, 1, &close::Request { file, ..close::Request::default() }).map(drop)
    }

    pub(crate) fn set_info(&mut self, file: FileId, class: u8, data: &[u8]) -> Answer<()> {
        let request =
            set_info::Request { subject: Subject::File, class, additional: 0, file, data };
        self.ask(Command::SetInfo, 1, &request).map(drop)
    }

    /// At most a few hundred bytes.
    pub(crate) fn query_info(
        &mut self,
        file: FileId,
        subject: Subject,
        class: u8,
    ) -> Answer<Vec<u8>> {
        let request = query_info::Request {
            subject,
            class,
            output_max: 512,
            input: &[],
            additional: 0,
            flags: 0,
            file,
        };
        self.ask(Command::QueryInfo, 1, &request).map(|(_, answer)| answer)
    }

    /// Asks, and wants success.
    pub(crate) fn ask(
        &mut self,
        command: Command,
        charge: u16,
        body: &impl Encode,
    ) -> Answer<(Header, Vec<u8>)> {
        let (header, answer) = self.exchange(command, charge, body)?;
        match header.status {
            NtStatus::SUCCESS => Ok((header, answer)),
            status => Err(Failure::Status(status)),
        }
    }

    fn exchange(
        &mut self,
        command: Command,
        charge: u16,
        body: &impl Encode,
    ) -> Answer<(Header, Vec<u8>)> {
        let request = self.request(command, charge, body);
        self.preauth_of(command, &request);
        self.send(&request)?;
        let (header, answer) = self.receive()?;
        self.preauth_of(command, &answer);
        Ok((header, answer))
    }

    fn preauth_of(&mut self, command: Command, message: &[u8]) {
        if matches!(command, Command::Negotiate | Command::SessionSetup) {
            self.preauth.update(message);
        }
    }

    fn header(&mut self, command: Command, charge: u16) -> Header {
        let first = self.next;
        self.next += u64::from(charge);
        Header {
            credit_charge: charge,
            credits: 64,
            flags: if self.signer.is_some() { Flags::SIGNED } else { Flags::empty() },
            message_id: MessageId(first),
            target: Target::Sync { process: 0xfeff, tree: self.tree },
            session: self.session,
            ..Header::request(command)
        }
    }

    /// A request as it would be sent, signed.
    pub(crate) fn request(&mut self, command: Command, charge: u16, body: &impl Encode) -> Vec<u8> {
        let mut out = Vec::new();
        let start = self.header(command, charge).encode(&mut out);
        body.encode(&mut out, start);
        self.sign(&mut out);
        out
    }

    /// Signs a message again, whatever it has become.
    pub(crate) fn sign(&self, message: &mut [u8]) {
        if let Some(signer) = &self.signer {
            // What is shorter than a header cannot be signed, and is sent so.
            let _ = signer.sign(message);
        }
    }

    /// Sends any bytes as a message.
    pub(crate) fn send(&mut self, message: &[u8]) -> Answer<()> {
        let len = u32::try_from(message.len()).unwrap_or(u32::MAX) & 0xff_ffff;
        let frame = [&len.to_be_bytes()[..], message].concat();
        self.stream.write_all(&frame)?;
        if self.sent.len() < 64 {
            self.sent.push(message.to_vec());
        }
        Ok(())
    }

    /// The next answer, signed right if we have a key. Interim answers are passed over, breaks kept.
    pub(crate) fn receive(&mut self) -> Answer<(Header, Vec<u8>)> {
        loop {
            let message = self.frame()?;
            let header = Header::parse(&message)?;
            if header.message_id == MessageId::UNSOLICITED {
                self.unasked.push_back(message);
                continue;
            }
            if header.status == NtStatus::PENDING && header.flags.contains(Flags::ASYNC) {
                continue;
            }
            if let Some(signer) =
                self.signer.as_ref().filter(|_| header.flags.contains(Flags::SIGNED))
                && signer.verify_message(&message).is_err()
            {
                return Err(Failure::Message("an answer is not signed right".to_owned()));
            }
            return Ok((header, message));
        }
    }

    /// The next message, whatever it is.
    pub(crate) fn frame(&mut self) -> Answer<Vec<u8>> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head)?;
        let len = usize::try_from(u32::from_be_bytes(head) & 0xff_ffff).unwrap_or(0);
        let mut message = vec![0; len];
        self.stream.read_exact(&mut message)?;
        Ok(message)
    }
}
