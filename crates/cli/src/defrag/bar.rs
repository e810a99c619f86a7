//! How far a large capture is, for people at a terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::{say, table};

/// Smaller files are done before a person could look.
const LARGE_BYTES: u64 = 64 << 20;
const PAUSE: Duration = Duration::from_millis(200);
/// Of a terminal that does not say how wide it is.
const COLUMNS: usize = 80;
const BAR_MIN: usize = 5;
const BAR_MAX: usize = 50;
/// Back to the first column, and what stood there is gone.
const ANEW: &str = "\r\x1b[K";

/// A line of standard error that is written anew again and again; nothing where that is no terminal.
pub(super) struct Bar {
    on: bool,
    shown: bool,
    began: Instant,
    last: Instant,
}

impl Bar {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { on: std::io::stderr().is_terminal(), shown: false, began: now, last: now }
    }

    /// So many bytes were read, of so many if that is known.
    pub(super) fn show(&mut self, at: u64, of: Option<u64>) {
        let now = Instant::now();
        let small = of.unwrap_or(at) < LARGE_BYTES;
        if !self.on || small || now - self.last < PAUSE {
            return;
        }
        self.last = now;
        self.shown = true;
        say::plain(format_args!("{ANEW}{}", drawn(at, of, now - self.began, columns())));
    }

    pub(super) fn clear(&self) {
        if self.shown {
            say::plain(ANEW);
        }
    }
}

fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|n| *n > 0).unwrap_or(COLUMNS)
}

/// In one line that is not longer than `columns`, unless nothing would be left of it.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative; saturates"
)]
fn drawn(at: u64, of: Option<u64>, took: Duration, columns: usize) -> String {
    let took = took.as_secs_f64().max(0.001);
    let speed = format!("{:.0} MB/s", at as f64 / 1e6 / took);
    let Some(of) = of.filter(|of| *of > 0) else {
        return format!("{}  {speed}  {}", table::bytes(at), clock(took as u64));
    };
    // A file that somebody still writes to may have become longer.
    let at = at.min(of);
    let part = at as f64 / of as f64;
    let left = clock((took * (of - at) as f64 / at.max(1) as f64).ceil() as u64);
    let (head, tail) = (format!("{:3}%", (part * 100.0) as u64), format!("{speed}  {left} left"));
    // Brackets, spaces, and the last column, beyond which a terminal begins a new line.
    let room = columns.saturating_sub(head.len() + tail.len() + 6).min(BAR_MAX);
    if room < BAR_MIN {
        return format!("{head}  {tail}");
    }
    let full = (part * room as f64) as usize;
    let (full, tip) = ("=".repeat(full), if full < room { ">" } else { "" });
    format!("{head} [{:room$}]  {tail}", full + tip)
}

/// 1:05, 2:00:09.
fn clock(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        return format!("{hours}:{minutes:02}:{seconds:02}");
    }
    format!("{minutes}:{seconds:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_bar_says_how_far_it_is_and_what_is_left() {
        let draw = |at| drawn(at, Some(100_000_000), SECOND, 50);
        assert_eq!(draw(25_000_000), " 25% [=====>                ]  25 MB/s  0:03 left");
        assert_eq!(draw(99_900_000), " 99% [====================>]  100 MB/s  0:01 left");
        assert_eq!(draw(100_000_000), "100% [=====================]  100 MB/s  0:00 left");
        // The file has grown meanwhile.
        assert_eq!(draw(120_000_000), "100% [=====================]  120 MB/s  0:00 left");
    }

    #[test]
    fn a_bar_is_as_wide_as_there_is_room() {
        let draw = |columns| drawn(1 << 30, Some(10 << 30), SECOND * 2, columns);
        assert_eq!(draw(32), " 10%  537 MB/s  0:18 left");
        assert_eq!(draw(36), " 10% [>      ]  537 MB/s  0:18 left");
        for columns in 26..200 {
            assert!(draw(columns).len() < columns.min(81), "{columns}");
        }
    }

    /// Of a pipe nobody knows how much there will be.
    #[test]
    fn without_a_size_there_is_no_bar() {
        assert_eq!(drawn(3 << 20, None, SECOND * 65, 80), "3M  0 MB/s  1:05");
        assert_eq!(drawn(0, Some(0), SECOND, 80), "0  0 MB/s  0:01");
    }

    #[test]
    fn clocks_have_hours_where_there_are_any() {
        assert_eq!(
            [0, 59, 60, 3599, 3600, 7209].map(clock).join(" "),
            "0:00 0:59 1:00 59:59 1:00:00 2:00:09"
        );
    }
}
