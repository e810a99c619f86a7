//! Bytes that a guest has sent by TCP, because it had no ring yet or has none any more.

use std::collections::VecDeque;

use sys::call;

use super::{Broken, EAGAIN, EINTR, MSG_DONTWAIT, MSG_PEEK};

const SIOCATMARK: u64 = 0x8905;
/// Most bytes that are held for one connection; the rest waits in the socket.
const MOST: usize = 256 << 10;

/// A stretch of the stream.
#[derive(Debug, Default)]
pub(super) struct Spill {
    bytes: VecDeque<u8>,
    /// Stream offset of the first byte held.
    at: u64,
    ended: bool,
    /// Stream offset behind the last urgent byte.
    urgent: Option<u64>,
}

impl Spill {
    /// Stream offset after the last byte held.
    pub(super) fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }

    /// Whether the stream has ended here.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// The stream ends here, whatever the kernel calls it.
    pub(super) fn ends(&mut self) {
        self.ended = true;
    }

    /// Stream offset behind the last urgent byte that came.
    pub(super) fn urgent(&self) -> Option<u64> {
        self.urgent
    }

    /// The stream goes on here, at `at`, having gone elsewhere before.
    pub(super) fn begin(&mut self, at: u64) {
        if self.bytes.is_empty() && self.at < at {
            self.at = at;
        }
    }

    /// Takes up to `max` bytes out of a socket; `true`: there is nothing more in it now.
    pub(super) fn fill(&mut self, fd: i32, max: usize) -> Result<bool, Broken> {
        let mut left = max;
        let mut chunk = [0; 16 << 10];
        loop {
            let n = left.min(chunk.len()).min(MOST.saturating_sub(self.bytes.len()));
            if n == 0 {
                return Ok(false);
            }
            // A receive stops before an urgent byte, and that is the next one then. It is asked about once something is
            // there: one that came behind the question would be taken for an ordinary one.
            match call::recv(fd, &mut chunk[..1], MSG_DONTWAIT | MSG_PEEK) {
                Err(EAGAIN) => return Ok(true),
                Ok(1..) if call::ioctl_int(fd, SIOCATMARK) == Ok(1) => {
                    self.urgent = Some(self.end() + 1);
                }
                _ => {}
            }
            match call::recv(fd, &mut chunk[..n], MSG_DONTWAIT) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(true);
                }
                Ok(got) => {
                    self.bytes.extend(&chunk[..got]);
                    left -= got;
                }
                Err(EAGAIN) => return Ok(true),
                Err(EINTR) => {}
                Err(_) => return Err(Broken),
            }
        }
    }

    /// Copies what is held from `at` on; answers how much that is.
    pub(super) fn copy_out(&self, at: u64, to: &mut [u8]) -> usize {
        let Some(skip) = at.checked_sub(self.at).and_then(|n| usize::try_from(n).ok()) else {
            return 0;
        };
        let mut n = 0;
        for (to, from) in to.iter_mut().zip(self.bytes.iter().skip(skip)) {
            *to = *from;
            n += 1;
        }
        n
    }

    /// Bytes before `upto` are done with.
    pub(super) fn release(&mut self, upto: u64) {
        let n = usize::try_from(upto.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let n = n.min(self.bytes.len());
        self.bytes.drain(..n);
        self.at += n as u64;
    }
}
