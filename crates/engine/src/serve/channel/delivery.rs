//! What the server says of its own accord, by a channel of which it is known that its client hears it.
//!
//! A break that is put on a dead connection would hold up whoever waits for it until the break's time is over. So
//! when the client has other channels, its TCP must acknowledge what was sent within [`PATIENCE`], or the next one
//! is tried (MS-SMB2 3.3.4.6, 3.3.4.7). A client that hears the same break twice ignores the second.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::super::runtime;
use super::{CHANNELS, Channel, ChannelRef, Reply};

/// How long the TCP of a client may take to acknowledge: longer than a segment that was lost once takes, and short
/// of what those who wait for the break would mind.
const PATIENCE: Duration = Duration::from_millis(1250);

/// How often the kernel is asked whether it has been acknowledged. It tells nobody.
const LOOK: Duration = Duration::from_millis(50);

/// When a break is over, acknowledged or not (MS-SMB2 3.3.2.1): later, nobody is told.
const WORTH: Duration = Duration::from_secs(35);

const IPPROTO_TCP: i32 = 6;
const TCP_INFO: i32 = 11;

/// The start of `struct tcp_info`, up to `tcpi_bytes_acked`, its word of that number.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Info([u64; 16]);

impl Info {
    fn acknowledged(&self) -> u64 {
        self.0[15]
    }
}

/// A message and the channels that have not been tried.
struct Delivery<F> {
    message: F,
    channels: VecDeque<ChannelRef>,
    until: Instant,
}

/// Sends by the first channel that is not suspected to be dead, and by others if it turns out to be. When none is
/// left, nobody is told: the break ends when its time is over, or when the open does.
pub(in crate::serve) fn deliver(
    channels: &[ChannelRef],
    message: impl Fn() -> Reply + Send + 'static,
) {
    let (sound, suspects): (Vec<_>, Vec<_>) = channels
        .iter()
        .filter(|channel| channel.is_open())
        .cloned()
        .partition(|channel| !channel.is_suspect());
    let channels = sound.into_iter().chain(suspects).collect();
    Delivery { message, channels, until: Instant::now() + WORTH }.next();
}

impl<F: Fn() -> Reply + Send + 'static> Delivery<F> {
    fn next(mut self) {
        if Instant::now() >= self.until {
            return;
        }
        let Some(channel) = self.channels.pop_front() else { return };
        let vector = channel.vector();
        let send = move || {
            let here = CHANNELS.with_borrow(|channels| channels.get(&channel.id()).cloned());
            match here.filter(|here| here.shared.is_open()) {
                Some(here) => self.by(here),
                None => self.next(),
            }
        };
        // Here and now if that can be: before the answers to requests that are served after what broke it.
        if vector == runtime::vector() {
            send();
        } else {
            runtime::post(vector, send);
        }
    }

    fn by(self, channel: Rc<Channel>) {
        channel.send_reply((self.message)());
        if self.channels.is_empty() {
            return;
        }
        let sent = channel.output.pushed();
        drop(runtime::spawn(async move {
            if !channel.is_heard(sent).await {
                channel.shared.suspect(true);
                self.next();
            }
        }));
    }
}

impl Channel {
    /// Whether the client's TCP acknowledges so many bytes since the connection began, in time.
    async fn is_heard(&self, bytes: u64) -> bool {
        let until = runtime::now() + PATIENCE;
        loop {
            if !self.shared.is_open() {
                return false;
            }
            if !self.shared.is_deaf() && self.acknowledged().is_none_or(|there| there >= bytes) {
                return true;
            }
            if runtime::now() >= until {
                return false;
            }
            runtime::sleep(LOOK).await;
        }
    }

    /// Bytes that the client's TCP has acknowledged. `None`: the kernel does not say.
    fn acknowledged(&self) -> Option<u64> {
        let fd = self.socket.shared_fd().as_raw_fd();
        let info = sys::call::getsockopt::<Info>(fd, IPPROTO_TCP, TCP_INFO);
        info.ok().map(|info| info.acknowledged())
    }
}
