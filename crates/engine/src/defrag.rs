//! Puts the fragments of a capture together, and leaves everything else as it is.
//!
//! [`run`] copies one file to another. [`Defragmenter`] is the same for packets that come from anywhere:
//! each goes in with the kind of link it was seen on, and comes out to an [`Outlet`], alone or as part of
//! a datagram. A datagram has the link's header of its first fragment and the time of the fragment that
//! completed it.

mod clock;
mod fcs;
pub mod file;
mod link;
pub mod live;
mod notes;
mod reassembly;
mod report;
mod tunnel;
mod wrap;

use std::fs::{File, Metadata};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use frag::BadConfig;

use file::{Damage, Format, Item, Packet, Reader, Writer};

pub use frag::{Config, Policy, Reason};
pub use link::{KNOWN as KNOWN_LINKS, Link};
pub use reassembly::Defragmenter;
pub use report::{Report, UNKNOWN_LINKS_MAX};

/// Tunnels inside of tunnels that are opened.
pub const TUNNELS_MAX: usize = 4;

const BUFFER: usize = 256 << 10;
const PROGRESS_BYTES: u64 = 4 << 20;
const STDIO: &str = "-";

/// What people choose.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Limits and rules of reassembly.
    pub config: Config,
    /// Whether to look inside of tunnels.
    pub tunnels: bool,
    /// Whether fragments that make no datagram are written as they came.
    pub keep_incomplete: bool,
}

/// Why there is no result, or only part of one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input cannot be opened.
    #[error("{path}", path = .0.display())]
    Open(PathBuf, #[source] io::Error),
    /// The output cannot be made.
    #[error("cannot write {path}", path = .0.display())]
    Create(PathBuf, #[source] io::Error),
    /// Input and output are one file.
    #[error("{path} is the input as well: name another file for the output", path = .0.display())]
    SameFile(PathBuf),
    /// Binary bytes on a screen.
    #[error("the output is a terminal: name a file, or send it to a program with |")]
    Terminal,
    /// No format that we know.
    #[error(
        "is no capture: it begins like neither pcap nor pcapng (compressed files must be unpacked first)"
    )]
    NoCapture,
    /// A link type that we do not know.
    #[error("has link type {0}, which has no known place for IP packets; known are: {KNOWN_LINKS}")]
    UnknownLink(u32),
    /// Several link types for a format that has one.
    #[error(
        "holds packets of link types {0} and {1}, and pcap has one for all: give the output a name \
         that ends in .pcapng"
    )]
    LinksDiffer(u32, u32),
    /// Several lengths of checksums for a format that has one.
    #[error(
        "holds packets of interfaces with and without checksums (FCS), and pcap has one rule for all: give the \
         output a name that ends in .pcapng"
    )]
    ChecksumsDiffer,
    /// Nothing can be read.
    #[error("damaged {0}")]
    Damaged(Damage),
    /// The system does not take what we write.
    #[error("cannot write")]
    Write(#[source] io::Error),
    /// A setting that cannot be.
    #[error(transparent)]
    Config(#[from] BadConfig),
    /// No secret for hashing.
    #[error("no random bytes from /dev/urandom")]
    Random(#[source] io::Error),
}

/// Takes packets that are ready.
pub trait Outlet {
    /// Takes one.
    ///
    /// # Errors
    ///
    /// When it cannot be written; that ends the run.
    fn packet(&mut self, packet: &Packet<'_>) -> Result<(), Error>;
}

/// Copies a capture, its fragments put together. `-` is standard input or output. `progress` is told
/// from time to time how many bytes were read, and how many there are if that is known.
///
/// # Errors
///
/// When nothing could be done, or the output ended early. Damage of the input that begins further back
/// is in the report.
pub fn run(
    input: &Path,
    output: &Path,
    options: &Options,
    progress: &mut dyn FnMut(u64, Option<u64>),
) -> Result<Report, Error> {
    let mut defragmenter = Defragmenter::new(options)?;
    let source = open(input)?;
    let size = source.metadata().ok().filter(Metadata::is_file).map(|m| m.len());
    let mut reader = Reader::open(BufReader::with_capacity(BUFFER, &source))?;
    if let Some(only) = reader.interfaces().first()
        && Link::of(only.link).is_none()
    {
        return Err(Error::UnknownLink(only.link));
    }
    let to = BufWriter::with_capacity(BUFFER, create(output, &source)?);
    let format = format_of(output).unwrap_or_else(|| reader.format());
    let mut writer = Writer::like(to, format, &reader)?;
    let mut told = 0;
    copy(&mut reader, &mut writer, &mut defragmenter, &mut |reader, writer| {
        if reader.at() - told >= PROGRESS_BYTES {
            told = reader.at();
            progress(told, size);
        }
        // Whoever sends to us may be in no hurry, and whoever reads from us should not have to wait.
        let is_next_here = size.is_some() || reader.holds_next(reader.source().buffer());
        if is_next_here { Ok(()) } else { writer.flush() }
    })
}

fn open(path: &Path) -> Result<File, Error> {
    let file = if path.as_os_str() == STDIO {
        io::stdin().as_fd().try_clone_to_owned().map(File::from)
    } else {
        File::open(path)
    };
    file.map_err(|e| Error::Open(path.to_owned(), e))
}

fn create(path: &Path, input: &File) -> Result<File, Error> {
    let failed = |e| Error::Create(path.to_owned(), e);
    let same = |there: io::Result<Metadata>| {
        let both = there.ok().zip(input.metadata().ok());
        both.is_some_and(|(a, b)| a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()))
    };
    if path.as_os_str() == STDIO {
        if io::IsTerminal::is_terminal(&io::stdout()) {
            return Err(Error::Terminal);
        }
        let output = io::stdout().as_fd().try_clone_to_owned().map(File::from).map_err(failed)?;
        // What is appended would be read, and appended again.
        if same(output.metadata()) {
            return Err(Error::SameFile("standard output".into()));
        }
        return Ok(output);
    }
    if same(path.metadata()) {
        return Err(Error::SameFile(path.to_owned()));
    }
    File::create(path).map_err(failed)
}

/// What a file's name says about its format.
fn format_of(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "pcap" => Some(Format::Pcap),
        "pcapng" => Some(Format::Pcapng),
        _ => None,
    }
}

/// Called between two records.
pub type Between<'a, R, W> = dyn FnMut(&Reader<R>, &mut Writer<W>) -> Result<(), Error> + 'a;

/// Copies what `reader` reads, and calls `between` after each record.
///
/// # Errors
///
/// When it cannot be written, and what `between` says.
pub fn copy<R: Read, W: Write>(
    reader: &mut Reader<R>,
    writer: &mut Writer<W>,
    defragmenter: &mut Defragmenter,
    between: &mut Between<'_, R, W>,
) -> Result<Report, Error> {
    let damage = loop {
        let item = match reader.advance() {
            Ok(Some(item)) => item,
            Ok(None) => break None,
            Err(damage) => break Some(damage),
        };
        match &item {
            Item::Packet(place) => {
                let packet = reader.packet(place);
                let interface = &reader.interfaces()[packet.interface as usize];
                defragmenter.push(&packet, interface, writer)?;
            }
            item => {
                // Interfaces of the next section have the numbers of these.
                if *item == Item::Section {
                    defragmenter.flush(writer)?;
                }
                writer.note(item, reader)?;
            }
        }
        between(reader, writer)?;
    };
    let mut report = defragmenter.finish(writer)?;
    writer.finish()?;
    report.bytes = reader.at();
    report.damage = damage;
    Ok(report)
}

fn secret() -> io::Result<[u64; 2]> {
    let mut bytes = [[0; 8]; 2];
    File::open("/dev/urandom")?.read_exact(bytes.as_flattened_mut())?;
    Ok(bytes.map(u64::from_ne_bytes))
}

/// As many numbers of 32 bits that nobody knows.
fn secrets<const N: usize>() -> io::Result<[u32; N]> {
    let mut bytes = [[0; 4]; N];
    File::open("/dev/urandom")?.read_exact(bytes.as_flattened_mut())?;
    Ok(bytes.map(u32::from_ne_bytes))
}

#[cfg(test)]
mod tests;
