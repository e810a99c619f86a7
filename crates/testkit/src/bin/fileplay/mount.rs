//! `mount(2)` and nothing else: what `mount.cifs` would add (an address, a password) stands in the options.

use std::ffi::CString;
use std::io;

use anyhow::ensure;
use clap::Args;

#[derive(Args, Debug)]
pub(crate) struct Mount {
    /// The file system's name
    #[arg(long, default_value = "cifs")]
    kind: String,
    /// As the file system wants it
    #[arg(long, default_value = "")]
    options: String,
    /// What to mount
    source: String,
    /// Where; made if it is not there
    target: String,
}

impl Mount {
    pub(crate) fn run(&self) -> anyhow::Result<String> {
        std::fs::create_dir_all(&self.target)?;
        let word = |text: &str| CString::new(text);
        let (kind, options) = (word(&self.kind)?, word(&self.options)?);
        let (source, target) = (word(&self.source)?, word(&self.target)?);
        // SAFETY: four strings that end and live through the call.
        let r = unsafe {
            libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast())
        };
        ensure!(r == 0, "mount {}: {}", self.source, io::Error::last_os_error());
        Ok(format!("mounted {} on {}", self.source, self.target))
    }
}
