use super::{UserFile, civil_from_days, day_to_time, days_from_civil, time_to_day};
use crate::FileTime;
use crate::auth::{NtHash, User, Users};

const FILE: &str = "\
# Those of the office
Alice:1000:a4f49c406510bdcab6824ee7c30fd852::Alice: from accounts

backup user:*:8846f7eaee8fb117ad06bdd830b7586c:expires=2027-01-31:
Jörg:1001:8846F7EAEE8FB117AD06BDD830B7586C:disabled,expires=2027-06-30:on leave
# The end
";

fn user(name: &str) -> User {
    let nt_hash = Some(NtHash::of_password("x"));
    User { name: name.to_owned(), uid: None, nt_hash, disabled: false, expires: None }
}

#[test]
fn reads_and_finds() {
    let file = UserFile::parse(FILE).unwrap();
    let names: Vec<_> = file.iter().map(|user| user.name.as_str()).collect();
    assert_eq!(names, ["Alice", "backup user", "Jörg"]);
    let alice = file.find("ALICE", "whatever").unwrap();
    assert_eq!((alice.uid, alice.disabled, alice.expires), (Some(1000), false, None));
    assert_eq!(alice.nt_hash.unwrap().as_bytes(), NtHash::of_password("Password").as_bytes());
    assert_eq!(file.comment("alice"), Some("Alice: from accounts"));
    let joerg = file.get("JÖRG").unwrap();
    assert!(joerg.disabled);
    assert_eq!(joerg.expires.unwrap().to_unix(), (1_814_313_600, 0));
    assert!(file.find("al", "").is_none() && file.find("", "").is_none());
    assert!(!format!("{file:?}").contains("a4f4"), "hashes are not printed");
}

/// Comments and order stay; hashes are written in lower case.
#[test]
fn writes_what_was_read() {
    let mut file = UserFile::parse(FILE).unwrap();
    let lower =
        FILE.replace("8846F7EAEE8FB117AD06BDD830B7586C", "8846f7eaee8fb117ad06bdd830b7586c");
    assert_eq!(*file.to_text(), lower);
    assert!(file.set(user("zoe")).unwrap());
    assert!(!file.set(user("ALICE")).unwrap());
    file.remove("Backup User").unwrap();
    file.disable("zoe", true).unwrap();
    file.set(User { nt_hash: None, ..user("ticket") }).unwrap();
    assert!(file.remove("backup user").is_err() && file.disable("backup user", true).is_err());
    let hash = user("").nt_hash.unwrap().to_hex();
    let expected = format!(
        "# Those of the office\nALICE:*:{0}::Alice: from accounts\n\n\
         Jörg:1001:8846f7eaee8fb117ad06bdd830b7586c:disabled,expires=2027-06-30:on leave\n\
         # The end\nzoe:*:{0}:disabled:\nticket:*:*::\n",
        *hash
    );
    assert_eq!(*file.to_text(), expected);
    assert_eq!(*UserFile::parse(&expected).unwrap().to_text(), expected);
    assert_eq!((file.len(), file.is_empty()), (4, false));
    assert!(UserFile::parse(&expected).unwrap().get("ticket").unwrap().nt_hash.is_none());
    assert!(file.get("jörg").is_some() && file.get("zoe").unwrap().disabled);
}

/// Lines of another system, and what is left of them at the end.
#[test]
fn ends_of_lines() {
    let text = FILE.replace('\n', "\r\n") + "\r";
    let file = UserFile::parse(&text).unwrap();
    assert_eq!(file.comment("jörg"), Some("on leave"));
    let written = file.to_text();
    assert!(!written.contains('\r'));
    assert_eq!(*UserFile::parse(&written).unwrap().to_text(), *written);
}

#[test]
fn says_what_is_wrong_and_where() {
    let hash = "8846f7eaee8fb117ad06bdd830b7586c";
    for (line, what) in [
        ("alice".to_owned(), "the uid is missing"),
        (format!("alice:1:{hash}:"), "the comment is missing"),
        (format!("alice:1:{hash}"), "the field of flags is missing"),
        (format!("alice::{hash}::"), "\"\" is no uid"),
        (format!("alice:-1:{hash}::"), "\"-1\" is no uid: a number or *"),
        (format!("alice:4294967295:{hash}::"), "\"4294967295\" is no uid"),
        (format!("alice:1:{hash}0::"), "the NT hash has not 32 hexadecimal digits"),
        (format!("alice:1:{hash}:disable:"), "\"disable\" is no flag, or there twice"),
        (format!("alice:1:{hash}:disabled,disabled:"), "\"disabled\" is no flag, or there twice"),
        (format!("alice:1:{hash}:disabled,:"), "\"\" is no flag, or there twice"),
        (format!("alice:1:{hash}:expires=2027-02-29:"), "\"2027-02-29\" is no day: 2027-01-31"),
        (format!(" alice:1:{hash}::"), "\" alice\" cannot be the name of a user"),
        (format!("a@b:1:{hash}::"), "\"a@b\" cannot be the name of a user"),
        (format!(":1:{hash}::"), "\"\" cannot be the name of a user"),
        (format!("OTHER:1:{hash}::"), "a user of this name is there already"),
    ] {
        let bad = UserFile::parse(&format!("# one\nother:2:{hash}::\n{line}\n")).unwrap_err();
        assert_eq!((bad.line, bad.what.as_str()), (3, what), "{line}");
        assert!(!bad.to_string().contains(hash), "{bad}");
    }
}

#[test]
fn names_that_cannot_be() {
    let mut file = UserFile::default();
    for bad in ["", " a", "a ", "a:b", "a\nb", "#a", "a\\b", &"a".repeat(65)] {
        assert!(file.set(user(bad)).is_err(), "{bad:?}");
    }
    assert!(file.set(user(&"ü".repeat(64))).unwrap());
    assert!(UserFile::parse(&file.to_text()).is_ok());
}

#[test]
fn days() {
    assert_eq!(days_from_civil(1970, 1, 1), 0);
    assert_eq!(days_from_civil(2000, 3, 1), 11_017);
    for days in (-200_000..3_000_000).step_by(97) {
        let (year, month, day) = civil_from_days(days);
        assert_eq!(days_from_civil(year, month, day), days);
    }
    assert_eq!(time_to_day(day_to_time("2028-02-29").unwrap()), "2028-02-29");
    let noon = FileTime(day_to_time("2027-12-31").unwrap().0 + 1);
    assert_eq!(time_to_day(noon), "2028-01-01");
    assert_eq!(time_to_day(FileTime(u64::MAX)), "9999-12-31");
    for bad in
        ["", "2027-1-01", "2027-13-01", "2027-00-10", "1969-01-01", "2027-01-01T", "+027-01-01"]
    {
        assert!(day_to_time(bad).is_none(), "{bad}");
    }
}
