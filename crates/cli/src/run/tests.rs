use super::*;

const OURS: &str = "/opt/shunt/libshunt_preload.so";

#[track_caller]
fn preload(theirs: Option<&str>, expect: &str) {
    assert_eq!(preload_with(Path::new(OURS), theirs.map(OsStr::new)), expect);
}

#[test]
fn ours_comes_first_and_once_and_theirs_stay_in_order() {
    preload(None, OURS);
    preload(Some(""), OURS);
    preload(Some("liba.so"), "/opt/shunt/libshunt_preload.so:liba.so");
    preload(
        Some("liba.so:/b/libb.so libc.so"),
        "/opt/shunt/libshunt_preload.so:liba.so:/b/libb.so:libc.so",
    );
    preload(Some(OURS), OURS);
    preload(
        Some("liba.so:/elsewhere/libshunt_preload.so"),
        "/opt/shunt/libshunt_preload.so:liba.so",
    );
    preload(
        Some("libnot_libshunt_preload.so"),
        "/opt/shunt/libshunt_preload.so:libnot_libshunt_preload.so",
    );
}

/// Lays a library out as packages do.
pub(crate) fn lay_out(folder: &Path) {
    let multiarch = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    std::fs::write(folder.join(LIBRARY), "").unwrap();
    for lib in ["lib", "lib64", &multiarch] {
        let at = folder.join(lib);
        std::fs::create_dir_all(&at).unwrap();
        let up = "../".repeat(lib.split('/').count());
        std::os::unix::fs::symlink(format!("{up}{LIBRARY}"), at.join(LIBRARY)).unwrap();
    }
}

#[test]
fn a_library_that_is_laid_out_is_named_by_the_loaders_word() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().canonicalize().unwrap();
    let library = folder.join(LIBRARY);
    assert_eq!(in_preload(&library), library, "as it lies where it was built");
    lay_out(&folder);
    let named = in_preload(&library);
    assert_eq!(named, folder.join("$LIB").join(LIBRARY));
    assert_eq!(preload_without(Some(named.as_os_str())), None, "it is ours all the same");
    // One of another build, for some of the loaders.
    std::fs::remove_file(folder.join("lib64").join(LIBRARY)).unwrap();
    std::fs::write(folder.join("lib64").join(LIBRARY), "").unwrap();
    assert_eq!(in_preload(&library), library);
}

#[test]
fn without_ours_only_theirs_are_left() {
    assert_eq!(preload_without(None), None);
    assert_eq!(preload_without(Some(OsStr::new(OURS))), None);
    let theirs = OsString::from(format!("{OURS}:liba.so"));
    assert_eq!(preload_without(Some(&theirs)).unwrap(), "liba.so");
}

#[test]
fn the_library_is_looked_for_beside_the_program_first() {
    let places = library_places(Some(Path::new("/opt/bin/shunt")));
    assert_eq!(
        places,
        [
            "/opt/bin/libshunt_preload.so",
            "/opt/bin/../lib/shunt/libshunt_preload.so",
            "/usr/lib/shunt/libshunt_preload.so",
            "/usr/local/lib/shunt/libshunt_preload.so",
        ]
        .map(PathBuf::from)
    );
}

#[test]
fn what_is_no_library_is_refused_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let error = |path: &Path| format!("{:#}", usable(path).unwrap_err());
    assert!(error(&dir.path().join("absent.so")).contains("absent.so"));
    assert!(error(Path::new("/bin/true")).contains("not a shared library"));
    let text = dir.path().join(LIBRARY);
    std::fs::write(&text, "hello").unwrap();
    assert!(error(&text).contains("not an ELF file"));
    let spaced = dir.path().join("a b");
    std::fs::create_dir(&spaced).unwrap();
    let spaced = spaced.join(LIBRARY);
    std::fs::write(&spaced, "hello").unwrap();
    assert!(error(&spaced).contains("a space or a colon"));
}

#[test]
fn the_environment_is_theirs_but_for_our_variables() {
    let variables: Variables = [("PATH", "/bin"), ("SHUNT_LOG", ""), ("LD_PRELOAD", "liba.so")]
        .map(|(k, v)| (k.into(), v.into()))
        .into();
    let options = SettingOptions::default();
    let home = tempfile::tempdir().unwrap();
    let merged = config::merge(&options, &|name| match name {
        "SHUNT_SPIN_US" => Ok("5".into()),
        "HOME" => Ok(home.path().to_str().unwrap().into()),
        _ => Err(std::env::VarError::NotPresent),
    })
    .unwrap();
    let with = environment(variables.clone(), &merged, Some(Path::new(OURS)));
    let text = |all: &Variables, name: &str| all.get(OsStr::new(name)).cloned();
    assert_eq!(text(&with, "PATH"), Some("/bin".into()));
    assert_eq!(text(&with, "SHUNT_SPIN_US"), Some("5".into()));
    assert_eq!(text(&with, "SHUNT_LOG"), None, "an empty variable is as good as none");
    assert_eq!(text(&with, "LD_PRELOAD"), Some(format!("{OURS}:liba.so").into()));
    let without = environment(with, &merged, None);
    assert_eq!(text(&without, "LD_PRELOAD"), Some("liba.so".into()));
}
