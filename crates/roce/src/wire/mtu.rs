//! The path MTU.

/// Bytes of payload in each packet of a message but the last: the path MTU of InfiniBand, which is not
/// that of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// From its code, 1 to 5, as in CLC messages.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::B256,
            2 => Self::B512,
            3 => Self::B1024,
            4 => Self::B2048,
            5 => Self::B4096,
            _ => return None,
        })
    }

    /// Its code, 1 to 5.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// 256 to 4096.
    #[must_use]
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    pub(crate) const fn bytes_u32(self) -> u32 {
        128 << self as u8
    }

    /// The largest that fits packets of an interface with this MTU, as Linux counts: 80 bytes for all
    /// headers. `None`: not even 256 bytes fit.
    #[must_use]
    pub const fn of_interface(mtu_bytes: usize) -> Option<Self> {
        let mut code = 5;
        while let Some(mtu) = Self::from_code(code) {
            if mtu.bytes() + 80 <= mtu_bytes {
                return Some(mtu);
            }
            code -= 1;
        }
        None
    }
}
