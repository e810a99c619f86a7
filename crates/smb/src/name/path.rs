//! A path in a share, checked.

use std::borrow::Cow;

use super::{COMPONENT_MAX, to_unix, unmark_device, utf16};
use crate::NtStatus;

/// Where in a share: components, and which stream of the file at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Path {
    /// Components as clients see them, `/` between; empty for the root of the share.
    text: String,
    stream: Option<Stream>,
}

/// Which stream of a file, if a name says so (MS-FSCC 2.1.5.3 and 2.1.5.4).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// `file::$DATA`: the file's own data, said in so many words; a directory has none.
    Data,
    /// `file:name` or `file:name:$DATA`.
    Named(String),
    /// `directory::$INDEX_ALLOCATION` or `directory:$I30:$INDEX_ALLOCATION`: the directory itself.
    Index,
}

impl Path {
    /// The path in a CREATE request: UTF-16, components with `\` between, relative to the root of the share; a
    /// `/`, which can be in no name, is taken for one too, as by Samba. Several separators are one, one at the end is none, `..` goes back.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER for an odd number of bytes or a separator at the beginning (MS-SMB2 3.3.5.9);
    /// OBJECT_PATH_SYNTAX_BAD for a `..` that leaves the share; OBJECT_NAME_INVALID for a component `.`,
    /// one that is longer than [`COMPONENT_MAX`] or has a character that Windows forbids, and for a stream
    /// whose name or type cannot be.
    pub fn parse(bytes: &[u8]) -> Result<Self, NtStatus> {
        Self::parse_str(&utf16::decode(bytes)?)
    }

    /// [`Path::parse`] of what is a string already.
    ///
    /// # Errors
    ///
    /// As [`Path::parse`].
    pub fn parse_str(name: &str) -> Result<Self, NtStatus> {
        if name.starts_with(['\\', '/']) {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let (base, stream) = match name.split_once(':') {
            Some((base, stream)) => (base, Some(Stream::parse(stream)?)),
            None => (name, None),
        };
        let mut text = String::with_capacity(base.len());
        for component in base.split(['\\', '/']) {
            match component {
                "" => {}
                "." => return Err(NtStatus::OBJECT_NAME_INVALID),
                ".." if text.is_empty() => return Err(NtStatus::OBJECT_PATH_SYNTAX_BAD),
                ".." => text.truncate(text.rfind('/').unwrap_or(0)),
                _ => {
                    let component = unmark_device(component);
                    check_component(&component)?;
                    if !text.is_empty() {
                        text.push('/');
                    }
                    text.push_str(&component);
                }
            }
        }
        Ok(Self { text, stream })
    }

    /// Whether this is the root of the share (or a stream of it).
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.text.is_empty()
    }

    /// Components as clients see them, `/` between; empty for the root.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The components as clients see them.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &str> + Clone {
        self.text.split('/').filter(|component| !component.is_empty())
    }

    /// The last component; empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        self.text.rsplit('/').next().unwrap_or("")
    }

    /// The directory that this is in; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let at = self.text.rfind('/').unwrap_or(0);
        (!self.is_root()).then(|| Self { text: self.text[..at].to_owned(), stream: None })
    }

    /// `name` in this directory: what was found for it on the disk, unchecked.
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        let mut text = String::with_capacity(self.text.len() + 1 + name.len());
        text.push_str(&self.text);
        if !text.is_empty() {
            text.push('/');
        }
        text.push_str(name);
        Self { text, stream: None }
    }

    /// Which stream was asked for; `None` if nothing was said.
    #[must_use]
    pub fn stream(&self) -> Option<&Stream> {
        self.stream.as_ref()
    }

    /// The same file without a word of its stream.
    #[must_use]
    pub fn without_stream(&self) -> Self {
        Self { text: self.text.clone(), stream: None }
    }

    /// The same file with another stream, or none.
    #[must_use]
    pub fn with_stream(self, stream: Option<Stream>) -> Self {
        Self { stream, ..self }
    }

    /// What the file system calls it, relative to the share's folder, `/` between the components.
    #[must_use]
    pub fn unix(&self) -> Cow<'_, [u8]> {
        to_unix(&self.text)
    }

    /// As clients write it: `\` between the components, the stream after a colon, its type only if it has
    /// no name.
    #[must_use]
    pub fn to_smb(&self) -> String {
        let mut name = self.text.replace('/', "\\");
        match &self.stream {
            None => {}
            Some(Stream::Data) => name.push_str("::$DATA"),
            Some(Stream::Index) => name.push_str("::$INDEX_ALLOCATION"),
            Some(Stream::Named(stream)) => {
                name.push(':');
                name.push_str(stream);
            }
        }
        name
    }
}

impl Stream {
    /// What follows the first colon of a name: `name`, `name:type` or `:type`. Stream names may have
    /// characters that file names may not, all but the separators and zero.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_INVALID.
    pub fn parse(text: &str) -> Result<Self, NtStatus> {
        let (name, kind) = match text.split_once(':') {
            Some((name, kind)) => (name, Some(kind)),
            None => (text, None),
        };
        let impossible = name.contains(['\\', '/', '\0']) || utf16::len(name) > COMPONENT_MAX * 2;
        match kind {
            _ if impossible => Err(NtStatus::OBJECT_NAME_INVALID),
            None if name.is_empty() => Err(NtStatus::OBJECT_NAME_INVALID),
            None => Ok(Self::Named(name.to_owned())),
            Some(kind) if kind.eq_ignore_ascii_case("$DATA") => match name {
                "" => Ok(Self::Data),
                _ => Ok(Self::Named(name.to_owned())),
            },
            Some(kind)
                if kind.eq_ignore_ascii_case("$INDEX_ALLOCATION")
                    && (name.is_empty() || name.eq_ignore_ascii_case("$I30")) =>
            {
                Ok(Self::Index)
            }
            Some(_) => Err(NtStatus::OBJECT_NAME_INVALID),
        }
    }
}

/// Whether a byte of UTF-8 cannot be in a component.
const fn is_forbidden(byte: u8) -> bool {
    byte < 0x20 || matches!(byte, b'"' | b'*' | b'/' | b':' | b'<' | b'>' | b'?' | b'\\' | b'|')
}

fn check_component(component: &str) -> Result<(), NtStatus> {
    let long = || component.len() > COMPONENT_MAX && utf16::len(component) > COMPONENT_MAX * 2;
    if component.bytes().any(is_forbidden) || long() {
        return Err(NtStatus::OBJECT_NAME_INVALID);
    }
    Ok(())
}
