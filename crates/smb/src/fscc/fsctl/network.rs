//! How a client finds other ways to this server, and makes sure that nobody tampered with the negotiation.

use std::net::IpAddr;

use bitflags::bitflags;

use super::super::le::len32;
use super::super::{Put, Reader, patch_u32};
use crate::{Guid, NtStatus};

/// VALIDATE_NEGOTIATE_INFO (MS-SMB2 2.2.31.4): what the client said in NEGOTIATE, this time signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidateNegotiate {
    /// Its capabilities.
    pub capabilities: u32,
    /// Its name for itself.
    pub guid: Guid,
    /// Its SecurityMode.
    pub security_mode: u16,
    /// The dialects that it offered.
    pub dialects: Vec<u16>,
}

/// Dialects that a client may offer; more is no client's idea of SMB.
const DIALECTS_MAX: u16 = 64;

impl ValidateNegotiate {
    /// Reads one. A mismatch with what NEGOTIATE said ends the connection (MS-SMB2 3.3.5.15.12), as does a
    /// request that cannot be read.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it does not hold together.
    pub fn parse(bytes: &[u8]) -> Result<Self, NtStatus> {
        Self::read(bytes).ok_or(NtStatus::INVALID_PARAMETER)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(bytes);
        let capabilities = fields.u32()?;
        let guid = Guid(fields.array()?);
        let security_mode = fields.u16()?;
        let count = fields.u16()?;
        if count > DIALECTS_MAX {
            return None;
        }
        let dialects = (0..count).map(|_| fields.u16()).collect::<Option<_>>()?;
        Some(Self { capabilities, guid, security_mode, dialects })
    }
}

/// VALIDATE_NEGOTIATE_INFO response (MS-SMB2 2.2.32.6): what the server said in NEGOTIATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidateNegotiateAnswer {
    /// Its capabilities.
    pub capabilities: u32,
    /// Its name for itself.
    pub guid: Guid,
    /// Its SecurityMode.
    pub security_mode: u16,
    /// The dialect that was chosen.
    pub dialect: u16,
}

impl ValidateNegotiateAnswer {
    /// Bytes of the answer: a client with less room gets BUFFER_TOO_SMALL.
    pub const LEN: usize = 24;

    /// Appends its bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.u32(self.capabilities);
        out.put(&self.guid.0);
        out.u16(self.security_mode);
        out.u16(self.dialect);
    }
}

bitflags! {
    /// What an interface can do (MS-SMB2 2.2.32.5, Capability).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct InterfaceCaps: u32 {
        /// RSS_CAPABLE: several connections reach several cores, so a client opens some.
        const RSS = 1;
        /// RDMA_CAPABLE.
        const RDMA = 2;
    }
}

/// An address at which the server can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Which interface; not zero. Clients open channels to different ones.
    pub index: u32,
    /// What it can do.
    pub caps: InterfaceCaps,
    /// Bits in a second.
    pub link_speed: u64,
    /// The address. Clients take port 445, or the one that they are connected to.
    pub address: IpAddr,
}

/// Bytes of one NETWORK_INTERFACE_INFO.
const INTERFACE_LEN: usize = 152;
/// Bytes of a SockAddr_Storage.
const ADDRESS_LEN: usize = 128;

/// Appends the list of NETWORK_INTERFACE_INFO (MS-SMB2 2.2.32.5).
///
/// # Errors
///
/// BUFFER_TOO_SMALL if it is longer than `limit`.
pub fn put_interfaces(
    interfaces: &[Interface],
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), NtStatus> {
    if interfaces.len() > limit / INTERFACE_LEN {
        return Err(NtStatus::BUFFER_TOO_SMALL);
    }
    for (at, interface) in interfaces.iter().enumerate() {
        let start = out.len();
        out.u32(0);
        out.u32(interface.index);
        out.u32(interface.caps.bits());
        out.u32(0);
        out.u64(interface.link_speed);
        put_address(interface.address, out);
        if at + 1 < interfaces.len() {
            patch_u32(out, start, len32(INTERFACE_LEN));
        }
    }
    Ok(())
}

/// A SockAddr_Storage: family, port zero, address; of IPv6 with flow and scope zero.
fn put_address(address: IpAddr, out: &mut Vec<u8>) {
    let start = out.len();
    match address {
        IpAddr::V4(address) => {
            out.u16(2);
            out.u16(0);
            out.put(&address.octets());
        }
        IpAddr::V6(address) => {
            out.u16(0x17);
            out.u16(0);
            out.u32(0);
            out.put(&address.octets());
            out.u32(0);
        }
    }
    out.resize(start + ADDRESS_LEN, 0);
}
