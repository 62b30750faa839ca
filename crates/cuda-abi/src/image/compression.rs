//! Decompression of fatbin entries, bounded by the size that the entry declares.

use std::io::Read;

use super::ImageError;

/// The largest entry that is decompressed. The largest in shipped libraries is below 100 MB.
pub const UNCOMPRESSED_LIMIT_BYTES: u64 = 512 << 20;

/// One byte of LZ4 input yields at most this many bytes of output.
const LZ4_RATIO_LIMIT: u64 = 255;

/// How an entry's payload is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// As it is.
    None,
    /// An LZ4 block without frame (toolkits up to 12).
    Lz4,
    /// A zstd frame (toolkit 13).
    Zstd,
}

/// Decompresses `data`, which must yield exactly `size_bytes`.
pub(super) fn decompress(
    compression: Compression,
    data: &[u8],
    size_bytes: u64,
) -> Result<Vec<u8>, ImageError> {
    if size_bytes > UNCOMPRESSED_LIMIT_BYTES {
        return Err(ImageError::TooLarge { size_bytes, limit_bytes: UNCOMPRESSED_LIMIT_BYTES });
    }
    let out = match compression {
        Compression::None => data.to_vec(),
        Compression::Lz4 => lz4(data, size_bytes)?,
        Compression::Zstd => zstd(data, size_bytes)?,
    };
    if out.len() as u64 != size_bytes {
        return Err(failure(format!("{} bytes instead of {size_bytes}", out.len())));
    }
    Ok(out)
}

fn lz4(data: &[u8], size_bytes: u64) -> Result<Vec<u8>, ImageError> {
    // Checked before the output is allocated, so that a few bytes cannot ask for much.
    if size_bytes > (data.len() as u64).saturating_mul(LZ4_RATIO_LIMIT) {
        return Err(failure(format!("{} bytes of LZ4 cannot yield {size_bytes}", data.len())));
    }
    let mut out = vec![0; size_bytes as usize];
    let written = lz4_flex::block::decompress_into(data, &mut out).map_err(failure)?;
    out.truncate(written);
    Ok(out)
}

fn zstd(data: &[u8], size_bytes: u64) -> Result<Vec<u8>, ImageError> {
    let decoder = ruzstd::decoding::StreamingDecoder::new(data).map_err(failure)?;
    // The output grows as data comes; one byte more than declared shows that there is more.
    let mut out = Vec::new();
    decoder.take(size_bytes + 1).read_to_end(&mut out).map_err(failure)?;
    Ok(out)
}

fn failure(reason: impl ToString) -> ImageError {
    ImageError::Decompression(reason.to_string())
}
