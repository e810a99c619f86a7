//! Names of files: from the UTF-16 of a request to components that were checked, and to what Unix calls them.
//!
//! Components are kept in the form that clients see. [`to_unix`] and [`from_unix`] lead to the bytes that the
//! file system knows and back; the two are inverse for every Unix name, also for one that is no UTF-8 or has
//! characters that Windows forbids.
//!
//! Device names (`CON`, `NUL`, `COM1`) are files like any other: they are reserved by the Win32 layer of
//! clients, neither by SMB2 nor by NTFS, and a Unix client may well have such files. [`mark_device`] shows them so
//! that Windows programs can open them; a client may name them with the mark or without.

mod fold;
mod path;
mod short;
#[cfg(test)]
mod tests;
mod unix;
pub mod utf16;
mod wildcard;

pub use fold::{fold, same};
pub use path::{Path, Stream};
pub use short::short;
pub use unix::{from_unix, mark_device, to_unix, unmark_device};
pub use wildcard::Pattern;

/// Longest component of a path or pattern, UTF-16 code units (MS-FSCC 2.1.5.2).
pub const COMPONENT_MAX: usize = 255;
