//! NTLMv2 (MS-NLMP): the server's end, [`Ntlm`], and a client's to test it with, [`client`].
//!
//! Only NTLMv2: what is older is refused, and said so. Names are in Unicode, or in ASCII for clients that know no
//! Unicode. Channel bindings are not looked at: SMB has none.

pub mod client;
mod keys;
mod message;
mod server;

pub use server::Ntlm;

/// What the ends agree on (MS-NLMP 2.2.2.5).
mod flags {
    pub(super) const UNICODE: u32 = 0x0000_0001;
    /// Names in the code page of whoever says them; beside [`UNICODE`] it says nothing.
    pub(super) const OEM: u32 = 0x0000_0002;
    pub(super) const REQUEST_TARGET: u32 = 0x0000_0004;
    pub(super) const SIGN: u32 = 0x0000_0010;
    pub(super) const SEAL: u32 = 0x0000_0020;
    pub(super) const NTLM: u32 = 0x0000_0200;
    pub(super) const ANONYMOUS: u32 = 0x0000_0800;
    pub(super) const ALWAYS_SIGN: u32 = 0x0000_8000;
    pub(super) const TARGET_TYPE_SERVER: u32 = 0x0002_0000;
    pub(super) const EXTENDED_SECURITY: u32 = 0x0008_0000;
    pub(super) const TARGET_INFO: u32 = 0x0080_0000;
    pub(super) const VERSION: u32 = 0x0200_0000;
    pub(super) const KEY_128: u32 = 0x2000_0000;
    pub(super) const KEY_EXCHANGE: u32 = 0x4000_0000;
    pub(super) const KEY_56: u32 = 0x8000_0000;
}
