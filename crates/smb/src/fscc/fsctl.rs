//! Control codes.
