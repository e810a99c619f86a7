//! What a client asks about a file system (MS-FSCC 2.5), by QUERY_INFO.

use super::VolumeFacts;
use super::file::{Fill, cut};
use super::le::{Put, len32};
use crate::NtStatus;
use crate::name::utf16;

/// Which information about a file system (MS-FSCC 2.5), as far as it can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum VolumeClass {
    /// FileFsVolumeInformation: name and serial number.
    Volume = 1,
    /// FileFsSizeInformation.
    Size = 3,
    /// FileFsDeviceInformation.
    Device = 4,
    /// FileFsAttributeInformation: what it can, and its type.
    Attribute = 5,
    /// FileFsControlInformation: quota defaults.
    Control = 6,
    /// FileFsFullSizeInformation.
    FullSize = 7,
    /// FileFsObjectIdInformation.
    ObjectId = 8,
    /// FileFsSectorSizeInformation.
    SectorSize = 11,
    /// The POSIX extensions' SMB3_FS_POSIX_INFO.
    Posix = 100,
}

/// FILE_DEVICE_DISK.
const DISK: u32 = 7;
/// FILE_DEVICE_IS_MOUNTED.
const MOUNTED: u32 = 0x20;
/// No threshold or limit of a quota.
const UNLIMITED: u64 = u64::MAX;
/// SSINFO_FLAGS_ALIGNED_DEVICE and SSINFO_FLAGS_PARTITION_ALIGNED_ON_DEVICE.
const ALIGNED: u32 = 3;
/// What the file system says it is: clients take this as "behaves like NTFS", and rely on streams and ACLs
/// only then.
const KIND: &str = "NTFS";

impl VolumeClass {
    /// From the byte on the wire.
    ///
    /// # Errors
    ///
    /// INVALID_INFO_CLASS for what cannot be asked for (MS-SMB2 3.3.5.20.2).
    pub fn from_wire(byte: u8) -> Result<Self, NtStatus> {
        [
            Self::Volume,
            Self::Size,
            Self::Device,
            Self::Attribute,
            Self::Control,
            Self::FullSize,
            Self::ObjectId,
            Self::SectorSize,
            Self::Posix,
        ]
        .into_iter()
        .find(|class| *class as u8 == byte)
        .ok_or(NtStatus::INVALID_INFO_CLASS)
    }

    /// Bytes that a buffer must have for any answer.
    #[must_use]
    pub const fn len_min(self) -> usize {
        match self {
            Self::Volume | Self::Size => 24,
            Self::Device => 8,
            Self::Attribute => 16,
            Self::Control => 48,
            Self::FullSize => 32,
            Self::ObjectId => 64,
            Self::SectorSize => 28,
            Self::Posix => 56,
        }
    }

    /// Appends the answer to `out`, at most `limit` bytes of it.
    ///
    /// # Errors
    ///
    /// INFO_LENGTH_MISMATCH if the client's buffer cannot take even the fixed part.
    pub fn put(
        self,
        volume: &VolumeFacts,
        limit: usize,
        out: &mut Vec<u8>,
    ) -> Result<Fill, NtStatus> {
        if limit < self.len_min() {
            return Err(NtStatus::INFO_LENGTH_MISMATCH);
        }
        let start = out.len();
        match self {
            Self::Volume => {
                out.time(volume.created);
                out.u32(volume.serial);
                out.u32(len32(utf16::len(&volume.label)));
                // No object ids of files; reserved.
                out.u16(0);
                utf16::append(&volume.label, out);
            }
            Self::Size => {
                out.u64(volume.units);
                out.u64(volume.available);
                put_unit(volume, out);
            }
            Self::Device => {
                out.u32(DISK);
                out.u32(MOUNTED);
            }
            Self::Attribute => {
                out.u32(volume.flags);
                out.u32(volume.name_max);
                out.u32(len32(utf16::len(KIND)));
                utf16::append(KIND, out);
            }
            Self::Control => {
                // Free space at which filtering starts and stops: not used.
                out.put(&[0; 24]);
                out.u64(UNLIMITED);
                out.u64(UNLIMITED);
                // No quotas are kept; reserved.
                out.u64(0);
            }
            Self::FullSize => {
                out.u64(volume.units);
                out.u64(volume.available);
                out.u64(volume.free);
                put_unit(volume, out);
            }
            Self::ObjectId => {
                out.u64(volume.id);
                out.u64(volume.serial.into());
                out.put(&[0; 48]);
            }
            Self::SectorSize => {
                // Logical, physical for atomicity, for performance, effective for atomicity.
                (0..4).for_each(|_| out.u32(volume.sector));
                out.u32(ALIGNED);
                out.u64(0);
            }
            Self::Posix => {
                out.u32(volume.unit);
                out.u32(volume.unit);
                out.u64(volume.units);
                out.u64(volume.free);
                out.u64(volume.available);
                out.u64(volume.files);
                out.u64(volume.files_free);
                out.u64(volume.id);
            }
        }
        Ok(cut(out, start, limit))
    }
}

fn put_unit(volume: &VolumeFacts, out: &mut Vec<u8>) {
    out.u32(volume.unit / volume.sector.max(1));
    out.u32(volume.sector);
}
