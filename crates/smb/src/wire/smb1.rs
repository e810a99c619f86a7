//! The NEGOTIATE of SMB 1 by which a client asks whether SMB2 is spoken (MS-SMB2 3.3.5.3, MS-CIFS 2.2.4.52).
//! Nothing else of SMB 1 is understood.

use super::BadMessage;
use super::bytes::Fields;

const HEADER_LEN: usize = 32;
const COM_NEGOTIATE: u8 = 0x72;
/// FLAGS_REPLY: an answer.
const REPLY: u8 = 0x80;

/// DialectIndex of an answer that takes none of them.
const NONE_OF_THEM: u16 = 0xffff;

/// Bytes of dialects that are looked at.
pub const DIALECTS_LEN_MAX: usize = 4096;

/// What an SMB 1 client says about SMB2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Offer {
    /// "SMB 2.002": it speaks SMB 2.0.2.
    pub smb2_002: bool,
    /// "SMB 2.???": it speaks later dialects, and asks again when told so.
    pub smb2_wildcard: bool,
}

impl Offer {
    /// Reads a whole frame that begins with 0xff 'SMB'.
    ///
    /// # Errors
    ///
    /// [`BadMessage::Value`] when it is no request to negotiate; others when it does not hold together.
    pub fn parse(frame: &[u8]) -> Result<Self, BadMessage> {
        let fields = Fields::at_least(frame, HEADER_LEN + 3)?;
        if fields.chunk(0) != *b"\xffSMB" {
            return Err(BadMessage::Protocol);
        }
        if fields.u8(4) != COM_NEGOTIATE || fields.u8(9) & REPLY != 0 {
            return Err(BadMessage::Value);
        }
        // WordCount, no words, ByteCount, dialects: each a byte 2, a name, a zero.
        if fields.u8(HEADER_LEN) != 0 {
            return Err(BadMessage::StructureSize);
        }
        let (at, len) = (HEADER_LEN + 3, fields.len16(HEADER_LEN + 1));
        let dialects = frame.get(at..at + len).ok_or(BadMessage::Truncated)?;
        if dialects.len() > DIALECTS_LEN_MAX {
            return Err(BadMessage::TooMany);
        }
        let dialects = dialects.strip_suffix(&[0]).ok_or(BadMessage::Truncated)?;
        dialects.split(|byte| *byte == 0).try_fold(Self::default(), |mut offer, dialect| {
            match dialect.split_first() {
                Some((2, b"SMB 2.002")) => offer.smb2_002 = true,
                Some((2, b"SMB 2.???")) => offer.smb2_wildcard = true,
                Some((2, _)) => {}
                _ => return Err(BadMessage::Value),
            }
            Ok(offer)
        })
    }

    /// Appends the frame of such a request, as a client would send it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut dialects = b"\x02NT LM 0.12\0".to_vec();
        if self.smb2_002 {
            dialects.extend_from_slice(b"\x02SMB 2.002\0");
        }
        if self.smb2_wildcard {
            dialects.extend_from_slice(b"\x02SMB 2.???\0");
        }
        out.extend_from_slice(b"\xffSMB\x72\0\0\0\0\x18\x53\xc8");
        out.extend_from_slice(&[0; 20]);
        out.push(0);
        out.extend_from_slice(&u16::try_from(dialects.len()).unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&dialects);
    }
}

/// Bytes of a [`refusal`].
pub const REFUSAL_LEN: u8 = 37;

/// What tells who has sent a frame that [`Offer::parse`] took that none of its dialects is spoken here (MS-CIFS
/// 2.2.4.52.2).
#[must_use]
pub fn refusal(frame: &[u8]) -> [u8; REFUSAL_LEN as usize] {
    let mut out = [0; REFUSAL_LEN as usize];
    for (ours, theirs) in out[..HEADER_LEN].iter_mut().zip(frame) {
        *ours = *theirs;
    }
    // The status, which a client may have put anything in.
    out[5..9].fill(0);
    out[9] |= REPLY;
    // WordCount and the one word; no bytes follow.
    out[HEADER_LEN] = 1;
    out[HEADER_LEN + 1..HEADER_LEN + 3].copy_from_slice(&NONE_OF_THEM.to_le_bytes());
    out
}
