//! What comes in on a connection, cut into frames.

use std::future::Future;
use std::io;
use std::ops::DerefMut;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use smb::crypto::TRANSFORM_HEADER_LEN;
use smb::wire::header::{Command, HEADER_LEN, PROTOCOL_ID};

use super::super::acting::acting;
use super::super::runtime;
use super::backlog::{Large, TooMuch};
use super::gathered::{Gathered, serve};
use super::{Channel, Ending, LEAST_FOR};

/// Bytes of the length in front of a frame.
const LENGTH_LEN: usize = 4;

/// Bytes of a message up to where the next of a compound is named (MS-SMB2 2.2.1).
const HEADER_KNOWN: usize = 24;

/// Room for what is received at once: many small requests, or the head of a large one.
const ROOM: usize = 64 << 10;

/// What a frame may have beside its payload: headers, names, create contexts, other messages of a compound.
const BESIDE: usize = 128 << 10;

/// From this length on, the payload of a WRITE goes from the socket to its file without passing here.
const DIRECT: usize = 32 << 10;

/// Bytes of a frame that are looked at to find out that it is such a WRITE.
const WRITE_HEAD: usize = HEADER_LEN + 48;

/// How long the rest of a frame may take once it has begun. Slower clients are given up: what they have sent
/// takes memory.
const PATIENCE: Duration = Duration::from_secs(120);

/// Of a large frame each so many bytes that have come give a second more.
const A_SECOND: usize = 16 << 10;

/// Of what waits for a client in memory at least this part, one in so many bytes, is to be taken within [`LEAST_FOR`].
const LEAST_OF: usize = 8;

/// How often a connection that has nothing looks whether others of its address have left room for it.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long a frame may take of which so many bytes have come. Who sends nothing, or next to nothing, has its memory for no
/// longer than before.
fn patience(received: usize) -> Duration {
    PATIENCE + Duration::from_secs((received / A_SECOND) as u64)
}

/// The reading half of a channel.
pub(super) struct Input {
    channel: Rc<Channel>,
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The last frame was large, and the next may be so too: only its head is received here, since the rest would have
    /// to be copied to where it belongs.
    large: bool,
    gathered: Gathered,
}

impl Input {
    pub(super) fn new(channel: Rc<Channel>) -> Self {
        let bytes = vec![0; ROOM].into_boxed_slice();
        let gathered = Gathered::default();
        Self { channel, bytes, start: 0, end: 0, large: false, gathered }
    }

    /// Reads and serves frames until the connection ends.
    pub(super) async fn run(&mut self) -> Ending {
        loop {
            match self.turn().await {
                Ok(()) => {}
                Err(ending) => {
                    // What has come whole is not undone by what came behind it.
                    self.gathered.serve(&self.channel);
                    return ending;
                }
            }
        }
    }

    async fn turn(&mut self) -> Result<(), Ending> {
        let channel = self.channel.clone();
        if channel.stopping.get() {
            return Err(Ending::Stopped);
        }
        if channel.has_cancelled() {
            // Its task runs before we are here again.
            runtime::yield_now().await;
        }
        let limits = &channel.server.config.limits;
        while let Some(too_much) = channel.output.too_much(limits.backlog, limits.memory) {
            // They hold buffers that others could have, and this may take long.
            self.gathered.serve(&channel);
            channel.output.uncork();
            // Nothing waits for who is gone; answers that are still being made for him end with us, on this very loop.
            if channel.output.is_broken() || !channel.shared.is_open() {
                break;
            }
            let enough = match too_much {
                TooMuch::Here(enough) => enough,
                // Who has no session is told nothing that is large.
                TooMuch::Elsewhere if channel.sessions.borrow().is_empty() => break,
                TooMuch::Elsewhere => match self.asks_for_much()? {
                    Some(false) => break,
                    None => return self.fill().await,
                    Some(true) => {
                        runtime::sleep(LOOK_AGAIN).await;
                        continue;
                    }
                },
            };
            let (sent, held) = (channel.output.sent(), channel.output.held());
            let less = runtime::timeout(channel.output.below(enough), LEAST_FOR).await;
            // Where nothing waits for the client, it is a disk that is slow. Else a little now and then is not enough:
            // what he holds others do not get.
            let taken = channel.output.sent().wrapping_sub(sent);
            let stands = taken < (held / LEAST_OF).max(1) as u64 && channel.output.waiting() > 0;
            if less.is_err() && stands {
                return Err(Ending::Nonsense("it takes no answers"));
            }
        }
        if channel.output.is_broken() || !channel.shared.is_open() {
            return Err(Ending::Dropped);
        }
        let Some(len) = self.length()? else {
            channel.output.uncork();
            return self.fill().await;
        };
        let have = self.end - self.start - LENGTH_LEN;
        self.large = len >= DIRECT;
        if have >= len {
            let from = self.start + LENGTH_LEN;
            let frame = self.bytes[from..from + len].to_vec();
            self.start = from + len;
            self.gathered.serve(&channel);
            // More is here already: its answers may go out together.
            if self.end > self.start {
                channel.output.cork();
            }
            self.serve(frame);
            return Ok(());
        }
        channel.output.uncork();
        if len >= DIRECT {
            if have < WRITE_HEAD {
                self.make_room();
                return self.fill().await;
            }
            if let Some(write) = {
                let from = self.start + LENGTH_LEN;
                channel.direct_write(&self.bytes[from..self.end], len)
            } {
                let from = self.start + LENGTH_LEN;
                let early = from + write.payload_at()..self.end;
                self.gathered.serve(&channel);
                if !channel.shared.is_open() {
                    return Err(Ending::Dropped);
                }
                let whose = write.whose().clone();
                let received = pin!(write.receive(&channel, &self.bytes[early]));
                acting(whose, received).await??;
                (self.start, self.end) = (0, 0);
                return Ok(());
            }
        }
        if len < DIRECT {
            // There is room for it here: a buffer of its own it would have for as long as it waits.
            return self.fill().await;
        }
        // The rest of it comes straight to where it will be worked on.
        let buffers = &channel.pools().buffers;
        let lent = buffers.lend(len).or_else(|| {
            self.gathered.serve(&channel);
            buffers.lend(len)
        });
        match lent {
            Some(mut frame) => {
                self.complete(&mut frame, have).await?;
                self.gathered.take(&channel, frame);
            }
            // The others are lent to who is slow.
            None => {
                let mut frame = self.room_for(len).await?;
                self.complete(&mut frame, have).await?;
                self.serve(frame);
            }
        }
        Ok(())
    }

    /// Memory for a frame that no buffer of this loop is left for. All connections of an address have a part of it, so
    /// that who never ends its requests leaves some to others.
    async fn room_for(&self, len: usize) -> Result<Large, Ending> {
        let channel = &self.channel;
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(room) = channel.output.large(len, channel.server.config.limits.memory) {
                return Ok(room);
            }
            if channel.output.is_broken() || !channel.shared.is_open() {
                return Err(Ending::Dropped);
            }
            if Instant::now() >= until {
                return Err(Ending::Nonsense("others of its address have the memory for requests"));
            }
            runtime::sleep(LOOK_AGAIN).await;
        }
    }

    /// Receives a frame, whose first bytes are here.
    async fn complete(&mut self, frame: &mut [u8], have: usize) -> Result<(), Ending> {
        frame[..have].copy_from_slice(&self.bytes[self.start + LENGTH_LEN..self.end]);
        (self.start, self.end) = (0, 0);
        let (channel, gathered) = (&self.channel, &mut self.gathered);
        let began = runtime::now();
        let mut clock = runtime::sleep_until(began + patience(0));
        let mut at = have;
        while at < frame.len() {
            let mut more =
                pin!(channel.socket.recv_or(&mut frame[at..], || gathered.serve(channel)));
            let received = std::future::poll_fn(|context| match more.as_mut().poll(context) {
                Poll::Ready(received) => Poll::Ready(Some(received)),
                Poll::Pending => pin!(&mut clock).poll(context).map(|()| None),
            });
            match received.await {
                Some(Ok(0)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Some(received) => at += received?,
                None => return Err(Ending::Nonsense("a request took too long to arrive")),
            }
            clock.reset(began + patience(at - have));
        }
        self.count(frame.len() - have);
        Ok(())
    }

    /// The length of the frame that begins in the buffer, once that is there.
    fn length(&self) -> Result<Option<usize>, Ending> {
        let Some(length) = self.bytes[self.start..self.end].first_chunk::<LENGTH_LEN>() else {
            return Ok(None);
        };
        let len = u32::from_be_bytes(*length) as usize;
        if length[0] != 0 {
            return Err(Ending::Nonsense(
                "not SMB over TCP: the first byte of a frame must be zero",
            ));
        }
        // Before anybody is known, nobody is given memory.
        let known = !self.channel.sessions.borrow().is_empty();
        let payload = self.channel.server.config.limits.payload as usize;
        let most = BESIDE + TRANSFORM_HEADER_LEN + if known { payload } else { 0 };
        if len > most {
            return Err(Ending::Nonsense("a frame longer than was agreed on"));
        }
        if len < HEADER_LEN / 2 {
            return Err(Ending::Nonsense("a frame shorter than any message"));
        }
        Ok(Some(len))
    }

    /// Whether the frame that begins in the buffer may have an answer that is large. Of what is sealed nobody knows, nor of
    /// several messages in one. `None`: too little of it is here to say.
    fn asks_for_much(&self) -> Result<Option<bool>, Ending> {
        if self.length()?.is_none() {
            return Ok(None);
        }
        let message = &self.bytes[self.start + LENGTH_LEN..self.end];
        let Some(head) = message.first_chunk::<HEADER_KNOWN>() else { return Ok(None) };
        let command = u16::from_le_bytes([head[12], head[13]]);
        let is_alone = head[20..] == [0; 4];
        let is_plain = head[..4] == PROTOCOL_ID;
        let large = [Command::Read, Command::QueryDirectory, Command::QueryInfo, Command::Ioctl];
        let is_small = is_plain && is_alone && !large.contains(&Command::from_wire(command));
        Ok(Some(!is_small))
    }

    /// Moves what is there to the front when the back is full.
    fn make_room(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    async fn fill(&mut self) -> Result<(), Ending> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.bytes.len() {
            self.make_room();
        }
        let partial = self.end > self.start;
        let head = LENGTH_LEN + WRITE_HEAD - (self.end - self.start).min(WRITE_HEAD);
        let most = if self.large { head } else { self.bytes.len() };
        let room = self.bytes.len().min(self.end + most);
        let (channel, gathered) = (&self.channel, &mut self.gathered);
        let into = &mut self.bytes[self.end..room];
        let receive = channel.socket.recv_or(into, || gathered.serve(channel));
        let received = if partial {
            let received = runtime::timeout(receive, PATIENCE).await;
            received.map_err(|_| Ending::Nonsense("a request took too long to arrive"))?
        } else {
            receive.await
        };
        match received {
            Ok(0) if partial => Err(Ending::Nonsense("closed in the middle of a frame")),
            Ok(0) => Err(Ending::Closed),
            Ok(received) => {
                self.end += received;
                self.count(received);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(Ending::Closed),
            Err(error) => Err(error.into()),
        }
    }

    fn count(&self, bytes: usize) {
        self.channel.count_received(bytes);
    }

    fn serve(&self, frame: impl DerefMut<Target = [u8]> + 'static) {
        serve(&self.channel, frame, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds until a client is given up that sends so many bytes each second, or until it has sent all.
    fn lasts(bytes_a_second: usize) -> u64 {
        let given_up = |second: &u64| {
            let received = bytes_a_second * usize::try_from(*second).unwrap();
            received >= 8 << 20 || Duration::from_secs(*second) > patience(received)
        };
        (0..).find(given_up).unwrap()
    }

    #[test]
    fn who_sends_slowly_has_the_time_that_it_takes_and_who_sends_nothing_has_not() {
        assert_eq!(lasts(0), 121);
        assert!(lasts(1000) < 130, "a byte now and then gives no time");
        assert_eq!(lasts(20 << 10), (8u64 << 20).div_ceil(20 << 10), "all of it");
    }
}
