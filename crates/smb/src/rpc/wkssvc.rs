//! The workstation service (MS-WKST 3.2.4): who we are.

use super::Host;
use super::ndr::{Arguments, Fault, Results, status};

/// PLATFORM_ID_NT.
const PLATFORM: u32 = 500;

/// Answers a call.
pub(super) fn call(number: u16, arguments: &[u8], host: &Host) -> Result<Vec<u8>, Fault> {
    // NetrWkstaGetInfo.
    if number != 0 {
        return Err(Fault::NoSuchCall);
    }
    info(&mut Arguments::new(arguments), host).ok_or(Fault::BadArguments)
}

fn info(arguments: &mut Arguments<'_>, host: &Host) -> Option<Vec<u8>> {
    arguments.optional_string()?;
    let level = arguments.u32()?;
    let mut results = Results::default();
    results.u32(level);
    if !matches!(level, 100 | 101) {
        results.null();
        return Some(results.finish(status::INVALID_LEVEL));
    }
    results.pointer();
    results.u32(PLATFORM);
    results.string(&host.name);
    results.string(&host.domain);
    // The version of Windows that we behave like.
    results.u32(6);
    results.u32(1);
    if level == 101 {
        // Where the network software is installed: nowhere.
        results.string("");
    }
    results.referents();
    Some(results.finish(status::OK))
}
