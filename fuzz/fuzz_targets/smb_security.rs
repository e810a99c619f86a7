//! Security descriptors that clients set, and what they let do.
#![no_main]

use smb::security::{Descriptor, SecurityInfo, Sid, Token, check, inherited, maximum, to_posix};
use smb::{Access, Attributes};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(descriptor) = Descriptor::parse(bytes) else { return };
    // Entries share bytes on the way in, not on the way out: it may have become too long.
    if !descriptor.fits() {
        return;
    }
    assert_eq!(Descriptor::parse(&descriptor.to_bytes()).as_ref(), Ok(&descriptor));
    let all = SecurityInfo::OWNER | SecurityInfo::GROUP | SecurityInfo::DACL | SecurityInfo::SACL;
    let _ = Descriptor::default().changed(&descriptor, all);
    let (owner, group) = (Sid::unix_user(1), Sid::unix_group(1));
    for directory in [false, true] {
        if let Some(child) = inherited(&descriptor, owner, group, directory) {
            assert!(child.fits());
        }
    }
    let token = Token::unix(1, &[1, 2]);
    let granted = check(&descriptor, &token, Access::MAXIMUM_ALLOWED, Access::empty());
    assert_eq!(granted, Ok(maximum(&descriptor, &token)));
    assert!(to_posix(&descriptor, 0o777, Attributes::DIRECTORY) <= 0o777);
});
