//! What a memset writes, and where.

/// What a memset writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// 1, 2 or 4.
    pub(crate) element_bytes: u32,
    pub(crate) value: u32,
}

/// Where a memset writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) address: u64,
    pub(crate) pitch_bytes: u64,
    /// Elements of a row.
    pub(crate) width: u64,
    pub(crate) height: u64,
}
