//! Connections, sessions, channels, trees, credits: what a client may do next (MS-SMB2 3.3.1).

mod dialect;
mod sequence;
mod window;

pub use dialect::Dialect;
pub use sequence::{ChannelSequence, Stale};
pub use window::{BadMessageId, Grant, Window};
