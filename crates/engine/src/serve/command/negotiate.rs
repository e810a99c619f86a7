//! NEGOTIATE (MS-SMB2 3.3.5.3, 3.3.5.4).

use std::rc::Rc;

use smb::auth::spnego;
use smb::crypto::{Cipher, PreauthHash, SigningAlgorithm};
use smb::session::Dialect;
use smb::wire::U16s;
use smb::wire::header::{Command, Flags, Header};
use smb::wire::negotiate::{Capabilities, Context, Request, Response, SecurityMode};
use smb::wire::smb1::Offer;
use smb::{MessageId, NtStatus};

use super::super::channel::{After, Agreed, Channel, Exchange, Reply};
use super::super::config::Demand;
use super::super::server::{self, Server};
use super::Answer;

/// SHA-512, the one preauthentication hash that there is.
const SHA_512: u16 = 1;
/// The name of the POSIX extensions, as their context has it.
const POSIX: [u8; 16] = *b"\x93\xad\x25\x50\x9c\xb4\x11\xe7\xb4\x23\x83\xde\x96\x8b\xcd\x7c";
/// Largest payload without large MTU: what one credit pays for.
const SMALL_PAYLOAD: u32 = 64 << 10;

/// Answers an SMB1 negotiate of a client that speaks SMB2 too. `None`: it speaks
/// nothing that is served here, which is a line of the log.
pub(in crate::serve) fn multi_protocol(channel: &Rc<Channel>, offer: Offer) -> Option<Reply> {
    let server = &channel.server;
    let newest = server::newest(&server.config.dialects)?;
    let dialect = if offer.smb2_wildcard && newest > Dialect::Smb202 {
        channel.multi_protocol.set(true);
        Dialect::WILDCARD
    } else if offer.smb2_002 && server.config.dialects.contains(&Dialect::Smb202) {
        let agreed = Agreed {
            dialect: Dialect::Smb202,
            client: smb::Guid::NIL,
            client_mode: SecurityMode::empty(),
            client_capabilities: Capabilities::empty(),
            mode: mode(server),
            capabilities: Capabilities::empty(),
            cipher: None,
            signing: SigningAlgorithm::HmacSha256,
            posix: false,
            payload: SMALL_PAYLOAD,
            preauth: PreauthHash::default(),
        };
        channel.agreed.set(agreed).ok()?;
        Dialect::Smb202 as u16
    } else {
        let offered = [
            offer.smb2_002.then_some(Dialect::Smb202),
            offer.smb2_wildcard.then_some(Dialect::Smb210),
        ];
        let why = match offered.into_iter().flatten().max() {
            Some(newest) => not_served(newest, &server.config.dialects),
            None => "speaks SMB1 only, which is refused: have it use SMB 2.1 or later".to_owned(),
        };
        server.log(channel.peer, &why);
        return None;
    };
    // The SMB1 request stands for message 0.
    channel.window.borrow_mut().consume(MessageId(0), 1).ok()?;
    let mut reply = Reply::new(None);
    reply.begin(&Header {
        flags: Flags::RESPONSE,
        credit_charge: 0,
        ..Header::request(Command::Negotiate)
    });
    let payload =
        if dialect == Dialect::WILDCARD { server.config.limits.payload } else { SMALL_PAYLOAD };
    let token = spnego::hint(server.mechanisms());
    reply.write(&response(server, dialect, Capabilities::empty(), payload, &token, Vec::new()));
    let credits = channel.grant_one();
    reply.complete(NtStatus::SUCCESS, credits, None);
    Some(reply)
}

/// Why a client is refused that offers nothing newer than `theirs`, and how it would not be.
fn not_served(theirs: Dialect, ours: &[Dialect]) -> String {
    let oldest = ours.iter().copied().min().map_or(theirs, |ours| ours.min(theirs));
    let newest = ours.iter().copied().max().map_or(theirs, |ours| ours.max(theirs));
    format!(
        "offers SMB {theirs}, and nothing that is served here: dialects = \"{oldest}-{newest}\" would let it in"
    )
}

fn mode(server: &Server) -> SecurityMode {
    match server.config.signing {
        Demand::Required => SecurityMode::SIGNING_ENABLED | SecurityMode::SIGNING_REQUIRED,
        Demand::Off | Demand::Offered => SecurityMode::SIGNING_ENABLED,
    }
}

fn response<'a>(
    server: &Server,
    dialect: u16,
    capabilities: Capabilities,
    payload: u32,
    token: &'a [u8],
    contexts: Vec<Context<'a>>,
) -> Response<'a> {
    Response {
        security_mode: mode(server),
        dialect,
        server: server.guid,
        capabilities,
        transact_max: payload,
        read_max: payload,
        write_max: payload,
        now: server.now(),
        started: smb::FileTime::NONE,
        token,
        contexts,
    }
}

/// What the contexts of a 3.1.1 client lead to.
#[derive(Default)]
struct Chosen {
    cipher: Option<Cipher>,
    encryption_asked: bool,
    signing: Option<SigningAlgorithm>,
    posix: bool,
}

fn choose(contexts: &[Context<'_>], encryption: Demand) -> Result<Chosen, NtStatus> {
    let mut chosen = Chosen::default();
    let mut hashed = false;
    for context in contexts {
        match context {
            Context::Preauth { hashes, .. } => {
                if !hashes.contains(SHA_512) {
                    return Err(NtStatus::SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP);
                }
                hashed = true;
            }
            // An answer of no cipher means that none is known to both; who encrypts nothing says nothing, and that
            // is how a client tells the two from each other. Some take no cipher for a mistake: go-smb2. A client that
            // knows none has asked for nothing.
            Context::Encryption(ciphers) if encryption != Demand::Off && !ciphers.is_empty() => {
                chosen.encryption_asked = true;
                let mut by_speed = Cipher::BY_SPEED.into_iter();
                chosen.cipher = by_speed.find(|cipher| ciphers.contains(cipher.to_wire()));
            }
            // The client's first that is known here: it knows what its machine does fast.
            Context::Signing(algorithms) => {
                chosen.signing = algorithms.iter().find_map(SigningAlgorithm::from_wire);
            }
            Context::Posix(names) => {
                chosen.posix = names.chunks_exact(16).any(|name| name == POSIX)
            }
            // Of compression nothing is answered, which is how it is declined (MS-SMB2 3.3.5.4).
            _ => {}
        }
    }
    // 3.1.1 without it is not 3.1.1 (MS-SMB2 3.3.5.4).
    if hashed { Ok(chosen) } else { Err(NtStatus::INVALID_PARAMETER) }
}

pub(super) fn serve(x: &mut Exchange<'_>) -> Answer {
    let channel = x.channel;
    if channel.agreed.get().is_some() {
        // Whoever negotiates twice is cut off (MS-SMB2 3.3.5.4); see `answered`.
        return Err(NtStatus::REQUEST_NOT_ACCEPTED);
    }
    let server = x.server();
    let config = &server.config;
    let request = Request::parse(x.message)?;
    let ours = config.dialects.iter().copied();
    let Some(dialect) = ours.filter(|dialect| request.dialects.contains(*dialect as u16)).max()
    else {
        // It may ask as often as it likes, and is told of when it does so first: 1 is behind a request of SMB1.
        if x.header.message_id <= MessageId(1) {
            let theirs = request.dialects.iter().filter_map(Dialect::from_wire).max();
            let why = match theirs {
                Some(theirs) => not_served(theirs, &config.dialects),
                None => "offers no dialect of SMB that is known here".to_owned(),
            };
            server.log(channel.peer, &why);
        }
        return Err(NtStatus::NOT_SUPPORTED);
    };
    if dialect >= Dialect::Smb210 && request.client.is_nil() && dialect.is_smb3() {
        // Some old scanners send none. They get no channels, and nothing else goes wrong.
        server.log(channel.peer, "has no ClientGuid; it will have one channel");
    }
    let chosen = if dialect == Dialect::Smb311 {
        choose(&request.contexts, config.encryption)?
    } else {
        Chosen::default()
    };
    let mut capabilities = Capabilities::empty();
    if dialect.has_large_mtu() {
        capabilities |= Capabilities::LARGE_MTU;
        if config.leases {
            capabilities |= Capabilities::LEASING;
        }
    }
    if dialect.is_smb3() {
        let asked = request.capabilities;
        if config.multichannel && asked.contains(Capabilities::MULTI_CHANNEL) {
            capabilities |= Capabilities::MULTI_CHANNEL;
        }
        if config.leases
            && config.directory_leases
            && asked.contains(Capabilities::DIRECTORY_LEASING)
        {
            capabilities |= Capabilities::DIRECTORY_LEASING;
        }
        if dialect < Dialect::Smb311
            && config.encryption != Demand::Off
            && asked.contains(Capabilities::ENCRYPTION)
        {
            capabilities |= Capabilities::ENCRYPTION;
        }
    }
    let cipher = match dialect {
        Dialect::Smb311 => chosen.cipher,
        _ => capabilities.contains(Capabilities::ENCRYPTION).then_some(Cipher::Aes128Ccm),
    };
    let signing = match dialect {
        Dialect::Smb202 | Dialect::Smb210 => SigningAlgorithm::HmacSha256,
        Dialect::Smb300 | Dialect::Smb302 => SigningAlgorithm::AesCmac,
        Dialect::Smb311 => chosen.signing.unwrap_or(SigningAlgorithm::AesCmac),
    };
    let payload = if dialect.has_large_mtu() { config.limits.payload } else { SMALL_PAYLOAD };
    let salt: [u8; 32] = server::random();
    let hashes = U16s::bytes_of(&[SHA_512]);
    let ciphers = U16s::bytes_of(&[chosen.cipher.map_or(0, Cipher::to_wire)]);
    let algorithms = U16s::bytes_of(&[signing.to_wire()]);
    let mut contexts = Vec::new();
    if dialect == Dialect::Smb311 {
        contexts.push(Context::Preauth { hashes: U16s::new(&hashes), salt: &salt });
        if chosen.encryption_asked {
            contexts.push(Context::Encryption(U16s::new(&ciphers)));
        }
        if chosen.signing.is_some() {
            contexts.push(Context::Signing(U16s::new(&algorithms)));
        }
        if chosen.posix {
            contexts.push(Context::Posix(&POSIX));
        }
    }
    let token = spnego::hint(server.mechanisms());
    let body = response(server, dialect as u16, capabilities, payload, &token, contexts);
    x.reply.write(&body);
    let mut preauth = PreauthHash::default();
    preauth.update(x.message);
    let agreed = Agreed {
        dialect,
        client: request.client,
        client_mode: request.security_mode,
        client_capabilities: request.capabilities,
        mode: body.security_mode,
        capabilities,
        cipher,
        signing,
        posix: chosen.posix,
        payload,
        preauth,
    };
    channel.negotiated.replace(Some(agreed));
    Ok(NtStatus::SUCCESS)
}

/// The answer is complete: 3.1.1 takes its bytes into the hash.
pub(super) fn answered(x: &mut Exchange<'_>, status: NtStatus) -> After {
    let Some(mut agreed) = x.channel.negotiated.take() else {
        return if x.channel.agreed.get().is_some() { After::Drop } else { After::Next };
    };
    if status != NtStatus::SUCCESS {
        return After::Next;
    }
    agreed.preauth.update(x.reply.last());
    if !agreed.client.is_nil() {
        x.channel.shared.identify(agreed.client);
        x.server().know_channel(agreed.client, &x.channel.shared);
    }
    match x.channel.agreed.set(agreed) {
        Ok(()) => After::Next,
        Err(_) => After::Drop,
    }
}
