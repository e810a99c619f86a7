//! A client that says what it is told to say, right or wrong, and believes nothing that is not signed.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, sockopt};
use smb::auth::NtHash;
use smb::auth::ntlm::client::Client as Ntlm;
use smb::crypto::{
    Cipher, KeySchedule, Opener, PreauthHash, Sealer, SecretKey, SessionKeys, Signer,
    SigningAlgorithm, TRANSFORM_HEADER_LEN, TRANSFORM_ID,
};
use smb::session::Dialect;
use smb::wire::compound::Compound;
use smb::wire::header::{Command, Flags, HEADER_LEN, Header, Target, link_next};
use smb::wire::negotiate::{self, Capabilities, CompressionFlags, Context, SecurityMode};
use smb::wire::{Encode, U16s, create, query_directory, read, session_setup, tree_connect, write};
use smb::{
    Access, CreateOptions, Disposition, FileId, FileTime, Guid, MessageId, NtStatus, SessionId,
    TreeId,
};

/// How long an answer may take before a test has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// What is long for a server that waits, in a test that sends a part first.
const PAUSE: Duration = Duration::from_millis(5);

/// The name of the POSIX extensions.
const POSIX: [u8; 16] = *b"\x93\xad\x25\x50\x9c\xb4\x11\xe7\xb4\x23\x83\xde\x96\x8b\xcd\x7c";

/// The id that means "the open of the request before" in a compound.
pub(crate) const PREVIOUS: FileId = FileId::ALL_ONES;

/// An answer, or what the server says of its own accord.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) header: Header,
    /// The message from its header on.
    pub(crate) message: Vec<u8>,
    pub(crate) sealed: bool,
    /// The bytes that the frame had, all messages of it together.
    pub(crate) frame_len: usize,
}

impl Answer {
    pub(crate) fn status(&self) -> NtStatus {
        self.header.status
    }

    /// # Panics
    ///
    /// When it is no success.
    #[track_caller]
    pub(crate) fn good(self) -> Self {
        assert_eq!(self.status(), NtStatus::SUCCESS, "{:?}", self.header.command);
        self
    }
}

/// What to offer, and how to behave.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) guid: Guid,
    pub(crate) dialects: Vec<Dialect>,
    pub(crate) ciphers: Vec<u16>,
    pub(crate) signing: Vec<u16>,
    /// Also compression and the transforms of RDMA.
    pub(crate) transforms: bool,
    /// The POSIX extensions.
    pub(crate) posix: bool,
}

impl Default for Offer {
    fn default() -> Self {
        Self {
            guid: Guid([7; 16]),
            dialects: Dialect::ALL.to_vec(),
            ciphers: vec![2, 1],
            signing: vec![2, 1, 0],
            transforms: false,
            posix: false,
        }
    }
}

/// The keys of a session, as far as this channel has them.
struct Keys {
    signer: Signer,
    /// Those of the first channel, on all of them (MS-SMB2 3.3.5.5.3): a key seals nothing twice with the same nonce.
    seal: Option<Arc<(Sealer, Opener)>>,
    signing: SecretKey,
    algorithm: SigningAlgorithm,
}

/// A connection.
pub(crate) struct Client {
    stream: TcpStream,
    offer: Offer,
    pub(crate) dialect: Dialect,
    cipher: Option<Cipher>,
    algorithm: SigningAlgorithm,
    preauth: PreauthHash,
    pub(crate) next: u64,
    pub(crate) credits: u64,
    pub(crate) session: SessionId,
    keys: Option<Keys>,
    pub(crate) tree: TreeId,
    /// Requests are signed.
    pub(crate) sign: bool,
    /// Requests are encrypted.
    pub(crate) seal: bool,
    pub(crate) channel_sequence: u16,
    /// So many bytes of what is sent go first, and the others some time later.
    pub(crate) pause_at: Option<usize>,
    /// It sends no more than so many bytes of a frame, and the others never.
    pub(crate) sends_at_most: Option<usize>,
    /// It does not sign the last request of a set-up.
    pub(crate) forgets_to_sign: bool,
    /// The last byte of what is sent is another one than was signed.
    pub(crate) changes_last: bool,
    answers: VecDeque<Answer>,
    /// Breaks that came in between.
    pub(crate) breaks: VecDeque<Answer>,
}

/// A request to be, its header without numbers yet.
pub(crate) fn request(command: Command, body: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    let start = Header::request(command).encode(&mut bytes);
    body.encode(&mut bytes, start);
    bytes
}

/// A WRITE.
pub(crate) fn write_request(file: FileId, offset: u64, data: &[u8]) -> Vec<u8> {
    write_request_behind(file, offset, &[], data)
}

/// A WRITE with something that means nothing in front of its data.
pub(crate) fn write_request_behind(
    file: FileId,
    offset: u64,
    before: &[u8],
    data: &[u8],
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let start = Header::request(Command::Write).encode(&mut bytes);
    write::Request { file, offset, ..write::Request::default() }
        .encode_with(&mut bytes, start, before, data);
    bytes
}

pub(crate) fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

impl Client {
    /// A connection on which nothing has been said.
    pub(crate) fn dial(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).expect("the server listens"))
    }

    /// The same from an address of this host, of which the kernel keeps little that has come and is not taken.
    pub(crate) fn dial_from(from: Ipv4Addr, address: SocketAddr) -> Self {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
        let socket = socket.expect("a socket");
        sockopt::set_socket_recv_buffer_size(&socket, 128 << 10).expect("TCP");
        rustix::net::bind(&socket, &SocketAddr::from((from, 0))).expect("loopback has it");
        rustix::net::connect(&socket, &address).expect("the server listens");
        Self::over(socket.into())
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("TCP");
        stream.set_read_timeout(Some(PATIENCE)).expect("TCP");
        Self {
            stream,
            offer: Offer::default(),
            dialect: Dialect::Smb202,
            cipher: None,
            algorithm: SigningAlgorithm::HmacSha256,
            preauth: PreauthHash::default(),
            next: 0,
            credits: 1,
            session: SessionId(0),
            keys: None,
            tree: TreeId(0),
            sign: false,
            seal: false,
            channel_sequence: 0,
            pause_at: None,
            sends_at_most: None,
            forgets_to_sign: false,
            changes_last: false,
            answers: VecDeque::new(),
            breaks: VecDeque::new(),
        }
    }

    /// A connection that has negotiated.
    pub(crate) fn connect(address: SocketAddr, offer: Offer) -> Self {
        let mut client = Self::dial(address);
        client.offer = offer;
        client.negotiate().good();
        client
    }

    /// A user in a share.
    pub(crate) fn enter(address: SocketAddr, offer: Offer, user: &str, share: &str) -> Self {
        Self::connect(address, offer).entered(user, share)
    }

    /// The same, after [`Client::dial_from`].
    pub(crate) fn enter_from(from: Ipv4Addr, address: SocketAddr, user: &str, share: &str) -> Self {
        let mut client = Self::dial_from(from, address);
        client.negotiate().good();
        client.entered(user, share)
    }

    fn entered(mut self, user: &str, share: &str) -> Self {
        self.log_on(user, "pw").expect("a user with the right password");
        self.sign = true;
        self.enter_tree(share).expect("a share");
        self.sign = false;
        self
    }

    pub(crate) fn negotiate(&mut self) -> Answer {
        let numbers: Vec<u16> = self.offer.dialects.iter().map(|d| *d as u16).collect();
        let (dialects, hashes) = (U16s::bytes_of(&numbers), U16s::bytes_of(&[1]));
        let ciphers = U16s::bytes_of(&self.offer.ciphers);
        let signing = U16s::bytes_of(&self.offer.signing);
        let mut contexts = vec![Context::Preauth { hashes: U16s::new(&hashes), salt: &[5; 32] }];
        if !self.offer.ciphers.is_empty() {
            contexts.push(Context::Encryption(U16s::new(&ciphers)));
        }
        if !self.offer.signing.is_empty() {
            contexts.push(Context::Signing(U16s::new(&signing)));
        }
        // LZNT1, LZ77, LZ77+Huffman, Pattern_V1; none, encryption, signing.
        let (compression, rdma) = (U16s::bytes_of(&[1, 2, 3, 4]), U16s::bytes_of(&[0, 1, 2]));
        if self.offer.transforms {
            let algorithms = U16s::new(&compression);
            contexts.push(Context::Compression { flags: CompressionFlags::empty(), algorithms });
            contexts.push(Context::Rdma(U16s::new(&rdma)));
        }
        if self.offer.posix {
            contexts.push(Context::Posix(&POSIX));
        }
        let body = negotiate::Request {
            security_mode: SecurityMode::SIGNING_ENABLED,
            capabilities: Capabilities::LARGE_MTU
                | Capabilities::MULTI_CHANNEL
                | Capabilities::ENCRYPTION
                | Capabilities::LEASING
                | Capabilities::DIRECTORY_LEASING,
            client: self.offer.guid,
            dialects: U16s::new(&dialects),
            contexts,
        };
        let sent = self.send_one(request(Command::Negotiate, &body));
        let answer = self.receive();
        if answer.status() == NtStatus::SUCCESS {
            self.agree(&sent, &answer);
        }
        answer
    }

    fn agree(&mut self, sent: &[u8], answer: &Answer) {
        let said = negotiate::Response::parse(&answer.message).expect("an answer");
        self.dialect = Dialect::from_wire(said.dialect).expect("a dialect that was offered");
        self.preauth.update(sent);
        self.preauth.update(&answer.message);
        self.algorithm = match self.dialect {
            Dialect::Smb202 | Dialect::Smb210 => SigningAlgorithm::HmacSha256,
            _ => SigningAlgorithm::AesCmac,
        };
        if self.dialect < Dialect::Smb311 && said.capabilities.contains(Capabilities::ENCRYPTION) {
            self.cipher = Some(Cipher::Aes128Ccm);
        }
        for context in &said.contexts {
            match context {
                Context::Encryption(chosen) => {
                    self.cipher = chosen.iter().next().and_then(Cipher::from_wire);
                }
                Context::Signing(chosen) => {
                    let chosen = chosen.iter().next().and_then(SigningAlgorithm::from_wire);
                    self.algorithm = chosen.expect("an algorithm that was offered");
                }
                _ => {}
            }
        }
    }

    /// Sets up a session, or authenticates again if there is one.
    pub(crate) fn log_on(&mut self, user: &str, password: &str) -> Result<(), NtStatus> {
        self.set_up(user, Some(password), session_setup::Request::default())
    }

    /// What to offer when it negotiates.
    pub(crate) fn offer(&mut self, offer: Offer) {
        self.offer = offer;
    }

    /// Asks that this connection be a channel of the session that it has.
    pub(crate) fn bind_again(&mut self, user: &str) -> Result<(), NtStatus> {
        let begin = session_setup::Request {
            flags: session_setup::RequestFlags::BINDING,
            ..session_setup::Request::default()
        };
        self.set_up(user, Some("pw"), begin)
    }

    /// Sets up a session in the place of one that was lost.
    pub(crate) fn log_on_after(&mut self, user: &str, previous: SessionId) -> Result<(), NtStatus> {
        let begin = session_setup::Request {
            previous_session: previous,
            ..session_setup::Request::default()
        };
        self.set_up(user, Some("pw"), begin)
    }

    /// Sets up a session of nobody.
    pub(crate) fn log_on_as_nobody(&mut self) -> Result<(), NtStatus> {
        self.set_up("", None, session_setup::Request::default())
    }

    /// Makes this connection a channel of the session of another.
    pub(crate) fn bind(
        &mut self,
        first: &Self,
        user: &str,
        password: &str,
    ) -> Result<(), NtStatus> {
        let keys = first.keys.as_ref().expect("a session");
        self.session = first.session;
        self.tree = first.tree;
        let signer = Signer::new(keys.algorithm, &keys.signing);
        let (signing, algorithm) = (keys.signing.clone(), keys.algorithm);
        let seal = keys.seal.clone();
        self.keys = Some(Keys { signer, seal, signing, algorithm });
        self.sign = true;
        let begin = session_setup::Request {
            flags: session_setup::RequestFlags::BINDING,
            ..session_setup::Request::default()
        };
        self.set_up(user, Some(password), begin)
    }

    fn set_up(
        &mut self,
        user: &str,
        password: Option<&str>,
        begin: session_setup::Request<'_>,
    ) -> Result<(), NtStatus> {
        let binding = begin.flags.contains(session_setup::RequestFlags::BINDING);
        let mut preauth = self.preauth;
        let token = Ntlm::negotiate();
        let first = session_setup::Request { token: &token, ..begin };
        preauth.update(&self.send_one(request(Command::SessionSetup, &first)));
        let answer = self.receive();
        if answer.status() != NtStatus::MORE_PROCESSING_REQUIRED {
            return Err(answer.status());
        }
        preauth.update(&answer.message);
        self.session = answer.header.session;
        let challenge = session_setup::Response::parse(&answer.message).expect("a challenge");
        let ntlm = Ntlm {
            user: user.to_owned(),
            domain: String::new(),
            workstation: "TEST".to_owned(),
            nt_hash: password.map(NtHash::of_password),
            mic: true,
        };
        let said = ntlm.authenticate(challenge.token, ([3; 8], [4; 16]), FileTime::NONE);
        let said = said.expect("a challenge");
        let last = session_setup::Request { token: &said.token, ..begin };
        self.sign &= !self.forgets_to_sign;
        preauth.update(&self.send_one(request(Command::SessionSetup, &last)));
        let schedule = match self.dialect {
            Dialect::Smb202 | Dialect::Smb210 => KeySchedule::Smb2,
            Dialect::Smb300 | Dialect::Smb302 => KeySchedule::Smb30,
            Dialect::Smb311 => KeySchedule::Smb311(&preauth),
        };
        let fresh = SessionKeys::derive(schedule, &said.session_key(), self.cipher);
        let again = self.keys.is_some() && !binding;
        let raw = self.receive_raw();
        let status = Header::parse(&raw).expect("a header").status;
        if status != NtStatus::SUCCESS {
            return Err(status);
        }
        let flags = session_setup::Response::parse(&raw).expect("an answer").flags;
        if flags.intersects(session_setup::SessionFlags::GUEST | session_setup::SessionFlags::NULL)
        {
            // No keys.
            return Ok(());
        }
        let signer = Signer::new(self.algorithm, &fresh.signing);
        if again {
            self.keys.as_ref().expect("keys").signer.verify_message(&raw).expect("the old key");
            return Ok(());
        }
        signer.verify_message(&raw).expect("the last answer is signed with the new key");
        let own = self.cipher.zip(fresh.client_to_server.zip(fresh.server_to_client));
        let own = own.map(|(cipher, (to, from))| {
            Arc::new((Sealer::new(cipher, &to, self.session), Opener::new(cipher, &from)))
        });
        let seal = self.keys.as_ref().map_or(own, |first| first.seal.clone());
        let signing = self.keys.as_ref().map_or(fresh.signing, |first| first.signing.clone());
        self.keys = Some(Keys { signer, seal, signing, algorithm: self.algorithm });
        Ok(())
    }

    /// Each uses the session and the keys of the other from now on.
    pub(crate) fn swap_sessions(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.session, &mut other.session);
        std::mem::swap(&mut self.keys, &mut other.keys);
        std::mem::swap(&mut self.tree, &mut other.tree);
    }

    pub(crate) fn enter_tree(&mut self, share: &str) -> Result<(), NtStatus> {
        let path = utf16(&format!(r"\\server\{share}"));
        let body = tree_connect::Request { path: &path, ..tree_connect::Request::default() };
        let answer = self.call(Command::TreeConnect, &body);
        if answer.status() == NtStatus::SUCCESS {
            self.tree = answer.header.tree().expect("a tree");
        }
        match answer.status() {
            NtStatus::SUCCESS => Ok(()),
            status => Err(status),
        }
    }

    /// A CREATE of the usual kind.
    pub(crate) fn create_body(name: &[u8]) -> create::Request<'_> {
        create::Request {
            access: Access::FILE_READ | Access::FILE_WRITE | Access::DELETE,
            disposition: Disposition::OpenIf,
            options: CreateOptions::NON_DIRECTORY_FILE,
            name,
            ..create::Request::default()
        }
    }

    pub(crate) fn open(&mut self, name: &str) -> FileId {
        let name = utf16(name);
        let answer = self.call(Command::Create, &Self::create_body(&name)).good();
        create::Response::parse(&answer.message).expect("an answer").file
    }

    pub(crate) fn write(&mut self, file: FileId, offset: u64, data: &[u8]) -> NtStatus {
        self.send_one(write_request(file, offset, data));
        self.receive().status()
    }

    pub(crate) fn read(
        &mut self,
        file: FileId,
        offset: u64,
        length: u32,
    ) -> Result<Vec<u8>, NtStatus> {
        let body = read::Request { file, offset, length, ..read::Request::default() };
        let answer = self.call(Command::Read, &body);
        match answer.status() {
            NtStatus::SUCCESS => {
                Ok(read::Response::parse(&answer.message).expect("an answer").data.to_vec())
            }
            status => Err(status),
        }
    }

    /// Asks, and waits for the answer, past one that says that it takes longer.
    pub(crate) fn call(&mut self, command: Command, body: &impl Encode) -> Answer {
        self.send_one(request(command, body));
        self.receive_last()
    }

    /// Fills in the numbers of a request: how it was sent.
    pub(crate) fn send_one(&mut self, message: Vec<u8>) -> Vec<u8> {
        self.send(vec![message], false)
    }

    /// Sends a request as if it were related to one before it in its frame.
    pub(crate) fn send_related_to_nothing(&mut self, message: Vec<u8>) {
        self.frame(vec![message], |_| true);
    }

    /// Sends a frame of some requests, all but the first related to it if `related`.
    pub(crate) fn send(&mut self, messages: Vec<Vec<u8>>, related: bool) -> Vec<u8> {
        self.frame(messages, |index| related && index > 0)
    }

    fn frame(&mut self, messages: Vec<Vec<u8>>, follows: impl Fn(usize) -> bool) -> Vec<u8> {
        let count = messages.len();
        let mut frame = Vec::new();
        let mut starts = Vec::new();
        for (index, message) in messages.into_iter().enumerate() {
            let mut header = Header::parse(&message).expect("a header");
            let follows = follows(index);
            header.message_id = MessageId(self.next);
            // What it pays for is what it might bring or take.
            header.credit_charge = if self.dialect.has_large_mtu() { charge(&message) } else { 0 };
            self.next += u64::from(header.credit_charge.max(1));
            header.credits = 64;
            header.status = NtStatus(self.channel_sequence.into());
            header.session = if follows { SessionId(u64::MAX) } else { self.session };
            let tree = if follows { TreeId(u32::MAX) } else { self.tree };
            header.target = Target::Sync { process: 0xfeff, tree };
            header.flags.set(Flags::RELATED, follows);
            let start = frame.len();
            frame.extend_from_slice(&header.to_bytes());
            frame.extend_from_slice(&message[HEADER_LEN..]);
            if index + 1 < count {
                link_next(&mut frame, start);
            }
            starts.push(start);
        }
        starts.push(frame.len());
        self.finish(frame, &starts)
    }

    /// CANCEL of a request, by the id that the server gave it or else by its message's.
    pub(crate) fn cancel(&mut self, of: &Answer) {
        let mut message = request(Command::Cancel, &smb::wire::bare::Request);
        let header = Header {
            command: Command::Cancel,
            message_id: of.header.message_id,
            target: of.header.target,
            session: self.session,
            ..Header::default()
        };
        message[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        let len = message.len();
        self.finish(message, &[0, len]);
    }

    /// Signs or seals a frame of messages that begin at `starts`, and sends it.
    fn finish(&mut self, mut frame: Vec<u8>, starts: &[usize]) -> Vec<u8> {
        if self.sign
            && !self.seal
            && let Some(keys) = &self.keys
        {
            for pair in starts.windows(2) {
                keys.signer.sign(&mut frame[pair[0]..pair[1]]).expect("a header");
            }
        }
        if self.changes_last
            && let Some(last) = frame.last_mut()
        {
            *last ^= 1;
        }
        let sent = frame.clone();
        if self.seal {
            let keys = self.keys.as_ref().and_then(|keys| keys.seal.as_ref());
            let (sealer, _) = &**keys.expect("keys to seal with");
            let mut sealed = vec![0; TRANSFORM_HEADER_LEN];
            sealed.extend_from_slice(&frame);
            sealer.seal(&mut sealed).expect("a frame");
            frame = sealed;
        }
        self.send_frame(&frame);
        sent
    }

    /// Sends any bytes as a frame.
    pub(crate) fn send_frame(&mut self, frame: &[u8]) {
        let len = u32::try_from(frame.len()).expect("a frame").to_be_bytes();
        let mut bytes = [&len[..], frame].concat();
        bytes.truncate(self.sends_at_most.unwrap_or(usize::MAX));
        let first = self.pause_at.unwrap_or(0).min(bytes.len());
        // The server may have closed, which tests find out by what they receive.
        let _ = self.stream.write_all(&bytes[..first]);
        if first > 0 {
            std::thread::sleep(PAUSE);
        }
        let _ = self.stream.write_all(&bytes[first..]);
    }

    /// Sends any bytes.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    fn receive_frame(&mut self) -> io::Result<Vec<u8>> {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len)?;
        let mut frame = vec![0; u32::from_be_bytes(len) as usize];
        self.stream.read_exact(&mut frame)?;
        Ok(frame)
    }

    /// The next frame, which has one message, as it is.
    fn receive_raw(&mut self) -> Vec<u8> {
        let frame = self.receive_frame().expect("an answer");
        self.count(&Header::parse(&frame).expect("a header"));
        frame
    }

    fn count(&mut self, header: &Header) {
        self.credits += u64::from(header.credits);
    }

    /// Takes the next frame apart.
    fn take(&mut self) -> io::Result<()> {
        let mut frame = self.receive_frame()?;
        let frame_len = frame.len();
        let sealed = frame.starts_with(&TRANSFORM_ID);
        if sealed {
            let keys = self.keys.as_ref().and_then(|keys| keys.seal.as_ref());
            let (_, opener) = &**keys.expect("keys to open with");
            let range = opener.open(&mut frame).expect("a frame that can be opened");
            frame = frame[range].to_vec();
        }
        for element in Compound::new(&frame) {
            let element = element.expect("a whole message");
            let message = frame[element.range].to_vec();
            let header = element.header;
            self.count(&header);
            let must = self.sign && !sealed && self.keys.is_some();
            let unsolicited = header.message_id == MessageId::UNSOLICITED;
            // The server does not know the key of a session that it does not know.
            let lost = header.status == NtStatus::USER_SESSION_DELETED;
            let unsigned = lost || header.status == NtStatus::PENDING;
            if sealed {
                // MS-SMB2 3.3.4.1.1: the tag of the frame says as much, and what is in it is gone over once.
                assert!(!header.flags.contains(Flags::SIGNED), "{:?} is both", header.command);
                assert_eq!(header.signature, [0; 16], "{:?} is both", header.command);
            }
            if header.flags.contains(Flags::SIGNED) && !lost {
                let keys = self.keys.as_ref().expect("keys to verify with");
                keys.signer.verify_message(&message).expect("the right signature");
            } else if must && !unsolicited && !unsigned {
                panic!("{:?} {} is not signed", header.command, header.status);
            }
            let answer = Answer { header, message, sealed, frame_len };
            match unsolicited {
                true => self.breaks.push_back(answer),
                false => self.answers.push_back(answer),
            }
        }
        Ok(())
    }

    /// The next answer. Breaks are put aside.
    pub(crate) fn receive(&mut self) -> Answer {
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return answer;
            }
            self.take().expect("an answer");
        }
    }

    /// The next answer, or why there is none.
    pub(crate) fn try_receive(&mut self) -> io::Result<Answer> {
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return Ok(answer);
            }
            self.take()?;
        }
    }

    /// The next answer that is not STATUS_PENDING.
    pub(crate) fn receive_last(&mut self) -> Answer {
        loop {
            let answer = self.receive();
            if answer.status() != NtStatus::PENDING {
                return answer;
            }
        }
    }

    /// The next break.
    pub(crate) fn receive_break(&mut self) -> Answer {
        loop {
            if let Some(answer) = self.breaks.pop_front() {
                return answer;
            }
            self.take().expect("a break");
        }
    }

    /// Whether the server has closed the connection: nothing more comes.
    pub(crate) fn is_closed(&mut self) -> bool {
        loop {
            match self.take() {
                Ok(()) => {}
                Err(error) => {
                    return !matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    );
                }
            }
        }
    }

    /// Waits for answers no longer than this.
    pub(crate) fn hurry(&mut self, patience: Duration) {
        self.stream.set_read_timeout(Some(patience)).expect("TCP");
    }
}

/// Credits for what a request may bring or take.
fn charge(message: &[u8]) -> u16 {
    let payload = match Header::parse(message).expect("a header").command {
        Command::Read => read::Request::parse(message).map_or(0, |read| read.payload_len()),
        Command::Write => write::Request::parse(message).map_or(0, |write| write.payload_len()),
        Command::QueryDirectory => {
            query_directory::Request::parse(message).map_or(0, |query| query.payload_len())
        }
        _ => 0,
    };
    // No more than it has: what wants more is refused.
    u16::try_from(smb::wire::credit_charge_needed(payload)).unwrap_or(u16::MAX).min(128)
}
