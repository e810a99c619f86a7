//! What a client may send next: dialects, credits and message numbers, channel sequences (MS-SMB2 3.3.1). Sessions,
//! channels and trees themselves are the caller's.

mod dialect;
mod sequence;
mod window;

pub use dialect::Dialect;
pub use sequence::{ChannelSequence, Stale};
pub use window::{BadMessageId, Grant, Window};
