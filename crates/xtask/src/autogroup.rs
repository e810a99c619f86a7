//! Scheduling of sessions as groups, which is off while tests run.
//!
//! Linux 6.18.44 was seen to leave a runnable thread of its own (`rcu_preempt`, `ksoftirqd`, workers) without a CPU for up
//! to a minute while a session that was scheduled as a group had some threads more than there are CPUs, all of which slept
//! and woke often: the group's virtual time went back each time its weight changed while it ran, so it stayed first.
//! Meanwhile no process with a namespace of its own can end, and packets lie about; what a test then reports is nothing
//! that the tested program could have done. With groups off the same tests passed each time, none of them late.

use std::fs;

const SWITCH: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// Puts the switch back when it is dropped, if it was on.
#[must_use]
pub(crate) struct Off(());

impl Off {
    /// `None` where it is off, or unknown, or may not be changed.
    pub(crate) fn for_now() -> Option<Self> {
        is_on().then_some(())?;
        fs::write(SWITCH, "0").ok()?;
        Some(Self(()))
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        if fs::write(SWITCH, "1").is_err() {
            eprintln!("{SWITCH} was 1 and stays 0: it cannot be written any more");
        }
    }
}

/// Whether each session is scheduled as a group.
pub(crate) fn is_on() -> bool {
    fs::read_to_string(SWITCH).is_ok_and(|word| word.trim() == "1")
}
