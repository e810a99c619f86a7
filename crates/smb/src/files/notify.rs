//! Change notification.
