//! Byte ranges.
