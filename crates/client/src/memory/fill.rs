//! Filling memory.

use crate::client::Client;
use crate::copy::Timing;
use crate::graph::kinds::{MemsetWork, NodeKind};
use crate::memory::memory_map::{Area, Reach};
use crate::memory::pattern::{Pattern, Rows};
use crate::memory::peer;
use crate::result::Result;
use crate::stream::Target;
use cuda_abi::types::CUresult;
use link::wire::command::{Fill, Opcode};
use std::sync::Arc;

/// Fills in stream order; the synchronous form waits where the host could look.
pub(crate) fn fill(
    client: &'static Client,
    target: &Target,
    rows: Rows,
    pattern: Pattern,
    timing: Timing,
) -> Result {
    let Rows { address, pitch_bytes, width, height } = rows;
    if width == 0 || height == 0 {
        return target.backend.session.check();
    }
    let area = check_fill(client, rows, pattern)?;
    if target.capture(client, || Ok(NodeKind::Memset(MemsetWork { rows, pattern })))? {
        return Ok(());
    }
    let device = target.context.device;
    if area.device != device {
        let span = pitch_bytes * (height - 1) + width * u64::from(pattern.element_bytes);
        if !peer::reaches(client, device, &Reach::Shared(Arc::clone(&area)), address, span) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
    }
    let body = Fill {
        stream: target.slot,
        element_bytes: pattern.element_bytes,
        destination: address,
        pitch_bytes,
        width,
        height,
        value: pattern.value,
        reserved: 0,
    };
    let mark = target.post(Opcode::Fill, &body)?;
    if timing == Timing::Synchronous && area.is_host() { target.wait(mark) } else { Ok(()) }
}

/// Checks a fill that is not empty; returns what it writes to.
pub(crate) fn check_fill(client: &Client, rows: Rows, pattern: Pattern) -> Result<Arc<Area>> {
    let Rows { address, pitch_bytes, width, height } = rows;
    let element = u64::from(pattern.element_bytes);
    let row_bytes = width.checked_mul(element).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let aligned =
        address.is_multiple_of(element) && (height == 1 || pitch_bytes.is_multiple_of(element));
    if !aligned || (height > 1 && pitch_bytes < row_bytes) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let span = pitch_bytes.checked_mul(height - 1).and_then(|bytes| bytes.checked_add(row_bytes));
    client.memory.device_reach(address, span.ok_or(CUresult::ERROR_INVALID_VALUE)?)
}
