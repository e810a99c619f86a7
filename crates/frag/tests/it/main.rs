//! Shards from outside: what goes in, what comes out, and that nothing stays behind.

mod ahead;
mod bursts;
mod cases;
mod cores;
mod example;
mod flood;
mod heap;
mod host;
mod lanes;
mod memory;
mod ops;
mod overload;
mod packets;
mod panics;
mod promises;
mod random;
mod reasons;
mod room;
mod times;

/// For [`heap`]: each thread's allocations are counted.
#[global_allocator]
static HEAP: testkit::heap::Counted = testkit::heap::Counted;
