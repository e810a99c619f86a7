//! What a core runs: a loop, a ring, tasks.
