//! What the server says of its own accord, by a channel of which it is known that its client hears it.
//!
//! A break that is put on a dead connection would hold up whoever waits for it until the break's time is over. So
//! when the client has other channels, its TCP must acknowledge what was sent within [`PATIENCE`], or the next one
//! is tried (MS-SMB2 3.3.4.6, 3.3.4.7), unless the break has been acknowledged meanwhile. A client of which no
//! channel hears anything for [`SILENCE`], while somebody waits for it, is taken to be gone: its connections end, as
//! with Samba, where that is six times what TCP waits before it sends again.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::super::runtime;
use super::super::server::Server;
use super::{CHANNELS, Channel, ChannelRef, Reply};

/// How long the TCP of a client may take to acknowledge: longer than a segment that was lost once takes, and short
/// of what those who wait for the break would mind.
const PATIENCE: Duration = Duration::from_millis(1250);

/// How long the last channel may neither acknowledge nor say anything. TCP has sent again five times by then.
const SILENCE: Duration = Duration::from_secs(6);

/// How often the kernel is asked whether it has been acknowledged. It tells nobody.
const LOOK: Duration = Duration::from_millis(50);

/// When a break is over, acknowledged or not (MS-SMB2 3.3.2.1): later, nobody is told.
const WORTH: Duration = Duration::from_secs(35);

/// `ioctl(2)`: bytes that a TCP socket was given and its peer has not acknowledged.
const SIOCOUTQ: u64 = 0x5411;

/// Something to be said.
pub(in crate::serve) trait Notice: Send + 'static {
    /// The message.
    fn message(&self) -> Reply;

    /// Whether the client has to answer, and others wait until it does.
    fn is_awaited(&self) -> bool;

    /// Whether it has been answered, or is no more worth saying. Asked only if it [`is_awaited`](Self::is_awaited).
    fn is_over(&self, server: &Server) -> bool;
}

/// A notice and the channels that have not been tried, and those that have.
struct Delivery<N> {
    notice: N,
    channels: VecDeque<ChannelRef>,
    tried: Vec<ChannelRef>,
    until: Instant,
}

/// Sends by the first channel that is not suspected to be dead, and by others if it turns out to be.
pub(in crate::serve) fn deliver(channels: &[ChannelRef], notice: impl Notice) {
    let (sound, suspects): (Vec<_>, Vec<_>) = channels
        .iter()
        .filter(|channel| channel.is_open())
        .cloned()
        .partition(|channel| !channel.is_suspect());
    let channels = sound.into_iter().chain(suspects).collect();
    Delivery { notice, channels, tried: Vec::new(), until: Instant::now() + WORTH }.next();
}

impl<N: Notice> Delivery<N> {
    fn next(mut self) {
        if Instant::now() >= self.until {
            return;
        }
        let Some(channel) = self.channels.pop_front() else { return self.give_up() };
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

    fn by(mut self, channel: Rc<Channel>) {
        let awaited = self.notice.is_awaited();
        if !self.tried.is_empty() && awaited && self.notice.is_over(&channel.server) {
            return;
        }
        channel.send_reply(self.notice.message());
        let last = self.channels.is_empty();
        if last && !awaited {
            return;
        }
        self.tried.push(channel.shared.clone());
        let sent = channel.output.pushed();
        drop(runtime::spawn(async move {
            let heard =
                if last { channel.hears_in_the_end(sent).await } else { channel.hears(sent).await };
            let over = heard || (awaited && self.notice.is_over(&channel.server));
            if !over {
                channel.shared.suspect(true);
                self.next();
            }
        }));
    }

    /// No channel is left, and somebody waits. What the client has open is closed, or waits for it without what it
    /// was to give up (MS-SMB2 3.3.4.6, 3.3.4.7).
    fn give_up(self) {
        if !self.notice.is_awaited() {
            return;
        }
        for channel in self.tried.into_iter().filter(ChannelRef::is_suspect) {
            channel.post(|channel| {
                channel.server.log(channel.peer, "connection ended: a break was not heard");
                channel.end();
            });
        }
    }
}

impl Channel {
    /// Whether the client's TCP acknowledges so many bytes since the connection began, in time.
    async fn hears(&self, bytes: u64) -> bool {
        let until = runtime::now() + PATIENCE;
        while self.shared.is_open() {
            if self.has_heard(bytes) {
                return true;
            }
            if runtime::now() >= until {
                return false;
            }
            runtime::sleep(LOOK).await;
        }
        false
    }

    /// Whether it does, however long a slow connection takes, as long as it does something.
    async fn hears_in_the_end(&self, bytes: u64) -> bool {
        let mut seen = self.signs_of_life();
        let mut until = runtime::now() + SILENCE;
        while self.shared.is_open() {
            if self.has_heard(bytes) {
                return true;
            }
            let now = runtime::now();
            let signs = self.signs_of_life();
            if signs != seen {
                (seen, until) = (signs, now + SILENCE);
            }
            if now >= until {
                return false;
            }
            runtime::sleep(LOOK).await;
        }
        false
    }

    fn has_heard(&self, bytes: u64) -> bool {
        !self.shared.is_deaf() && self.acknowledged() >= bytes
    }

    /// What changes while the client is there: bytes that it has acknowledged, and bytes that it has sent.
    fn signs_of_life(&self) -> Option<(u64, u64)> {
        let (received, _) = self.shared.bytes();
        (!self.shared.is_deaf()).then(|| (self.acknowledged(), received))
    }

    /// Bytes that the client's TCP has acknowledged; those that went past TCP, within this host, as well.
    fn acknowledged(&self) -> u64 {
        let fd = self.socket.shared_fd().as_raw_fd();
        let waiting = sys::call::ioctl_int(fd, SIOCOUTQ).unwrap_or(0);
        self.output.sent().saturating_sub(u64::try_from(waiting).unwrap_or(0))
    }
}
