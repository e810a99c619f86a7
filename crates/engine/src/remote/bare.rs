//! The device alone, for measurements: one queue pair of our own RoCEv2 over UDP and the memory that its peer
//! writes to, driven as a vector drives it, but without handshakes, link groups, guests and their rings.
//!
//! What is sent is what a connection sends: RDMA WRITEs, and a SEND of the length of a CDC message behind each.

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use roce::{Addresses, Key, Mtu, Psn, Qpn, RtrAttributes, RtsAttributes, Status};
use sys::call::{self, Failure};

use super::device::{Device, Event, Link, Purpose, mtu_of};
use super::group::towards_shunt;
use super::guest::{Broken, Program, Relay};
use super::port;
use super::shelf::{ConnId, Place, Shelf};
use super::vector::time;

/// A message of CDC (RFC 7609, appendix A.4).
const MESSAGE: [u8; 44] = [0xfe; 44];
/// The first packet of either side; any would do, as there is no connection before.
const FIRST: u32 = 1;

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The port of RoCEv2 cannot be had.
    #[error("cannot speak RoCEv2 from {0}: {1}")]
    Port(IpAddr, Failure),
    /// The device has refused something.
    #[error("the device has no {0}")]
    Device(&'static str),
    /// The queue pair has failed.
    #[error("the queue pair has failed: {0:?}")]
    Failed(Status),
}

/// What one side has to know of the other.
#[derive(Clone, Copy, Debug)]
pub struct End {
    address: IpAddr,
    qpn: Qpn,
    mtu: Mtu,
    rkey: u32,
}

/// Bytes of payload in a full packet on a path whose longest packets have `path_bytes`.
#[must_use]
pub fn payload_of(path_bytes: u32) -> usize {
    mtu_of(path_bytes).bytes()
}

/// See the module.
#[derive(Debug)]
pub struct Bare {
    device: Device,
    shelf: Shelf,
    link: Link,
    end: End,
    /// What is sent from.
    stream: Key,
    /// Bytes of the memory.
    bytes: u32,
    rkey: u32,
    sent: u64,
    came: u64,
}

impl Bare {
    /// A queue pair at `address`, with a memory of `bytes` bytes both to send from and to be written to;
    /// packets fit a path of `path_bytes`. `segments`: as the setting of the engine.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn open(address: IpAddr, path_bytes: u32, bytes: u32, segments: u8) -> Result<Self, Error> {
        let sockets = port::open(address, 1, segments > 1);
        let mut sockets = sockets.map_err(|e| Error::Port(address, e))?;
        let mut device = Device::new(0, 0, segments, [1, 2]);
        device.add_port(sockets.remove(0), Arc::default());
        let mut shelf = Shelf::default();
        let domain = device.open_domain();
        let link = device.open_link(&mut shelf, domain, false);
        let link = link.map_err(|_| Error::Device("queue pair"))?;
        let block: Box<dyn Relay> = Box::new(Block(vec![0x5a; bytes as usize]));
        let id: ConnId = shelf.rings.insert(block);
        let rmb = device.register_rmb(domain, Place::Received(id).handle(), (0, bytes.into()));
        let stream = device.register_stream(domain, Place::Sent(id).handle());
        let (Ok(rmb), Ok(stream)) = (rmb, stream) else { return Err(Error::Device("region")) };
        let end = End { address, qpn: link.qpn, mtu: mtu_of(path_bytes), rkey: rmb.0 };
        Ok(Self { device, shelf, link, end, stream, bytes, rkey: 0, sent: 0, came: 0 })
    }

    /// What the other side has to know.
    #[must_use]
    pub fn end(&self) -> End {
        self.end
    }

    /// Receives and sends from now on, as between two hosts that both have Shunt.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] when the addresses are of two families, or it was done already.
    pub fn connect(&mut self, peer: &End) -> Result<(), Error> {
        let addresses = Addresses::new(self.end.address, peer.address);
        let addresses = addresses.ok_or(Error::Device("way to the other family"))?;
        let psn = Psn::new(FIRST);
        let mut receive = RtrAttributes::new(addresses, peer.qpn, psn, self.end.mtu.min(peer.mtu));
        let mut send = RtsAttributes::new(psn);
        towards_shunt(&mut receive, &mut send);
        self.device.widen(self.link.qpn);
        self.rkey = peer.rkey;
        let ready = self.device.connect(self.link.qpn, &receive).is_ok()
            && self.device.start(self.link.qpn, &send).is_ok();
        ready.then_some(()).ok_or(Error::Device("state for that"))
    }

    /// Bytes of payload in a full packet.
    #[must_use]
    pub fn mtu(&self) -> usize {
        self.end.mtu.bytes()
    }

    /// Asks for a WRITE of the first `len` bytes, and the SEND behind it. `false`: there is no room now.
    pub fn write(&mut self, len: u32) -> bool {
        let qpn = self.link.qpn;
        self.device.has_room(qpn)
            && self.device.write(qpn, (0, self.rkey), (self.stream, 0, len.min(self.bytes))).is_ok()
            && self.device.send(qpn, Purpose::Cdc(0), &MESSAGE).is_ok()
    }

    /// Takes in what has come and sends what can go. Whether there was anything.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`].
    pub fn turn(&mut self) -> Result<bool, Error> {
        let now = time(call::now_ns());
        let mut any = self.device.receive(now, &mut self.shelf);
        while let Some(event) = self.device.poll(&self.shelf) {
            any = true;
            match event {
                Event::Sent(..) => self.sent += 1,
                Event::Came(_) => self.came += 1,
                Event::Failed(_, status) => return Err(Error::Failed(status)),
            }
        }
        any |= self.device.transmit(now, &self.shelf);
        if !any {
            call::sched_yield();
        }
        Ok(any)
    }

    /// Messages that the other side has acknowledged: as many writes.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Messages that have come from the other side.
    #[must_use]
    pub fn came(&self) -> u64 {
        self.came
    }

    /// Packets sent, and of those the ones that were sent again.
    #[must_use]
    pub fn packets(&self) -> (u64, u64) {
        let counters = self.device.roce().counters();
        (counters.packets_out, counters.retransmitted)
    }
}

/// Memory in the place of a guest's rings; positions come round.
#[derive(Debug)]
struct Block(Vec<u8>);

impl Relay for Block {
    fn fd(&self) -> RawFd {
        // Nobody waits for it.
        -1
    }
    fn heard(&mut self, _: bool, _: bool) {}
    fn written(&mut self) -> Result<u64, Broken> {
        Ok(0)
    }
    fn copy_out(&self, at: u64, to: &mut [u8]) -> Result<(), Broken> {
        let at = usize::try_from(at).map_err(|_| Broken)?;
        let end = at.checked_add(to.len()).ok_or(Broken)?;
        to.copy_from_slice(self.0.get(at..end).ok_or(Broken)?);
        Ok(())
    }
    fn copy_out_summed(
        &self,
        at: u64,
        to: &mut [u8],
        register: u32,
    ) -> Result<Option<u32>, Broken> {
        let start = usize::try_from(at).map_err(|_| Broken)?;
        let end = start.checked_add(to.len()).ok_or(Broken)?;
        match sys::crc::copy(register, self.0.get(start..end).ok_or(Broken)?, to) {
            None => self.copy_out(at, to).map(|()| None),
            summed => Ok(summed),
        }
    }
    fn release(&mut self, _: u64) {}
    fn program(&self) -> Program {
        Program::Open
    }
    fn rmb_bytes(&self) -> usize {
        self.0.len()
    }
    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> bool {
        let end = offset.saturating_add(bytes.len());
        let to = self.0.get_mut(offset..end);
        to.map(|to| to.copy_from_slice(bytes)).is_some()
    }
    fn write_at_summed(&mut self, offset: usize, bytes: &[u8], register: u32) -> Option<u32> {
        let end = offset.checked_add(bytes.len())?;
        sys::crc::copy(register, bytes, self.0.get_mut(offset..end)?)
    }
    fn publish(&mut self, _: u64) {}
    fn pour(&mut self) -> bool {
        true
    }
    fn consumed(&self) -> Result<u64, Broken> {
        Ok(0)
    }
    fn want_consumed(&mut self, _: bool) {}
    fn shut(&mut self) {}
    fn close(self: Box<Self>, _: bool) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_arrive_whole_and_are_told_of() {
        let open = |host| Bare::open(IpAddr::from([127, 93, 0, host]), 9000, 1 << 20, 64);
        let (mut here, mut there) = match (open(1), open(2)) {
            (Ok(here), Ok(there)) => (here, there),
            (Err(why), _) | (_, Err(why)) => return println!("skipped: {why}"),
        };
        for id in there.shelf.rings.ids() {
            let ring = there.shelf.rings.get_mut(id).unwrap();
            assert!(ring.write_at(0, &[0; 1 << 20]));
        }
        let ends = (here.end(), there.end());
        here.connect(&ends.1).unwrap();
        there.connect(&ends.0).unwrap();
        for _ in 0..3 {
            assert!(here.write(1 << 20));
        }
        let began = std::time::Instant::now();
        while here.sent() < 3 || there.came() < 3 {
            here.turn().unwrap();
            there.turn().unwrap();
            assert!(began.elapsed() < std::time::Duration::from_secs(20));
        }
        let mut got = vec![0; 1 << 20];
        for (_, ring) in there.shelf.rings.iter() {
            ring.copy_out(0, &mut got).unwrap();
        }
        assert!(got.iter().all(|byte| *byte == 0x5a));
        assert!(here.connect(&ends.1).is_err());
    }
}
