//! What is said about files and file systems: information levels, directory entries, control codes (MS-FSCC).

mod change;
mod directory;
mod ea;
mod facts;
mod file;
pub mod fsctl;
pub(crate) mod le;
mod notify;
mod quota;
pub mod reparse;
#[cfg(test)]
mod tests;
mod volume;

pub use change::{Change, Disposal, SetClass, Taken, Target, Times};
pub use directory::{DirectoryClass, DirectoryWriter, PosixOwner};
pub use ea::{Ea, FILE_NEED_EA, check_ea_name, eas_len, parse_ea_names, parse_eas, put_eas};
pub use facts::{Entry, Facts, VolumeFacts};
pub use file::{About, FileClass, Fill, StreamFacts};
pub(crate) use le::{Put, Reader, len32, patch_u32};
pub use notify::{Action, NotifyWriter};
pub use quota::QuotaQuery;
pub use volume::VolumeClass;
