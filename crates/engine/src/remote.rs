//! Connections between hosts.

pub mod option;
