use std::os::unix::fs::PermissionsExt;

use super::super::{Lack, try_folder};

/// Root may do everything, so another one asks.
#[test]
fn a_folder_that_is_closed_is_named_with_whose_it_is() {
    let top = tempfile::TempDir::new_in("/dev/shm").unwrap();
    let folder = top.path().join("a/b");
    std::fs::create_dir_all(&folder).unwrap();
    let mode = |at: &std::path::Path, mode: u32| {
        std::fs::set_permissions(at, PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(top.path(), 0o755);
    let is_root = sys::call::geteuid() == 0;
    let asked = |of: &std::path::Path| {
        let of = of.to_owned();
        let asks = move || {
            if is_root {
                let own = sys::acting::Credentials::of_thread().unwrap();
                let nobody = sys::acting::Credentials::new(65534, 65534, &[]);
                sys::acting::assume(&own, &nobody).unwrap();
            }
            try_folder(&of)
        };
        std::thread::spawn(asks).join().unwrap()
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
