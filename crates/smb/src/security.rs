//! Who may do what: identifiers, access control lists, security descriptors (MS-DTYP 2.4), and what they mean for a POSIX mode.
