//! How much there may be, and how much there is.

/// How much a shard keeps at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Opens in this shard.
    pub opens: usize,
    /// Opens of one file.
    pub opens_per_file: usize,
    /// Byte-range locks of one open, granted and waited for.
    pub locks_per_open: u32,
    /// Byte-range locks of one file, granted and waited for.
    pub locks_per_file: usize,
    /// Byte-range locks in this shard, granted and waited for: of some 200 bytes each.
    pub locks: usize,
    /// Opens that wait for one file, and locks of one file that are waited for.
    pub waiters_per_file: usize,
    /// How long a client has to acknowledge a break, in milliseconds (MS-SMB2 3.3.2.1: 35 seconds).
    pub break_timeout_ms: u64,
    /// Leases on directories are granted.
    pub directory_leases: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            opens: 1 << 18,
            opens_per_file: 1 << 14,
            locks_per_open: 1 << 16,
            locks_per_file: 1 << 18,
            locks: 1 << 18,
            waiters_per_file: 1 << 12,
            break_timeout_ms: 35_000,
            directory_leases: true,
        }
    }
}

/// How much a shard has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Files that are open.
    pub files: usize,
    /// Opens, disconnected ones with them.
    pub opens: usize,
    /// Opens whose client is away.
    pub disconnected: usize,
    /// Opens with an oplock.
    pub oplocks: usize,
    /// Leases that allow something.
    pub leases: usize,
    /// Oplocks and leases that are being broken.
    pub breaking: usize,
    /// Byte-range locks.
    pub locks: usize,
    /// Opens and locks that wait.
    pub waiters: usize,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.files += other.files;
        self.opens += other.opens;
        self.disconnected += other.disconnected;
        self.oplocks += other.oplocks;
        self.leases += other.leases;
        self.breaking += other.breaking;
        self.locks += other.locks;
        self.waiters += other.waiters;
    }
}
