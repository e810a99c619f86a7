//! When a file was last written, as clients are to see it.
