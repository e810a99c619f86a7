//! What a connection of a guest is to the engine: two rings, and what the program has done.
//!
//! The guest writes what it sends into a ring of its own and reads what it receives from a ring of the
//! engine's, the RMB. Positions are offsets in the stream, each direction from 0, and do not come round.

use std::fmt;
use std::os::fd::RawFd;

/// The guest's side of the shared memory makes no sense: its words contradict each other, or its process
/// has died. The connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// What the guest's program has done with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// It sends and receives.
    Open,
    /// It has shut down sending; what it has written before is still to be sent.
    Shut,
    /// It has closed, or was killed, having read all.
    Closed,
    /// It has closed without reading all, or asked for a reset.
    Reset,
}

/// Which end of the TCP connection the guest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has called `connect()`.
    Client,
    /// It has called `accept()`.
    Server,
}

/// The words by which a guest tells what it does: where it has written and read to, and its flags.
pub type Stamp = [u64; 3];

/// The rings of one connection, and the words beside them.
pub trait Relay: Send + fmt::Debug {
    /// Readable when the guest rings, or is gone: then [`Self::heard`] is called.
    fn fd(&self) -> RawFd;

    /// [`Self::fd`] is readable; `ended`: no more will come; `gone`: it is hung up.
    fn heard(&mut self, gone: bool, ended: bool);

    /// What the guest says at the moment. While that stays the same, nothing that it does is new. `None`:
    /// that cannot be said, because some of its bytes come by TCP.
    fn stamp(&self) -> Option<Stamp> {
        None
    }

    /// The connection goes on as TCP; `why` is a number for people: see [`super::why`].
    fn explain(&mut self, _: u32) {}

    /// How far the guest has written.
    ///
    /// # Errors
    ///
    /// [`Broken`].
    fn written(&mut self) -> Result<u64, Broken>;

    /// Copies what the guest has written, from position `at` on: not before what was released and not
    /// beyond what was written.
    ///
    /// # Errors
    ///
    /// [`Broken`], and if the bytes are not there.
    fn copy_out(&self, at: u64, to: &mut [u8]) -> Result<(), Broken>;

    /// As [`Self::copy_out`], and goes on with a CRC-32 over the copy, from register to register, if that can be done
    /// meanwhile. `None`: it was copied alone.
    fn copy_out_summed(
        &self,
        at: u64,
        to: &mut [u8],
        register: u32,
    ) -> Result<Option<u32>, Broken> {
        let _ = register;
        self.copy_out(at, to).map(|()| None)
    }

    /// Behind the last urgent byte that the program has sent, among those that [`Self::written`] has seen.
    fn urgent(&self) -> Option<u64> {
        None
    }

    /// What was written before `upto` is not needed any more; wakes the guest if it waits for room.
    fn release(&mut self, upto: u64);

    /// What the program has done.
    fn program(&self) -> Program;

    /// Bytes of the RMB; a power of two, 16 KiB or more.
    fn rmb_bytes(&self) -> usize;

    /// Puts bytes into the RMB, at an offset. They do not wrap. `false`: they do not lie within it.
    #[must_use]
    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> bool;

    /// As [`Self::write_at`], and goes on with a CRC-32 over the bytes, from register to register, if that can be done
    /// meanwhile. `None`: nothing was written.
    fn write_at_summed(&mut self, offset: usize, bytes: &[u8], register: u32) -> Option<u32> {
        let _ = (offset, bytes, register);
        None
    }

    /// Lets the guest read up to position `upto`; wakes it if it sleeps.
    fn publish(&mut self, upto: u64);

    /// As [`Self::publish`], and the last of these bytes is urgent.
    fn publish_urgent(&mut self, upto: u64) {
        self.publish(upto);
    }

    /// With a guest that reads by TCP: sends it what it may read. `false`: there is no more room for now;
    /// call again when [`Self::fd`] is writable.
    fn pour(&mut self) -> bool;

    /// How far the guest has read.
    ///
    /// # Errors
    ///
    /// [`Broken`].
    fn consumed(&self) -> Result<u64, Broken>;

    /// Whether the guest is to ring when it has read on. The caller then looks once more.
    fn want_consumed(&mut self, want: bool);

    /// The peer sends no more: the guest reads what is there, and then the end.
    fn shut(&mut self);

    /// Parts from the guest. `reset`: it sees a reset, else the end.
    fn close(self: Box<Self>, reset: bool);
}

/// How guests know that a loop sleeps and must be rung for.
pub trait Sleeper: Send {
    /// From now on guests ring. The caller looks at all of its relays once more before it sleeps.
    fn fall_asleep(&self);
    /// From now on they do not.
    fn awake(&self);
}
