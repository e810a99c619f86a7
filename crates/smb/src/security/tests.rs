use proptest::prelude::*;

use super::{
    Ace, AceFlags, AceKind, Acl, Control, Descriptor, Privileges, SecurityInfo, Sid, Token, check,
    from_posix, inherited, is_posix, maximum, to_posix,
};
use crate::{Access, Attributes, NtStatus};

const ALICE: Sid = Sid::unix_user(1000);
const BOB: Sid = Sid::unix_user(1001);
const STAFF: Sid = Sid::unix_group(50);
const STD_ALL: Access = Access::from_bits_retain(0x001f_0000);

fn alice() -> Token {
    Token::unix(1000, &[100])
}

fn of_alice(aces: impl IntoIterator<Item = Ace>) -> Descriptor {
    Descriptor::new(ALICE, Sid::unix_group(100), Acl::new(aces))
}

#[test]
fn sids_are_shown_and_read() {
    let cases = [
        (Sid::EVERYONE, "S-1-1-0"),
        (Sid::ADMINISTRATORS, "S-1-5-32-544"),
        (ALICE, "S-1-22-1-1000"),
        (STAFF, "S-1-22-2-50"),
    ];
    for (sid, text) in cases {
        let mut bytes = Vec::new();
        sid.put(&mut bytes);
        assert_eq!((sid.to_string().as_str(), bytes.len()), (text, sid.len()));
        assert_eq!(Sid::parse(&bytes), Some((sid, bytes.len())));
        assert_eq!(Sid::parse(&bytes[..bytes.len() - 1]), None);
    }
    assert_eq!((ALICE.to_uid(), ALICE.to_gid()), (Some(1000), None));
    assert_eq!((STAFF.to_uid(), STAFF.to_gid()), (None, Some(50)));
    assert_eq!(Sid::new(1 << 40, &[7]).unwrap().to_string(), "S-1-0x010000000000-7");
    assert!(Sid::new(5, &[0; 15]).is_some() && Sid::new(5, &[0; 16]).is_none());
    assert!(Sid::new(1 << 48, &[]).is_none());
    assert_eq!(Sid::parse(&[2, 0, 0, 0, 0, 0, 0, 5]), None);
    assert_eq!(Sid::parse(&[&[1, 16, 0, 0, 0, 0, 0, 5][..], &[0; 64]].concat()), None);
}

#[test]
fn a_descriptor_has_the_bytes_of_the_specification() {
    let descriptor = Descriptor {
        owner: Some(Sid::EVERYONE),
        group: None,
        ..of_alice([Ace::allow(Sid::EVERYONE, Access::FILE_ALL)])
    };
    let expected = [
        &[1, 0, 4, 0x80, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0][..],
        &[1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
        &[2, 0, 28, 0, 1, 0, 0, 0],
        &[0, 0, 20, 0, 0xff, 1, 0x1f, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
    ];
    assert_eq!(descriptor.to_bytes(), expected.concat());
    assert_eq!(Descriptor::parse(&expected.concat()), Ok(descriptor));
}

#[test]
fn descriptors_that_are_refused() {
    let good = of_alice([Ace::allow(ALICE, Access::FILE_ALL)]).to_bytes();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Descriptor::parse(&bytes)
    };
    assert_eq!(Descriptor::parse(&good[..19]), Err(NtStatus::INVALID_SECURITY_DESCR));
    assert_eq!(with(0, 2), Err(NtStatus::UNKNOWN_REVISION));
    assert_eq!(with(4, 19), Err(NtStatus::INVALID_SECURITY_DESCR), "owner within the head");
    assert_eq!(with(4, 255), Err(NtStatus::INVALID_SECURITY_DESCR), "owner behind the end");
    assert_eq!(with(20, 9), Err(NtStatus::INVALID_SID));
    let dacl = usize::from(good[16]);
    assert_eq!(with(dacl, 7), Err(NtStatus::INVALID_ACL), "revision");
    assert_eq!(with(dacl + 2, 255), Err(NtStatus::INVALID_ACL), "longer than it is");
    assert_eq!(with(dacl + 4, 2), Err(NtStatus::INVALID_ACL), "more entries than there are");
    assert_eq!(
        with(dacl + 8, 5),
        Err(NtStatus::INVALID_ACL),
        "an entry of a kind that is not kept"
    );
    assert_eq!(with(dacl + 10, 3), Err(NtStatus::INVALID_ACL), "an entry shorter than its head");
}

#[test]
fn only_what_is_asked_for_is_told() {
    let all = SecurityInfo::OWNER | SecurityInfo::GROUP | SecurityInfo::DACL | SecurityInfo::SACL;
    let descriptor = of_alice([Ace::allow(ALICE, Access::FILE_ALL)]);
    assert_eq!(descriptor.only(all), descriptor);
    let owner = descriptor.only(SecurityInfo::OWNER);
    assert_eq!((owner.owner, owner.group, owner.dacl), (Some(ALICE), None, None));
    assert!(!owner.control.contains(Control::DACL_PRESENT));
    assert_eq!(SecurityInfo::DACL.to_query(), Access::READ_CONTROL);
    assert_eq!(all.to_set(), Access::WRITE_OWNER | Access::WRITE_DAC | Access::SYSTEM_SECURITY);
}

/// smb2.acls GENERIC.
#[test]
fn generic_rights_are_replaced_when_they_are_set() {
    let cases = [
        (Access::empty(), Access::empty()),
        (Access::GENERIC_READ, Access::FILE_READ),
        (Access::GENERIC_WRITE, Access::FILE_WRITE),
        (Access::GENERIC_EXECUTE, Access::FILE_EXECUTE),
        (Access::GENERIC_ALL, Access::FILE_ALL),
        (Access::READ_DATA, Access::READ_DATA),
    ];
    let by_directory = Access::DELETE | Access::READ_ATTRIBUTES;
    for (generic, specific) in cases {
        let new = of_alice([Ace::allow(ALICE, generic)]);
        let set = of_alice([]).changed(&new, SecurityInfo::DACL | SecurityInfo::OWNER).unwrap();
        assert_eq!(set, of_alice([Ace::allow(ALICE, specific)]));
        let granted = check(&set, &alice(), Access::MAXIMUM_ALLOWED, by_directory).unwrap();
        let anyway = Access::WRITE_DAC | Access::READ_CONTROL | by_directory;
        assert_eq!(granted, specific | anyway);
    }
}

/// smb2.acls CREATOR and OWNER.
#[test]
fn an_entry_for_creators_says_nothing_about_the_file_itself() {
    let read = Access::FILE_READ | STD_ALL;
    let wishes =
        [Access::WRITE_DATA, Access::READ_DATA, Access::GENERIC_WRITE, Access::GENERIC_READ];
    let answers = |descriptor: &Descriptor| {
        wishes.map(|wish| check(descriptor, &alice(), wish, Access::empty()))
    };
    let denied = Err(NtStatus::ACCESS_DENIED);
    assert_eq!(answers(&of_alice([Ace::allow(Sid::CREATOR_OWNER, read)])), [denied; 4]);
    let own = answers(&of_alice([Ace::allow(ALICE, read)]));
    assert_eq!(own, [denied, Ok(Access::READ_DATA), denied, Ok(Access::FILE_READ)]);
}

/// smb2.acls OWNER-RIGHTS, OWNER-RIGHTS-DENY, OWNER-RIGHTS-DENY1, DENY1.
#[test]
fn rights_of_owners_replace_what_owners_may_anyway() {
    let max = |aces: Vec<Ace>| maximum(&of_alice(aces), &alice());
    let anyway = Access::READ_CONTROL | Access::WRITE_DAC;
    assert_eq!(max(vec![]), anyway);
    assert_eq!(max(vec![Ace::allow(Sid::OWNER_RIGHTS, Access::FILE_READ)]), Access::FILE_READ);
    let aces =
        vec![Ace::deny(Sid::OWNER_RIGHTS, Access::FILE_READ), Ace::allow(ALICE, Access::FILE_ALL)];
    assert_eq!(max(aces), Access::FILE_ALL.difference(Access::FILE_READ));
    let other_way = vec![
        Ace::allow(ALICE, Access::READ_DATA | Access::WRITE_DATA),
        Ace::deny(ALICE, Access::WRITE_DATA),
    ];
    assert_eq!(max(other_way), anyway | Access::READ_DATA | Access::WRITE_DATA);
    let inherit_only = Ace::allow(ALICE, Access::FILE_ALL).with(AceFlags::INHERIT_ONLY);
    assert_eq!(max(vec![inherit_only]), anyway);
    assert_eq!(maximum(&of_alice([]), &Token::unix(1001, &[])), Access::empty());
}

#[test]
fn no_list_lets_all_in_and_an_empty_one_nobody() {
    let open = Descriptor { dacl: None, ..of_alice([]) };
    let bob = Token::unix(1001, &[]);
    assert_eq!(check(&open, &bob, Access::FILE_ALL, Access::empty()), Ok(Access::FILE_ALL));
    assert_eq!(maximum(&open, &bob), Access::FILE_ALL);
    let closed = check(&of_alice([]), &bob, Access::READ_DATA, Access::empty());
    assert_eq!(closed, Err(NtStatus::ACCESS_DENIED));
}

#[test]
fn privileges_open_what_lists_close() {
    let wish = |privileges, wish| {
        let token = Token::new(BOB, &[], privileges);
        check(&of_alice([Ace::deny(BOB, Access::FILE_ALL)]), &token, wish, Access::empty())
    };
    let none = Privileges::empty();
    assert_eq!(wish(none, Access::SYSTEM_SECURITY), Err(NtStatus::PRIVILEGE_NOT_HELD));
    assert_eq!(wish(Privileges::SECURITY, Access::SYSTEM_SECURITY), Ok(Access::SYSTEM_SECURITY));
    assert_eq!(wish(none, Access::WRITE_OWNER), Err(NtStatus::ACCESS_DENIED));
    assert_eq!(wish(Privileges::TAKE_OWNERSHIP, Access::WRITE_OWNER), Ok(Access::WRITE_OWNER));
    assert_eq!(wish(Privileges::BACKUP, Access::GENERIC_READ), Ok(Access::FILE_READ));
    assert_eq!(wish(Privileges::BACKUP, Access::WRITE_DATA), Err(NtStatus::ACCESS_DENIED));
    assert_eq!(wish(Privileges::RESTORE, Access::GENERIC_WRITE), Ok(Access::FILE_WRITE));
}

/// smb2.acls INHERITANCE: flags of the parent's entry, of the child file's, of the child directory's two.
#[test]
fn entries_for_creators_are_inherited() {
    const OI: AceFlags = AceFlags::OBJECT_INHERIT;
    const CI: AceFlags = AceFlags::CONTAINER_INHERIT;
    const NP: AceFlags = AceFlags::NO_PROPAGATE;
    const IO: AceFlags = AceFlags::INHERIT_ONLY;
    let entry = |sid, flags| Ace::allow(sid, Access::WRITE_DATA).with(flags);
    for bits in 0..16 {
        let flags = AceFlags::from_bits_retain(bits);
        let other = Ace::allow(Sid::EVERYONE, Access::FILE_ALL);
        let parent = of_alice([entry(Sid::CREATOR_OWNER, flags), other]);
        let aces = |directory| {
            let child = inherited(&parent, BOB, STAFF, directory)?;
            assert_eq!((child.owner, child.group), (Some(BOB), Some(STAFF)));
            assert!(!child.control.contains(Control::DACL_AUTO_INHERITED));
            Some(child.dacl.unwrap().aces)
        };
        let none = AceFlags::empty();
        let file = flags.contains(OI).then(|| vec![entry(BOB, none)]);
        assert_eq!(aces(false), file, "file of {flags:?}");
        let directory = if flags.contains(CI | NP) {
            Some(vec![entry(BOB, none)])
        } else if flags.contains(CI) {
            let further = flags.intersection(OI | CI) | IO;
            Some(vec![entry(BOB, none), entry(Sid::CREATOR_OWNER, further)])
        } else if flags.contains(OI) && !flags.contains(NP) {
            Some(vec![entry(Sid::CREATOR_OWNER, OI | IO)])
        } else {
            None
        };
        assert_eq!(aces(true), directory, "directory of {flags:?}");
    }
}

/// smb2.acls INHERITFLAGS.
#[test]
fn inherited_entries_are_marked_if_the_parent_says_so() {
    let both = Control::DACL_AUTO_INHERITED | Control::DACL_AUTO_INHERIT_REQ;
    let flags = AceFlags::OBJECT_INHERIT | AceFlags::CONTAINER_INHERIT;
    for set in
        [Control::empty(), Control::DACL_AUTO_INHERITED, Control::DACL_AUTO_INHERIT_REQ, both]
    {
        for protected in [Control::empty(), Control::DACL_PROTECTED] {
            for own in [AceFlags::empty(), AceFlags::INHERITED] {
                let mut new = of_alice([Ace::allow(ALICE, Access::WRITE_DATA).with(flags | own)]);
                new.control |= set | protected;
                let parent = of_alice([]).changed(&new, SecurityInfo::DACL).unwrap();
                let automatic = set == both;
                let mut expected = new.clone();
                expected.control.remove(both);
                expected.control.set(Control::DACL_AUTO_INHERITED, automatic);
                assert_eq!(parent, expected);
                let child = inherited(&parent, ALICE, STAFF, false).unwrap();
                let mark = child.dacl.unwrap().aces[0].flags;
                assert_eq!(mark == AceFlags::INHERITED, automatic);
                assert_eq!(child.control.contains(Control::DACL_AUTO_INHERITED), automatic);
                assert!(!child.control.contains(Control::DACL_PROTECTED));
            }
        }
    }
}

#[test]
fn an_owner_who_is_nobody_cannot_be_set() {
    let new = Descriptor { owner: None, ..of_alice([]) };
    let set = of_alice([]).changed(&new, SecurityInfo::OWNER);
    assert_eq!(set, Err(NtStatus::INVALID_OWNER));
    assert_eq!(of_alice([]).changed(&new, SecurityInfo::DACL), Ok(of_alice([])));
    let long = of_alice(vec![Ace::allow(ALICE, Access::FILE_ALL); 4000]);
    assert_eq!(of_alice([]).changed(&long, SecurityInfo::DACL), Err(NtStatus::INVALID_ACL));
}

#[test]
fn a_mode_lets_do_what_it_says() {
    let file = Attributes::ARCHIVE;
    let descriptor = |mode| from_posix(1000, 100, mode, file);
    let max = |mode, token: &Token| maximum(&descriptor(mode), token);
    let (bob, group) = (Token::unix(1001, &[101]), Token::unix(1002, &[100]));
    assert_eq!(max(0o600, &alice()), Access::FILE_ALL);
    assert_eq!(descriptor(0o644).dacl.unwrap().aces.len(), 3);
    for (mode, token, read, write) in [
        (0o644, &bob, true, false),
        (0o640, &bob, false, false),
        (0o660, &group, true, true),
        (0o606, &group, false, false),
        (0o606, &bob, true, true),
        (0o066, &alice(), false, false),
        (0o400, &alice(), true, false),
    ] {
        let access = max(mode, token);
        let may = (access.contains(Access::READ_DATA), access.contains(Access::WRITE_DATA));
        assert_eq!(may, (read, write), "{mode:o}");
        assert!(access.contains(Access::READ_ATTRIBUTES | Access::READ_CONTROL));
    }
    assert!(max(0o000, &alice()).contains(Access::WRITE_DAC | Access::DELETE));
    assert!(!max(0o666, &bob).intersects(Access::WRITE_DAC | Access::DELETE));
    let directory = maximum(&from_posix(1000, 100, 0o755, Attributes::DIRECTORY), &bob);
    assert!(directory.contains(Access::EXECUTE | Access::READ_DATA));
    assert!(!directory.intersects(Access::DELETE_CHILD | Access::WRITE_DATA));
}

#[test]
fn each_mode_comes_back_from_its_descriptor() {
    for mode in 0..0o1000 {
        let directory = from_posix(1, 2, mode, Attributes::DIRECTORY);
        let back = to_posix(&directory, 0o041_000, Attributes::DIRECTORY);
        assert_eq!(back, 0o041_000 | mode, "directory {mode:o}");
        assert!(is_posix(&directory, 1, 2, mode, Attributes::DIRECTORY));
        let file = from_posix(1, 2, mode, Attributes::NORMAL);
        // What may not be read may not be executed either: it is not seen in the descriptor.
        let readable = mode & 0o444;
        let expected = mode & 0o666 | mode & readable >> 2;
        assert_eq!(to_posix(&file, mode, Attributes::NORMAL), expected, "file {mode:o}");
    }
    let changed = of_alice([Ace::allow(ALICE, Access::FILE_ALL)]);
    assert!(!is_posix(&changed, 1000, 100, 0o600, Attributes::NORMAL));
}

fn sids() -> impl Strategy<Value = Sid> {
    let any = (0u64..1 << 48, prop::collection::vec(any::<u32>(), 0..=15));
    prop_oneof![
        Just(Sid::EVERYONE),
        Just(Sid::CREATOR_OWNER),
        Just(Sid::OWNER_RIGHTS),
        Just(ALICE),
        any.prop_map(|(authority, subs)| Sid::new(authority, &subs).unwrap()),
    ]
}

fn aces() -> impl Strategy<Value = Ace> {
    let kinds = [AceKind::Allow, AceKind::Deny, AceKind::Audit, AceKind::Label];
    (prop::sample::select(kinds.to_vec()), any::<u8>(), any::<u32>(), sids()).prop_map(
        |(kind, flags, access, sid)| Ace {
            kind,
            flags: AceFlags::from_bits_retain(flags),
            access: Access::from_bits_retain(access),
            sid,
        },
    )
}

fn descriptors() -> impl Strategy<Value = Descriptor> {
    let acl = || prop::option::of(prop::collection::vec(aces(), 0..8).prop_map(Acl::new));
    let sid = || prop::option::of(sids());
    (any::<u16>(), sid(), sid(), acl(), acl()).prop_map(|(control, owner, group, dacl, sacl)| {
        let mut control = Control::from_bits_retain(control) | Control::SELF_RELATIVE;
        control.set(Control::SACL_PRESENT, sacl.is_some());
        if dacl.is_some() {
            control |= Control::DACL_PRESENT;
        }
        Descriptor { control, owner, group, dacl, sacl }
    })
}

proptest! {
    #[test]
    fn descriptors_come_back(descriptor in descriptors()) {
        let bytes = descriptor.to_bytes();
        prop_assert_eq!(Descriptor::parse(&bytes), Ok(descriptor));
        // Cut anywhere it is refused, or read without a part; never more than it was.
        for len in 0..bytes.len() {
            prop_assert!(Descriptor::parse(&bytes[..len]) != Descriptor::parse(&bytes));
        }
    }

    #[test]
    fn what_was_read_is_written_and_read_again(
        head in any::<[u8; 2]>(),
        offsets in any::<[u8; 4]>(),
        bytes in prop::collection::vec(0u8..6, 0..200),
    ) {
        let mut all = vec![1, 0, head[0], head[1]];
        offsets.iter().for_each(|at| all.extend([*at, 0, 0, 0]));
        all.extend(bytes);
        if let Ok(descriptor) = Descriptor::parse(&all) {
            prop_assert_eq!(Descriptor::parse(&descriptor.to_bytes()), Ok(descriptor));
        }
    }

    #[test]
    fn the_maximum_is_what_is_granted(descriptor in descriptors(), wish in any::<u32>()) {
        let granted = check(&descriptor, &alice(), Access::MAXIMUM_ALLOWED, Access::empty());
        prop_assert_eq!(granted, Ok(maximum(&descriptor, &alice())));
        let wish = Access::from_bits_retain(wish).difference(Access::MAXIMUM_ALLOWED);
        if let Ok(granted) = check(&descriptor, &alice(), wish, Access::empty()) {
            prop_assert_eq!(granted, wish.expanded());
        }
    }
}
