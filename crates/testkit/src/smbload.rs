//! Load for an SMB3 server: a client of its own, in a closed loop.
//!
//! It shares no code with `shunt serve`, on purpose: what both had misread they would agree on.
//! No kernel client is wanted, nor root. Each client is a `ClientGuid`, a session and a file; each
//! may have several connections, bound to its session as multichannel clients do (MS-SMB2
//! 3.2.4.2.3.1). Data that was read can be dropped in the kernel, so that the client costs a tenth
//! of what the server does and the server is what is measured.

#![expect(clippy::disallowed_types, reason = "counters of a program, which no loom model looks at")]

mod bare;
mod connection;
mod keys;
mod ntlm;
mod pattern;
mod run;
mod session;
mod settings;
mod socket;
mod usage;
mod wire;
mod work;

pub use bare::bare;
pub use pattern::Mismatch;
pub use run::{Report, interfaces, prepare, run};
pub use settings::{Dialect, Enc, Op, Settings, Sign, Sink, Src};
