//! Two hosts with a device each, and what lies between them.

use roce::*;

/// Memory as numbered buffers: the handle is the number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) all: Vec<Vec<u8>>,
    /// What this handle names is gone.
    pub(crate) gone: Option<u64>,
    /// How often bytes were summed while they were written.
    pub(crate) summed: u64,
}

impl Buffers {
    fn place(&self, handle: Handle) -> Result<usize, Fault> {
        if self.gone == Some(handle.0) {
            return Err(Fault);
        }
        usize::try_from(handle.0).map_err(|_| Fault)
    }
}

/// What the device names lies within the region, so that a panic here is a bug there.
impl Memory for Buffers {
    fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        let at = usize::try_from(offset).unwrap();
        to.copy_from_slice(&self.all[self.place(handle)?][at..at + to.len()]);
        Ok(())
    }

    fn write(&mut self, handle: Handle, offset: u64, from: &[u8]) -> Result<(), Fault> {
        let at = usize::try_from(offset).unwrap();
        let place = self.place(handle)?;
        self.all[place][at..at + from.len()].copy_from_slice(from);
        Ok(())
    }

    fn write_summed(
        &mut self,
        handle: Handle,
        offset: u64,
        from: &[u8],
        register: u32,
    ) -> Option<u32> {
        self.write(handle, offset, from).ok()?;
        self.summed += 1;
        let mut hasher = crc32fast::Hasher::new_with_initial(!register);
        hasher.update(from);
        Some(!hasher.finalize())
    }
}

pub(crate) const DOMAIN: ProtectionDomain = ProtectionDomain(3);

/// One host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) device: Device,
    pub(crate) memory: Buffers,
    pub(crate) qpn: Qpn,
}

impl Host {
    pub(crate) fn new(config: &DeviceConfig, secret: u64) -> Self {
        let device = Device::new(config, Secret::new([secret, !secret])).unwrap();
        Self { device, memory: Buffers::default(), qpn: Qpn::default() }
    }

    /// Registers a buffer at an address.
    pub(crate) fn buffer(&mut self, address: u64, bytes: Vec<u8>, access: Access) -> Key {
        let handle = Handle(self.memory.all.len() as u64);
        let len = bytes.len() as u64;
        self.memory.all.push(bytes);
        self.device.register(Region { domain: DOMAIN, address, len, access, handle }).unwrap()
    }

    pub(crate) fn post_receive(&mut self, id: u64, key: Key, address: u64, len: u32) {
        let pieces = [Piece { key, address, len }];
        self.device.post_receive(self.qpn, &ReceiveRequest { id, pieces: &pieces }).unwrap();
    }

    pub(crate) fn send(&mut self, id: u64, bytes: &[u8]) -> Result<(), PostError> {
        self.post(id, Operation::Send, Source::Inline(bytes))
    }

    pub(crate) fn post(
        &mut self,
        id: u64,
        operation: Operation,
        source: Source<'_>,
    ) -> Result<(), PostError> {
        let request = SendRequest {
            id,
            operation,
            source,
            immediate: None,
            signaled: true,
            solicited: matches!(operation, Operation::Send),
        };
        self.device.post_send(self.qpn, &request)
    }

    /// The next packet alone, with where it goes.
    pub(crate) fn packet(&mut self, now: Time) -> Option<(Flow, Vec<u8>)> {
        let mut buffer = [0; PACKET_MAX];
        let sent = self.device.transmit(now, &self.memory, &mut buffer, 1)?;
        assert_eq!((sent.segments, sent.segment_len), (1, sent.len));
        Some((sent.flow, buffer[..sent.len].to_vec()))
    }

    /// All packets that there are now.
    pub(crate) fn packets(&mut self, now: Time) -> Vec<(Flow, Vec<u8>)> {
        core::iter::from_fn(|| self.packet(now)).collect()
    }

    pub(crate) fn take(&mut self, now: Time, flow: Flow, bytes: &[u8]) -> Result<Outcome, Reason> {
        let arrival = Arrival {
            addresses: flow.addresses,
            src_port: flow.src_port,
            marked: false,
            identification: Some(0),
        };
        self.device.receive(now, &mut self.memory, &arrival, bytes)
    }

    /// Takes packets that came together, as [`Setup::default`] connects hosts; their identifications are not known.
    pub(crate) fn take_burst<'p>(&mut self, now: Time, packets: impl Iterator<Item = &'p [u8]>) {
        let arrival = Arrival {
            addresses: Setup::default().way,
            src_port: wire::UDP_PORT,
            marked: false,
            identification: None,
        };
        self.device.receive_burst(now, &mut self.memory, &arrival, packets);
    }

    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        let mut all = Vec::new();
        for cq in self.device.cqs() {
            while let Some(done) = self.device.poll_cq(cq).unwrap() {
                all.push(done);
            }
        }
        all
    }

    /// Completions as (id, status).
    pub(crate) fn done(&mut self) -> Vec<(u64, Status)> {
        self.completions().iter().map(|done| (done.id, done.status)).collect()
    }
}

/// How two hosts are connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) device: DeviceConfig,
    pub(crate) qp: QpConfig,
    pub(crate) mtu: Mtu,
    /// Of the first packet of each.
    pub(crate) psns: [Psn; 2],
    pub(crate) rts: RtsAttributes,
    pub(crate) congestion: Option<Dcqcn>,
    pub(crate) identification_end: Option<u16>,
    pub(crate) min_rnr_timer: u8,
    /// From the first host to the second.
    pub(crate) way: Addresses,
    pub(crate) pkey: u16,
    pub(crate) traffic_class: u8,
}

impl Default for Setup {
    fn default() -> Self {
        let device = DeviceConfig {
            qps_max: 4,
            regions_max: 16,
            cq_capacity: 256,
            ..DeviceConfig::default()
        };
        Self {
            device,
            qp: QpConfig { domain: DOMAIN, ..QpConfig::default() },
            mtu: Mtu::B256,
            psns: [Psn::new(0xff_fffe), Psn::new(5)],
            rts: RtsAttributes::new(Psn::default()),
            congestion: None,
            identification_end: None,
            min_rnr_timer: 5,
            way: Addresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() },
            pkey: wire::PKEY_DEFAULT,
            traffic_class: 0,
        }
    }
}

impl Setup {
    /// Two hosts, each with a queue pair that is connected to the other's.
    pub(crate) fn hosts(&self) -> [Host; 2] {
        let mut hosts = [Host::new(&self.device, 1), Host::new(&self.device, 2)];
        for host in &mut hosts {
            host.qpn = host.device.create_qp(&self.qp).unwrap();
        }
        self.connect(&mut hosts);
        hosts
    }

    /// Connects the queue pairs that the hosts have.
    pub(crate) fn connect(&self, hosts: &mut [Host; 2]) {
        let qpns = [hosts[0].qpn, hosts[1].qpn];
        for (at, host) in hosts.iter_mut().enumerate() {
            let addresses = if at == 0 { self.way } else { self.way.reversed() };
            let peer = qpns[1 - at];
            let rtr = RtrAttributes {
                congestion: self.congestion,
                identification_end: self.identification_end,
                min_rnr_timer: self.min_rnr_timer,
                pkey: self.pkey,
                traffic_class: self.traffic_class,
                ..RtrAttributes::new(addresses, peer, self.psns[1 - at], self.mtu)
            };
            let rts = RtsAttributes { send_psn: self.psns[at], ..self.rts };
            host.device.init(host.qpn).unwrap();
            host.device.ready_to_receive(host.qpn, &rtr).unwrap();
            host.device.ready_to_send(host.qpn, &rts).unwrap();
        }
    }
}

/// Carries all packets to and fro at once until there are none.
pub(crate) fn exchange(hosts: &mut [Host; 2], now: Time) {
    for _ in 0..100_000 {
        let [a, b] = hosts;
        let (there, back) = (a.packets(now), b.packets(now));
        if there.is_empty() && back.is_empty() {
            return;
        }
        for (flow, bytes) in there {
            _ = b.take(now, flow, &bytes);
        }
        for (flow, bytes) in back {
            _ = a.take(now, flow, &bytes);
        }
    }
    panic!("packets without end");
}
