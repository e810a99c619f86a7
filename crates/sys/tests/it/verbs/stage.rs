//! A stand-in for libibverbs, and two ends of a connection on it.

use std::path::PathBuf;
use std::process::Command;

use sys::verbs::*;

/// Compiles the stand-in as `flags` want it. Each test has its own, and so its own device.
pub(super) fn compile(name: &str, flags: &[&str]) -> PathBuf {
    let from = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verbs");
    let versions = format!("-Wl,--version-script={}", from.join("fake.map").display());
    let to = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-{name}.so"));
    // Never over one that another process may have mapped.
    let _ = std::fs::remove_file(&to);
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-g", "-shared", "-fPIC", "-pthread"]);
    cc.args(flags).arg(versions).arg("-o").arg(&to).arg(from.join("fake.c"));
    let said = cc.output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    to
}

pub(super) fn library(name: &str) -> Library {
    Library::load_from(compile(name, &[]).to_str().unwrap()).unwrap()
}

pub(super) const SHAPE: Shape =
    Shape { sends: 8, receives: 8, send_pieces: 2, receive_pieces: 2, inline_bytes: 44 };

/// A device, and what its queue pairs need.
pub(super) struct Stage {
    pub(super) context: Context,
    pub(super) domain: ProtectionDomain,
    pub(super) channel: CompletionChannel,
    pub(super) queue: CompletionQueue,
}

impl Stage {
    pub(super) fn new(name: &str) -> Self {
        Self::of(&library(name).devices().unwrap()[0])
    }

    pub(super) fn of(device: &Device) -> Self {
        let context = device.open().unwrap();
        let domain = ProtectionDomain::new(&context).unwrap();
        let channel = CompletionChannel::new(&context).unwrap();
        let queue = CompletionQueue::new(&context, 64, 2, Some((&channel, 77))).unwrap();
        Self { context, domain, channel, queue }
    }

    pub(super) fn region(&self, bytes: usize, access: Access) -> MemoryRegion<Buffer> {
        MemoryRegion::register(&self.domain, Buffer::new(bytes).unwrap(), access).unwrap()
    }

    pub(super) fn end(&self) -> QueuePair {
        let pair = QueuePair::new(&self.domain, (&self.queue, &self.queue), SHAPE).unwrap();
        pair.init(1, Access::REMOTE_WRITE).unwrap();
        pair
    }

    /// Two that are connected.
    pub(super) fn ends(&self) -> (QueuePair, QueuePair) {
        let (a, b) = (self.end(), self.end());
        connect(&a, &b);
        (a, b)
    }

    /// All completions there are.
    pub(super) fn completions(&self) -> Vec<Completion> {
        let mut all = Vec::new();
        while self.queue.poll(|it| all.push(it)).unwrap() > 0 {}
        all
    }
}

pub(super) fn path(qpn: u32, psn: u32) -> Path {
    Path {
        port: 1,
        gid_index: 2,
        gid: std::net::Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped().octets(),
        qpn,
        psn,
        mtu: Mtu::B1024,
        hop_limit: 1,
        traffic_class: 96,
        flow_label: 0,
        service_level: 0,
        rnr_timer: 5,
    }
}

pub(super) fn patience(psn: u32) -> Patience {
    Patience { psn, timeout: 15, retries: 7, rnr_retries: 7 }
}

pub(super) fn connect(a: &QueuePair, b: &QueuePair) {
    // The last sequence number there is, so that it comes round.
    let (from_a, from_b) = (0xFF_FFFF, 5);
    a.ready_to_receive(&path(b.number(), from_b)).unwrap();
    b.ready_to_receive(&path(a.number(), from_a)).unwrap();
    a.ready_to_send(&patience(from_a)).unwrap();
    b.ready_to_send(&patience(from_b)).unwrap();
}

pub(super) fn message(id: u64, source: Source<'_>) -> SendRequest<'_> {
    let operation = Operation::Send;
    SendRequest { id, operation, source, immediate: None, signaled: true, solicited: true }
}

pub(super) fn write(id: u64, to: (u64, u32), source: Source<'_>) -> SendRequest<'_> {
    let operation = Operation::Write { address: to.0, rkey: to.1 };
    SendRequest { id, operation, source, immediate: None, signaled: true, solicited: false }
}

pub(super) fn bytes(region: &MemoryRegion<Buffer>, at: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    region.memory().copy_out(at, &mut out);
    out
}

/// Lets an event happen to the port of the device that was opened last, by its number in
/// `enum ibv_event_type`.
pub(super) fn happen(library: &str, event: u32) {
    let path = std::ffi::CString::new(library).unwrap();
    // SAFETY: a path, of a library that is loaded already.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: a handle that was never closed.
    let at = unsafe { libc::dlsym(handle, c"fake_port_event".as_ptr()) };
    assert!(!at.is_null());
    // SAFETY: the function's type in `fake.c`.
    let happen =
        unsafe { std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(libc::c_uint)>(at) };
    // SAFETY: a device is open.
    unsafe { happen(event) };
}
