//! Which mechanism? SPNEGO (RFC 4178, MS-SPNG).

use super::der::{BadDer, Reader, element};

/// NTLMSSP: 1.3.6.1.4.1.311.2.2.10.
pub const NTLMSSP: &[u8] = b"\x2b\x06\x01\x04\x01\x82\x37\x02\x02\x0a";
/// Kerberos 5: 1.2.840.113554.1.2.2.
pub const KERBEROS: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02";
/// Kerberos 5 as Windows 2000 wrote it, and clients still do: 1.2.840.48018.1.2.2.
pub const MS_KERBEROS: &[u8] = b"\x2a\x86\x48\x82\xf7\x12\x01\x02\x02";

const SPNEGO: &[u8] = b"\x2b\x06\x01\x05\x05\x02";
/// The principal of servers that tell none (MS-SPNG 2.2.1).
const HINT: &[u8] = b"not_defined_in_RFC4178@please_ignore";
/// Mechanisms that a client may offer; nobody has that many.
const MECHANISMS_MAX: usize = 16;
/// Bytes of the list of them, which is kept until the client goes on.
const LIST_MAX: usize = 1024;

const APPLICATION: u8 = 0x60;
const OID: u8 = 0x06;
const OCTETS: u8 = 0x04;
const ENUMERATED: u8 = 0x0a;
const GENERAL_STRING: u8 = 0x1b;
const SEQUENCE: u8 = 0x30;

const fn context(number: u8) -> u8 {
    0xa0 | number
}

/// Something that is no SPNEGO token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed SPNEGO token")]
pub struct Malformed;

impl From<BadDer> for Malformed {
    fn from(_: BadDer) -> Self {
        Self
    }
}

/// What a client begins with (RFC 4178 4.2.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NegTokenInit<'a> {
    /// The mechanisms that it offers, best first: the content bytes of their identifiers. Not empty.
    pub mechanisms: Vec<&'a [u8]>,
    /// The list of them as it was written: what is signed in the end.
    pub mechanisms_der: &'a [u8],
    /// A token of the first of them.
    pub token: Option<&'a [u8]>,
}

impl<'a> NegTokenInit<'a> {
    /// Reads it, with the framing of RFC 2743 3.1. A NegTokenInit2, which servers send, reads as well; its hints
    /// are not looked at.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut framing = Reader::new(Reader::new(bytes).element(APPLICATION)?);
        if framing.element(OID)? != SPNEGO {
            return Err(Malformed);
        }
        let mut outer = Reader::new(framing.element(context(0))?);
        let mut fields = Reader::new(outer.element(SEQUENCE)?);
        let (der, list) = Reader::new(fields.element(context(0))?).raw(SEQUENCE)?;
        if der.len() > LIST_MAX {
            return Err(Malformed);
        }
        let mut list = Reader::new(list);
        let mut mechanisms = Vec::new();
        while !list.is_empty() {
            if mechanisms.len() == MECHANISMS_MAX {
                return Err(Malformed);
            }
            mechanisms.push(list.element(OID)?);
        }
        if mechanisms.is_empty() {
            return Err(Malformed);
        }
        // Flags say what the client would like to have; nobody heeds them.
        fields.optional(context(1))?;
        let token = octets(&mut fields, 2)?;
        Ok(Self { mechanisms, mechanisms_der: der, token })
    }

    /// Writes what a client begins with.
    #[must_use]
    pub fn emit(mechanisms: &[&[u8]], token: Option<&[u8]>) -> Vec<u8> {
        let token = token.map(|token| element(context(2), &[&element(OCTETS, &[token])]));
        init(mechanisms, token.as_deref().unwrap_or_default())
    }
}

/// What a server says in its NEGOTIATE response: a NegTokenInit2 of the mechanisms that it has, best first
/// (MS-SPNG 2.2.1, MS-SMB2 3.3.5.4).
#[must_use]
pub fn hint(mechanisms: &[&[u8]]) -> Vec<u8> {
    let name = element(context(0), &[&element(GENERAL_STRING, &[HINT])]);
    init(mechanisms, &element(context(3), &[&element(SEQUENCE, &[&name])]))
}

/// The list of mechanisms as it is written, and signed.
#[must_use]
pub fn mechanism_list(mechanisms: &[&[u8]]) -> Vec<u8> {
    let oids: Vec<_> = mechanisms.iter().map(|oid| element(OID, &[oid])).collect();
    let parts: Vec<_> = oids.iter().map(Vec::as_slice).collect();
    element(SEQUENCE, &parts)
}

fn init(mechanisms: &[&[u8]], more: &[u8]) -> Vec<u8> {
    let list = element(context(0), &[&mechanism_list(mechanisms)]);
    let fields = element(context(0), &[&element(SEQUENCE, &[&list, more])]);
    element(APPLICATION, &[&element(OID, &[SPNEGO]), &fields])
}

/// How far it is (RFC 4178 4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NegState {
    /// Done.
    AcceptCompleted = 0,
    /// More tokens are needed.
    AcceptIncomplete = 1,
    /// It has failed.
    Reject = 2,
    /// More tokens are needed, and the list of mechanisms has to be signed.
    RequestMic = 3,
}

/// What either side says after the first token (RFC 4178 4.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NegTokenResp<'a> {
    /// How far it is. Clients may leave it out.
    pub state: Option<NegState>,
    /// The mechanism that the server has chosen, in its first answer.
    pub mechanism: Option<&'a [u8]>,
    /// A token of that mechanism.
    pub token: Option<&'a [u8]>,
    /// A signature of the list of mechanisms.
    pub mic: Option<&'a [u8]>,
}

impl<'a> NegTokenResp<'a> {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut outer = Reader::new(Reader::new(bytes).element(context(1))?);
        let mut fields = Reader::new(outer.element(SEQUENCE)?);
        let state = match fields.optional(context(0))? {
            None => None,
            Some(field) => Some(match Reader::new(field).element(ENUMERATED)? {
                [0] => NegState::AcceptCompleted,
                [1] => NegState::AcceptIncomplete,
                [2] => NegState::Reject,
                [3] => NegState::RequestMic,
                _ => return Err(Malformed),
            }),
        };
        let mechanism = match fields.optional(context(1))? {
            None => None,
            Some(field) => Some(Reader::new(field).element(OID)?),
        };
        let token = octets(&mut fields, 2)?;
        let mic = octets(&mut fields, 3)?;
        Ok(Self { state, mechanism, token, mic })
    }

    /// Writes it.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let octets = |number, bytes: Option<&[u8]>| {
            bytes.map(|bytes| element(context(number), &[&element(OCTETS, &[bytes])]))
        };
        let state =
            self.state.map(|state| element(context(0), &[&element(ENUMERATED, &[&[state as u8]])]));
        let mechanism = self.mechanism.map(|oid| element(context(1), &[&element(OID, &[oid])]));
        let fields = [state, mechanism, octets(2, self.token), octets(3, self.mic)];
        let parts: Vec<_> = fields.iter().flatten().map(Vec::as_slice).collect();
        element(context(1), &[&element(SEQUENCE, &parts)])
    }
}

fn octets<'a>(fields: &mut Reader<'a>, number: u8) -> Result<Option<&'a [u8]>, Malformed> {
    let Some(field) = fields.optional(context(number))? else { return Ok(None) };
    Ok(Some(Reader::new(field).element(OCTETS)?))
}

#[cfg(test)]
mod tests;
