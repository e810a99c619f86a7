//! Tests that need the outside: a C compiler, a library to load.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod verbs;
