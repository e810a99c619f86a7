//! As much of netlink as it takes to ask the kernel about SMC and RDMA devices, and to tell it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, ensure};

const HEADER: usize = 16;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const GENERIC_CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const TYPE_MASK: u16 = 0x3fff;

/// An attribute: its type and value.
pub(crate) type Attribute<'a> = (u16, &'a [u8]);

/// A conversation with one part of the kernel.
pub(crate) struct Netlink(OwnedFd);

/// Whether the kernel is asked for a list, or told to do something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Dump,
    Do,
    Get,
}

impl Netlink {
    pub(crate) fn open(protocol: i32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: a plain call.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, for us alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a message and gathers what comes back, without headers.
    pub(crate) fn ask(&self, kind: u16, wish: Wish, body: &[u8]) -> anyhow::Result<Vec<Vec<u8>>> {
        let flags = REQUEST
            | match wish {
                Wish::Dump => DUMP,
                Wish::Do => ACKNOWLEDGE,
                Wish::Get => 0,
            };
        let mut message = u32::try_from(HEADER + body.len())?.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        message.extend(body);
        // SAFETY: bytes of the length that is said.
        let n =
            unsafe { libc::send(self.0.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        ensure!(n >= 0, "netlink: {}", io::Error::last_os_error());
        let mut answers = Vec::new();
        while !self.receive(wish, &mut answers)? {}
        Ok(answers)
    }

    /// Whether that was the last of it.
    fn receive(&self, wish: Wish, answers: &mut Vec<Vec<u8>>) -> anyhow::Result<bool> {
        let mut buffer = vec![0u8; 128 << 10];
        // SAFETY: room of the length that is said.
        let n =
            unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        let mut rest = &buffer[..n];
        while rest.len() >= HEADER {
            let len = u32::from_ne_bytes(rest[..4].try_into()?) as usize;
            ensure!((HEADER..=rest.len()).contains(&len), "netlink: a message of {len} bytes");
            let kind = u16::from_ne_bytes(rest[4..6].try_into()?);
            let body = &rest[HEADER..len];
            match kind {
                DONE => return Ok(true),
                ERROR => {
                    let errno = i32::from_ne_bytes(body[..4].try_into()?);
                    ensure!(errno == 0, "netlink: {}", io::Error::from_raw_os_error(-errno));
                    return Ok(true);
                }
                _ => answers.push(body.to_vec()),
            }
            rest = &rest[len.next_multiple_of(4).min(rest.len())..];
        }
        Ok(wish == Wish::Get)
    }
}

/// Adds an attribute to a message.
pub(crate) fn put(message: &mut Vec<u8>, (kind, value): Attribute<'_>) -> anyhow::Result<()> {
    message.extend(u16::try_from(4 + value.len())?.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
    Ok(())
}

/// The attributes in a message, as far as they can be read.
pub(crate) fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let [l0, l1, k0, k1, ..] = *bytes {
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let Some(value) = bytes.get(4..len) else { break };
        found.push((u16::from_ne_bytes([k0, k1]) & TYPE_MASK, value));
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// The value of an attribute.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).into_iter().find(|(k, _)| *k == kind).map(|(_, value)| value)
}

/// A family of generic netlink.
pub(crate) struct Family {
    netlink: Netlink,
    id: u16,
}

impl Family {
    pub(crate) fn open(name: &str) -> anyhow::Result<Self> {
        let netlink = Netlink::open(libc::NETLINK_GENERIC)?;
        let mut body = vec![GET_FAMILY, 1, 0, 0];
        put(&mut body, (FAMILY_NAME, format!("{name}\0").as_bytes()))?;
        let answers = netlink.ask(GENERIC_CONTROL, Wish::Get, &body);
        let answers = answers.with_context(|| format!("the kernel does not know {name}"))?;
        let id = answers.first().and_then(|answer| attribute(answer.get(4..)?, FAMILY_ID));
        let id = id.and_then(|id| id.try_into().ok()).map(u16::from_ne_bytes);
        Ok(Self { netlink, id: id.with_context(|| format!("{name} has no number"))? })
    }

    /// Asks, or tells; answers hold attributes only.
    pub(crate) fn ask(
        &self,
        command: u8,
        wish: Wish,
        attributes: &[Attribute<'_>],
    ) -> anyhow::Result<Vec<Vec<u8>>> {
        let mut body = vec![command, 1, 0, 0];
        attributes.iter().try_for_each(|each| put(&mut body, *each))?;
        let answers = self.netlink.ask(self.id, wish, &body)?;
        Ok(answers.into_iter().map(|answer| answer.get(4..).unwrap_or_default().to_vec()).collect())
    }
}
