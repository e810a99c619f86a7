//! Runs `cargo xtask` as a newcomer does.

mod demo;
