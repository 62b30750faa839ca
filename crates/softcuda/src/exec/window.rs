//! The address map of generic addresses. Device memory is identity-mapped below 2^47; the other
//! spaces have windows above it, each 2^40 bytes long with zero low 32 bits, so that the low half
//! of a generic address is the offset in its space.

/// Bits that tell windows apart.
pub(super) const TAG_SHIFT: u32 = 40;
/// Tag of the shared window.
pub(super) const SHARED_TAG: u64 = 0x81;
/// Tag of the local window.
pub(super) const LOCAL_TAG: u64 = 0x82;
/// Tag of the kernel parameter window.
pub(super) const PARAM_TAG: u64 = 0x83;
/// Tag of function addresses.
pub(super) const CODE_TAG: u64 = 0x84;

/// First address of the shared window.
pub(super) const SHARED_WINDOW: u64 = SHARED_TAG << TAG_SHIFT;
/// First address of the local window.
pub(super) const LOCAL_WINDOW: u64 = LOCAL_TAG << TAG_SHIFT;
/// First address of the kernel parameter window.
pub(super) const PARAM_WINDOW: u64 = PARAM_TAG << TAG_SHIFT;
/// Address of function 0; function `i` has `CODE_WINDOW + 16 * i`.
pub(super) const CODE_WINDOW: u64 = CODE_TAG << TAG_SHIFT;
/// Distance between function addresses.
pub(super) const CODE_STEP: u64 = 16;
/// Everything at or above is in a window.
pub(super) const WINDOWS_START: u64 = 1 << 47;

/// In a shared::cluster address: bits from here on hold the block's rank in its cluster plus one; 0
/// is the own block.
pub(super) const CLUSTER_RANK_SHIFT: u32 = 24;
