//! The three messages (MS-NLMP 2.2.1).

use super::flags;
use super::keys::utf16;
use crate::FileTime;
use crate::auth::{Reason, Settings};

/// What every message begins with.
pub(super) const SIGNATURE: [u8; 8] = *b"NTLMSSP\0";
/// Messages longer than this are nobody's.
const MESSAGE_MAX: usize = 64 * 1024;
/// A NEGOTIATE message longer than this is nobody's: two names in a code page behind 40 bytes. It is kept until the client
/// goes on, which anybody can leave it waiting for.
const NEGOTIATE_MAX: usize = 2048;
/// Where AUTHENTICATE has its MIC, if its AV pairs say that there is one.
pub(super) const MIC_AT: usize = 72;
/// Bytes of a MIC.
pub(super) const MIC_LEN: usize = 16;
/// Bytes of a name in UTF-16: more than any name of Windows has.
const NAME_MAX: usize = 1024;
/// Bytes of an NTLMv2 response before its AV pairs: the proof, then the head of NTLMv2_CLIENT_CHALLENGE.
const RESPONSE_FIXED: usize = PROOF_LEN + 28;
/// Bytes of the proof at the start of a response.
pub(super) const PROOF_LEN: usize = 16;
/// AV pairs of a response; Windows sends ten.
const PAIRS_MAX: usize = 64;
/// Windows 6.1, NTLM revision 15: whoever looks, looks at the revision (MS-NLMP 2.2.2.10).
pub(super) const VERSION: [u8; 8] = [6, 1, 0, 0, 0, 0, 0, 15];

/// Types of AV pairs (MS-NLMP 2.2.2.1).
pub(super) mod av {
    pub(crate) const EOL: u16 = 0;
    pub(crate) const NETBIOS_COMPUTER: u16 = 1;
    pub(crate) const NETBIOS_DOMAIN: u16 = 2;
    pub(crate) const DNS_COMPUTER: u16 = 3;
    pub(crate) const DNS_DOMAIN: u16 = 4;
    pub(crate) const FLAGS: u16 = 6;
    pub(crate) const TIMESTAMP: u16 = 7;
    /// In [`FLAGS`]: there is a MIC.
    pub(crate) const HAS_MIC: u32 = 2;
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*b.get(at..)?.first_chunk()?))
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*b.get(at..)?.first_chunk()?))
}

/// Whether this is a message of NTLM, of this type.
pub(super) fn is(message: &[u8], kind: u32) -> bool {
    message.len() <= MESSAGE_MAX
        && message.starts_with(&SIGNATURE)
        && u32_at(message, 8) == Some(kind)
}

/// The flags of a NEGOTIATE message. What else it says, names in a code page, is not needed.
pub(super) fn negotiate(message: &[u8]) -> Result<u32, Reason> {
    let taken = is(message, 1) && message.len() <= NEGOTIATE_MAX;
    let flags = taken.then(|| u32_at(message, 12)).flatten();
    flags.ok_or(Reason::Malformed("NTLM NEGOTIATE"))
}

/// The bytes that a length and an offset at `at` speak of.
pub(super) fn field(message: &[u8], at: usize) -> Option<&[u8]> {
    let len = usize::from(u16_at(message, at)?);
    let start = usize::try_from(u32_at(message, at + 4)?).ok()?;
    // Who has nothing to say may point anywhere.
    if len == 0 {
        return Some(&[]);
    }
    message.get(start..)?.get(..len)
}

/// An AV pair.
pub(super) fn pair(out: &mut Vec<u8>, id: u16, value: &[u8]) {
    // Names of a server are short; what is not is left out.
    if let Ok(len) = u16::try_from(value.len()) {
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(value);
    }
}

/// Writes a CHALLENGE message.
pub(super) fn challenge(
    settings: &Settings,
    flags: u32,
    challenge: [u8; 8],
    now: FileTime,
) -> Vec<u8> {
    /// Bytes before the payload.
    const PAYLOAD_AT: u16 = 56;
    let name = |text: &str| {
        let mut name = utf16(text);
        name.truncate(NAME_MAX);
        name
    };
    // Pairs are in Unicode whatever was agreed (MS-NLMP 2.2.2.1).
    let target = if flags & flags::UNICODE == 0 {
        ascii(&settings.netbios_computer)
    } else {
        name(&settings.netbios_computer)
    };
    let mut info = Vec::with_capacity(256);
    for (id, text) in [
        (av::NETBIOS_DOMAIN, &settings.netbios_domain),
        (av::NETBIOS_COMPUTER, &settings.netbios_computer),
        (av::DNS_DOMAIN, &settings.dns_domain),
        (av::DNS_COMPUTER, &settings.dns_computer),
    ] {
        pair(&mut info, id, &name(text));
    }
    pair(&mut info, av::TIMESTAMP, &now.0.to_le_bytes());
    pair(&mut info, av::EOL, &[]);
    // Five names of at most `NAME_MAX` bytes.
    let len = |part: &[u8]| u16::try_from(part.len()).unwrap_or(0);
    let mut out = Vec::with_capacity(usize::from(PAYLOAD_AT) + target.len() + info.len());
    let part = |out: &mut Vec<u8>, len: u16, at: u16| {
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&u32::from(at).to_le_bytes());
    };
    out.extend_from_slice(&SIGNATURE);
    out.extend_from_slice(&2u32.to_le_bytes());
    part(&mut out, len(&target), PAYLOAD_AT);
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&challenge);
    out.extend_from_slice(&[0; 8]);
    part(&mut out, len(&info), PAYLOAD_AT + len(&target));
    out.extend_from_slice(&VERSION);
    out.extend_from_slice(&target);
    out.extend_from_slice(&info);
    out
}

/// An AUTHENTICATE message, its parts within it.
#[derive(Debug)]
pub(super) struct Authenticate<'a> {
    pub(super) lm_response: &'a [u8],
    pub(super) nt_response: &'a [u8],
    pub(super) domain: String,
    pub(super) user: String,
    pub(super) workstation: String,
    pub(super) session_key: &'a [u8],
    pub(super) flags: u32,
}

impl<'a> Authenticate<'a> {
    const MALFORMED: Reason = Reason::Malformed("NTLM AUTHENTICATE");

    /// `agreed` are the flags of the CHALLENGE.
    pub(super) fn parse(message: &'a [u8], agreed: u32) -> Result<Self, Reason> {
        if !is(message, 3) {
            return Err(Self::MALFORMED);
        }
        let field = |at| field(message, at).ok_or(Self::MALFORMED);
        let flags = u32_at(message, 60).ok_or(Self::MALFORMED)?;
        // Who names no character set, as smbj without a name, goes by what was agreed.
        let said = if flags & (flags::UNICODE | flags::OEM) == 0 { agreed } else { flags };
        let read = if said & flags::UNICODE == 0 { ascii_text } else { text };
        let text = |at| field(at).and_then(read);
        Ok(Self {
            lm_response: field(12)?,
            nt_response: field(20)?,
            domain: text(28)?,
            user: text(36)?,
            workstation: text(44)?,
            session_key: field(52)?,
            flags,
        })
    }

    /// Somebody who does not say who it is (MS-NLMP 3.2.5.1.2).
    pub(super) fn is_anonymous(&self) -> bool {
        self.user.is_empty()
            && self.nt_response.is_empty()
            && (self.lm_response.is_empty() || self.lm_response == [0])
    }
}

/// A name of ours for a client that knows no Unicode.
fn ascii(name: &str) -> Vec<u8> {
    let name = name.chars().take(NAME_MAX);
    name.map(|char| u8::try_from(char).ok().filter(u8::is_ascii).unwrap_or(b'?')).collect()
}

/// A name in a code page, which nobody says: what is ASCII is the same in all of them.
fn ascii_text(bytes: &[u8]) -> Result<String, Reason> {
    if !bytes.is_ascii() {
        return Err(Reason::NotUnicode);
    }
    let text = str::from_utf8(bytes).ok().filter(|text| text.len() <= NAME_MAX);
    named(text.map(str::to_owned))
}

/// A name in little endian UTF-16.
fn text(bytes: &[u8]) -> Result<String, Reason> {
    let (units, rest) = bytes.as_chunks::<2>();
    let units = units.iter().map(|unit| u16::from_le_bytes(*unit));
    let text = (bytes.len() <= NAME_MAX && rest.is_empty())
        .then(|| char::decode_utf16(units).collect::<Result<String, _>>().ok());
    named(text.flatten())
}

/// A zero or a line's end would make two names look like one, or one line of a log like two.
fn named(text: Option<String>) -> Result<String, Reason> {
    text.filter(|text| !text.chars().any(char::is_control))
        .ok_or(Reason::Malformed("name in NTLM AUTHENTICATE"))
}

/// An NTLMv2_RESPONSE (MS-NLMP 2.2.2.8): everything that counts of it.
#[derive(Debug)]
pub(super) struct Response<'a> {
    pub(super) proof: &'a [u8; PROOF_LEN],
    /// NTLMv2_CLIENT_CHALLENGE with all that follows: what is proven.
    pub(super) blob: &'a [u8],
    pub(super) time: FileTime,
    /// There is a MIC in the message.
    pub(super) has_mic: bool,
}

impl<'a> Response<'a> {
    pub(super) fn parse(response: &'a [u8]) -> Result<Self, Reason> {
        const MALFORMED: Reason = Reason::Malformed("NTLMv2 response");
        // LM, NTLM and NTLM2 session responses have 24 bytes or none.
        if response.len() <= 24 {
            return Err(Reason::OldResponse);
        }
        let (proof, blob) = response.split_first_chunk().ok_or(MALFORMED)?;
        if response.len() < RESPONSE_FIXED || !blob.starts_with(&[1, 1]) {
            return Err(MALFORMED);
        }
        let time = FileTime(u64::from_le_bytes(*blob[8..].first_chunk().ok_or(MALFORMED)?));
        let mut has_mic = false;
        each_pair(&response[RESPONSE_FIXED..], |id, value| {
            if id == av::FLAGS {
                has_mic = u32_at(value, 0).is_some_and(|flags| flags & av::HAS_MIC != 0);
            }
        })
        .ok_or(MALFORMED)?;
        Ok(Self { proof, blob, time, has_mic })
    }
}

/// Looks at the AV pairs before the one that ends them. `None`: they cannot be read.
pub(super) fn each_pair(mut pairs: &[u8], mut look: impl FnMut(u16, &[u8])) -> Option<()> {
    for _ in 0..PAIRS_MAX {
        let id = u16_at(pairs, 0)?;
        let len = usize::from(u16_at(pairs, 2)?);
        let value = pairs.get(4..4 + len)?;
        if id == av::EOL {
            return Some(());
        }
        look(id, value);
        pairs = &pairs[4 + len..];
    }
    None
}
