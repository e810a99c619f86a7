//! The server service (MS-SRVS 3.1.4): which shares there are, who we are, what time it is.

use super::ndr::{Arguments, Fault, Results, status};
use super::{Host, Share};

/// STYPE_IPC.
const TYPE_IPC: u32 = 3;
/// STYPE_SPECIAL.
const TYPE_SPECIAL: u32 = 0x8000_0000;
/// No limit to the number of users.
const UNLIMITED: u32 = u32::MAX;
/// PLATFORM_ID_NT.
const PLATFORM: u32 = 500;
/// The version of Windows that we behave like.
const VERSION: (u32, u32) = (6, 1);
/// SV_TYPE_WORKSTATION, SV_TYPE_SERVER, SV_TYPE_SERVER_UNIX and SV_TYPE_NT.
const SERVER_TYPE: u32 = 0x1 | 0x2 | 0x800 | 0x1000;

/// Answers a call.
pub(super) fn call(number: u16, arguments: &[u8], host: &Host) -> Result<Vec<u8>, Fault> {
    let mut arguments = Arguments::new(arguments);
    let answer = match number {
        // NetrShareEnum and NetrShareEnumSticky; all shares are there after a restart.
        15 | 36 => share_enum(&mut arguments, host),
        16 => share_info(&mut arguments, host),
        21 => server_info(&mut arguments, host),
        28 => time_of_day(&mut arguments, host),
        _ => return Err(Fault::NoSuchCall),
    };
    answer.ok_or(Fault::BadArguments)
}

fn share_enum(arguments: &mut Arguments<'_>, host: &Host) -> Option<Vec<u8>> {
    arguments.optional_string()?;
    let level = arguments.u32()?;
    // The union has its level once more; then a pointer to a container, empty on the way in.
    if arguments.u32()? != level {
        return None;
    }
    if arguments.u32()? != 0 {
        arguments.u32()?;
        if arguments.u32()? != 0 && arguments.u32()? != 0 {
            return None;
        }
    }
    // The client's wish for a length: the list is always told whole.
    arguments.u32()?;
    let resume = match arguments.u32()? {
        0 => None,
        _ => Some(arguments.u32()?),
    };
    let shown: Vec<&Share> = host.shares.iter().filter(|share| !share.is_hidden).collect();
    let mut results = Results::default();
    results.u32(level);
    results.u32(level);
    let known = matches!(level, 0 | 1 | 2 | 501 | 502);
    let count = u32::try_from(shown.len()).ok().filter(|_| known).unwrap_or(0);
    results.pointer();
    results.u32(count);
    if count == 0 {
        results.null();
    } else {
        results.pointer();
        results.u32(count);
        shown.iter().for_each(|share| put_share(share, level, &mut results));
        results.referents();
    }
    results.u32(count);
    if resume.is_some() {
        results.pointer();
    }
    results.u32(0);
    Some(results.finish(if known { status::OK } else { status::INVALID_LEVEL }))
}

/// The fixed part of a SHARE_INFO structure (MS-SRVS 2.2.4.22 and following).
fn put_share(share: &Share, level: u32, results: &mut Results) {
    if level == 1005 {
        // SHARE_INFO_1005: no flags of DFS.
        return results.u32(0);
    }
    results.string(&share.name);
    if level == 0 {
        return;
    }
    let special = if share.is_hidden || share.name.ends_with('$') { TYPE_SPECIAL } else { 0 };
    results.u32(special | if share.is_ipc { TYPE_IPC } else { 0 });
    results.string(&share.comment);
    if level == 501 {
        // Clients may keep files for when they are away, if users ask for it.
        return results.u32(0);
    }
    if level == 1 {
        return;
    }
    // Permissions, which mean something to share-level security only.
    results.u32(0);
    results.u32(UNLIMITED);
    results.u32(share.users);
    results.string(&share.path);
    results.null();
    if level == 502 {
        // No security descriptor of its own.
        results.u32(0);
        results.null();
    }
}

fn share_info(arguments: &mut Arguments<'_>, host: &Host) -> Option<Vec<u8>> {
    arguments.optional_string()?;
    let name = arguments.string()?;
    let level = arguments.u32()?;
    let share = host.shares.iter().find(|share| crate::name::same(&share.name, &name));
    let known = matches!(level, 0 | 1 | 2 | 501 | 502 | 1005);
    let mut results = Results::default();
    results.u32(level);
    match share.filter(|_| known) {
        None => results.null(),
        Some(share) => {
            results.pointer();
            put_share(share, level, &mut results);
            results.referents();
        }
    }
    let absent = if share.is_none() { status::NO_SUCH_SHARE } else { status::OK };
    Some(results.finish(if known { absent } else { status::INVALID_LEVEL }))
}

fn server_info(arguments: &mut Arguments<'_>, host: &Host) -> Option<Vec<u8>> {
    arguments.optional_string()?;
    let level = arguments.u32()?;
    let mut results = Results::default();
    results.u32(level);
    if !matches!(level, 100..=102) {
        results.null();
        return Some(results.finish(status::INVALID_LEVEL));
    }
    results.pointer();
    results.u32(PLATFORM);
    results.string(&host.name);
    if level > 100 {
        [VERSION.0, VERSION.1, SERVER_TYPE].into_iter().for_each(|n| results.u32(n));
        results.string(&host.comment);
    }
    if level > 101 {
        // Users at most; minutes until they are sent away: never; not hidden; announced every so often;
        // licences.
        [UNLIMITED, UNLIMITED, 0, 240, 3000, 0].into_iter().for_each(|n| results.u32(n));
        results.string("C:\\");
    }
    results.referents();
    Some(results.finish(status::OK))
}

/// NetrRemoteTOD: TIME_OF_DAY_INFO (MS-SRVS 2.2.4.105), always in UTC.
fn time_of_day(arguments: &mut Arguments<'_>, host: &Host) -> Option<Vec<u8>> {
    arguments.optional_string()?;
    let (seconds, nanoseconds) = host.now.to_unix();
    let seconds = u64::try_from(seconds).unwrap_or(0);
    let small = |n: u64| u32::try_from(n & u64::from(u32::MAX)).unwrap_or(0);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let mut results = Results::default();
    results.pointer();
    results.u32(small(seconds));
    // Milliseconds since some beginning.
    results.u32(small(seconds * 1000 + u64::from(nanoseconds) / 1_000_000));
    [of_day / 3600, of_day / 60 % 60, of_day % 60].into_iter().for_each(|n| results.u32(small(n)));
    results.u32(nanoseconds / 10_000_000);
    // The time zone in minutes; how often a clock ticks, in units of 0.1 ms.
    results.u32(0);
    results.u32(310);
    [day, month, year, (days + 4) % 7].into_iter().for_each(|n| results.u32(small(n)));
    Some(results.finish(status::OK))
}

/// Year, month and day of so many days after 1970-01-01, which count from March on so that the leap day is the
/// last of its year.
pub(super) fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}
