//! The engine's door, and who comes through it.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use sys::{call, passing};

use super::{
    BYTES, EAGAIN, EINTR, EPROTO, Hello, MSG_DONTWAIT, REFUSED, StandIn, WELCOME, Welcome, words,
};
use crate::{Reason, board};

const EADDRINUSE: i32 = 98;
const ECONNREFUSED: i32 = 111;

/// Where guests knock.
#[derive(Debug)]
pub struct Door {
    fd: i32,
    path: CString,
}

impl Door {
    /// Opens the door of this board. What a dead engine has left there is taken away.
    ///
    /// # Errors
    ///
    /// The errno: `EADDRINUSE` if another engine serves this board.
    pub fn open(dir: Option<&str>) -> Result<Self, i32> {
        let path = board::door(dir).map_err(|_| EPROTO)?;
        match passing::connect(&path) {
            Ok(fd) => {
                let _ = call::close(fd);
                return Err(EADDRINUSE);
            }
            Err(ECONNREFUSED) => {
                let _ = call::unlink(&path);
            }
            Err(_) => {}
        }
        let fd = passing::listen(&path, 1024)?;
        Ok(Self { fd, path })
    }

    /// Readable when a guest knocks.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// The next guest that knocks; of other users, none.
    #[must_use]
    pub fn accept(&self) -> Option<Visitor> {
        loop {
            let fd = passing::accept(self.fd).ok()?;
            match passing::credentials(fd) {
                Ok(who) if who.uid == call::geteuid() => return Some(Visitor { fd }),
                _ => {
                    let _ = call::close(fd);
                }
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = call::unlink(&self.path);
        let _ = call::close(self.fd);
    }
}

/// A guest process that has come through the [`Door`]. It stays for as long as the process lives.
#[derive(Debug)]
pub struct Visitor {
    fd: i32,
}

/// What a [`Visitor`] has said.
#[derive(Debug)]
pub enum Said {
    /// It hands over a connection: the message, and the TCP socket, which is ours now.
    Hello(Hello, OwnedFd),
    /// Nothing, for now.
    Nothing,
    /// It has ended, or talks nonsense: close it.
    Gone,
}

impl Visitor {
    /// Readable when it says something, or ends.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// What it says next.
    #[must_use]
    pub fn listen(&self) -> Said {
        let mut bytes = [0; BYTES];
        match passing::receive_owned(self.fd, &mut bytes, MSG_DONTWAIT) {
            Ok((n, Some(fd))) => {
                Hello::parse(&bytes[..n]).map_or(Said::Gone, |hello| Said::Hello(hello, fd))
            }
            Err(EAGAIN | EINTR) => Said::Nothing,
            _ => Said::Gone,
        }
    }

    /// Answers a [`Hello`]: with the stand-in, or with the reason why not. `false`: nobody hears it, and a guest
    /// that was promised nothing goes on by TCP.
    pub fn answer(&self, answer: Result<(Welcome, &StandIn), Reason>) -> bool {
        let sent = match answer {
            Ok((Welcome { half, generation }, stand_in)) => {
                let bytes = words(WELCOME, [half, generation, 0]);
                passing::send(self.fd, &bytes, Some(stand_in.theirs()), MSG_DONTWAIT)
            }
            Err(reason) => self.refuse(reason, false),
        };
        sent.is_ok()
    }

    /// Answers a [`Hello`] of a connection that was promised SMC, and of which the peer knows now that it is TCP.
    pub fn decline(&self, reason: Reason) {
        let _ = self.refuse(reason, true);
    }

    fn refuse(&self, reason: Reason, told: bool) -> Result<(), i32> {
        let bytes = words(REFUSED, [reason.code(), u32::from(told), 0]);
        passing::send(self.fd, &bytes, None, MSG_DONTWAIT)
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let _ = call::close(self.fd);
    }
}
