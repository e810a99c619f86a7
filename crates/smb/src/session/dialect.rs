//! Which SMB2 the two ends speak.

use std::fmt;

/// A dialect revision (MS-SMB2 2.2.3). Later ones compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Dialect {
    /// 2.0.2, of Windows Vista: no credits of more than one, no leases.
    Smb202 = 0x0202,
    /// 2.1, of Windows 7.
    Smb210 = 0x0210,
    /// 3.0, of Windows 8: multichannel, encryption, directory leases.
    Smb300 = 0x0300,
    /// 3.0.2, of Windows 8.1.
    Smb302 = 0x0302,
    /// 3.1.1, of Windows 10: preauthentication integrity, negotiate contexts.
    Smb311 = 0x0311,
}

impl Dialect {
    /// All of them, oldest first.
    pub const ALL: [Self; 5] =
        [Self::Smb202, Self::Smb210, Self::Smb300, Self::Smb302, Self::Smb311];

    /// The number that answers an SMB1 negotiate which offers "SMB 2.???": ask again, in SMB2 (MS-SMB2 3.3.5.3.2).
    pub const WILDCARD: u16 = 0x02ff;

    /// From the number on the wire; `None` for one that is not spoken here.
    #[must_use]
    pub fn from_wire(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| *dialect as u16 == number)
    }

    /// Whether requests may be longer than 64 KiB and cost more than one credit (MS-SMB2 3.3.5.4).
    #[must_use]
    pub fn has_large_mtu(self) -> bool {
        self >= Self::Smb210
    }

    /// Whether there are channels, encryption, replay and leases of version 2.
    #[must_use]
    pub fn is_smb3(self) -> bool {
        self >= Self::Smb300
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Smb202 => "2.0.2",
            Self::Smb210 => "2.1",
            Self::Smb300 => "3.0",
            Self::Smb302 => "3.0.2",
            Self::Smb311 => "3.1.1",
        })
    }
}

/// A name that is no dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an SMB dialect: say 2.0.2, 2.1, 3.0, 3.0.2 or 3.1.1")]
pub struct UnknownDialect;

impl std::str::FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(name: &str) -> Result<Self, UnknownDialect> {
        Self::ALL.into_iter().find(|dialect| dialect.to_string() == name).ok_or(UnknownDialect)
    }
}

#[cfg(test)]
mod tests {
    use super::Dialect;

    #[test]
    fn names_and_numbers_lead_back() {
        for dialect in Dialect::ALL {
            assert_eq!(Dialect::from_wire(dialect as u16), Some(dialect));
            assert_eq!(dialect.to_string().parse(), Ok(dialect));
        }
        assert_eq!(Dialect::from_wire(Dialect::WILDCARD), None);
    }
}
