use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::super::{Lack, Unwritable, try_folder, try_writing};

/// What is answered to another one than root, who may do everything.
fn as_nobody<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> T {
    let asks = move || {
        if sys::call::geteuid() == 0 {
            let own = sys::acting::Credentials::of_thread().unwrap();
            let nobody = sys::acting::Credentials::new(65534, 65534, &[]);
            sys::acting::assume(&own, &nobody).unwrap();
        }
        ask()
    };
    std::thread::spawn(asks).join().unwrap()
}

fn mode(at: &Path, mode: u32) {
    std::fs::set_permissions(at, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn a_folder_that_is_closed_is_named_with_whose_it_is() {
    let top = tempfile::TempDir::new_in("/dev/shm").unwrap();
    let folder = top.path().join("a/b");
    std::fs::create_dir_all(&folder).unwrap();
    mode(top.path(), 0o755);
    let is_root = sys::call::geteuid() == 0;
    let asked = |of: &Path| {
        let of = of.to_owned();
        as_nobody(move || try_folder(&of))
    };
    assert_eq!(asked(&folder), Ok(()));
    assert_eq!(asked(&folder.join("absent")), Ok(()), "somebody else says so");
    // As its owner, or as another one.
    let modes = if is_root { [0o700, 0o711] } else { [0o600, 0o311] };
    for (bits, lack) in modes.into_iter().zip([Lack::Enter, Lack::List]) {
        mode(&folder, bits);
        let closed = asked(&folder).unwrap_err();
        assert_eq!((&closed.at, closed.lack), (&folder, lack), "{closed}");
        let words = closed.to_string();
        assert!(words.contains("as whom the server runs") && words.contains("chmod"), "{words}");
    }
    mode(&folder, 0o755);
    let above = top.path().join("a");
    mode(&above, 0o600);
    let closed = asked(&folder).unwrap_err();
    assert_eq!((&closed.at, closed.lack), (&above, Lack::Enter));
    mode(&above, 0o755);
}

#[test]
fn a_folder_that_can_only_be_read_is_told_with_who_would_have_to_write() {
    let top = tempfile::TempDir::new_in("/dev/shm").unwrap();
    let (folder, is_root) = (top.path().to_owned(), sys::call::geteuid() == 0);
    let asked = |as_ourselves| {
        let folder = folder.clone();
        as_nobody(move || try_writing(&folder, as_ourselves))
    };
    mode(&folder, if is_root { 0o777 } else { 0o700 });
    assert_eq!(asked(true), Ok(()));
    mode(&folder, 0o555);
    assert_eq!(asked(false), Ok(()), "it is for others");
    let told = asked(true).unwrap_err();
    assert!(matches!(&told, Unwritable::Closed(closed) if closed.lack == Lack::Write), "{told:?}");
    let words = told.to_string();
    let what = if is_root { "setfacl -m u:65534:rwx" } else { "chmod u+w" };
    assert!(words.contains("may not write to") && words.contains(what), "{words}");
    assert!(!words.contains("chmod o+w"), "nobody is told to open it to everybody: {words}");
    mode(&folder, 0o700);
}
