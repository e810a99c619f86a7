//! File names: UTF-16 and UTF-8, paths and streams, wildcards, case, characters that Windows does not allow.
