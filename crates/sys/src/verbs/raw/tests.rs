//! Our declarations compared with C's.

use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use super::*;
use crate::verbs::{Mtu, Status};

/// A line for each size, place and number, as `tests/verbs/layout.c` prints them.
fn ours() -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let mut line = |name: &str, number: usize| writeln!(text, "{name} {number}").unwrap();
    line("ibv_context ops", offset_of!(Context, operations));
    line("ibv_context async_fd", offset_of!(Context, async_fd));
    line("ibv_context num_comp_vectors", offset_of!(Context, num_comp_vectors));
    line("ibv_context_ops size", size_of::<Operations>());
    line("ibv_context_ops poll_cq", offset_of!(Operations, poll_cq));
    line("ibv_context_ops req_notify_cq", offset_of!(Operations, req_notify_cq));
    line("ibv_context_ops post_send", offset_of!(Operations, post_send));
    line("ibv_context_ops post_recv", offset_of!(Operations, post_recv));
    line("ibv_comp_channel size", size_of::<Channel>());
    line("ibv_comp_channel fd", offset_of!(Channel, fd));
    line("ibv_cq cqe", offset_of!(Queue, cqe));
    line("ibv_qp qp_num", offset_of!(Pair, qp_num));
    line("ibv_mr size", size_of::<Region>());
    line("ibv_mr lkey", offset_of!(Region, lkey));
    line("ibv_mr rkey", offset_of!(Region, rkey));
    line("ibv_device_attr size", size_of::<DeviceAttributes>());
    line("ibv_device_attr max_mr_size", offset_of!(DeviceAttributes, max_mr_size));
    line("ibv_device_attr max_qp", offset_of!(DeviceAttributes, max_qp));
    line("ibv_device_attr max_qp_wr", offset_of!(DeviceAttributes, max_qp_wr));
    line("ibv_device_attr max_sge", offset_of!(DeviceAttributes, max_sge));
    line("ibv_device_attr max_cq", offset_of!(DeviceAttributes, max_cq));
    line("ibv_device_attr max_cqe", offset_of!(DeviceAttributes, max_cqe));
    line("ibv_device_attr max_mr", offset_of!(DeviceAttributes, max_mr));
    line("ibv_device_attr phys_port_cnt", offset_of!(DeviceAttributes, phys_port_cnt));
    line("ibv_port_attr size", size_of::<PortAttributes>());
    line("ibv_port_attr state", offset_of!(PortAttributes, state));
    line("ibv_port_attr active_mtu", offset_of!(PortAttributes, active_mtu));
    line("ibv_port_attr gid_tbl_len", offset_of!(PortAttributes, gid_tbl_len));
    line("ibv_port_attr link_layer", offset_of!(PortAttributes, link_layer));
    line("ibv_gid_entry size", size_of::<GidEntry>());
    line("ibv_gid_entry gid", offset_of!(GidEntry, gid));
    line("ibv_gid_entry gid_index", offset_of!(GidEntry, gid_index));
    line("ibv_gid_entry port_num", offset_of!(GidEntry, port_num));
    line("ibv_gid_entry gid_type", offset_of!(GidEntry, gid_type));
    line("ibv_gid_entry ndev_ifindex", offset_of!(GidEntry, ndev_ifindex));
    line("ibv_async_event size", size_of::<AsyncEvent>());
    line("ibv_async_event element", offset_of!(AsyncEvent, element));
    line("ibv_async_event event_type", offset_of!(AsyncEvent, event_type));
    line("ibv_qp_cap size", size_of::<Capacity>());
    line("ibv_qp_cap max_send_wr", offset_of!(Capacity, max_send_wr));
    line("ibv_qp_cap max_recv_wr", offset_of!(Capacity, max_recv_wr));
    line("ibv_qp_cap max_send_sge", offset_of!(Capacity, max_send_sge));
    line("ibv_qp_cap max_recv_sge", offset_of!(Capacity, max_recv_sge));
    line("ibv_qp_cap max_inline_data", offset_of!(Capacity, max_inline_data));
    line("ibv_qp_init_attr size", size_of::<PairSetup>());
    line("ibv_qp_init_attr qp_context", offset_of!(PairSetup, qp_context));
    line("ibv_qp_init_attr send_cq", offset_of!(PairSetup, send_cq));
    line("ibv_qp_init_attr recv_cq", offset_of!(PairSetup, recv_cq));
    line("ibv_qp_init_attr srq", offset_of!(PairSetup, srq));
    line("ibv_qp_init_attr cap", offset_of!(PairSetup, cap));
    line("ibv_qp_init_attr qp_type", offset_of!(PairSetup, qp_type));
    line("ibv_qp_init_attr sq_sig_all", offset_of!(PairSetup, sq_sig_all));
    line("ibv_ah_attr size", size_of::<Address>());
    line("ibv_ah_attr grh.dgid", offset_of!(Address, dgid));
    line("ibv_ah_attr grh.flow_label", offset_of!(Address, flow_label));
    line("ibv_ah_attr grh.sgid_index", offset_of!(Address, sgid_index));
    line("ibv_ah_attr grh.hop_limit", offset_of!(Address, hop_limit));
    line("ibv_ah_attr grh.traffic_class", offset_of!(Address, traffic_class));
    line("ibv_ah_attr dlid", offset_of!(Address, dlid));
    line("ibv_ah_attr sl", offset_of!(Address, sl));
    line("ibv_ah_attr src_path_bits", offset_of!(Address, src_path_bits));
    line("ibv_ah_attr static_rate", offset_of!(Address, static_rate));
    line("ibv_ah_attr is_global", offset_of!(Address, is_global));
    line("ibv_ah_attr port_num", offset_of!(Address, port_num));
    line("ibv_qp_attr size", size_of::<PairAttributes>());
    line("ibv_qp_attr qp_state", offset_of!(PairAttributes, qp_state));
    line("ibv_qp_attr cur_qp_state", offset_of!(PairAttributes, cur_qp_state));
    line("ibv_qp_attr path_mtu", offset_of!(PairAttributes, path_mtu));
    line("ibv_qp_attr path_mig_state", offset_of!(PairAttributes, path_mig_state));
    line("ibv_qp_attr qkey", offset_of!(PairAttributes, qkey));
    line("ibv_qp_attr rq_psn", offset_of!(PairAttributes, rq_psn));
    line("ibv_qp_attr sq_psn", offset_of!(PairAttributes, sq_psn));
    line("ibv_qp_attr dest_qp_num", offset_of!(PairAttributes, dest_qp_num));
    line("ibv_qp_attr qp_access_flags", offset_of!(PairAttributes, qp_access_flags));
    line("ibv_qp_attr cap", offset_of!(PairAttributes, cap));
    line("ibv_qp_attr ah_attr", offset_of!(PairAttributes, ah_attr));
    line("ibv_qp_attr alt_ah_attr", offset_of!(PairAttributes, alt_ah_attr));
    line("ibv_qp_attr pkey_index", offset_of!(PairAttributes, pkey_index));
    line("ibv_qp_attr alt_pkey_index", offset_of!(PairAttributes, alt_pkey_index));
    line("ibv_qp_attr max_rd_atomic", offset_of!(PairAttributes, max_rd_atomic));
    line("ibv_qp_attr max_dest_rd_atomic", offset_of!(PairAttributes, max_dest_rd_atomic));
    line("ibv_qp_attr min_rnr_timer", offset_of!(PairAttributes, min_rnr_timer));
    line("ibv_qp_attr port_num", offset_of!(PairAttributes, port_num));
    line("ibv_qp_attr timeout", offset_of!(PairAttributes, timeout));
    line("ibv_qp_attr retry_cnt", offset_of!(PairAttributes, retry_cnt));
    line("ibv_qp_attr rnr_retry", offset_of!(PairAttributes, rnr_retry));
    line("ibv_qp_attr alt_port_num", offset_of!(PairAttributes, alt_port_num));
    line("ibv_qp_attr alt_timeout", offset_of!(PairAttributes, alt_timeout));
    line("ibv_qp_attr rate_limit", offset_of!(PairAttributes, rate_limit));
    line("ibv_sge size", size_of::<Segment>());
    line("ibv_sge addr", offset_of!(Segment, addr));
    line("ibv_sge length", offset_of!(Segment, length));
    line("ibv_sge lkey", offset_of!(Segment, lkey));
    line("ibv_send_wr size", size_of::<SendRequest>());
    line("ibv_send_wr wr_id", offset_of!(SendRequest, wr_id));
    line("ibv_send_wr next", offset_of!(SendRequest, next));
    line("ibv_send_wr sg_list", offset_of!(SendRequest, sg_list));
    line("ibv_send_wr num_sge", offset_of!(SendRequest, num_sge));
    line("ibv_send_wr opcode", offset_of!(SendRequest, opcode));
    line("ibv_send_wr send_flags", offset_of!(SendRequest, send_flags));
    line("ibv_send_wr imm_data", offset_of!(SendRequest, imm_data));
    line("ibv_send_wr wr.rdma.remote_addr", offset_of!(SendRequest, remote_addr));
    line("ibv_send_wr wr.rdma.rkey", offset_of!(SendRequest, rkey));
    line("ibv_send_wr qp_type", offset_of!(SendRequest, qp_type));
    line("ibv_send_wr bind_mw", offset_of!(SendRequest, bind_mw));
    line("ibv_recv_wr size", size_of::<ReceiveRequest>());
    line("ibv_recv_wr wr_id", offset_of!(ReceiveRequest, wr_id));
    line("ibv_recv_wr next", offset_of!(ReceiveRequest, next));
    line("ibv_recv_wr sg_list", offset_of!(ReceiveRequest, sg_list));
    line("ibv_recv_wr num_sge", offset_of!(ReceiveRequest, num_sge));
    line("ibv_wc size", size_of::<WorkCompletion>());
    line("ibv_wc wr_id", offset_of!(WorkCompletion, wr_id));
    line("ibv_wc status", offset_of!(WorkCompletion, status));
    line("ibv_wc opcode", offset_of!(WorkCompletion, opcode));
    line("ibv_wc vendor_err", offset_of!(WorkCompletion, vendor_err));
    line("ibv_wc byte_len", offset_of!(WorkCompletion, byte_len));
    line("ibv_wc imm_data", offset_of!(WorkCompletion, imm_data));
    line("ibv_wc qp_num", offset_of!(WorkCompletion, qp_num));
    line("ibv_wc src_qp", offset_of!(WorkCompletion, src_qp));
    line("ibv_wc wc_flags", offset_of!(WorkCompletion, wc_flags));
    line("ibv_wc pkey_index", offset_of!(WorkCompletion, pkey_index));
    line("ibv_wc slid", offset_of!(WorkCompletion, slid));
    line("ibv_wc sl", offset_of!(WorkCompletion, sl));
    line("ibv_wc dlid_path_bits", offset_of!(WorkCompletion, dlid_path_bits));
    let mut number = |name: &str, number: u32| line(name, number as usize);
    number("IBV_QPT_RC", RC);
    number("IBV_LINK_LAYER_ETHERNET", ETHERNET.into());
    number("IBV_ACCESS_LOCAL_WRITE", access::LOCAL_WRITE);
    number("IBV_ACCESS_REMOTE_WRITE", access::REMOTE_WRITE);
    number("IBV_QP_STATE", mask::STATE);
    number("IBV_QP_ACCESS_FLAGS", mask::ACCESS_FLAGS);
    number("IBV_QP_PKEY_INDEX", mask::PKEY_INDEX);
    number("IBV_QP_PORT", mask::PORT);
    number("IBV_QP_AV", mask::AV);
    number("IBV_QP_PATH_MTU", mask::PATH_MTU);
    number("IBV_QP_TIMEOUT", mask::TIMEOUT);
    number("IBV_QP_RETRY_CNT", mask::RETRY_CNT);
    number("IBV_QP_RNR_RETRY", mask::RNR_RETRY);
    number("IBV_QP_RQ_PSN", mask::RQ_PSN);
    number("IBV_QP_MAX_QP_RD_ATOMIC", mask::MAX_QP_RD_ATOMIC);
    number("IBV_QP_MIN_RNR_TIMER", mask::MIN_RNR_TIMER);
    number("IBV_QP_SQ_PSN", mask::SQ_PSN);
    number("IBV_QP_MAX_DEST_RD_ATOMIC", mask::MAX_DEST_RD_ATOMIC);
    number("IBV_QP_DEST_QPN", mask::DEST_QPN);
    number("IBV_QPS_RESET", state::RESET);
    number("IBV_QPS_INIT", state::INIT);
    number("IBV_QPS_RTR", state::RTR);
    number("IBV_QPS_RTS", state::RTS);
    number("IBV_QPS_ERR", state::ERROR);
    number("IBV_WR_RDMA_WRITE", opcode::RDMA_WRITE);
    number("IBV_WR_RDMA_WRITE_WITH_IMM", opcode::RDMA_WRITE_WITH_IMM);
    number("IBV_WR_SEND", opcode::SEND);
    number("IBV_WR_SEND_WITH_IMM", opcode::SEND_WITH_IMM);
    number("IBV_SEND_SIGNALED", flag::SIGNALED);
    number("IBV_SEND_SOLICITED", flag::SOLICITED);
    number("IBV_SEND_INLINE", flag::INLINE);
    number("IBV_WC_SEND", completed::SEND);
    number("IBV_WC_RDMA_WRITE", completed::RDMA_WRITE);
    number("IBV_WC_RECV", completed::RECV);
    number("IBV_WC_RECV_RDMA_WITH_IMM", completed::RECV_RDMA_WITH_IMM);
    number("IBV_WC_WITH_IMM", completed::WITH_IMM);
    number("IBV_EVENT_CQ_ERR", event::CQ_ERR);
    number("IBV_EVENT_QP_FATAL", event::QP_FATAL);
    number("IBV_EVENT_QP_REQ_ERR", event::QP_REQ_ERR);
    number("IBV_EVENT_QP_ACCESS_ERR", event::QP_ACCESS_ERR);
    number("IBV_EVENT_COMM_EST", event::COMM_EST);
    number("IBV_EVENT_DEVICE_FATAL", event::DEVICE_FATAL);
    number("IBV_EVENT_PORT_ACTIVE", event::PORT_ACTIVE);
    number("IBV_EVENT_PORT_ERR", event::PORT_ERR);
    number("IBV_EVENT_GID_CHANGE", event::GID_CHANGE);
    number("IBV_WC_LOC_LEN_ERR", Status::LocalLength.number());
    number("IBV_WC_LOC_QP_OP_ERR", Status::LocalOperation.number());
    number("IBV_WC_LOC_PROT_ERR", Status::LocalProtection.number());
    number("IBV_WC_WR_FLUSH_ERR", Status::Flushed.number());
    number("IBV_WC_BAD_RESP_ERR", Status::BadResponse.number());
    number("IBV_WC_LOC_ACCESS_ERR", Status::LocalAccess.number());
    number("IBV_WC_REM_INV_REQ_ERR", Status::RemoteInvalidRequest.number());
    number("IBV_WC_REM_ACCESS_ERR", Status::RemoteAccess.number());
    number("IBV_WC_REM_OP_ERR", Status::RemoteOperation.number());
    number("IBV_WC_RETRY_EXC_ERR", Status::RetriesExceeded.number());
    number("IBV_WC_RNR_RETRY_EXC_ERR", Status::ReceiverNotReady.number());
    number("IBV_WC_REM_ABORT_ERR", Status::Aborted.number());
    number("IBV_WC_FATAL_ERR", Status::Fatal.number());
    number("IBV_WC_RESP_TIMEOUT_ERR", Status::Timeout.number());
    number("IBV_WC_GENERAL_ERR", Status::General.number());
    number("IBV_MTU_256", Mtu::B256.number());
    number("IBV_MTU_1024", Mtu::B1024.number());
    number("IBV_MTU_4096", Mtu::B4096.number());
    number("IBV_PORT_ACTIVE", PORT_ACTIVE);
    text
}

/// What C says, by the header that `flags` choose; `None`: it is not installed.
fn theirs(flags: &[&str], name: &str) -> Option<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verbs/layout.c");
    let to = std::env::temp_dir().join(format!("shunt-layout-{name}-{}", std::process::id()));
    let compiled = Command::new("cc").args(flags).arg("-o").arg(&to).arg(source).output().unwrap();
    if !compiled.status.success() {
        let why = String::from_utf8_lossy(&compiled.stderr).into_owned();
        assert!(why.contains("infiniband/verbs.h: No such file"), "{why}");
        return None;
    }
    let said = Command::new(&to).output().unwrap();
    std::fs::remove_file(&to).unwrap();
    Some(String::from_utf8(said.stdout).unwrap())
}

#[test]
fn the_stand_ins_header_agrees() {
    assert_eq!(theirs(&[], "ours").unwrap(), ours());
}

#[test]
fn rdma_cores_header_agrees() {
    match theirs(&["-DREAL"], "real") {
        Some(said) => assert_eq!(said, ours()),
        None => println!("skipped: infiniband/verbs.h is not installed (libibverbs-dev)"),
    }
}
