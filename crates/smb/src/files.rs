//! Who has which file open, what they share, cache and lock, as states without I/O (MS-SMB2 3.3, MS-FSA 2.1).
