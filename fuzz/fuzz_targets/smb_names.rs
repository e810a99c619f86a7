//! Names and search patterns that clients send, and names that files have.
#![no_main]

use smb::name::{Path, Pattern, fold, from_unix, same, short, to_unix, utf16};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // From a client, and back to it.
    if let Ok(path) = Path::parse(bytes) {
        let unix = path.unix();
        assert!(!unix.contains(&0) && !unix.starts_with(b"/"));
        assert!(unix.split(|b| *b == b'/').all(|c| c != b"." && c != b".."));
        let again = Path::parse_str(&path.to_smb()).expect("what we write can be read");
        assert_eq!(again.as_str(), path.as_str());
        assert!(path.components().all(|component| same(component, &fold(component))));
    }
    // From the disk, and back to it.
    if !bytes.is_empty() && !bytes.contains(&0) && !bytes.contains(&b'/') {
        let name = from_unix(bytes);
        assert_eq!(&*to_unix(&name), bytes);
        assert!(short(&name).len() <= 12);
    }
    // A pattern and a name.
    let (pattern, name) = bytes.split_at(bytes.len() / 4 * 2);
    if let (Ok(pattern), Ok(name)) = (Pattern::parse(pattern), utf16::decode(name)) {
        let matches = pattern.matches(&name);
        assert_eq!(matches, pattern.matches(&fold(&name)), "case is no difference");
        assert!(matches || !pattern.is_all());
    }
});
