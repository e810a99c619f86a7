//! The binary interface of libibverbs, as far as we use it: what its header, `infiniband/verbs.h`, says
//! about versions `IBVERBS_1.1` of its symbols and, for what came later, `IBVERBS_1.7` and `1.11`.
//!
//! These layouts cannot change without a new name of the library. A test compares them with the header
//! where that is installed. Pointers to what we never look into are `*mut c_void`.

use std::ffi::{c_char, c_int, c_void};

/// `struct ibv_device`: only passed around.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Device {
    opaque: [u8; 0],
}

/// `struct ibv_pd`: only passed around.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Domain {
    opaque: [u8; 0],
}

/// Entries of `struct ibv_context_ops` before, between and behind those that we call.
type Unused<const N: usize> = [*mut c_void; N];

/// `struct ibv_context_ops`: the functions that the header calls for its inline ones.
#[repr(C)]
pub(super) struct Operations {
    unused_head: Unused<11>,
    pub(super) poll_cq:
        Option<unsafe extern "C" fn(*mut Queue, c_int, *mut WorkCompletion) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut Queue, c_int) -> c_int>,
    unused_middle: Unused<12>,
    pub(super) post_send:
        Option<unsafe extern "C" fn(*mut Pair, *mut SendRequest, *mut *mut SendRequest) -> c_int>,
    pub(super) post_recv: Option<
        unsafe extern "C" fn(*mut Pair, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int,
    >,
    unused_tail: Unused<5>,
}

/// `struct ibv_context`, up to the mutex.
#[repr(C)]
pub(super) struct Context {
    device: *mut Device,
    pub(super) operations: Operations,
    cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct Channel {
    context: *mut Context,
    pub(super) fd: c_int,
    refcnt: c_int,
}

/// `struct ibv_cq`, up to the mutex.
#[repr(C)]
pub(super) struct Queue {
    context: *mut Context,
    channel: *mut Channel,
    cq_context: *mut c_void,
    handle: u32,
    pub(super) cqe: c_int,
}

/// `struct ibv_qp`, up to the mutex.
#[repr(C)]
pub(super) struct Pair {
    context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut Domain,
    send_cq: *mut Queue,
    recv_cq: *mut Queue,
    srq: *mut c_void,
    handle: u32,
    pub(super) qp_num: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct Region {
    context: *mut Context,
    pd: *mut Domain,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_device_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct DeviceAttributes {
    pub(super) fw_ver: [c_char; 64],
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: u32,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    /// From `max_qp_rd_atom` to `max_srq_sge`.
    rest: [c_int; 20],
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct PortAttributes {
    pub(super) state: u32,
    pub(super) max_mtu: u32,
    pub(super) active_mtu: u32,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    bad_pkey_cntr: u32,
    qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    sm_lid: u16,
    lmc: u8,
    max_vl_num: u8,
    sm_sl: u8,
    subnet_timeout: u8,
    init_type_reply: u8,
    active_width: u8,
    active_speed: u8,
    phys_state: u8,
    pub(super) link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
}

/// `struct ibv_gid_entry`. The GID is aligned as the two words that the header has in its union.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub(super) struct GidEntry {
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// `struct ibv_async_event`: a pointer or a port number, and which.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct AsyncEvent {
    pub(super) element: Element,
    pub(super) event_type: u32,
}

/// The union in [`AsyncEvent`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Element {
    pub(super) qp: *mut Pair,
    pub(super) port_num: c_int,
}

/// `struct ibv_qp_cap`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Capacity {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct PairSetup {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Queue,
    pub(super) recv_cq: *mut Queue,
    pub(super) srq: *mut c_void,
    pub(super) cap: Capacity,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_ah_attr` and, at its beginning, `struct ibv_global_route`.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub(super) struct Address {
    pub(super) dgid: [u8; 16],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) unused: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct PairAttributes {
    pub(super) qp_state: u32,
    pub(super) cur_qp_state: u32,
    pub(super) path_mtu: u32,
    pub(super) path_mig_state: u32,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: u32,
    pub(super) cap: Capacity,
    pub(super) ah_attr: Address,
    pub(super) alt_ah_attr: Address,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// `struct ibv_sge`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Segment {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`, whose unions are as large as their largest members, which we do not use.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct SendRequest {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut Segment,
    pub(super) num_sge: c_int,
    pub(super) opcode: u32,
    pub(super) send_flags: u32,
    /// In network order.
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) rest_of_wr: [u64; 2],
    pub(super) qp_type: u64,
    pub(super) bind_mw: [u64; 6],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(super) struct ReceiveRequest {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut Segment,
    pub(super) num_sge: c_int,
}

/// `struct ibv_wc`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct WorkCompletion {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// In network order.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: u32,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

/// `IBV_QPT_RC`.
pub(super) const RC: u32 = 2;
/// `IBV_LINK_LAYER_ETHERNET`.
pub(super) const ETHERNET: u8 = 2;

/// `IBV_PORT_ACTIVE`.
pub(super) const PORT_ACTIVE: u32 = 4;

/// `enum ibv_access_flags`.
pub(super) mod access {
    pub(in crate::verbs) const LOCAL_WRITE: u32 = 1;
    pub(in crate::verbs) const REMOTE_WRITE: u32 = 2;
}

/// `enum ibv_qp_attr_mask`.
pub(super) mod mask {
    pub(in crate::verbs) const STATE: u32 = 1;
    pub(in crate::verbs) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(in crate::verbs) const PKEY_INDEX: u32 = 1 << 4;
    pub(in crate::verbs) const PORT: u32 = 1 << 5;
    pub(in crate::verbs) const AV: u32 = 1 << 7;
    pub(in crate::verbs) const PATH_MTU: u32 = 1 << 8;
    pub(in crate::verbs) const TIMEOUT: u32 = 1 << 9;
    pub(in crate::verbs) const RETRY_CNT: u32 = 1 << 10;
    pub(in crate::verbs) const RNR_RETRY: u32 = 1 << 11;
    pub(in crate::verbs) const RQ_PSN: u32 = 1 << 12;
    pub(in crate::verbs) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(in crate::verbs) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(in crate::verbs) const SQ_PSN: u32 = 1 << 16;
    pub(in crate::verbs) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(in crate::verbs) const DEST_QPN: u32 = 1 << 20;
}

/// `enum ibv_qp_state`.
pub(super) mod state {
    pub(in crate::verbs) const RESET: u32 = 0;
    pub(in crate::verbs) const INIT: u32 = 1;
    pub(in crate::verbs) const RTR: u32 = 2;
    pub(in crate::verbs) const RTS: u32 = 3;
    pub(in crate::verbs) const ERROR: u32 = 6;
}

/// `enum ibv_wr_opcode`.
pub(super) mod opcode {
    pub(in crate::verbs) const RDMA_WRITE: u32 = 0;
    pub(in crate::verbs) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(in crate::verbs) const SEND: u32 = 2;
    pub(in crate::verbs) const SEND_WITH_IMM: u32 = 3;
}

/// `enum ibv_send_flags`.
pub(super) mod flag {
    pub(in crate::verbs) const SIGNALED: u32 = 1 << 1;
    pub(in crate::verbs) const SOLICITED: u32 = 1 << 2;
    pub(in crate::verbs) const INLINE: u32 = 1 << 3;
}

/// `enum ibv_wc_opcode` and `IBV_WC_WITH_IMM` of `enum ibv_wc_flags`.
pub(super) mod completed {
    pub(in crate::verbs) const SEND: u32 = 0;
    pub(in crate::verbs) const RDMA_WRITE: u32 = 1;
    pub(in crate::verbs) const RECV: u32 = 1 << 7;
    pub(in crate::verbs) const RECV_RDMA_WITH_IMM: u32 = RECV + 1;
    pub(in crate::verbs) const WITH_IMM: u32 = 1 << 1;
}

/// `enum ibv_event_type`.
pub(super) mod event {
    pub(in crate::verbs) const CQ_ERR: u32 = 0;
    pub(in crate::verbs) const QP_FATAL: u32 = 1;
    pub(in crate::verbs) const QP_REQ_ERR: u32 = 2;
    pub(in crate::verbs) const QP_ACCESS_ERR: u32 = 3;
    pub(in crate::verbs) const COMM_EST: u32 = 4;
    pub(in crate::verbs) const DEVICE_FATAL: u32 = 8;
    pub(in crate::verbs) const PORT_ACTIVE: u32 = 9;
    pub(in crate::verbs) const PORT_ERR: u32 = 10;
    pub(in crate::verbs) const GID_CHANGE: u32 = 18;
}

#[cfg(test)]
mod tests;
