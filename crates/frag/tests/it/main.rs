//! Shards from outside: what goes in, what comes out, and that nothing stays behind.

mod cases;
mod cores;
mod example;
mod host;
mod lanes;
mod memory;
mod ops;
mod overload;
mod packets;
mod random;
mod times;
