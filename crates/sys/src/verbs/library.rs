//! libibverbs, found at run time.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::sync::Arc;

use super::raw;
use crate::library::{self, LoadError, Needs, symbols};

/// Who has no libibverbs gets it so.
const NEEDS: Needs = Needs {
    packages: "libibverbs1 and ibverbs-providers (Debian, Ubuntu), libibverbs (Fedora, RHEL) or rdma-core (others)",
    version: "rdma-core 32",
};

symbols! {
    get_device_list: fn(*mut c_int) -> *mut *mut raw::Device, "ibv_get_device_list", "IBVERBS_1.1";
    free_device_list: fn(*mut *mut raw::Device), "ibv_free_device_list", "IBVERBS_1.1";
    get_device_name: fn(*mut raw::Device) -> *const c_char, "ibv_get_device_name", "IBVERBS_1.1";
    get_device_guid: fn(*mut raw::Device) -> u64, "ibv_get_device_guid", "IBVERBS_1.1";
    open_device: fn(*mut raw::Device) -> *mut raw::Context, "ibv_open_device", "IBVERBS_1.1";
    close_device: fn(*mut raw::Context) -> c_int, "ibv_close_device", "IBVERBS_1.1";
    query_device: fn(*mut raw::Context, *mut raw::DeviceAttributes) -> c_int,
        "ibv_query_device", "IBVERBS_1.1";
    query_port: fn(*mut raw::Context, u8, *mut raw::PortAttributes) -> c_int,
        "ibv_query_port", "IBVERBS_1.1";
    query_gid_table: fn(*mut raw::Context, *mut raw::GidEntry, usize, u32, usize) -> isize,
        "_ibv_query_gid_table", "IBVERBS_1.11";
    get_async_event: fn(*mut raw::Context, *mut raw::AsyncEvent) -> c_int,
        "ibv_get_async_event", "IBVERBS_1.1";
    ack_async_event: fn(*mut raw::AsyncEvent), "ibv_ack_async_event", "IBVERBS_1.1";
    alloc_pd: fn(*mut raw::Context) -> *mut raw::Domain, "ibv_alloc_pd", "IBVERBS_1.1";
    dealloc_pd: fn(*mut raw::Domain) -> c_int, "ibv_dealloc_pd", "IBVERBS_1.1";
    reg_mr_iova: fn(*mut raw::Domain, *mut c_void, usize, u64, c_int) -> *mut raw::Region,
        "ibv_reg_mr_iova", "IBVERBS_1.7";
    dereg_mr: fn(*mut raw::Region) -> c_int, "ibv_dereg_mr", "IBVERBS_1.1";
    create_comp_channel: fn(*mut raw::Context) -> *mut raw::Channel,
        "ibv_create_comp_channel", "IBVERBS_1.0";
    destroy_comp_channel: fn(*mut raw::Channel) -> c_int,
        "ibv_destroy_comp_channel", "IBVERBS_1.0";
    create_cq: fn(*mut raw::Context, c_int, *mut c_void, *mut raw::Channel, c_int) -> *mut raw::Queue,
        "ibv_create_cq", "IBVERBS_1.1";
    destroy_cq: fn(*mut raw::Queue) -> c_int, "ibv_destroy_cq", "IBVERBS_1.1";
    get_cq_event: fn(*mut raw::Channel, *mut *mut raw::Queue, *mut *mut c_void) -> c_int,
        "ibv_get_cq_event", "IBVERBS_1.1";
    ack_cq_events: fn(*mut raw::Queue, u32), "ibv_ack_cq_events", "IBVERBS_1.1";
    create_qp: fn(*mut raw::Domain, *mut raw::PairSetup) -> *mut raw::Pair,
        "ibv_create_qp", "IBVERBS_1.1";
    modify_qp: fn(*mut raw::Pair, *mut raw::PairAttributes, c_int) -> c_int,
        "ibv_modify_qp", "IBVERBS_1.1";
    query_qp: fn(*mut raw::Pair, *mut raw::PairAttributes, c_int, *mut raw::PairSetup) -> c_int,
        "ibv_query_qp", "IBVERBS_1.1";
    destroy_qp: fn(*mut raw::Pair) -> c_int, "ibv_destroy_qp", "IBVERBS_1.1";
}

/// libibverbs in this process. It is never unloaded: drivers that it loads leave threads and handlers.
#[derive(Clone)]
pub struct Library {
    pub(super) symbols: Arc<Symbols>,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

impl Library {
    /// The name that the linker looks for.
    pub const NAME: &'static str = "libibverbs.so.1";

    /// Loads the system's.
    ///
    /// # Errors
    ///
    /// [`LoadError`] says what to install.
    pub fn load() -> Result<Self, LoadError> {
        Self::load_from(Self::NAME)
    }

    /// Loads the one of that name: a path, or what the linker looks for in its directories. It is trusted
    /// as is whatever this program is linked with: a setting of who runs it, never of a peer.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn load_from(name: &str) -> Result<Self, LoadError> {
        let symbols = library::load(name, &NEEDS, Symbols::find)?;
        Ok(Self { symbols: Arc::new(symbols) })
    }
}
