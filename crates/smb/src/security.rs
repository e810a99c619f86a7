//! Who owns a file and who may do what with it: SIDs, access control lists, security descriptors (MS-DTYP).
//!
//! A descriptor that a client has set is kept as it is (canonical bytes, for an attribute of the file); one
//! that nobody has set is made from the POSIX owner, group and mode.

mod acl;
mod check;
mod descriptor;
mod inherit;
mod posix;
mod sid;
#[cfg(test)]
mod tests;

pub use acl::{Ace, AceFlags, AceKind, Acl};
pub use check::{Privileges, Token, check, maximum};
pub use descriptor::{Control, Descriptor, SecurityInfo};
pub use inherit::inherited;
pub use posix::{from_posix, is_posix, to_posix};
pub use sid::Sid;
