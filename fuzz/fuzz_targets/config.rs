//! What people write into the configuration file and the environment.
//!
//! The input is the text of the file, then for each setting a line of the environment.
#![no_main]

use std::env::VarError;
use std::fs;

use local::Limits;
use local::config::SETTINGS;

#[expect(dead_code, reason = "the module of the program `shunt`; merging is what is fuzzed")]
#[path = "../../crates/cli/src/config.rs"]
mod config;
/// Where that module finds the name of a section.
mod serve {
    pub(crate) const SERVE: &str = "serve";
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (file, rest) = bytes.split_at(bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len()));
    let path = format!("/dev/shm/shunt-fuzz-config-{}", std::process::id());
    fs::write(&path, file).expect("a place for a small file");
    let rest = String::from_utf8_lossy(rest.get(1..).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = rest.split('\n').collect();
    let environment = |name: &str| {
        if name == "SHUNT_CONFIG" {
            return Ok(path.clone());
        }
        let at = SETTINGS.iter().position(|s| s.env == name).ok_or(VarError::NotPresent)?;
        lines.get(at).map(|line| (*line).to_owned()).ok_or(VarError::NotPresent)
    };
    let (merged, mistakes) = config::gather(&config::SettingOptions::default(), &environment);
    if mistakes.is_empty() {
        // What is handed on to the program means the same there.
        let mut limits = Limits::default();
        for (name, text) in merged.exports() {
            let setting = SETTINGS.iter().find(|s| s.env == name).expect("a setting");
            if let Some(text) = text {
                limits.set(setting.name, text).expect("what was merged is right");
            }
        }
        assert_eq!(limits.checked(), Ok(merged.limits));
    }
});
