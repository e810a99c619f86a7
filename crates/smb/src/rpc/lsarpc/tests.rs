use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::fscc::{Put, Reader};
use crate::name::utf16;

/// One user, one group.
#[derive(Debug)]
struct Few;

impl Accounts for Few {
    fn user_name(&self, uid: u32) -> Option<String> {
        (uid == 1000).then(|| "ann".to_owned())
    }

    fn group_name(&self, gid: u32) -> Option<String> {
        (gid == 50).then(|| "staff".to_owned())
    }

    fn uid(&self, name: &str) -> Option<u32> {
        (name == "ann").then_some(1000)
    }

    fn gid(&self, name: &str) -> Option<u32> {
        matches!(name, "staff" | "ann").then_some(50)
    }
}

fn host() -> Host {
    Host {
        name: "SRV".to_owned(),
        domain: "GROUP".to_owned(),
        accounts: Some(Arc::new(Few)),
        ..Host::default()
    }
}

fn sid(text: &str) -> Sid {
    let mut parts = text.split('-').skip(2).map(|part| part.parse::<u64>().unwrap());
    let authority = parts.next().unwrap();
    Sid::new(authority, &parts.map(|part| u32::try_from(part).unwrap()).collect::<Vec<_>>())
        .unwrap()
}

/// Arguments of LsarLookupSids, up to its end.
fn asking_sids(asked: &[Sid]) -> Vec<u8> {
    let mut out = HANDLE.to_vec();
    let count = len32(asked.len());
    [count, 1, count].into_iter().for_each(|n| out.u32(n));
    asked.iter().for_each(|_| out.u32(1));
    for sid in asked {
        out.u32(len32(sid.subs().len()));
        sid.put(&mut out);
    }
    // No names yet; the level LsapLookupWksta; none mapped yet.
    [0, 0, 1, 0].into_iter().for_each(|n| out.u32(n));
    out
}

/// Arguments of LsarLookupNames.
fn asking_names(asked: &[&str]) -> Vec<u8> {
    let mut out = HANDLE.to_vec();
    let count = len32(asked.len());
    [count, count].into_iter().for_each(|n| out.u32(n));
    for name in asked {
        let len = u16::try_from(utf16::len(name)).unwrap();
        out.u16(len);
        out.u16(len);
        out.u32(1);
    }
    for name in asked {
        let units = len32(utf16::len(name) / 2);
        [units, 0, units].into_iter().for_each(|n| out.u32(n));
        utf16::append(name, &mut out);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    [0, 0, 1, 0].into_iter().for_each(|n| out.u32(n));
    out
}

/// Results, read as a client reads them.
struct Answer<'a> {
    all: &'a [u8],
    fields: Reader<'a>,
}

impl<'a> Answer<'a> {
    fn new(all: &'a [u8]) -> Self {
        Self { all, fields: Reader::new(all) }
    }

    fn u16(&mut self) -> u16 {
        self.fields.u16().unwrap()
    }

    fn u32(&mut self) -> u32 {
        let off = (self.all.len() - self.fields.rest().len()) % 4;
        if off != 0 {
            self.fields.bytes(4 - off).unwrap();
        }
        self.fields.u32().unwrap()
    }

    fn text(&mut self) -> String {
        let (max, zero, len) = (self.u32(), self.u32(), self.u32());
        assert_eq!((zero, max), (0, len));
        utf16::decode(self.fields.bytes(2 * len as usize).unwrap()).unwrap()
    }

    fn sid(&mut self) -> Sid {
        let count = self.u32();
        let (sid, len) = Sid::parse(self.fields.rest()).unwrap();
        assert_eq!(count, len32(sid.subs().len()));
        self.fields.bytes(len).unwrap();
        sid
    }

    /// LSAPR_REFERENCED_DOMAIN_LIST.
    fn domains(&mut self) -> Vec<(String, Sid)> {
        assert_ne!(self.u32(), 0);
        let (count, pointer) = (self.u32(), self.u32());
        assert_eq!(pointer == 0, count == 0);
        assert_eq!(self.u32(), count);
        if count == 0 {
            return Vec::new();
        }
        assert_eq!(self.u32(), count);
        for _ in 0..count {
            let fields = (self.u32(), self.u32(), self.u32());
            assert!(fields.1 != 0 && fields.2 != 0);
        }
        (0..count).map(|_| (self.text(), self.sid())).collect()
    }

    /// The end: how many are known, and the status.
    fn end(mut self) -> (u32, NtStatus) {
        let end = (self.u32(), NtStatus(self.u32()));
        assert!(self.fields.rest().is_empty());
        end
    }
}

/// What LsarLookupSids says: use, name and domain of each, and the status.
fn named(asked: &[Sid], number: u16) -> (Vec<(u16, String, Option<String>)>, NtStatus) {
    let results = call(number, &asking_sids(asked), &host()).unwrap();
    let mut answer = Answer::new(&results);
    let domains = answer.domains();
    let count = answer.u32();
    assert_ne!(answer.u32(), 0);
    assert_eq!((count, answer.u32()), (len32(asked.len()), count));
    let mut fixed = Vec::new();
    for _ in 0..count {
        let kind = answer.u16();
        let (_lens, pointer, domain) = (answer.u32(), answer.u32(), answer.u32());
        assert_ne!(pointer, 0);
        if number == 57 {
            assert_eq!(answer.u32(), 0);
        }
        fixed.push((kind, domain));
    }
    let found = fixed.into_iter().map(|(kind, domain)| {
        let domain = (domain != NO_DOMAIN).then(|| domains[domain as usize].0.clone());
        (kind, answer.text(), domain)
    });
    let found: Vec<_> = found.collect();
    let known = found.iter().filter(|(.., domain)| domain.is_some()).count();
    let (mapped, status) = answer.end();
    assert_eq!(mapped, len32(known));
    (found, status)
}

fn of(kind: u16, name: &str, domain: &str) -> (u16, String, Option<String>) {
    (kind, name.to_owned(), Some(domain.to_owned()))
}

#[test]
fn sids_have_the_names_that_samba_gives_them() {
    let asked = ["S-1-22-1-1000", "S-1-22-1-1001", "S-1-22-2-50", "S-1-1-0", "S-1-5-11"].map(sid);
    for number in [15, 57] {
        let (found, status) = named(&asked, number);
        let expected = [
            of(1, "ann", "Unix User"),
            of(1, "1001", "Unix User"),
            of(2, "staff", "Unix Group"),
            of(5, "Everyone", ""),
            of(5, "Authenticated Users", "NT AUTHORITY"),
        ];
        assert_eq!((&found[..], status), (&expected[..], NtStatus::SUCCESS));
    }
    let (found, _) = named(&["S-1-5-32-544", "S-1-5-32", "S-1-22-1"].map(sid), 15);
    assert_eq!(
        found,
        [of(4, "Administrators", "BUILTIN"), of(3, "", "BUILTIN"), of(3, "", "Unix User")]
    );
}

#[test]
fn strangers_keep_their_sids() {
    let strangers = ["S-1-5-21-1-2-3-500", "S-1-22-3-1"].map(sid);
    let unknown = |text: &str| (8, text.to_owned(), None);
    let (found, status) = named(&strangers, 15);
    assert_eq!(status, NtStatus::NONE_MAPPED);
    assert_eq!(found, [unknown("S-1-5-21-1-2-3-500"), unknown("S-1-22-3-1")]);
    let (found, status) = named(&[strangers[0], Sid::EVERYONE], 15);
    assert_eq!(status, NtStatus::SOME_NOT_MAPPED);
    assert_eq!(found[1], of(5, "Everyone", ""));
}

#[test]
fn a_domain_is_told_once() {
    let asked = [1, 2, 3].map(Sid::unix_user);
    let results = call(15, &asking_sids(&asked), &host()).unwrap();
    let domains = Answer::new(&results).domains();
    assert_eq!(domains, [("Unix User".to_owned(), Sid::UNIX_USERS)]);
}

/// What LsarLookupNames3 says.
fn sids_of(asked: &[&str]) -> (Vec<Option<Sid>>, NtStatus) {
    let results = call(68, &asking_names(asked), &host()).unwrap();
    let mut answer = Answer::new(&results);
    answer.domains();
    let count = answer.u32();
    assert_ne!(answer.u32(), 0);
    assert_eq!(answer.u32(), count);
    let fixed: Vec<_> = (0..count)
        .map(|_| {
            let kind = answer.u16();
            let pointer = answer.u32();
            let (_domain, flags) = (answer.u32(), answer.u32());
            assert_eq!(flags, 0);
            assert_eq!(kind == 8, pointer == 0);
            pointer != 0
        })
        .collect();
    let found = fixed.into_iter().map(|is_known| is_known.then(|| answer.sid())).collect();
    (found, answer.end().1)
}

#[test]
fn names_are_found_with_and_without_a_domain() {
    let ann = Some(Sid::unix_user(1000));
    let staff = Some(Sid::unix_group(50));
    let asked = ["ann", "ANN", "SRV\\ann", "unix user\\Ann", "staff", "Unix Group\\staff"];
    assert_eq!(sids_of(&asked), (vec![ann, ann, ann, ann, staff, staff], NtStatus::SUCCESS));
    // A user before the group of that name, which has to be named as one.
    assert_eq!(sids_of(&["Unix Group\\ann"]).0, [staff]);
    let asked = ["everyone", "BUILTIN\\Users", "nt authority\\system", "Unix User", "BUILTIN\\"];
    let (found, status) = sids_of(&asked);
    assert_eq!(status, NtStatus::SOME_NOT_MAPPED);
    let known = [Sid::EVERYONE, Sid::USERS, Sid::SYSTEM, Sid::UNIX_USERS].map(Some);
    assert_eq!(found, [&known[..], &[None]].concat());
    let asked = ["bob", "ELSEWHERE\\ann", "Unix User\\staff", "BUILTIN\\Everyone", "", "\\"];
    assert_eq!(sids_of(&asked), (vec![None; 6], NtStatus::NONE_MAPPED));
}

#[test]
fn older_calls_for_names_tell_the_last_part_of_the_sid() {
    for (number, more) in [(14, 0), (58, 1)] {
        let results = call(number, &asking_names(&["staff", "nobody"]), &host()).unwrap();
        let mut answer = Answer::new(&results);
        assert_eq!(answer.domains(), [("Unix Group".to_owned(), Sid::UNIX_GROUPS)]);
        assert_eq!(answer.u32(), 2);
        assert_ne!(answer.u32(), 0);
        assert_eq!(answer.u32(), 2);
        for expected in [(2, 50, 0), (8, 0, NO_DOMAIN)] {
            assert_eq!((answer.u16(), answer.u32(), answer.u32()), expected);
            (0..more).for_each(|_| assert_eq!(answer.u32(), 0));
        }
        assert_eq!(answer.end(), (1, NtStatus::SOME_NOT_MAPPED));
    }
}

#[test]
fn the_policy_tells_the_workgroup_and_the_host() {
    for (level, name, sid) in [(3, "GROUP", None), (5, "SRV", Some(Sid::UNIX_USERS))] {
        let arguments = [&HANDLE[..], &[level, 0]].concat();
        for number in [7, 46] {
            let results = call(number, &arguments, &host()).unwrap();
            let mut answer = Answer::new(&results);
            assert_ne!(answer.u32(), 0);
            assert_eq!(answer.u16(), u16::from(level));
            let (_lens, pointer, to_sid) = (answer.u32(), answer.u32(), answer.u32());
            assert!(pointer != 0 && (to_sid != 0) == sid.is_some());
            assert_eq!(answer.text(), name);
            assert_eq!(sid.map(|_| answer.sid()), sid);
            assert_eq!(answer.u32(), 0);
        }
    }
    let results = call(46, &[&HANDLE[..], &[12, 0]].concat(), &host()).unwrap();
    let mut answer = Answer::new(&results);
    assert_eq!((answer.u32() != 0, answer.u16()), (true, 12));
    (0..3 * 2 + 4 + 1).for_each(|_| _ = answer.u32());
    assert_eq!(
        (answer.text(), answer.text(), answer.text()),
        ("GROUP".to_owned(), String::new(), String::new())
    );
    assert_eq!(answer.u32(), 0);
    let results = call(46, &[&HANDLE[..], &[1, 0]].concat(), &host()).unwrap();
    assert_eq!(results, [&[0; 4], &NtStatus::INVALID_PARAMETER.0.to_le_bytes()[..]].concat());
}

#[test]
fn who_asks_is_told_who_it_is() {
    for (caller, name, domain) in [("ann", "ann", "SRV"), ("", "ANONYMOUS LOGON", "NT AUTHORITY")] {
        let host = Host { caller: caller.to_owned(), ..host() };
        for wants_domain in [0, 1] {
            let mut arguments = Vec::new();
            [0, 0, wants_domain, 0].into_iter().for_each(|n| arguments.u32(n));
            let results = call(45, &arguments, &host).unwrap();
            let mut answer = Answer::new(&results);
            assert_ne!(answer.u32(), 0);
            let (_lens, pointer) = (answer.u32(), answer.u32());
            assert_ne!(pointer, 0);
            assert_eq!(answer.text(), name);
            if wants_domain == 0 {
                assert_eq!(answer.u32(), 0);
            } else {
                assert!(answer.u32() != 0 && answer.u32() != 0);
                let (_lens, pointer) = (answer.u32(), answer.u32());
                assert_ne!(pointer, 0);
                assert_eq!(answer.text(), domain);
            }
            assert_eq!((answer.u32(), answer.fields.rest().len()), (0, 0));
        }
    }
    assert_eq!(call(45, &[0; 8], &host()), Err(Fault::BadArguments));
}

#[test]
fn who_is_not_to_hear_names_gets_no_handle_and_answers_to_none() {
    let mut nobody = host();
    nobody.accounts = None;
    let refused = call(44, &[0; 64], &nobody).unwrap();
    assert_eq!(refused, [&[0; 20], &NtStatus::ACCESS_DENIED.0.to_le_bytes()[..]].concat());
    assert_eq!(call(15, &asking_sids(&[Sid::EVERYONE]), &nobody), Err(Fault::NoSuchHandle));
    let opened = call(44, &[0; 64], &host()).unwrap();
    assert_eq!(opened, [&HANDLE[..], &[0; 4]].concat());
    let closed = call(0, &opened[..20], &host()).unwrap();
    assert_eq!(closed, [0; 24]);
    assert_eq!(call(15, &closed, &host()), Err(Fault::NoSuchHandle));
    assert_eq!(call(2, &HANDLE, &host()), Err(Fault::NoSuchCall));
    assert_eq!(call(2, &closed, &host()), Err(Fault::NoSuchCall));
}

#[test]
fn arguments_that_do_not_hold_together_are_refused() {
    let good = asking_sids(&[Sid::EVERYONE, Sid::SYSTEM]);
    for len in 20..good.len() - 16 {
        assert_eq!(call(15, &good[..len], &host()), Err(Fault::BadArguments), "{len} bytes");
    }
    let good = asking_names(&["ann", "staff"]);
    for len in 20..good.len() - 16 - 2 {
        assert_eq!(call(14, &good[..len], &host()), Err(Fault::BadArguments), "{len} bytes");
    }
    let mut many = HANDLE.to_vec();
    [u32::MAX, 1, u32::MAX].into_iter().for_each(|n| many.u32(n));
    assert_eq!(call(15, &many, &host()), Err(Fault::BadArguments));
    // None at all is no mistake.
    let mut none = HANDLE.to_vec();
    [0; 6].into_iter().for_each(|n| none.u32(n));
    let results = call(15, &none, &host()).unwrap();
    assert_eq!(results.last_chunk(), Some(&[0; 4]));
}

/// Nobody is known, and it is counted how often that is said.
#[derive(Debug, Default)]
struct Nobody(AtomicUsize);

impl Accounts for Nobody {
    fn user_name(&self, _: u32) -> Option<String> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Some("x".repeat(32))
    }

    fn group_name(&self, _: u32) -> Option<String> {
        self.user_name(0)
    }

    fn uid(&self, _: &str) -> Option<u32> {
        self.user_name(0)?;
        None
    }

    fn gid(&self, _: &str) -> Option<u32> {
        self.uid("")
    }
}

/// A call is at most 64 KiB long. What it may cost, in bytes and in questions to name services, is not much more.
#[test]
fn the_longest_calls_are_answered_at_bearable_cost() {
    let cost = |number, arguments: &[u8]| {
        let nobody = Arc::new(Nobody::default());
        let host = Host { accounts: Some(nobody.clone()), ..host() };
        let answer = call(number, arguments, &host).map(|results| results.len());
        (answer, nobody.0.load(Ordering::Relaxed))
    };
    let asking = |sid: Sid| asking_sids(&vec![sid; ((64 << 10) - 48) / (8 + sid.len())]);
    for sid in [Sid::unix_user(1), Sid::new(u64::MAX >> 16, &[u32::MAX; 15]).unwrap(), sid("S-1-9")]
    {
        let (answer, asked) = cost(57, &asking(sid));
        assert!(answer.unwrap() <= 400 << 10, "{answer:?} bytes");
        assert!(asked <= 3000, "{asked} questions");
    }
    let names = |name: &str, count: usize| asking_names(&vec![name; count]);
    let (answer, asked) = cost(68, &names("a", 1000));
    assert!(answer.unwrap() <= 20 << 10, "{answer:?} bytes");
    assert_eq!(asked, 2000);
    assert_eq!(cost(68, &names("A", 1000)).1, 4000);
    assert_eq!(cost(68, &names("A", 1001)), (Err(Fault::BadArguments), 0));
}
