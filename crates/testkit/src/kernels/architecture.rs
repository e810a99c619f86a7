//! Whose programs a guest runs.

/// An architecture that guests are emulated with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// That of PCs.
    X86_64,
    /// That of Arm's 64-bit CPUs.
    Aarch64,
}

impl Architecture {
    /// As the compiler names it.
    #[must_use]
    pub const fn target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// As Debian names it.
    #[must_use]
    pub const fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// The program that emulates a machine of it.
    #[must_use]
    pub const fn emulator(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86_64",
            Self::Aarch64 => "qemu-system-aarch64",
        }
    }
}
