//! A file of users, as somebody has written it by hand.
#![no_main]

use smb::auth::{NtHash, User, UserFile};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(mut file) = UserFile::parse(text) else { return };
    let written = file.to_text();
    let again = UserFile::parse(&written).expect("what we write");
    assert_eq!(*again.to_text(), *written);
    assert_eq!(again.len(), file.iter().count());
    let names: Vec<String> = file.iter().map(|user| user.name.clone()).collect();
    for name in &names {
        assert_eq!(
            file.get(&name.to_ascii_uppercase()).map(|user| &user.name),
            file.get(name).map(|user| &user.name)
        );
        file.disable(name, true).expect("a user that is there");
    }
    let nt_hash = NtHash::new([1; 16]);
    let user = User {
        name: "new".to_owned(),
        uid: None,
        nt_hash: Some(nt_hash),
        disabled: false,
        expires: None,
    };
    assert_eq!(file.set(user), Ok(!names.iter().any(|name| name.eq_ignore_ascii_case("new"))));
    for name in &names {
        file.remove(name).expect("a user that is there");
    }
    assert!(file.len() <= 1);
    UserFile::parse(&file.to_text()).expect("what we write");
});
