//! A share: a folder of the file system as SMB clients see it.
