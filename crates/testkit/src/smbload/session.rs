//! How a connection becomes a channel of a session: NEGOTIATE, `SESSION_SETUP`, `TREE_CONNECT`.

use anyhow::{Context, bail, ensure};
use aws_lc_rs::digest;

use super::connection::{Answer, Connection, Request, WRITE_ROOM, expect_ok};
use super::keys::{self, Encryption, Sealer, Signer, Signing};
use super::ntlm;
use super::settings::{Dialect, Settings};
use super::wire::{self, FileId, HEADER, Opening, command, status};

/// Who a client is: 16 bytes that it says on each of its connections.
pub(crate) type ClientGuid = [u8; 16];

/// What a further channel needs to be bound to a session.
#[derive(Clone)]
pub(crate) struct Session {
    guid: ClientGuid,
    id: u64,
    tree_id: u32,
    signing: Signing,
    signing_key: Vec<u8>,
    sealing: Option<(Encryption, Vec<u8>, Vec<u8>)>,
}

/// What NEGOTIATE agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    pub(crate) dialect: u16,
    pub(crate) capabilities: u32,
    pub(crate) max_read: u32,
    pub(crate) max_write: u32,
    signing: Signing,
    encryption: Option<Encryption>,
}

/// A connection with its session and its tree.
pub(crate) struct Channel {
    pub(crate) connection: Connection,
    pub(crate) session: Session,
    pub(crate) agreed: Agreed,
}

/// The hash of all that was said before keys were agreed on, MS-SMB2 3.1.4.4.1.
struct Preauth([u8; 64]);

impl Preauth {
    fn add(&mut self, message: &[u8]) {
        let mut hash = digest::Context::new(&digest::SHA512);
        hash.update(&self.0);
        hash.update(message);
        self.0.copy_from_slice(hash.finish().as_ref());
    }
}

/// A new client's guid.
///
/// # Errors
///
/// When the system has no random bytes.
pub(crate) fn new_guid() -> anyhow::Result<ClientGuid> {
    let mut guid = [0; 16];
    ntlm::random(&mut guid)?;
    Ok(guid)
}

impl Channel {
    /// A client's first connection: a session of its own, and the share.
    pub(crate) fn open(settings: &Settings, guid: ClientGuid) -> anyhow::Result<Self> {
        let mut channel = Self::set_up(settings, guid, None)?;
        channel.session.tree_id = channel.connect_tree(settings)?;
        channel.settle(settings);
        Ok(channel)
    }

    /// A further connection of the same client, bound to its session (MS-SMB2 3.2.4.2.3.1).
    pub(crate) fn bind(settings: &Settings, session: &Session) -> anyhow::Result<Self> {
        let mut channel = Self::set_up(settings, session.guid, Some(session))?;
        channel.connection.tree_id = session.tree_id;
        channel.settle(settings);
        Ok(channel)
    }

    fn set_up(
        settings: &Settings,
        guid: ClientGuid,
        bound: Option<&Session>,
    ) -> anyhow::Result<Self> {
        let mut connection = Connection::open(settings)?;
        let mut preauth = Preauth([0; 64]);
        let agreed = negotiate(&mut connection, settings, guid, &mut preauth)?;
        let session = authenticate(&mut connection, settings, &agreed, guid, &mut preauth, bound)?;
        Ok(Self { connection, session, agreed })
    }

    /// From here on only what was asked for is signed.
    fn settle(&mut self, settings: &Settings) {
        if settings.signing().is_none() || self.connection.sealer.is_some() {
            self.connection.signer = None;
        }
    }

    fn connect_tree(&mut self, settings: &Settings) -> anyhow::Result<u32> {
        let host = settings.addr.rsplit_once(':').map_or(&*settings.addr, |(host, _)| host);
        let path = wire::utf16(&format!("\\\\{host}\\{}", settings.share));
        let mut body = vec![9, 0, 0, 0, 72, 0];
        body.extend(wire::short_len(&path)?.to_le_bytes());
        body.extend(path);
        let answer = self.connection.call(Request::new(command::TREE_CONNECT, &body))?;
        expect_ok(answer, "TREE_CONNECT")?;
        self.connection.tree_id = wire::u32_at(self.connection.bytes(&answer), 36)?;
        Ok(self.connection.tree_id)
    }

    /// Opens a file; its handle and its length.
    pub(crate) fn create(&mut self, name: &str, opening: Opening) -> anyhow::Result<(FileId, u64)> {
        let body = wire::create(name, opening)?;
        let answer = self.connection.call(Request::new(command::CREATE, &body))?;
        expect_ok(answer, "CREATE").with_context(|| name.to_owned())?;
        let bytes = self.connection.bytes(&answer);
        Ok((wire::file_id_at(bytes, HEADER + 64)?, wire::u64_at(bytes, HEADER + 48)?))
    }

    pub(crate) fn close(&mut self, file: &FileId) -> anyhow::Result<()> {
        let answer = self.connection.call(Request::new(command::CLOSE, &wire::close(file)))?;
        expect_ok(answer, "CLOSE").map(drop)
    }

    /// Writes `data` at `offset` and waits.
    pub(crate) fn write(&mut self, file: &FileId, data: &[u8], offset: u64) -> anyhow::Result<()> {
        let len = u32::try_from(data.len())?;
        let body = wire::write(file, len, offset);
        self.connection.gather_credits(u32::from(wire::charge(len)))?;
        let message_id = self.connection.next_message_id();
        let mut framed = vec![0; WRITE_ROOM];
        framed.extend_from_slice(data);
        self.connection.send_write(&body, &mut framed, wire::charge(len), None)?;
        let answer = expect_ok(self.connection.await_answer(message_id)?, "WRITE")?;
        ensure!(answer.count == len, "the server took {} of {len} bytes", answer.count);
        Ok(())
    }

    /// What the server says of its interfaces.
    pub(crate) fn interfaces(&mut self) -> anyhow::Result<Vec<String>> {
        let body = wire::query_interfaces();
        let answer = self.connection.call(Request::new(command::IOCTL, &body))?;
        expect_ok(answer, "FSCTL_QUERY_NETWORK_INTERFACE_INFO")?;
        wire::interfaces(self.connection.bytes(&answer))
    }
}

/// One round trip whose messages are part of the hash; the answer to the last one is not.
fn call_hashed(
    connection: &mut Connection,
    preauth: &mut Preauth,
    command: u16,
    body: &[u8],
) -> anyhow::Result<Answer> {
    let message_id = connection.next_message_id();
    connection
        .queue(&[Request::new(command, body).charge(u16::from(command != command::NEGOTIATE))])?;
    preauth.add(&connection.waiting()[4..]);
    connection.flush()?;
    // The key that signs the answer is known when the answer is.
    let signer = connection.signer.take();
    let answer = connection.await_answer(message_id);
    connection.signer = signer;
    let answer = answer?;
    if command == command::NEGOTIATE || answer.status == status::MORE_PROCESSING_REQUIRED {
        preauth.add(connection.bytes(&answer));
    }
    Ok(answer)
}

/// NEGOTIATE, MS-SMB2 2.2.3, of one dialect; for 3.1.1 with its contexts.
fn negotiate(
    connection: &mut Connection,
    settings: &Settings,
    guid: ClientGuid,
    preauth: &mut Preauth,
) -> anyhow::Result<Agreed> {
    let dialect: u16 = match settings.dialect {
        Dialect::Smb302 => 0x0302,
        Dialect::Smb311 => 0x0311,
    };
    let mut body = vec![36, 0, 1, 0, 1, 0, 0, 0];
    body.extend(0x7f_u32.to_le_bytes());
    body.extend(guid);
    let contexts =
        if settings.dialect == Dialect::Smb311 { contexts(settings)? } else { Vec::new() };
    if contexts.is_empty() {
        body.extend([0; 8]);
        body.extend(dialect.to_le_bytes());
    } else {
        // They begin at the next multiple of 8: 64 + 36 + 2, and 2 more.
        body.extend([104, 0, 0, 0, 3, 0, 0, 0]);
        body.extend(dialect.to_le_bytes());
        body.extend([0; 2]);
        body.extend(contexts);
    }
    let answer = call_hashed(connection, preauth, command::NEGOTIATE, &body)?;
    let bytes = connection.bytes(&expect_ok(answer, "NEGOTIATE")?);
    let mut agreed = Agreed {
        dialect: wire::u16_at(bytes, HEADER + 4)?,
        capabilities: wire::u32_at(bytes, HEADER + 24)?,
        max_read: wire::u32_at(bytes, HEADER + 32)?,
        max_write: wire::u32_at(bytes, HEADER + 36)?,
        signing: Signing::Cmac,
        encryption: None,
    };
    ensure!(
        agreed.dialect == dialect,
        "the server speaks dialect {:#x}, which was not offered",
        agreed.dialect
    );
    if settings.dialect == Dialect::Smb311 {
        read_contexts(bytes, &mut agreed)?;
    }
    check_agreed(settings, &agreed)?;
    Ok(agreed)
}

fn check_agreed(settings: &Settings, agreed: &Agreed) -> anyhow::Result<()> {
    if let Some(wanted) = settings.signing() {
        ensure!(
            wanted == agreed.signing,
            "the server signs with {:?}, not {wanted:?}",
            agreed.signing
        );
    }
    if let Some(wanted) = settings.encryption() {
        ensure!(agreed.encryption == Some(wanted), "the server does not encrypt with {wanted:?}");
    }
    Ok(())
}

/// Integrity, encryption and signing: MS-SMB2 2.2.3.1.
fn contexts(settings: &Settings) -> anyhow::Result<Vec<u8>> {
    let mut integrity = vec![1, 0, 32, 0, 1, 0];
    let mut salt = [0; 32];
    ntlm::random(&mut salt)?;
    integrity.extend(salt);
    let list = |ids: &[u8]| {
        let mut value = vec![u8::try_from(ids.len()).unwrap_or(0), 0];
        ids.iter().for_each(|id| value.extend([*id, 0]));
        value
    };
    let ciphers = match settings.encryption() {
        Some(Encryption::Gcm128) => list(&[2]),
        Some(Encryption::Gcm256) => list(&[4]),
        None => list(&[2, 4]),
    };
    let signing =
        if settings.signing() == Some(Signing::Cmac) { list(&[1]) } else { list(&[2, 1]) };
    let mut out: Vec<u8> = Vec::new();
    for (kind, value) in [(1_u16, integrity), (2, ciphers), (8, signing)] {
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend(kind.to_le_bytes());
        out.extend(wire::short_len(&value)?.to_le_bytes());
        out.extend([0; 4]);
        out.extend(value);
    }
    Ok(out)
}

fn read_contexts(bytes: &[u8], agreed: &mut Agreed) -> anyhow::Result<()> {
    let mut at = wire::u32_at(bytes, HEADER + 60)? as usize;
    for _ in 0..wire::u16_at(bytes, HEADER + 6)? {
        let (kind, len) = (wire::u16_at(bytes, at)?, wire::u16_at(bytes, at + 2)?);
        match kind {
            2 => agreed.encryption = Encryption::of(wire::u16_at(bytes, at + 10)?),
            8 => {
                let id = wire::u16_at(bytes, at + 10)?;
                agreed.signing =
                    Signing::of(id).with_context(|| format!("unknown signing {id}"))?;
            }
            _ => {}
        }
        at = (at + 8 + usize::from(len)).next_multiple_of(8);
    }
    Ok(())
}

fn authenticate(
    connection: &mut Connection,
    settings: &Settings,
    agreed: &Agreed,
    guid: ClientGuid,
    preauth: &mut Preauth,
    bound: Option<&Session>,
) -> anyhow::Result<Session> {
    if let Some(session) = bound {
        connection.session_id = session.id;
        connection.signer = Some(Signer::new(session.signing, &session.signing_key)?);
    }
    let token = ntlm::first_token(&ntlm::negotiate())?;
    let answer = set_up_round(connection, preauth, bound.is_some(), &token)?;
    ensure!(
        answer.status == status::MORE_PROCESSING_REQUIRED,
        "SESSION_SETUP failed in its first round: status {:#010x}",
        answer.status
    );
    connection.session_id = wire::u64_at(connection.bytes(&answer), 40)?;
    let challenge = ntlm::find(connection.bytes(&answer))?;
    let (message, key) = ntlm::authenticate(challenge, &settings.user, &settings.pass)?;
    let answer = set_up_round(connection, preauth, bound.is_some(), &ntlm::next_token(&message)?)?;
    expect_ok(answer, "SESSION_SETUP")?;
    // Guest and null sessions have no key, MS-SMB2 2.2.6.
    let flags = wire::u16_at(connection.bytes(&answer), HEADER + 2)?;
    let keyless = flags & 3 != 0;
    let session = new_session(connection.session_id, guid, agreed, preauth, &key);
    let session = match bound {
        Some(first) => {
            ensure!(!keyless, "a channel was bound as a guest, whose keys nobody has");
            connection.signer = Some(Signer::new(agreed.signing, &session.signing_key)?);
            first.clone()
        }
        None => session,
    };
    if keyless {
        let secured = settings.signing().is_some() || settings.encryption().is_some();
        ensure!(
            !secured,
            "{} was let in as a guest: nothing can be signed or encrypted",
            settings.user
        );
        connection.signer = None;
        return Ok(session);
    }
    if bound.is_none() {
        connection.signer = Some(Signer::new(agreed.signing, &session.signing_key)?);
    }
    connection.check_answer(&answer).context("the last answer to SESSION_SETUP")?;
    if settings.encryption().is_some() {
        let Some((encryption, sending, receiving)) = &session.sealing else {
            bail!("no encryption was agreed on");
        };
        connection.sealer = Some(Sealer::new(*encryption, sending, receiving)?);
    }
    Ok(session)
}

fn set_up_round(
    connection: &mut Connection,
    preauth: &mut Preauth,
    binding: bool,
    token: &[u8],
) -> anyhow::Result<Answer> {
    let mut body = vec![25, 0, u8::from(binding), 1];
    body.extend([0; 8]);
    body.extend(88_u16.to_le_bytes());
    body.extend(wire::short_len(token)?.to_le_bytes());
    body.extend([0; 8]);
    body.extend(token);
    call_hashed(connection, preauth, command::SESSION_SETUP, &body)
}

/// Keys of a session or a channel, MS-SMB2 3.2.5.3.1 and 3.2.5.3.3.
fn new_session(
    id: u64,
    guid: ClientGuid,
    agreed: &Agreed,
    preauth: &Preauth,
    key: &[u8; 16],
) -> Session {
    let (signing_key, sealing) = if agreed.dialect == 0x0311 {
        let derive = |label: &[u8], len| keys::derive(key, label, &preauth.0, len);
        let sealing = agreed.encryption.map(|encryption| {
            let len = encryption.key_len();
            (encryption, derive(b"SMBC2SCipherKey\0", len), derive(b"SMBS2CCipherKey\0", len))
        });
        (derive(b"SMBSigningKey\0", 16), sealing)
    } else {
        (keys::derive(key, b"SMB2AESCMAC\0", b"SmbSign\0", 16), None)
    };
    Session { guid, id, tree_id: 0, signing: agreed.signing, signing_key, sealing }
}
