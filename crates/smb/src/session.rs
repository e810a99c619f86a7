//! Connections, sessions, channels, trees, credits: what a client may do next (MS-SMB2 3.3.1).
