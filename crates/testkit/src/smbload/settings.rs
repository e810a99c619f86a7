//! What to run, as the command line says it.

use std::time::Duration;

use clap::{Parser, ValueEnum};

use super::keys::{Encryption, Signing};

/// What a client does, over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Op {
    /// Write the pattern file of each client, and small files, then end
    Prepare,
    /// Print what the server says of its interfaces, then end
    Ifaces,
    /// No server: a file in memory, spliced into a pipe and from there into a socket whose reader drops it
    Bare,
    /// READ in order
    Read,
    /// READ anywhere
    Randread,
    /// WRITE in order
    Write,
    /// WRITE anywhere
    Randwrite,
    /// ECHO
    Echo,
    /// CREATE, then CLOSE: two round trips
    Openclose,
    /// CREATE, `QUERY_INFO` and CLOSE in one message
    Stat,
    /// CREATE, READ and CLOSE of a small file in one message
    Readsmall,
    /// CREATE (gone when closed), WRITE and CLOSE in one message
    Createdel,
    /// All entries of a directory: CREATE with `QUERY_DIRECTORY`, more of these to the end, CLOSE
    Qdir,
    /// Connect, NEGOTIATE, `SESSION_SETUP`, `TREE_CONNECT`, disconnect
    Session,
}

/// How messages are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sign {
    /// Only where the protocol asks for it
    Off,
    /// AES-128-CMAC
    Cmac,
    /// AES-128-GMAC (SMB 3.1.1)
    Gmac,
}

/// How messages are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Enc {
    /// Not at all
    Off,
    /// AES-128-GCM (SMB 3.1.1)
    #[value(name = "128")]
    Gcm128,
    /// AES-256-GCM (SMB 3.1.1)
    #[value(name = "256")]
    Gcm256,
}

/// Where data goes that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sink {
    /// Nowhere: the kernel drops it (`MSG_TRUNC`). If encrypted, only its head is decrypted
    Trunc,
    /// Into memory, decrypted and checked
    Copy,
}

/// Where data comes from that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Src {
    /// Memory
    Copy,
    /// A file in memory, by `sendfile`; not if signed or encrypted
    Sendfile,
}

/// Dialects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dialect {
    /// SMB 3.0.2
    #[value(name = "302")]
    Smb302,
    /// SMB 3.1.1
    #[value(name = "311")]
    Smb311,
}

/// Load for an SMB3 server.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "smbload",
    about = "Loads an SMB3 server and prints rate, latency and CPU time as one line of JSON",
    after_help = "Exit codes: 0 done, 1 the server or the network failed, 2 usage, 3 data was not what it must be."
)]
pub struct Settings {
    /// What each client does
    #[arg(value_enum)]
    pub op: Op,
    /// Where the server listens
    #[arg(long, default_value = "127.0.0.1:445")]
    pub addr: String,
    /// The share
    #[arg(long, default_value = "share")]
    pub share: String,
    /// The user
    #[arg(long, default_value = "smbtest")]
    pub user: String,
    /// Its password
    #[arg(long, default_value = "")]
    pub pass: String,
    /// Clients: each has its own `ClientGuid`, session and file
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub clients: u32,
    /// Connections of each client, all bound to its session; each is served by a thread here
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub channels: u32,
    /// Operations in flight on each connection
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub qd: u32,
    /// Bytes of each read or write, or of the buffer for entries of a directory
    #[arg(long, default_value = "1M", value_parser = io_bytes)]
    pub io: u32,
    /// Length of the measurement, seconds
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub secs: f64,
    /// Before it, seconds
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub warmup: f64,
    /// Bytes of each client's file
    #[arg(long, default_value = "1G", value_parser = file_bytes)]
    pub size: u64,
    /// How messages are signed
    #[arg(long, value_enum, default_value_t = Sign::Off)]
    pub sign: Sign,
    /// How messages are encrypted
    #[arg(long, value_enum, default_value_t = Enc::Off)]
    pub enc: Enc,
    /// Where data goes that was read
    #[arg(long, value_enum, default_value_t = Sink::Trunc)]
    pub sink: Sink,
    /// Where data comes from that is written
    #[arg(long, value_enum, default_value_t = Src::Copy)]
    pub src: Src,
    /// At most so many million bytes a second, all clients together; 0: as fast as it goes
    #[arg(long, default_value_t = 0.0, value_parser = seconds)]
    pub rate: f64,
    /// Small files in the directory
    #[arg(long, default_value_t = 1000)]
    pub nfiles: u32,
    /// The directory with the small files f0, f1, ...
    #[arg(long, default_value = "smbload_small")]
    pub dir: String,
    /// All clients use the file of the first
    #[arg(long)]
    pub one_file: bool,
    /// Check each byte read against the pattern; what was written is read again at the end
    #[arg(long)]
    pub verify: bool,
    /// Throw signed answers to READ away unchecked
    #[arg(long)]
    pub nocheck: bool,
    /// Account for the CPU time of this process and all that it starts
    #[arg(long)]
    pub server_pid: Option<u32>,
    /// The dialect to ask for
    #[arg(long, value_enum, default_value_t = Dialect::Smb311)]
    pub dialect: Dialect,
    /// Give up on an answer after so many seconds
    #[arg(long, default_value_t = 30.0, value_parser = seconds)]
    pub patience: f64,
    /// `SO_SNDBUF`, bytes; 0: the kernel's choice
    #[arg(long, default_value_t = 0)]
    pub sndbuf: usize,
    /// `SO_RCVBUF`, bytes; 0: the kernel's choice
    #[arg(long, default_value_t = 0)]
    pub rcvbuf: usize,
    /// Goes into the line of JSON as it is
    #[arg(long, default_value = "")]
    pub label: String,
}

impl Settings {
    pub(crate) fn signing(&self) -> Option<Signing> {
        match self.sign {
            Sign::Off => None,
            Sign::Cmac => Some(Signing::Cmac),
            Sign::Gmac => Some(Signing::Gmac),
        }
    }

    pub(crate) fn encryption(&self) -> Option<Encryption> {
        match self.enc {
            Enc::Off => None,
            Enc::Gcm128 => Some(Encryption::Gcm128),
            Enc::Gcm256 => Some(Encryption::Gcm256),
        }
    }

    /// Whether what is read may be dropped unseen.
    pub(crate) fn truncates(&self) -> bool {
        self.sink == Sink::Trunc && !self.verify && (self.sign == Sign::Off || self.nocheck)
    }

    /// How long to wait for an answer.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.patience.max(0.01))
    }

    /// The small file number `number`.
    pub(crate) fn small_file(&self, number: u64) -> String {
        format!("{}\\f{number}", self.dir)
    }

    /// The file that client `client` reads, or writes.
    pub(crate) fn file(&self, client: u32) -> String {
        let written = matches!(self.op, Op::Write | Op::Randwrite);
        let client = if self.one_file { 0 } else { client };
        format!("smbload_{}{client}.dat", if written { "w" } else { "c" })
    }
}

impl Op {
    /// Whether it reads or writes one large file.
    pub(crate) fn has_file(self) -> bool {
        matches!(self, Self::Read | Self::Randread | Self::Write | Self::Randwrite)
    }

    pub(crate) fn writes_file(self) -> bool {
        matches!(self, Self::Write | Self::Randwrite)
    }

    /// As it is written on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0 && *n < 1e7);
    number.ok_or_else(|| format!("{text:?} is not a number from 0 on"))
}

fn file_bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.strip_suffix(['g', 'G']) {
        Some(digits) => (digits, 30),
        None if text == "0" => return Ok(0),
        None => return crate::parse_bytes(text).map(|bytes| bytes as u64),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("{text:?} is not a size such as 64K, 100M or 1G"))
}

fn io_bytes(text: &str) -> Result<u32, String> {
    let bytes = crate::parse_bytes(text)?;
    let fits = u32::try_from(bytes).ok().filter(|bytes| *bytes <= 8 << 20);
    fits.ok_or_else(|| format!("{text} is more than 8M, which is the most that servers take"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_command_line_are_checked() {
        let parse = |line: &str| Settings::try_parse_from(line.split(' '));
        let settings = parse("smbload read --io 64K --size 2G --sign gmac --enc 256").unwrap();
        assert_eq!((settings.io, settings.size), (65536, 2 << 30));
        assert_eq!(settings.encryption(), Some(Encryption::Gcm256));
        assert!(!settings.truncates(), "signed answers are checked");
        for wrong in
            ["read --io 9M", "read --channels 0", "reed", "read --secs -1", "read --enc 192"]
        {
            assert!(parse(&format!("smbload {wrong}")).is_err(), "{wrong}");
        }
    }
}
