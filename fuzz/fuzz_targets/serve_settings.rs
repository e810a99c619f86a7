//! What people write of a file server: the section `[serve]` of the configuration file, settings and shares as options.
//!
//! The input is the text of the file, and each of its lines is tried as an option as well.
#![no_main]

use std::path::Path;

use engine::serve::config::{Config, SHARE_OPTIONS, ShareConfig};

#[expect(dead_code, reason = "the module of the program `shunt`; values are what is wanted of it")]
#[path = "../../crates/cli/src/config.rs"]
mod config;
#[expect(dead_code, reason = "the module of the program `shunt`; the section is what is fuzzed")]
#[path = "../../crates/cli/src/serve/file.rs"]
mod file;
/// Where those find the name of the section.
mod serve {
    pub(crate) use crate::file::SERVE;
}

/// Applies a setting, or is told why not and has changed nothing.
fn set(config: &mut Config, name: &str, value: &str) {
    let before = config.clone();
    if let Err(bad) = config.set(name, value) {
        assert_eq!(*config, before, "{bad}");
        assert!(!bad.to_string().is_empty());
    }
}

/// A share that was taken is one, and what it says is within what the options may say.
fn sound(share: &ShareConfig) {
    assert_eq!(share.clone().checked().as_ref(), Ok(share));
    assert!(share.file_mode <= 0o777 && share.folder_mode <= 0o777);
    assert!(share.users.iter().all(|name| !name.is_empty()));
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    let mut config = Config::default();
    let section = file::parse(Path::new("/etc/shunt/config.toml"), text);
    for written in &section.written {
        set(&mut config, written.setting, &written.text);
    }
    // What is wrong is told beside what is right, which is as sound as if nothing were.
    for (share, _) in &section.shares {
        sound(share);
        assert!(share.path.is_absolute(), "it means the same wherever the server is started");
    }
    assert!(section.wrong.iter().all(|wrong| !wrong.error.to_string().is_empty()));
    for line in text.lines() {
        if let Ok(share) = ShareConfig::parse(line) {
            sound(&share);
        }
        let (name, value) = line.split_once('=').unwrap_or((line, "on"));
        set(&mut config, name, value);
        for option in SHARE_OPTIONS {
            let mut share = ShareConfig::new("a", "/x");
            match share.set(option.name, value) {
                Ok(()) => sound(&share),
                Err(_) => assert_eq!(share, ShareConfig::new("a", "/x"), "{}", option.name),
            }
        }
    }
    if let Ok(config) = config.checked() {
        let limits = &config.limits;
        assert!((1..=64).contains(&config.vectors) && (64..=32_768).contains(&limits.credits));
        assert!(limits.payload.is_multiple_of(64 << 10) && limits.payload <= 8 << 20);
        assert!(limits.channels > 0 && limits.sessions > 0 && limits.opens > 0);
    }
});
