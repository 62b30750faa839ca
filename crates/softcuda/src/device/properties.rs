//! What a device is: limits of a mid-size data-centre GPU of compute capability 12.0, and its
//! identity.

/// Hardware limits; the same for all devices.
pub(crate) mod limits {
    pub(crate) const WARP_THREADS: u32 = 32;
    pub(crate) const THREADS_PER_BLOCK: u32 = 1024;
    pub(crate) const BLOCK: [u32; 3] = [1024, 1024, 64];
    pub(crate) const GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
    pub(crate) const THREADS_PER_SM: u32 = 1536;
    pub(crate) const BLOCKS_PER_SM: u32 = 24;
    pub(crate) const REGISTERS_PER_SM: u32 = 65536;
    pub(crate) const REGISTERS_PER_BLOCK: u32 = 65536;
    /// Without opting in.
    pub(crate) const SHARED_PER_BLOCK: u32 = 48 << 10;
    /// With `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
    pub(crate) const SHARED_PER_BLOCK_OPTIN: u32 = 99 << 10;
    pub(crate) const SHARED_PER_SM: u32 = 100 << 10;
    pub(crate) const RESERVED_SHARED_PER_BLOCK: u32 = 1 << 10;
    pub(crate) const CONSTANT_BYTES: u32 = 64 << 10;
    pub(crate) const BLOCKS_PER_CLUSTER: u32 = 8;
    pub(crate) const PARAMETER_BYTES: usize = 32764;
    /// Largest extent of arrays and pitched textures, texels.
    pub(crate) const TEXTURE_EXTENT: u32 = 131_072;
    /// Texels of a texture on linear memory.
    pub(crate) const TEXTURE_BUFFER_TEXELS: u32 = 1 << 28;
    /// Registers are given out to warps in units of this many per thread.
    pub(crate) const REGISTER_UNIT: u32 = 8;
    pub(crate) const SHARED_UNIT: u32 = 128;
}

/// Name of device `ordinal`, as `cuDeviceGetName` gives it.
pub(crate) const NAME: &str = "OpenMPS Software GPU";

/// The 16 bytes of a device's UUID; stable across processes.
pub(crate) fn uuid(index: u32) -> [u8; 16] {
    let mut bytes = *b"OpenMPS-soft-gpu";
    bytes[6] = 0x40 | (bytes[6] & 0x0f);
    bytes[8] = 0x80 | (bytes[8] & 0x3f);
    bytes[15] = index as u8;
    bytes
}

/// The UUID in the form of `nvidia-smi -L`.
pub(crate) fn uuid_text(index: u32) -> String {
    let hex: String = uuid(index).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[0..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32])
}

/// PCI domain, bus and device numbers.
pub(crate) fn pci(index: u32) -> (u32, u32, u32) {
    (0, 0x10 + index, 0)
}
