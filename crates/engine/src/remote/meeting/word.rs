//! What two engines say to each other, each word of [`BYTES`] bytes, after a [`GREETING`] from either side.

/// The first bytes on a link between engines, from each of them; the last one is the version.
pub(super) const GREETING: [u8; 8] = *b"SHUNT\0\0\x01";
/// Length of a word.
pub(super) const BYTES: usize = 16;

/// A word. Ports are those of a TCP connection between the two addresses that the link itself has, so that
/// nobody can speak of the connections of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// A guest of ours has connected from this port to that port of yours, and wants SMC; `number` comes back.
    Ask { client: u16, server: u16, number: u64 },
    /// A guest of mine has accepted it. I wait for your Proposal, or whatever its first bytes are.
    Yes { number: u64 },
    /// It stays on TCP.
    No { number: u64, why: Why },
    /// I do not want SMC any more; if you have said yes, no Proposal comes.
    Never { client: u16, server: u16 },
}

/// Why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) enum Why {
    /// Nobody under Shunt listens there.
    NoListener,
    /// This one has begun as TCP; the next one may not.
    NotThisOne,
}

impl Word {
    pub(super) fn emit(self) -> [u8; BYTES] {
        let (kind, ports, number) = match self {
            Self::Ask { client, server, number } => (1, (client, server), number),
            Self::Yes { number } => (2, (0, 0), number),
            Self::No { number, why: Why::NoListener } => (3, (0, 0), number),
            Self::No { number, why: Why::NotThisOne } => (4, (0, 0), number),
            Self::Never { client, server } => (5, (client, server), 0),
        };
        let mut bytes = [0; BYTES];
        bytes[0] = kind;
        bytes[4..6].copy_from_slice(&u16::to_be_bytes(ports.0));
        bytes[6..8].copy_from_slice(&u16::to_be_bytes(ports.1));
        bytes[8..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    /// `None`: no word that we know.
    pub(super) fn parse(bytes: [u8; BYTES]) -> Option<Self> {
        let [kind, _, _, _, a, b, c, d, rest @ ..] = bytes;
        let (client, server) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let number = u64::from_be_bytes(rest);
        Some(match kind {
            1 => Self::Ask { client, server, number },
            2 => Self::Yes { number },
            3 => Self::No { number, why: Why::NoListener },
            4 => Self::No { number, why: Why::NotThisOne },
            5 => Self::Never { client, server },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard() {
        let number = 0x0102_0304_0506_0708;
        let words = [
            Word::Ask { client: 40_000, server: 80, number },
            Word::Yes { number },
            Word::No { number, why: Why::NoListener },
            Word::No { number, why: Why::NotThisOne },
            Word::Never { client: 40_000, server: 80 },
        ];
        for word in words {
            assert_eq!(Word::parse(word.emit()), Some(word));
        }
        assert_eq!(Word::parse([0; BYTES]), None);
        assert_eq!(Word::parse([0xff; BYTES]), None);
    }
}
