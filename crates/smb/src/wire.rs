//! The bytes of SMB2 messages, read and written, for both ends (MS-SMB2 2.2).
