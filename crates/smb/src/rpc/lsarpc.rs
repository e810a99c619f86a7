//! The local security authority, as far as it says who a SID is and what SID somebody has (MS-LSAT 3.1.4,
//! MS-LSAD 3.1.4): what clients ask when they show or change who may do what with a file.
//!
//! Users and groups of the host have the SIDs and the domains that Samba gives them, `Unix User` and
//! `Unix Group`. A handle stands for nothing: there is one policy, and it cannot be changed.

use super::ndr::{Arguments, Fault, Results};
use super::{Accounts, Host};
use crate::NtStatus;
use crate::fscc::len32;
use crate::security::Sid;

/// The one handle that there is (MS-LSAD 2.2.2.1); that of what is closed is all zeros.
const HANDLE: [u8; 20] = *b"\0\0\0\0Shunt's policy\x01\0";
/// SIDs that may be asked for in one call (MS-LSAT 2.2.18).
const SIDS_MAX: u32 = 0x5000;
/// Names that may be (MS-LSAT 3.1.4.8).
const NAMES_MAX: u32 = 1000;
/// No domain (MS-LSAT 2.2.13).
const NO_DOMAIN: u32 = u32::MAX;

/// What somebody is: SID_NAME_USE (MS-LSAT 2.2.13), as far as it occurs here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    User = 1,
    Group = 2,
    Domain = 3,
    Alias = 4,
    WellKnownGroup = 5,
    Unknown = 8,
}

/// Somebody with a name and a SID.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Principal {
    domain: String,
    domain_sid: Sid,
    /// Empty of a domain itself.
    name: String,
    sid: Sid,
    kind: Use,
}

const UNIX_USER: (&str, Sid) = ("Unix User", Sid::UNIX_USERS);
const UNIX_GROUP: (&str, Sid) = ("Unix Group", Sid::UNIX_GROUPS);
const NT_AUTHORITY: &str = "NT AUTHORITY";
const BUILTIN: &str = "BUILTIN";

/// Those who have the same SID everywhere (MS-DTYP 2.4.2.4), as far as descriptors name them.
const WELL_KNOWN: [(Sid, &str, &str); 17] = [
    (Sid::EVERYONE, "", "Everyone"),
    (Sid::CREATOR_OWNER, "", "CREATOR OWNER"),
    (Sid::CREATOR_GROUP, "", "CREATOR GROUP"),
    (Sid::OWNER_RIGHTS, "", "OWNER RIGHTS"),
    (Sid::DIALUP, NT_AUTHORITY, "DIALUP"),
    (Sid::NETWORK, NT_AUTHORITY, "NETWORK"),
    (Sid::BATCH, NT_AUTHORITY, "BATCH"),
    (Sid::INTERACTIVE, NT_AUTHORITY, "INTERACTIVE"),
    (Sid::SERVICE, NT_AUTHORITY, "SERVICE"),
    (Sid::ANONYMOUS, NT_AUTHORITY, "ANONYMOUS LOGON"),
    (Sid::SELF, NT_AUTHORITY, "SELF"),
    (Sid::AUTHENTICATED_USERS, NT_AUTHORITY, "Authenticated Users"),
    (Sid::SYSTEM, NT_AUTHORITY, "SYSTEM"),
    (Sid::ADMINISTRATORS, BUILTIN, "Administrators"),
    (Sid::USERS, BUILTIN, "Users"),
    (Sid::GUESTS, BUILTIN, "Guests"),
    (Sid::BUILTIN, BUILTIN, ""),
];

/// Answers a call.
pub(super) fn call(number: u16, arguments: &[u8], host: &Host) -> Result<Vec<u8>, Fault> {
    let mut arguments = Arguments::new(arguments);
    if matches!(number, 6 | 44) {
        // LsarOpenPolicy and LsarOpenPolicy2: of which system, and with what rights, makes no difference.
        return Ok(open(host));
    }
    if number == 45 {
        return caller(&mut arguments, host).ok_or(Fault::BadArguments);
    }
    if arguments.array() != Some(HANDLE) {
        let known = matches!(number, 0 | 7 | 14 | 15 | 46 | 57 | 58 | 68);
        return Err(if known { Fault::NoSuchHandle } else { Fault::NoSuchCall });
    }
    // Who has got the handle may ask.
    let Some(accounts) = host.accounts.as_deref() else { return Err(Fault::NoSuchHandle) };
    let answer = match number {
        0 => Some(close()),
        // LsarQueryInformationPolicy and LsarQueryInformationPolicy2.
        7 | 46 => policy(&mut arguments, host),
        14 => names(&mut arguments, host, accounts, &put_rid),
        58 => names(&mut arguments, host, accounts, &put_rid_and_flags),
        68 => names(&mut arguments, host, accounts, &put_sid),
        15 => sids(&mut arguments, accounts, false),
        57 => sids(&mut arguments, accounts, true),
        _ => return Err(Fault::NoSuchCall),
    };
    answer.ok_or(Fault::BadArguments)
}

/// LsarGetUserName (MS-LSAT 3.1.4.4): who asks, and, if that is wanted, of which domain that is.
fn caller(arguments: &mut Arguments<'_>, host: &Host) -> Option<Vec<u8>> {
    let _system = arguments.optional_string()?;
    // Nobody sends a name along.
    let (_name, wants_domain) = (arguments.u32().filter(|&name| name == 0)?, arguments.u32()? != 0);
    let (name, domain) = match host.caller.as_str() {
        "" => ("ANONYMOUS LOGON", NT_AUTHORITY),
        name => (name, host.name.as_str()),
    };
    let mut results = Results::default();
    results.pointer();
    results.counted(name);
    results.referents();
    if wants_domain {
        results.pointer();
        results.pointer();
        results.counted(domain);
        results.referents();
    } else {
        results.null();
    }
    Some(results.finish(NtStatus::SUCCESS.0))
}

fn open(host: &Host) -> Vec<u8> {
    let mut results = Results::default();
    let (handle, status) = match host.accounts {
        Some(_) => (HANDLE, NtStatus::SUCCESS),
        None => ([0; 20], NtStatus::ACCESS_DENIED),
    };
    results.bytes(&handle);
    results.finish(status.0)
}

fn close() -> Vec<u8> {
    let mut results = Results::default();
    results.bytes(&[0; 20]);
    results.finish(NtStatus::SUCCESS.0)
}

/// PolicyPrimaryDomainInformation, PolicyAccountDomainInformation and PolicyDnsDomainInformation
/// (MS-LSAD 2.2.4): which domain this is of, and whose users there are here.
fn policy(arguments: &mut Arguments<'_>, host: &Host) -> Option<Vec<u8>> {
    let level = arguments.u16()?;
    let mut results = Results::default();
    if !matches!(level, 3 | 5 | 12) {
        results.null();
        return Some(results.finish(NtStatus::INVALID_PARAMETER.0));
    }
    results.pointer();
    results.u16(level);
    match level {
        // No domain but a workgroup: it has no SID.
        3 => {
            results.counted(&host.domain);
            results.null();
        }
        5 => {
            results.counted(&host.name);
            results.sid(Sid::UNIX_USERS);
        }
        _ => {
            [host.domain.as_str(), "", ""].iter().for_each(|name| results.counted(name));
            results.bytes(&[0; 16]);
            results.null();
        }
    }
    results.referents();
    Some(results.finish(NtStatus::SUCCESS.0))
}

/// LsarLookupSids, and with `flags` LsarLookupSids2 (MS-LSAT 3.1.4.11, 3.1.4.10).
fn sids(arguments: &mut Arguments<'_>, accounts: &dyn Accounts, flags: bool) -> Option<Vec<u8>> {
    let count = arguments.u32()?;
    if count > SIDS_MAX {
        return None;
    }
    let mut asked = Vec::new();
    if arguments.u32()? != 0 {
        if arguments.u32()? != count {
            return None;
        }
        for _ in 0..count {
            // A null SID is nobody's.
            arguments.u32().filter(|&pointer| pointer != 0)?;
        }
        for _ in 0..count {
            asked.push(arguments.sid()?);
        }
    } else if count != 0 {
        return None;
    }
    let found: Vec<_> = asked.iter().map(|sid| of_sid(sid, accounts)).collect();
    let mut results = Results::default();
    let places = put_domains(&found, &mut results);
    results.u32(len32(asked.len()));
    put_array(asked.len(), &mut results);
    for ((sid, principal), place) in asked.iter().zip(&found).zip(places) {
        results.u16(principal.as_ref().map_or(Use::Unknown, |found| found.kind) as u16);
        match principal {
            Some(principal) => results.counted(&principal.name),
            None => results.counted(&sid.to_string()),
        }
        results.u32(place);
        if flags {
            results.u32(0);
        }
    }
    results.referents();
    Some(finish(results, &found))
}

/// How one of the answers to LsarLookupNames and its successors is written: who, and the number of the domain.
type PutSid = dyn Fn(Option<&Principal>, u32, &mut Results);

/// LSA_TRANSLATED_SID (MS-LSAT 2.2.14).
fn put_rid(found: Option<&Principal>, place: u32, results: &mut Results) {
    results.u16(found.map_or(Use::Unknown, |found| found.kind) as u16);
    let rid = found.filter(|found| found.kind != Use::Domain).and_then(|it| it.sid.subs().last());
    results.u32(rid.copied().unwrap_or(0));
    results.u32(place);
}

/// LSAPR_TRANSLATED_SID_EX (MS-LSAT 2.2.25).
fn put_rid_and_flags(found: Option<&Principal>, place: u32, results: &mut Results) {
    put_rid(found, place, results);
    results.u32(0);
}

/// LSAPR_TRANSLATED_SID_EX2 (MS-LSAT 2.2.27).
fn put_sid(found: Option<&Principal>, place: u32, results: &mut Results) {
    results.u16(found.map_or(Use::Unknown, |found| found.kind) as u16);
    match found {
        Some(found) => results.sid(found.sid),
        None => results.null(),
    }
    results.u32(place);
    results.u32(0);
}

/// LsarLookupNames, LsarLookupNames2 and LsarLookupNames3 (MS-LSAT 3.1.4.8, 3.1.4.7, 3.1.4.6).
fn names(
    arguments: &mut Arguments<'_>,
    host: &Host,
    accounts: &dyn Accounts,
    put: &PutSid,
) -> Option<Vec<u8>> {
    let count = arguments.u32()?;
    if count > NAMES_MAX || arguments.u32()? != count {
        return None;
    }
    let mut is_there = Vec::new();
    for _ in 0..count {
        let (_len, _max) = (arguments.u16()?, arguments.u16()?);
        is_there.push(arguments.u32()? != 0);
    }
    let mut found = Vec::new();
    for is_there in is_there {
        let name = if is_there { arguments.string()? } else { String::new() };
        found.push(of_name(&name, host, accounts));
    }
    let mut results = Results::default();
    let places = put_domains(&found, &mut results);
    results.u32(len32(found.len()));
    put_array(found.len(), &mut results);
    for (principal, place) in found.iter().zip(places) {
        put(principal.as_ref(), place, &mut results);
    }
    results.referents();
    Some(finish(results, &found))
}

/// A pointer to an array of so many, and how many there are, or one that leads nowhere.
fn put_array(len: usize, results: &mut Results) {
    if len == 0 {
        return results.null();
    }
    results.pointer();
    results.u32(len32(len));
}

/// LSAPR_REFERENCED_DOMAIN_LIST (MS-LSAT 2.2.12): each domain once. Answers which of them each of those found is in.
fn put_domains(found: &[Option<Principal>], results: &mut Results) -> Vec<u32> {
    let mut domains: Vec<(&str, Sid)> = Vec::new();
    let mut places = Vec::with_capacity(found.len());
    for found in found {
        let Some(found) = found else {
            places.push(NO_DOMAIN);
            continue;
        };
        let domain = (found.domain.as_str(), found.domain_sid);
        let place = domains.iter().position(|&known| known == domain).unwrap_or_else(|| {
            domains.push(domain);
            domains.len() - 1
        });
        places.push(len32(place));
    }
    let count = domains.len();
    results.pointer();
    results.u32(len32(count));
    if count == 0 {
        results.null();
    } else {
        results.pointer();
    }
    results.u32(len32(count));
    if count != 0 {
        results.u32(len32(count));
        for (name, sid) in domains {
            results.counted(name);
            results.sid(sid);
        }
        results.referents();
    }
    places
}

/// How many were found, and whether all were.
fn finish(mut results: Results, found: &[Option<Principal>]) -> Vec<u8> {
    let known = found.iter().flatten().count();
    results.u32(len32(known));
    let status = match known {
        known if known == found.len() => NtStatus::SUCCESS,
        0 => NtStatus::NONE_MAPPED,
        _ => NtStatus::SOME_NOT_MAPPED,
    };
    results.finish(status.0)
}

fn principal((domain, domain_sid): (&str, Sid), name: &str, sid: Sid, kind: Use) -> Principal {
    Principal { domain: domain.to_owned(), domain_sid, name: name.to_owned(), sid, kind }
}

/// One of the well-known.
fn well_known(&(sid, domain, name): &(Sid, &str, &str)) -> Principal {
    let (domain_sid, kind) = match (domain, name) {
        (BUILTIN, "") => (sid, Use::Domain),
        (BUILTIN, _) => (sid.parent(), Use::Alias),
        _ => (sid.parent(), Use::WellKnownGroup),
    };
    principal((domain, domain_sid), name, sid, kind)
}

/// Whose SID this is. A user or a group of the host that has no name has its number instead, as in Samba.
fn of_sid(sid: &Sid, accounts: &dyn Accounts) -> Option<Principal> {
    if let Some(uid) = sid.to_uid() {
        let name = accounts.user_name(uid).unwrap_or_else(|| uid.to_string());
        return Some(principal(UNIX_USER, &name, *sid, Use::User));
    }
    if let Some(gid) = sid.to_gid() {
        let name = accounts.group_name(gid).unwrap_or_else(|| gid.to_string());
        return Some(principal(UNIX_GROUP, &name, *sid, Use::Group));
    }
    if let Some(domain) = [UNIX_USER, UNIX_GROUP].into_iter().find(|(_, known)| known == sid) {
        return Some(principal(domain, "", *sid, Use::Domain));
    }
    WELL_KNOWN.iter().find(|(known, ..)| known == sid).map(well_known)
}

/// Who has this name, with or without a domain before it.
fn of_name(text: &str, host: &Host, accounts: &dyn Accounts) -> Option<Principal> {
    let same = |a: &str, b: &str| crate::name::same(a, b);
    let (domain, name) = match text.split_once('\\') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, text),
    };
    let is_in = |known: &str| domain.is_none_or(|domain| same(domain, known));
    if name.is_empty() {
        return None;
    }
    let known = WELL_KNOWN.iter().find(|&&(_, of, known)| is_in(of) && same(known, name));
    if let Some(known) = known {
        return Some(well_known(known));
    }
    if domain.is_none()
        && let Some(domain) = [UNIX_USER, UNIX_GROUP].into_iter().find(|(of, _)| same(of, name))
    {
        return Some(principal(domain, "", domain.1, Use::Domain));
    }
    let is_ours = is_in(&host.name);
    // As the host has them, or as Windows people write them.
    let mut spellings = vec![name.to_owned(), name.to_lowercase()];
    spellings.dedup();
    let mut users = spellings.iter().filter(|_| is_ours || is_in(UNIX_USER.0));
    if let Some((uid, name)) = users.find_map(|name| Some((accounts.uid(name)?, name))) {
        return Some(principal(UNIX_USER, name, Sid::unix_user(uid), Use::User));
    }
    let mut groups = spellings.iter().filter(|_| is_ours || is_in(UNIX_GROUP.0));
    let (gid, name) = groups.find_map(|name| Some((accounts.gid(name)?, name)))?;
    Some(principal(UNIX_GROUP, name, Sid::unix_group(gid), Use::Group))
}

#[cfg(test)]
mod tests;
