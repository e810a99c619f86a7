use proptest::prelude::*;

use super::{Path, Pattern, Stream, fold, from_unix, mark_device, same, short, to_unix, utf16};
use crate::NtStatus;

fn wide(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

#[test]
fn paths_that_are_refused() {
    let long = "x".repeat(256);
    let cases = [
        ("\\a", NtStatus::INVALID_PARAMETER),
        ("\\", NtStatus::INVALID_PARAMETER),
        (".", NtStatus::OBJECT_NAME_INVALID),
        ("a\\.\\b", NtStatus::OBJECT_NAME_INVALID),
        ("..", NtStatus::OBJECT_PATH_SYNTAX_BAD),
        ("a\\..\\..", NtStatus::OBJECT_PATH_SYNTAX_BAD),
        ("a*", NtStatus::OBJECT_NAME_INVALID),
        ("/a", NtStatus::INVALID_PARAMETER),
        ("a:s/b", NtStatus::OBJECT_NAME_INVALID),
        ("a\u{1}", NtStatus::OBJECT_NAME_INVALID),
        ("a\0", NtStatus::OBJECT_NAME_INVALID),
        ("a|b\\c", NtStatus::OBJECT_NAME_INVALID),
        ("a\"", NtStatus::OBJECT_NAME_INVALID),
        (&long, NtStatus::OBJECT_NAME_INVALID),
        ("a:", NtStatus::OBJECT_NAME_INVALID),
        ("a::", NtStatus::OBJECT_NAME_INVALID),
        ("a:s:", NtStatus::OBJECT_NAME_INVALID),
        ("a:s:$FOO", NtStatus::OBJECT_NAME_INVALID),
        ("a:s:?D*a", NtStatus::OBJECT_NAME_INVALID),
        ("a::foooo", NtStatus::OBJECT_NAME_INVALID),
        ("a:s\\b", NtStatus::OBJECT_NAME_INVALID),
        ("a:s:$INDEX_ALLOCATION", NtStatus::OBJECT_NAME_INVALID),
        ("b\\s*:?S*:$DATA", NtStatus::OBJECT_NAME_INVALID),
    ];
    for (name, status) in cases {
        assert_eq!(Path::parse(&wide(name)), Err(status), "{name:?}");
    }
    assert_eq!(Path::parse(b"abc"), Err(NtStatus::INVALID_PARAMETER));
    // What can be in no name is between two, as for Samba.
    assert_eq!(Path::parse(&wide("a/b")), Path::parse(&wide("a\\b")));
}

#[test]
fn paths_that_are_taken() {
    let named = |s: &str| Some(Stream::Named(s.to_owned()));
    let cases = [
        ("", "", None),
        ("a", "a", None),
        ("a\\b.txt", "a/b.txt", None),
        ("a\\\\b\\", "a/b", None),
        ("a\\..\\b", "b", None),
        ("a\\b\\..", "a", None),
        ("CON", "CON", None),
        ("x.", "x.", None),
        ("...", "...", None),
        ("a:s", "a", named("s")),
        ("a:s:$DaTa", "a", named("s")),
        ("a:\x05Stream\n One", "a", named("\x05Stream\n One")),
        ("a:?Stream*:$DATA", "a", named("?Stream*")),
        ("a::$DATA", "a", Some(Stream::Data)),
        ("d::$INDEX_ALLOCATION", "d", Some(Stream::Index)),
        ("d:$i30:$Index_Allocation", "d", Some(Stream::Index)),
        (":s", "", named("s")),
    ];
    for (name, text, stream) in cases {
        let path = Path::parse(&wide(name)).expect(name);
        assert_eq!((path.as_str(), path.stream().cloned()), (text, stream), "{name:?}");
    }
}

#[test]
fn names_of_devices_are_marked_and_found_with_the_mark_or_without() {
    for (name, shown) in [
        ("nul", "nul\u{f02a}"),
        ("Con.txt", "Con\u{f02a}.txt"),
        ("aux .tar.gz", "aux\u{f02a} .tar.gz"),
        ("COM1", "COM1\u{f02a}"),
        ("lpt³.x", "lpt³\u{f02a}.x"),
        ("CONIN$", "CONIN$\u{f02a}"),
        ("a\\prn\\b", "a\\prn\u{f02a}\\b"),
    ] {
        assert_eq!(mark_device(name), shown);
        let (plain, marked) = (Path::parse_str(name), Path::parse_str(shown));
        assert_eq!(marked, plain, "{name:?}");
        assert_eq!(plain.expect("a path").unix(), name.replace('\\', "/").as_bytes(), "{name:?}");
    }
    let pattern = Pattern::parse_str("nul\u{f02a}.txt").expect("a pattern");
    assert_eq!(pattern, Pattern::parse_str("nul.txt").expect("a pattern"));
    // What is no device is not marked, and keeps a mark that means nothing.
    for name in ["null", "con1", "com", "com10", "comx", "a.nul", " nul", "lpt\u{e9}", ".con", ""] {
        assert_eq!(mark_device(name), name);
    }
    assert_eq!(Path::parse_str("null\u{f02a}").expect("a path").as_str(), "null\u{f02a}");
    assert_eq!(Path::parse_str("nul\u{f02a}x").expect("a path").as_str(), "nul\u{f02a}x");
    // A file on disk that has the mark really is another one, and can be named as well.
    let shown = from_unix("nul\u{f02a}".as_bytes()).into_owned();
    assert!(!shown.contains('\u{f02a}'));
    let path = Path::parse_str(&shown).expect("a path");
    assert_eq!(path.unix(), "nul\u{f02a}".as_bytes());
}

#[test]
fn a_path_has_a_parent_a_name_and_components() {
    let path = Path::parse_str("a\\b\\c:s").expect("a path");
    assert_eq!((path.name(), path.to_smb().as_str()), ("c", "a\\b\\c:s"));
    assert!(path.components().eq(["a", "b", "c"]));
    let parent = path.parent().expect("a parent");
    assert_eq!((parent.as_str(), parent.stream()), ("a/b", None));
    assert_eq!(parent.join("c"), path.without_stream());
    assert_eq!(path.without_stream().with_stream(path.stream().cloned()), path);
    let root = Path::default();
    assert!(root.is_root() && root.parent().is_none() && root.components().next().is_none());
    assert_eq!(root.join("x").as_str(), "x");
}

#[test]
fn half_a_surrogate_pair_comes_back() {
    for units in
        [&[0xd800u16][..], &[0xdc00], &[0xd800, 0xdc00], &[0xdc00, 0xd800], &[0x61, 0xdfff]]
    {
        let bytes: Vec<u8> = units.iter().flat_map(|u| u.to_le_bytes()).collect();
        let path = Path::parse(&bytes).expect("a path");
        let mut out = Vec::new();
        utf16::append(path.as_str(), &mut out);
        assert_eq!(out, bytes);
        assert_eq!(from_unix(&path.unix()), path.as_str());
    }
}

#[test]
fn what_stands_for_half_a_pair_is_no_name_of_its_own() {
    for name in ["a\u{10d800}", "\u{10dfff}b"] {
        assert_eq!(Path::parse(&wide(name)), Err(NtStatus::OBJECT_NAME_INVALID));
        // One that is on the disk is half a pair for clients.
        let mut wire = Vec::new();
        utf16::append(&from_unix(name.as_bytes()), &mut wire);
        assert_eq!(wire.len(), 4);
        assert_eq!(Path::parse(&wire).expect("a path").unix(), name.as_bytes());
    }
    for name in ["\u{10d7ff}", "\u{10e000}"] {
        assert_eq!(Path::parse(&wide(name)).expect("a path").as_str(), name);
    }
    // Two that would be a pair for clients, and so a character that another name has.
    let (one, other) = ("x\u{10d83d}\u{10dd25}\u{10dd25}", "x\u{1f525}");
    let mut wire = Vec::new();
    utf16::append(&from_unix(one.as_bytes()), &mut wire);
    assert_eq!(Path::parse(&wire).expect("a path").unix(), one.as_bytes());
    assert_eq!(from_unix(other.as_bytes()), other);
}

#[test]
fn what_windows_forbids_is_mapped() {
    let cases: [(&[u8], &str); 10] = [
        (b"plain", "plain"),
        (b"a:b", "a\u{f022}b"),
        (b"\"*:<>?\\|", "\u{f020}\u{f021}\u{f022}\u{f023}\u{f024}\u{f025}\u{f026}\u{f027}"),
        (b"\x01\x1f", "\u{f001}\u{f01f}"),
        (b"end.", "end\u{f029}"),
        (b"end ", "end\u{f028}"),
        (b"...", "..\u{f029}"),
        (b".", "."),
        (b"..", ".."),
        (b"\xff\xc3\xa4", "\u{10f7ff}\u{e4}"),
    ];
    for (unix, client) in cases {
        assert_eq!(from_unix(unix), client);
        assert_eq!(&*to_unix(client), unix);
    }
}

#[test]
fn nothing_private_becomes_a_way_out() {
    for name in ["\u{f029}", ".\u{f029}", "a/\u{f029}/b", "a/.\u{f029}"] {
        let unix = to_unix(name).into_owned();
        let mut components = unix.split(|b| *b == b'/');
        assert!(components.all(|c| c != b"." && c != b".."), "{name:?}");
    }
}

#[test]
fn case_is_folded_as_windows_does() {
    for (a, b) in
        [("abc", "ABC"), ("\u{e4}", "\u{c4}"), ("\u{ff41}", "\u{ff21}"), ("\u{3c3}x", "\u{3a3}X")]
    {
        assert!(same(a, b) && fold(a) == fold(b), "{a} {b}");
    }
    for (a, b) in [("\u{df}", "SS"), ("\u{131}", "I"), ("\u{17f}", "S"), ("\u{b5}", "\u{39c}")] {
        assert!(!same(a, b) && fold(a) != fold(b), "{a} {b}");
    }
    assert!(!same("\u{10428}", "\u{10400}"), "nothing beyond the first plane is folded");
}

#[test]
fn patterns_that_are_refused() {
    for text in ["", "\\", "a\\*", "/", "a|*", "*\u{1}", "a:*"] {
        assert_eq!(Pattern::parse(&wide(text)), Err(NtStatus::OBJECT_NAME_INVALID), "{text:?}");
    }
    assert!(Pattern::parse_str(&"*".repeat(256)).is_err() && Pattern::parse(b"*").is_err());
}

#[test]
fn patterns_match_as_windows_does() {
    let cases: [(&str, &[&str], &[&str]); 17] = [
        ("*", &["", "a", "a.b", ".", ".."], &[]),
        ("***", &["a"], &[]),
        ("a.txt", &["a.txt", "A.TXT"], &["a.txt ", "aatxt"]),
        ("*.txt", &["a.txt", ".txt", "a.b.TXT"], &["txt", "a.txt2", "a.tx"]),
        ("a*b*c", &["abc", "aXbYbc", "ABBC"], &["ab", "acb", "abcd"]),
        ("?", &["a", "\u{e4}"], &["", "ab"]),
        ("a?c", &["abc", "a.c"], &["ac", "abbc"]),
        ("*?", &["a", "ab"], &[""]),
        ("<", &["", "a", "a.", ".", "abc"], &["a.b", "a.b.c"]),
        ("<.b", &["a.b", ".b", "a.a.b"], &["a.bb", "b"]),
        ("<\"*", &["a", "a.b", "a.b.c", "."], &[]),
        (">>>", &["", "a", "ab", "abc"], &["abcd", "a.b"]),
        (">>>.txt", &["a.txt", "abc.txt", ".txt"], &["abcd.txt", "atxt"]),
        ("a\"", &["a", "a."], &["ab", "a.b"]),
        ("a\"b", &["a.b"], &["ab", "a"]),
        (">>>\">>>", &["a", "a.b", "abc.def", "abc."], &["abcd", "a.b.c", "a.defg"]),
        ("<.<", &["a.b.c", "a.b"], &["ab"]),
    ];
    for (pattern, yes, no) in cases {
        let compiled = Pattern::parse_str(pattern).expect(pattern);
        for name in yes {
            assert!(compiled.matches(name), "{pattern} should match {name:?}");
        }
        for name in no {
            assert!(!compiled.matches(name), "{pattern} should not match {name:?}");
        }
    }
}

/// The rules as they are told, one after the other: slow, and plainly right.
fn slowly(p: &[char], n: &[char], last_dot: Option<usize>, at: usize) -> bool {
    let null = |p: &[char]| p.iter().all(|c| matches!(c, '*' | '<' | '>' | '"'));
    let Some(c) = n.get(at) else { return null(p) };
    let Some((first, rest)) = p.split_first() else { return false };
    match first {
        '*' => slowly(rest, n, last_dot, at) || slowly(p, n, last_dot, at + 1),
        '<' => {
            let then = if last_dot == Some(at) { rest } else { p };
            slowly(rest, n, last_dot, at) || slowly(then, n, last_dot, at + 1)
        }
        '?' => slowly(rest, n, last_dot, at + 1),
        '>' if *c == '.' => slowly(rest, n, last_dot, at) || at + 1 == n.len() && null(rest),
        '>' => slowly(rest, n, last_dot, at + 1),
        '"' => *c == '.' && slowly(rest, n, last_dot, at + 1),
        literal => literal == c && slowly(rest, n, last_dot, at + 1),
    }
}

proptest! {
    #[test]
    fn matching_is_what_the_rules_say(pattern in "[AB.*?<>\"]{1,8}", name in "[AB.]{0,8}") {
        let compiled = Pattern::parse_str(&pattern).expect("a pattern");
        prop_assume!(name != ".." && compiled.as_name().is_none());
        let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
        let last_dot = n.iter().rposition(|c| *c == '.');
        prop_assert_eq!(compiled.matches(&name), slowly(&p, &n, last_dot, 0));
    }

    #[test]
    fn every_unix_name_comes_back(name in prop::collection::vec(1u8..=255, 1..64)) {
        prop_assume!(!name.contains(&b'/'));
        let client = from_unix(&name).into_owned();
        prop_assert_eq!(&*to_unix(&client), &name[..]);
        if name != b"." && name != b".." {
            let path = Path::parse_str(&client).expect("a name that a client may send");
            prop_assert_eq!(&*path.unix(), &name[..]);
        }
    }

    #[test]
    fn private_unix_names_come_back(name in "[\u{efff}-\u{f02f}\u{10f77f}-\u{10f800}\u{10d7ff}-\u{10e000}. a]{1,8}") {
        let client = from_unix(name.as_bytes());
        prop_assert_eq!(&*to_unix(&client), name.as_bytes());
        let mut wire = Vec::new();
        utf16::append(&client, &mut wire);
        prop_assert_eq!(utf16::decode(&wire), Ok(client.into_owned()));
    }

    #[test]
    fn every_client_name_comes_back(units in prop::collection::vec(any::<u16>(), 0..64)) {
        let bytes: Vec<u8> = units.iter().flat_map(|u| u.to_le_bytes()).collect();
        // A pair may mean one of our own private characters.
        let mut pairs = units.windows(2).filter(|u| matches!(u, [0xdbf6..=0xdbf7, 0xdc00..=0xdfff]));
        let Ok(text) = utf16::decode(&bytes) else {
            prop_assert!(pairs.next().is_some());
            return Ok(());
        };
        let mut out = Vec::new();
        utf16::append(&text, &mut out);
        prop_assert_eq!(utf16::len(&text), out.len());
        prop_assert_eq!(out, bytes);
    }

    #[test]
    fn long_patterns_end(stars in 1usize..60, name in "[ab]{0,255}") {
        for unit in ["a*", "a<", "<>", "*?", "*<"] {
            let pattern = Pattern::parse_str(&(unit.repeat(stars) + "c")).expect("a pattern");
            prop_assert!(!pattern.matches(&name));
        }
    }
}

#[test]
fn short_names_are_short() {
    for (name, expected) in
        [("bufsize.txt", "BUFSIZE.TXT"), ("a", "A"), ("A-B.C", "A-B.C"), (".", ".")]
    {
        assert_eq!(short(name), expected);
    }
    for name in
        ["testsmb2_file.dat", ".profile", "a b", "x.", "x.html", "\u{e4}", "a.b.c", "123456789"]
    {
        let short = short(name);
        let (base, extension) = short.split_once('.').unwrap_or((&short, ""));
        assert!(base.len() == 8 && base.as_bytes()[6] == b'~' && extension.len() <= 3, "{short}");
        assert_eq!(short, super::short(&name.to_uppercase()), "{name}");
    }
    assert_ne!(short("long file name 1"), short("long file name 2"));
}
