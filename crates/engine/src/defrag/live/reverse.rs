//! Whether the host takes IPv4 packets that are written to a device: its filter by the way back (`rp_filter`).
//!
//! Their senders are to be reached by the interface that the fragments came in on, so the device is not where the host
//! would send an answer. Strict filtering drops such packets. Loose filtering does where the device has no address, as
//! one that was just made has none. The kernel says nothing when it does.

use std::fmt;
use std::path::Path;

use sys::interface::Interface;

const SETTINGS: &str = "/proc/sys/net/ipv4/conf";
const STRICT: u8 = 1;
const LOOSE: u8 = 2;

/// A device whose packets the host drops, why, and what helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filtered {
    device: String,
    /// The larger of the device's own and that of all.
    rp_filter: u8,
    mend: String,
}

impl fmt::Display for Filtered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, rp_filter, mend } = self;
        let why = if *rp_filter == LOOSE { " and it has no address" } else { "" };
        write!(
            f,
            "the host drops IPv4 packets that come in on {device}, whose rp_filter is {rp_filter}{why}; \
             to let them in: {mend}"
        )
    }
}

/// What the settings of this device are.
pub(super) fn look(device: &Interface) -> Option<Filtered> {
    let setting = |name: &str| {
        let text = std::fs::read_to_string(Path::new(SETTINGS).join(name).join("rp_filter"));
        text.ok()?.trim().parse().ok()
    };
    let (all, own) = (setting("all")?, setting(&device.name)?);
    filtered(&device.name, device.has_ipv4(), all, own)
}

fn filtered(device: &str, has_address: bool, all: u8, own: u8) -> Option<Filtered> {
    let rp_filter = all.max(own);
    if rp_filter != STRICT && (rp_filter != LOOSE || has_address) {
        return None;
    }
    // A dot is a part of the name, and no step down.
    let name = device.replace('.', "/");
    let set = |value| format!("sysctl -w net.ipv4.conf.{name}.rp_filter={value}");
    let mend = match (all, has_address) {
        (0, _) => set(0),
        // The others stay as strict as they are.
        (_, true) => set(LOOSE),
        (_, false) => format!("ip address add 169.254.0.1/32 dev {device} && {}", set(LOOSE)),
    };
    Some(Filtered { device: device.to_owned(), rp_filter, mend })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As tried on Linux 6.18.
    #[test]
    fn the_larger_of_two_settings_counts_and_loose_is_strict_without_an_address() {
        for all in 0..3 {
            for own in 0..3 {
                let seen = [false, true].map(|address| filtered("tap0", address, all, own));
                let expected = [[false; 2], [true; 2], [true, false]][usize::from(all.max(own))];
                assert_eq!(seen.map(|filtered| filtered.is_some()), expected, "{all}, {own}");
            }
        }
    }

    #[test]
    fn what_helps_leaves_other_interfaces_as_they_are() {
        let said = |device, address, all, own| {
            filtered(device, address, all, own).map(|filtered| filtered.to_string()).unwrap()
        };
        assert_eq!(
            said("tap0", false, 0, 1),
            "the host drops IPv4 packets that come in on tap0, whose rp_filter is 1; to let them in: \
             sysctl -w net.ipv4.conf.tap0.rp_filter=0"
        );
        assert_eq!(
            said("tun.5", false, 2, 0),
            "the host drops IPv4 packets that come in on tun.5, whose rp_filter is 2 and it has no address; \
             to let them in: ip address add 169.254.0.1/32 dev tun.5 && \
             sysctl -w net.ipv4.conf.tun/5.rp_filter=2"
        );
        assert!(said("tap0", true, 1, 1).ends_with(": sysctl -w net.ipv4.conf.tap0.rp_filter=2"));
    }
}
