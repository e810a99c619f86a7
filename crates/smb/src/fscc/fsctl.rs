//! Control codes (MS-FSCC 2.3, MS-SMB2 2.2.31) and what goes with them.

mod copy;
mod network;
mod ranges;
mod state;

pub use copy::{
    CHUNK_LEN_MAX, CHUNKS_MAX, COPY_LEN_MAX, Chunk, CopyChunk, CopyChunkAnswer, Duplicate,
    put_resume_key,
};
pub use network::{
    Interface, InterfaceCaps, ValidateNegotiate, ValidateNegotiateAnswer, put_interfaces,
};
pub use ranges::{Range, RegionQuery, parse_allocated, parse_zero, put_allocated, put_regions};
pub use state::{
    Integrity, PipeWait, parse_compression, parse_sparse, put_compression, put_no_snapshots,
    put_object_id, put_on_disk_volume,
};

/// What a client asks the file system to do, or to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(pub u32);

impl Code {
    /// FSCTL_DFS_GET_REFERRALS.
    pub const DFS_GET_REFERRALS: Self = Self(0x0006_0194);
    /// FSCTL_DFS_GET_REFERRALS_EX.
    pub const DFS_GET_REFERRALS_EX: Self = Self(0x0006_01b0);
    /// FSCTL_GET_COMPRESSION.
    pub const GET_COMPRESSION: Self = Self(0x0009_003c);
    /// FSCTL_SET_COMPRESSION.
    pub const SET_COMPRESSION: Self = Self(0x0009_c040);
    /// FSCTL_FILESYSTEM_GET_STATISTICS.
    pub const GET_STATISTICS: Self = Self(0x0009_0060);
    /// FSCTL_GET_NTFS_VOLUME_DATA.
    pub const GET_NTFS_VOLUME_DATA: Self = Self(0x0009_0064);
    /// FSCTL_IS_VOLUME_DIRTY.
    pub const IS_VOLUME_DIRTY: Self = Self(0x0009_0078);
    /// FSCTL_SET_OBJECT_ID.
    pub const SET_OBJECT_ID: Self = Self(0x0009_0098);
    /// FSCTL_GET_OBJECT_ID.
    pub const GET_OBJECT_ID: Self = Self(0x0009_009c);
    /// FSCTL_DELETE_OBJECT_ID.
    pub const DELETE_OBJECT_ID: Self = Self(0x0009_00a0);
    /// FSCTL_SET_REPARSE_POINT.
    pub const SET_REPARSE_POINT: Self = Self(0x0009_00a4);
    /// FSCTL_GET_REPARSE_POINT.
    pub const GET_REPARSE_POINT: Self = Self(0x0009_00a8);
    /// FSCTL_DELETE_REPARSE_POINT.
    pub const DELETE_REPARSE_POINT: Self = Self(0x0009_00ac);
    /// FSCTL_CREATE_OR_GET_OBJECT_ID.
    pub const CREATE_OR_GET_OBJECT_ID: Self = Self(0x0009_00c0);
    /// FSCTL_SET_SPARSE.
    pub const SET_SPARSE: Self = Self(0x0009_00c4);
    /// FSCTL_SET_ZERO_DATA.
    pub const SET_ZERO_DATA: Self = Self(0x0009_80c8);
    /// FSCTL_QUERY_ALLOCATED_RANGES.
    pub const QUERY_ALLOCATED_RANGES: Self = Self(0x0009_40cf);
    /// FSCTL_QUERY_ON_DISK_VOLUME_INFO.
    pub const QUERY_ON_DISK_VOLUME_INFO: Self = Self(0x0009_013c);
    /// FSCTL_FILE_LEVEL_TRIM.
    pub const FILE_LEVEL_TRIM: Self = Self(0x0009_8208);
    /// FSCTL_OFFLOAD_READ.
    pub const OFFLOAD_READ: Self = Self(0x0009_4264);
    /// FSCTL_OFFLOAD_WRITE.
    pub const OFFLOAD_WRITE: Self = Self(0x0009_8268);
    /// FSCTL_GET_INTEGRITY_INFORMATION.
    pub const GET_INTEGRITY_INFORMATION: Self = Self(0x0009_027c);
    /// FSCTL_SET_INTEGRITY_INFORMATION.
    pub const SET_INTEGRITY_INFORMATION: Self = Self(0x0009_c280);
    /// FSCTL_QUERY_FILE_REGIONS.
    pub const QUERY_FILE_REGIONS: Self = Self(0x0009_0284);
    /// FSCTL_DUPLICATE_EXTENTS_TO_FILE.
    pub const DUPLICATE_EXTENTS_TO_FILE: Self = Self(0x0009_8344);
    /// FSCTL_DUPLICATE_EXTENTS_TO_FILE_EX.
    pub const DUPLICATE_EXTENTS_TO_FILE_EX: Self = Self(0x0009_83e8);
    /// FSCTL_PIPE_PEEK.
    pub const PIPE_PEEK: Self = Self(0x0011_400c);
    /// FSCTL_PIPE_TRANSCEIVE.
    pub const PIPE_TRANSCEIVE: Self = Self(0x0011_c017);
    /// FSCTL_PIPE_WAIT.
    pub const PIPE_WAIT: Self = Self(0x0011_0018);
    /// FSCTL_SRV_ENUMERATE_SNAPSHOTS.
    pub const SRV_ENUMERATE_SNAPSHOTS: Self = Self(0x0014_4064);
    /// FSCTL_SRV_REQUEST_RESUME_KEY.
    pub const SRV_REQUEST_RESUME_KEY: Self = Self(0x0014_0078);
    /// FSCTL_SRV_COPYCHUNK.
    pub const SRV_COPYCHUNK: Self = Self(0x0014_40f2);
    /// FSCTL_SRV_COPYCHUNK_WRITE.
    pub const SRV_COPYCHUNK_WRITE: Self = Self(0x0014_80f2);
    /// FSCTL_SRV_READ_HASH.
    pub const SRV_READ_HASH: Self = Self(0x0014_41bb);
    /// FSCTL_LMR_REQUEST_RESILIENCY.
    pub const LMR_REQUEST_RESILIENCY: Self = Self(0x0014_01d4);
    /// FSCTL_QUERY_NETWORK_INTERFACE_INFO.
    pub const QUERY_NETWORK_INTERFACE_INFO: Self = Self(0x0014_01fc);
    /// FSCTL_VALIDATE_NEGOTIATE_INFO.
    pub const VALIDATE_NEGOTIATE_INFO: Self = Self(0x0014_0204);

    /// Samba's test of multichannel: take this connection for one whose other end is gone. For debugging.
    pub const TORTURE_FORCE_UNACKED_TIMEOUT: Self = Self(0x8384_8003);
    /// Samba's test of clients: pad bodies of IOCTL responses. For debugging.
    pub const TORTURE_IOCTL_RESPONSE_BODY_PADDING8: Self = Self(0x8384_8013);
    /// Samba's test of clients: pad bodies of READ responses. For debugging.
    pub const TORTURE_GLOBAL_READ_RESPONSE_BODY_PADDING8: Self = Self(0x8384_8023);
    /// Samba's test of closing what is in use: sleep as many milliseconds as the one byte of the request says.
    /// For debugging.
    pub const TORTURE_FSP_ASYNC_SLEEP: Self = Self(0x8384_8043);
}
