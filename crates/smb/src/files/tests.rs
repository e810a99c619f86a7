//! Cases of many opens.
