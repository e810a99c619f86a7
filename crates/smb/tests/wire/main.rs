//! SMB2 messages: what is written can be read, and reads as what was written; what others wrote is understood;
//! what nobody should write is refused, and nothing worse.
#![expect(clippy::unwrap_used, reason = "tests")]

mod captured;
mod hostile;
mod mutated;
mod round_trips;
mod rules;
