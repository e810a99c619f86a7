//! What a table calls while it works: the caller's sink, and other tables that may have what it has too little of.

pub(crate) use super::room::{Given, Room};
use crate::ledger::Lease;
use crate::output::{Datagram, Notice, Released, Sink};

/// See the module.
pub(crate) trait Outlet<B>: Sink<B> {
    /// Has another table that takes from the same memory give something back, or let a datagram go that is to go before
    /// any in this table, onto this core's lease. `false`: none of those that were asked had any.
    fn elsewhere(&mut self, lease: &mut Lease, room: &Room, now: u64) -> bool;
}

/// A sink, and no other table that could be asked.
pub(crate) struct Alone<'s, S>(pub(crate) &'s mut S);

impl<B, S: Sink<B>> Sink<B> for Alone<'_, S> {
    #[inline(always)]
    fn whole(&mut self, buffer: B, len: usize) {
        self.0.whole(buffer, len);
    }

    #[inline(always)]
    fn datagram(&mut self, datagram: &Datagram<'_, B>) {
        self.0.datagram(datagram);
    }

    #[inline(always)]
    fn release(&mut self, buffer: B, why: Released) {
        self.0.release(buffer, why);
    }

    #[inline(always)]
    fn soon(&mut self, buffer: &B) {
        self.0.soon(buffer);
    }

    #[inline(always)]
    fn meanwhile(&mut self, at: usize) {
        self.0.meanwhile(at);
    }

    #[inline(always)]
    fn notice(&mut self, notice: &Notice<'_, B>) {
        self.0.notice(notice);
    }
}

impl<B, S: Sink<B>> Outlet<B> for Alone<'_, S> {
    fn elsewhere(&mut self, _: &mut Lease, _: &Room, _: u64) -> bool {
        false
    }
}
