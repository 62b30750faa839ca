//! Attributes of streams: kept and told; in the executor they change nothing.

use super::arguments::not_null;
use crate::client::{Client, run};
use crate::result::Result;
use crate::stream::attributes::Stored;
use crate::stream::{Target, targets};
use cuda_abi::types::*;

/// `CU_SYNC_POLICY_AUTO`, the first of four.
const AUTO_SYNCHRONIZATION: u32 = 1;
const LAST_SYNCHRONIZATION: u32 = 4;

fn stored(value: &CUstreamAttrValue) -> Stored {
    // SAFETY: the pad covers the whole union; the caller's structure is read as bytes.
    let pad = unsafe { value.pad };
    core::array::from_fn(|word| {
        u64::from_le_bytes(core::array::from_fn(|byte| pad[8 * word + byte] as u8))
    })
}

fn restored(words: Stored) -> CUstreamAttrValue {
    let pad = core::array::from_fn(|place| words[place / 8].to_le_bytes()[place % 8] as _);
    CUstreamAttrValue { pad }
}

fn check(
    client: &Client,
    target: &Target,
    attribute: CUstreamAttrID,
    value: &CUstreamAttrValue,
) -> Result {
    use CUstreamAttrID as Id;
    let is_valid = match attribute {
        Id::PRIORITY => {
            let (least, greatest) = client.device(target.context.device)?.info.stream_priorities;
            // SAFETY: the identifier says which member the caller filled in.
            (greatest.min(least)..=least.max(greatest)).contains(&unsafe { value.priority })
        }
        Id::SYNCHRONIZATION_POLICY => {
            // SAFETY: as above.
            let policy = unsafe { value.syncPolicy.0 };
            (AUTO_SYNCHRONIZATION..=LAST_SYNCHRONIZATION).contains(&policy)
        }
        Id::ACCESS_POLICY_WINDOW | Id::MEM_SYNC_DOMAIN_MAP | Id::MEM_SYNC_DOMAIN => true,
        _ => false,
    };
    if is_valid { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

fn get(client: &Client, target: &Target, attribute: CUstreamAttrID) -> Result<CUstreamAttrValue> {
    use CUstreamAttrID as Id;
    let known = client.stream_attributes.get(target.stream_id()?, attribute.0);
    let mut value = CUstreamAttrValue::default();
    match (attribute, known) {
        (_, Some(words)) => value = restored(words),
        (Id::PRIORITY, None) => {
            value.priority = target.stream.as_ref().map_or(0, |stream| stream.priority);
        }
        (Id::SYNCHRONIZATION_POLICY, None) => value.syncPolicy.0 = AUTO_SYNCHRONIZATION,
        (Id::MEM_SYNC_DOMAIN_MAP, None) => value.memSyncDomainMap.remote = 1,
        (Id::ACCESS_POLICY_WINDOW | Id::MEM_SYNC_DOMAIN, None) => {}
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    }
    Ok(value)
}

pub(crate) unsafe fn cuStreamSetAttribute(
    hStream: CUstream,
    attr: CUstreamAttrID,
    value: *const CUstreamAttrValue,
) -> CUresult {
    run(|client| {
        not_null(value)?;
        let target = targets::located(client, hStream)?;
        // SAFETY: not null; the caller's structure.
        let value = unsafe { value.read() };
        check(client, &target, attr, &value)?;
        client.stream_attributes.set(target.stream_id()?, attr.0, stored(&value));
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetAttribute(
    hStream: CUstream,
    attr: CUstreamAttrID,
    value_out: *mut CUstreamAttrValue,
) -> CUresult {
    run(|client| {
        let target = targets::located(client, hStream)?;
        put!(value_out, get(client, &target, attr)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamCopyAttributes(dst: CUstream, src: CUstream) -> CUresult {
    run(|client| {
        let (to, from) = (targets::located(client, dst)?, targets::located(client, src)?);
        client.stream_attributes.copy(to.stream_id()?, from.stream_id()?);
        Ok(())
    })
}
