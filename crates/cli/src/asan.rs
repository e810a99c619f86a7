//! AddressSanitizer, whose runtime wants to be loaded before everything else, and does not start a program where it is not.
//!
//! Ours cannot be loaded behind it: the calls that it hands on would come back to it. In front of it ours does no harm, where
//! it has been told not to mind.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::elf::Elf;
use crate::program::Program;

/// What tells it.
pub(crate) const WORD: &str = "ASAN_OPTIONS=verify_asan_link_order=0";

/// Whether a library is its runtime: GCC's or Clang's.
fn is_runtime(name: &[u8]) -> bool {
    [&b"libasan.so"[..], b"libclang_rt.asan"].iter().any(|begin| name.starts_with(begin))
}

/// Whether it has been told not to mind what is loaded before it.
fn is_told(options: &[u8]) -> bool {
    let separates = |b: &u8| b" ,:\n\t\r".contains(b);
    let no = |value: &[u8]| [&b"0"[..], b"no", b"false"].contains(&value);
    let order = |option: &[u8]| option.strip_prefix(b"verify_asan_link_order=").map(no);
    // The last word counts.
    options.split(separates).filter_map(order).next_back().unwrap_or(false)
}

/// The runtime for whose sake a program is to be without our library: it asks for it, or `LD_PRELOAD` does.
fn found(program: Option<&Program>, preload: &[u8], options: &[u8]) -> Option<String> {
    let needed = match program.map(|program| &program.elf) {
        Some(Ok(Elf::Native(native))) => &native.needed[..],
        _ => &[],
    };
    let preloaded = preload.split(|b| b" :".contains(b)).filter_map(|entry| {
        Path::new(OsStr::from_bytes(entry)).file_name().map(OsStrExt::as_bytes)
    });
    let mut all = needed.iter().map(String::as_bytes).chain(preloaded);
    let runtime = all.find(|name| is_runtime(name))?;
    (!is_told(options)).then(|| String::from_utf8_lossy(runtime).into_owned())
}

/// The same with the environment that there is here.
pub(crate) fn in_the_way(program: Option<&Program>) -> Option<String> {
    let [preload, options] =
        ["LD_PRELOAD", "ASAN_OPTIONS"].map(|name| std::env::var_os(name).unwrap_or_default());
    found(program, preload.as_bytes(), options.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Native;
    use crate::program::Privileges;

    #[test]
    fn its_runtime_is_seen_unless_it_has_been_told() {
        let program = |needed: &str| Program {
            path: "/bin/x".into(),
            scripts: Vec::new(),
            loaded: "/bin/x".into(),
            comm: "x".into(),
            elf: Ok(Elf::Native(Native { needed: vec![needed.into()], ..Native::default() })),
            privileges: Privileges::default(),
        };
        let found = |needed: &str, preload: &str, options: &str| {
            found(Some(&program(needed)), preload.as_bytes(), options.as_bytes())
        };
        assert_eq!(found("libc.so.6", "/x/liba.so", ""), None);
        assert_eq!(found("libasan.so.8", "", "detect_leaks=0").as_deref(), Some("libasan.so.8"));
        let clangs = "libclang_rt.asan-x86_64.so";
        assert_eq!(found(clangs, "", "").as_deref(), Some(clangs));
        let preload = "/x/liba.so:/usr/lib/libasan.so.6 libb.so";
        assert_eq!(found("libc.so.6", preload, "").as_deref(), Some("libasan.so.6"));
        for told in ["verify_asan_link_order=0", "a=1:verify_asan_link_order=false,b=2"] {
            assert_eq!(found("libasan.so.8", preload, told), None, "{told}");
        }
        let taken_back = "verify_asan_link_order=0:verify_asan_link_order=1";
        assert!(found("libasan.so.8", "", taken_back).is_some());
    }
}
