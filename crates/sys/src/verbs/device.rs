//! Devices, and what belongs to an open one: its ports, addresses, limits and events.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::library::{Library, Symbols};
use super::{Mtu, outcome, pointer, raw};
use crate::call::{self, Failure};

/// The devices there are now. Freed when the last [`Device`] of it is.
struct List {
    symbols: Arc<Symbols>,
    start: NonNull<*mut raw::Device>,
}

// SAFETY: the list and its entries are only read until it is freed, and libibverbs locks what it shares.
unsafe impl Send for List {}
// SAFETY: the same.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: from `get_device_list`, and freed here only; whoever uses an entry holds the list.
        unsafe { (self.symbols.free_device_list)(self.start.as_ptr()) };
    }
}

/// A device that is there, not open yet.
#[derive(Clone)]
pub struct Device {
    list: Arc<List>,
    at: NonNull<raw::Device>,
}

// SAFETY: an entry of the list, which it holds; only read.
unsafe impl Send for Device {}
// SAFETY: the same.
unsafe impl Sync for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Device").field(&self.name()).finish()
    }
}

impl Library {
    /// The RDMA devices of this host that we may see; none is no error.
    ///
    /// # Errors
    ///
    /// The errno: `EPERM` or `EACCES` without permission, `ENOMEM`. A kernel without RDMA (`ENOSYS`) has no
    /// devices.
    pub fn devices(&self) -> Result<Vec<Device>, Failure> {
        let mut count: c_int = 0;
        // SAFETY: the count is ours to be written.
        let start = unsafe { (self.symbols.get_device_list)(&raw mut count) };
        let start = match pointer("list RDMA devices", start) {
            Err(Failure { errno: libc::ENOSYS, .. }) => return Ok(Vec::new()),
            other => other?,
        };
        let list = Arc::new(List { symbols: self.symbols.clone(), start });
        let at = |n| {
            // SAFETY: the list has `count` entries.
            NonNull::new(unsafe { *start.as_ptr().add(n) })
        };
        let entries = (0..usize::try_from(count).unwrap_or(0)).filter_map(at);
        Ok(entries.map(|at| Device { list: list.clone(), at }).collect())
    }
}

impl Device {
    /// Its name in the kernel: `mlx5_0`, `rxe0`.
    #[must_use]
    pub fn name(&self) -> String {
        // SAFETY: an entry of a list that we hold.
        let name = unsafe { (self.list.symbols.get_device_name)(self.at.as_ptr()) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: a string that ends with a zero, part of the entry.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// Its GUID (EUI-64).
    #[must_use]
    pub fn guid(&self) -> [u8; 8] {
        // SAFETY: an entry of a list that we hold. In network order, so bytes as they stand.
        unsafe { (self.list.symbols.get_device_guid)(self.at.as_ptr()) }.to_ne_bytes()
    }

    /// Opens it.
    ///
    /// # Errors
    ///
    /// The errno: `EACCES` if `/dev/infiniband/uverbsN` is not ours to open, `ENOENT` or `ENODEV` if the
    /// device is gone.
    pub fn open(&self) -> Result<Context, Failure> {
        let symbols = self.list.symbols.clone();
        // SAFETY: an entry of a list that we hold.
        let at = unsafe { (symbols.open_device)(self.at.as_ptr()) };
        let at = pointer("open the RDMA device", at)?;
        let open = Open { symbols, at };
        let fd = open.async_fd();
        let flags = call::getfl(fd).map_err(Failure::at("prepare the device's events"))?;
        call::setfl(fd, flags | libc::O_NONBLOCK)
            .map_err(Failure::at("prepare the device's events"))?;
        Ok(Context { open: Arc::new(open) })
    }
}

/// An open device. Closed when nothing that was made of it is left.
pub(super) struct Open {
    pub(super) symbols: Arc<Symbols>,
    pub(super) at: NonNull<raw::Context>,
}

// SAFETY: libibverbs may be called by many threads, also with one context.
unsafe impl Send for Open {}
// SAFETY: the same.
unsafe impl Sync for Open {}

impl Open {
    fn async_fd(&self) -> RawFd {
        // SAFETY: an open context, whose descriptor does not change.
        unsafe { (*self.at.as_ptr()).async_fd }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: from `open_device`, and closed here only; whatever was made of it holds us.
        unsafe { (self.symbols.close_device)(self.at.as_ptr()) };
    }
}

/// An open device.
#[derive(Clone)]
pub struct Context {
    pub(super) open: Arc<Open>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("vectors", &self.vectors()).finish_non_exhaustive()
    }
}

/// How much of everything a device has; none is negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Ports, numbered from 1.
    pub ports: u8,
    /// Queue pairs.
    pub pairs: u32,
    /// Requests of a queue.
    pub requests: u32,
    /// Pieces of a request.
    pub pieces: u32,
    /// Completion queues.
    pub queues: u32,
    /// Entries of a completion queue.
    pub completions: u32,
    /// Memory regions.
    pub regions: u32,
    /// Bytes of a memory region.
    pub region_bytes: u64,
}

/// What a port is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Whether packets pass.
    pub active: bool,
    /// Largest payload of a packet, as the link is now.
    pub mtu: Mtu,
    /// Whether it is Ethernet: RoCE.
    pub ethernet: bool,
    /// Places of its GID table; not all are in use.
    pub gids: u32,
}

/// What kind of packets an address of a port stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE of version 1: Ethernet without IP.
    RoceV1,
    /// RoCE of version 2: UDP.
    RoceV2,
    /// One that came later.
    Other(u32),
}

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the port's table; queue pairs name it so.
    pub index: u32,
    /// For RoCE an IPv6 address, or an IPv4 address mapped into one.
    pub address: [u8; 16],
    /// What kind.
    pub kind: GidKind,
    /// The network interface that has it; 0: none.
    pub interface: u32,
}

/// What has happened to a device, beside completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair, of that number, has failed.
    PairFailed(u32),
    /// A packet came for the queue pair before it was told that it may send.
    PairHeard(u32),
    /// A completion queue has overflowed: its queue pairs fail.
    QueueFailed,
    /// The port, of that number, works.
    PortUp(u8),
    /// It does not.
    PortDown(u8),
    /// The addresses of the port have changed.
    AddressesChanged(u8),
    /// The device is gone or broken.
    DeviceFailed,
    /// Another, of that number in `enum ibv_event_type`.
    Other(u32),
}

fn count(n: c_int) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

impl Context {
    /// Completion vectors: interrupts that completion queues may be given to, one a core at best.
    #[must_use]
    pub fn vectors(&self) -> u32 {
        // SAFETY: an open context; the number does not change.
        count(unsafe { (*self.open.at.as_ptr()).num_comp_vectors })
    }

    /// How much there is of everything.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn limits(&self) -> Result<Limits, Failure> {
        let mut it = MaybeUninit::<raw::DeviceAttributes>::zeroed();
        // SAFETY: an open context, and room for the answer.
        let ret =
            unsafe { (self.open.symbols.query_device)(self.open.at.as_ptr(), it.as_mut_ptr()) };
        outcome("ask for the device's limits", ret)?;
        // SAFETY: all zero is a value of it, and it was filled.
        let it = unsafe { it.assume_init() };
        Ok(Limits {
            ports: it.phys_port_cnt,
            pairs: count(it.max_qp),
            requests: count(it.max_qp_wr),
            pieces: count(it.max_sge),
            queues: count(it.max_cq),
            completions: count(it.max_cqe),
            regions: count(it.max_mr),
            region_bytes: it.max_mr_size,
        })
    }

    /// A port, by its number from 1.
    ///
    /// # Errors
    ///
    /// The errno: `EINVAL` if there is no such port.
    pub fn port(&self, number: u8) -> Result<Port, Failure> {
        let mut it = raw::PortAttributes::default();
        // SAFETY: an open context, and room for the answer: libraries that know a shorter one leave the
        // rest, which is zero.
        let ret =
            unsafe { (self.open.symbols.query_port)(self.open.at.as_ptr(), number, &raw mut it) };
        outcome("ask for the port", ret)?;
        Ok(Port {
            active: it.state == raw::PORT_ACTIVE,
            mtu: Mtu::from_number(it.active_mtu).unwrap_or(Mtu::B256),
            ethernet: it.link_layer == raw::ETHERNET,
            gids: count(it.gid_tbl_len),
        })
    }

    /// The addresses of a port, by their places in its table.
    ///
    /// # Errors
    ///
    /// The errno: `EINVAL` if there is no such port.
    pub fn gids(&self, port: u8) -> Result<Vec<Gid>, Failure> {
        let places = usize::try_from(self.port(port)?.gids).unwrap_or(0);
        // Those of other ports come, too, and all of them have as many.
        let ports = usize::from(self.limits()?.ports.max(1));
        let mut table = vec![raw::GidEntry::default(); places.saturating_mul(ports)];
        let size = size_of::<raw::GidEntry>();
        let ask = self.open.symbols.query_gid_table;
        // SAFETY: an open context, and room for so many entries, whose size is given.
        let ret = unsafe { ask(self.open.at.as_ptr(), table.as_mut_ptr(), table.len(), 0, size) };
        let Ok(found) = usize::try_from(ret) else {
            let errno = i32::try_from(ret.unsigned_abs()).unwrap_or(libc::EIO);
            return Err(Failure { step: "ask for the addresses of the port", errno });
        };
        let of_port = table.iter().take(found).filter(|it| it.port_num == port.into());
        let gid = |it: &raw::GidEntry| {
            let kind = match it.gid_type {
                0 => GidKind::InfiniBand,
                1 => GidKind::RoceV1,
                2 => GidKind::RoceV2,
                other => GidKind::Other(other),
            };
            Gid { index: it.gid_index, address: it.gid, kind, interface: it.ndev_ifindex }
        };
        Ok(of_port.map(gid).collect())
    }

    /// What has happened since the last time; `None`: nothing. [`Self::as_raw_fd`] is readable when
    /// something has.
    ///
    /// # Errors
    ///
    /// The errno; `EAGAIN` is `None`.
    pub fn next_event(&self) -> Result<Option<AsyncEvent>, Failure> {
        let mut it =
            raw::AsyncEvent { element: raw::Element { qp: std::ptr::null_mut() }, event_type: 0 };
        // SAFETY: an open context, and room for the event.
        let ret =
            unsafe { (self.open.symbols.get_async_event)(self.open.at.as_ptr(), &raw mut it) };
        match outcome("take an event of the device", ret) {
            Err(Failure { errno: libc::EAGAIN, .. }) => return Ok(None),
            other => other?,
        }
        let event = read(&it);
        // SAFETY: the event that was taken above, acknowledged once.
        unsafe { (self.open.symbols.ack_async_event)(&raw mut it) };
        Ok(Some(event))
    }
}

/// Only before the event is acknowledged: until then its queue pair is not destroyed.
fn read(it: &raw::AsyncEvent) -> AsyncEvent {
    use raw::event;
    // SAFETY: events of this kind have a queue pair, which `destroy_qp` keeps until the event is
    // acknowledged.
    let pair = || unsafe { (*it.element.qp).qp_num };
    // SAFETY: events of this kind have a number, and any bits are one.
    let port = || u8::try_from(unsafe { it.element.port_num }).unwrap_or(0);
    match it.event_type {
        event::QP_FATAL | event::QP_REQ_ERR | event::QP_ACCESS_ERR => {
            AsyncEvent::PairFailed(pair())
        }
        event::COMM_EST => AsyncEvent::PairHeard(pair()),
        event::CQ_ERR => AsyncEvent::QueueFailed,
        event::PORT_ACTIVE => AsyncEvent::PortUp(port()),
        event::PORT_ERR => AsyncEvent::PortDown(port()),
        event::GID_CHANGE => AsyncEvent::AddressesChanged(port()),
        event::DEVICE_FATAL => AsyncEvent::DeviceFailed,
        other => AsyncEvent::Other(other),
    }
}

impl AsRawFd for Context {
    fn as_raw_fd(&self) -> RawFd {
        self.open.async_fd()
    }
}
