//! What the crate makes of what was seen on the wire, and of peers that are simulated.

mod group_sim;
mod hostile;
mod replay;
mod stream_sim;
mod vectors;
