//! Little-endian fields of untrusted bytes.

use super::ImageError;

/// `size_bytes` bytes at `offset`, or [`ImageError::Truncated`].
pub(super) fn slice<'a>(
    bytes: &'a [u8],
    offset: u64,
    size_bytes: u64,
    what: &'static str,
) -> Result<&'a [u8], ImageError> {
    let end = offset.checked_add(size_bytes);
    let range = usize::try_from(offset).ok().zip(end.and_then(|end| usize::try_from(end).ok()));
    range.and_then(|(start, end)| bytes.get(start..end)).ok_or(ImageError::Truncated {
        what,
        offset,
        size_bytes,
    })
}

fn array<const N: usize>(
    bytes: &[u8],
    offset: u64,
    what: &'static str,
) -> Result<[u8; N], ImageError> {
    let mut out = [0; N];
    out.copy_from_slice(slice(bytes, offset, N as u64, what)?);
    Ok(out)
}

pub(super) fn u16_at(bytes: &[u8], offset: u64, what: &'static str) -> Result<u16, ImageError> {
    array(bytes, offset, what).map(u16::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], offset: u64, what: &'static str) -> Result<u32, ImageError> {
    array(bytes, offset, what).map(u32::from_le_bytes)
}

pub(super) fn u64_at(bytes: &[u8], offset: u64, what: &'static str) -> Result<u64, ImageError> {
    array(bytes, offset, what).map(u64::from_le_bytes)
}
