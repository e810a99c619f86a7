//! What a service says to the manager that has started it (`sd_notify(3)`), if one has: what is to begin after us begins when
//! we are there, and not while we start.

use sd_notify::NotifyState;

use crate::say;

/// We serve.
pub(crate) fn is_ready() {
    tell(NotifyState::Ready);
}

/// We have been told to end, and do.
pub(crate) fn stops() {
    tell(NotifyState::Stopping);
}

fn tell(what: NotifyState<'_>) {
    if let Err(e) = sd_notify::notify(&[what]) {
        say::line(format_args!("shunt: the service manager cannot be told: {e}"));
    }
}
