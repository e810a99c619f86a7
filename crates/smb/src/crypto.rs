//! Keys, signatures and encryption (MS-SMB2 3.1.4).
