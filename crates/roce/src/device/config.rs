//! What people set of a device.

use crate::cq::Moderation;

/// What a device is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// The completion vector, or core, whose device this is.
    pub vector: u16,
    /// How many low bits of queue pair numbers are the vector's, 0 to 8. Whoever distributes what comes
    /// looks at these.
    pub vector_bits: u8,
    /// Queue pairs, 1 to 2^14.
    pub qps_max: u32,
    /// Memory regions, 1 to 2^20. The fewer, the harder to guess are keys.
    pub regions_max: u32,
    /// Completion queues, 1 to 64.
    pub cqs: u16,
    /// Whether completions of the two directions of a queue pair go to two queues; needs two.
    pub split: bool,
    /// Completions in each queue, 16 to 2^22.
    pub cq_capacity: u32,
    /// When completions make an event.
    pub moderation: Moderation,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            vector: 0,
            vector_bits: 6,
            qps_max: 1024,
            regions_max: 4096,
            cqs: 1,
            split: false,
            cq_capacity: 4096,
            moderation: Moderation::default(),
        }
    }
}

/// A setting that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadConfig {
    /// More bits than vectors may have.
    #[error("vector_bits is {0}: 0 to 8")]
    VectorBits(u8),
    /// The vector does not fit into its bits.
    #[error("vector is {0}: less than 2^vector_bits")]
    Vector(u16),
    /// None, or too many.
    #[error("qps_max is {0}: 1 to 16384")]
    Qps(u32),
    /// None, or too many.
    #[error("regions_max is {0}: 1 to 1048576")]
    Regions(u32),
    /// None, too many, or only one where two are needed.
    #[error("cqs is {0}: 1 to 64, and at least 2 to split")]
    Cqs(u16),
    /// Too few or too many.
    #[error("cq_capacity is {0}: 16 to 4194304")]
    CqCapacity(u32),
}

pub(super) fn check(config: &DeviceConfig) -> Result<(), BadConfig> {
    if config.vector_bits > 8 {
        return Err(BadConfig::VectorBits(config.vector_bits));
    }
    if u32::from(config.vector) >= 1 << config.vector_bits {
        return Err(BadConfig::Vector(config.vector));
    }
    if !(1..=1 << 14).contains(&config.qps_max) {
        return Err(BadConfig::Qps(config.qps_max));
    }
    if !(1..=1 << 20).contains(&config.regions_max) {
        return Err(BadConfig::Regions(config.regions_max));
    }
    let least = if config.split { 2 } else { 1 };
    if !(least..=64).contains(&config.cqs) {
        return Err(BadConfig::Cqs(config.cqs));
    }
    if !(16..=1 << 22).contains(&config.cq_capacity) {
        return Err(BadConfig::CqCapacity(config.cq_capacity));
    }
    Ok(())
}
