//! What is said about files and file systems: information levels, directory entries, control codes (MS-FSCC).

mod facts;

pub use facts::{Entry, Facts, VolumeFacts};
