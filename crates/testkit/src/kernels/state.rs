//! What a kernel says of its SMC sockets, link groups and links: as `smcpeer state` prints it in a
//! guest, one line each, and as a test reads it.

use std::collections::HashMap;
use std::fmt;

/// Which way a connection's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Over RDMA.
    Smcr,
    /// It fell back to TCP.
    Tcp,
    /// Through shared memory of one machine.
    Smcd,
}

/// A place in a ring: how often it was gone round, and bytes from its begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Rounds, modulo 65536.
    pub wrap: u16,
    /// Bytes.
    pub count: u32,
}

/// A socket of family 43.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The state's name: `ACTIVE`, `LISTEN`, `PEERCLOSEWAIT1` and so on.
    pub state: String,
    /// Address and port here.
    pub local: String,
    /// Address and port there.
    pub peer: String,
    /// Which way the bytes go.
    pub mode: Mode,
    /// Why they go by TCP; 0 if they do not.
    pub reason: u32,
    /// What the peer's decline said; 0 if it did not decline.
    pub peer_reason: u32,
    /// The number by which the peer's messages name the connection.
    pub token: u32,
    /// Bytes of the buffers: to send, to receive, the peer's to receive.
    pub buffers: [u32; 3],
    /// What came and what was read of it; what the peer has room for and has read, as it was told.
    pub cursors: [Cursor; 4],
    /// What was prepared, sent, and acknowledged to be sent.
    pub sent: [Cursor; 3],
    /// Flags that came and that went: of the producer and of the connection.
    pub flags: [u8; 4],
}

/// A link group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub id: u32,
    /// Whether the kernel is the server.
    pub server: bool,
    /// 1: one link, 2: two on both sides, 3 and 4: two on one side only.
    pub kind: u8,
    /// How many connections it carries.
    pub connections: u32,
}

/// A link of a link group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The group's number.
    pub group: u32,
    /// Its number in the group.
    pub id: u8,
    /// The RDMA device.
    pub device: String,
    /// Address here.
    pub gid: String,
    /// Address there.
    pub peer_gid: String,
    /// 1: not in use, 2: coming up, 3: at work.
    pub state: u8,
    /// How many connections it carries.
    pub connections: u32,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Sockets, also those that listen.
    pub connections: Vec<Connection>,
    /// Link groups.
    pub groups: Vec<Group>,
    /// Their links.
    pub links: Vec<Link>,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Smcr => "SMCR",
            Self::Tcp => "TCP",
            Self::Smcd => "SMCD",
        })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.wrap, self.count)
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, local, peer, mode, reason, peer_reason, token, .. } = self;
        write!(f, "connection state={state} local={local} peer={peer} mode={mode}")?;
        write!(f, " reason={reason:#x} peer_reason={peer_reason:#x} token={token:#x}")?;
        let list = |items: Vec<String>| items.join(",");
        write!(f, " buffers={}", list(self.buffers.iter().map(u32::to_string).collect()))?;
        write!(f, " cursors={}", list(self.cursors.iter().map(Cursor::to_string).collect()))?;
        write!(f, " sent={}", list(self.sent.iter().map(Cursor::to_string).collect()))?;
        write!(f, " flags={}", list(self.flags.iter().map(|b| format!("{b:#x}")).collect()))
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, server, kind, connections } = self;
        write!(f, "group id={id:#x} server={server} kind={kind} connections={connections}")
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, id, device, gid, peer_gid, state, connections } = self;
        write!(f, "link group={group:#x} id={id} device={device} gid={gid} peer_gid={peer_gid}")?;
        write!(f, " state={state} connections={connections}")
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connections.iter().try_for_each(|each| writeln!(f, "{each}"))?;
        self.groups.iter().try_for_each(|each| writeln!(f, "{each}"))?;
        self.links.iter().try_for_each(|each| writeln!(f, "{each}"))
    }
}

impl State {
    /// Reads what `smcpeer state` printed.
    ///
    /// # Errors
    ///
    /// The line that cannot be read.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut state = Self::default();
        for line in text.lines() {
            state.take(line).ok_or_else(|| format!("not a line of `smcpeer state`: {line}"))?;
        }
        Ok(state)
    }

    fn take(&mut self, line: &str) -> Option<()> {
        let (kind, rest) = line.split_once(' ')?;
        let words: HashMap<_, _> = rest.split(' ').filter_map(|w| w.split_once('=')).collect();
        let text = |name| words.get(name).map(|word| (*word).to_owned());
        let number = |name| number(words.get(name)?);
        let small = |name| number(name).and_then(|n| u8::try_from(n).ok());
        match kind {
            "connection" => self.connections.push(Connection {
                state: text("state")?,
                local: text("local")?,
                peer: text("peer")?,
                mode: mode(words.get("mode")?)?,
                reason: number("reason")?,
                peer_reason: number("peer_reason")?,
                token: number("token")?,
                buffers: list(words.get("buffers")?, self::number)?,
                cursors: list(words.get("cursors")?, cursor)?,
                sent: list(words.get("sent")?, cursor)?,
                flags: list(words.get("flags")?, |w| u8::try_from(self::number(w)?).ok())?,
            }),
            "group" => self.groups.push(Group {
                id: number("id")?,
                server: *words.get("server")? == "true",
                kind: small("kind")?,
                connections: number("connections")?,
            }),
            "link" => self.links.push(Link {
                group: number("group")?,
                id: small("id")?,
                device: text("device")?,
                gid: text("gid")?,
                peer_gid: text("peer_gid")?,
                state: small("state")?,
                connections: number("connections")?,
            }),
            _ => return None,
        }
        Some(())
    }
}

fn number(word: &str) -> Option<u32> {
    word.strip_prefix("0x")
        .map_or_else(|| word.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok())
}

fn mode(word: &str) -> Option<Mode> {
    [Mode::Smcr, Mode::Tcp, Mode::Smcd].into_iter().find(|mode| mode.to_string() == word)
}

fn cursor(word: &str) -> Option<Cursor> {
    let (wrap, count) = word.split_once('/')?;
    Some(Cursor { wrap: wrap.parse().ok()?, count: count.parse().ok()? })
}

fn list<T, const N: usize>(word: &str, item: impl Fn(&str) -> Option<T>) -> Option<[T; N]> {
    let items: Option<Vec<T>> = word.split(',').map(item).collect();
    items?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_what_is_read() {
        let connection = Connection {
            state: "ACTIVE".into(),
            local: "10.0.0.1:5".into(),
            peer: "10.0.0.2:6".into(),
            mode: Mode::Smcr,
            reason: 0,
            peer_reason: 0x0303_0000,
            token: 4,
            buffers: [65536, 16384, 65536],
            cursors: [
                Cursor { wrap: 1, count: 0 },
                Cursor::default(),
                Cursor::default(),
                Cursor { wrap: 0, count: 65535 },
            ],
            sent: [Cursor::default(); 3],
            flags: [0x80, 0, 0x40, 0],
        };
        let group = Group { id: 0x100, server: true, kind: 1, connections: 255 };
        let link = Link {
            group: 0x100,
            id: 1,
            device: "rxe0".into(),
            gid: "::ffff:10.0.0.1".into(),
            peer_gid: "::ffff:10.0.0.2".into(),
            state: 3,
            connections: 255,
        };
        let state = State { connections: vec![connection], groups: vec![group], links: vec![link] };
        assert_eq!(State::parse(&state.to_string()), Ok(state));
        assert!(State::parse("group id=1").is_err());
        assert!(State::parse("nonsense").is_err());
    }
}
