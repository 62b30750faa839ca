//! Attributes of streams: kept and told; the priority is the only one that changes anything here.

use cuda_abi::types::{CUresult, CUstream, CUstreamAttrID as Id, CUstreamAttrValue};

use crate::api::answer::Answer;
use crate::api::objects::{GREATEST_PRIORITY, LEAST_PRIORITY, StoredValue, Stream};
use crate::api::out;
use crate::api::stream::find;

/// `CU_SYNC_POLICY_AUTO`
const AUTO_SYNCHRONIZATION: u32 = 1;

api! {
    fn cuStreamSetAttribute(hStream: CUstream, attr: Id, param: *const CUstreamAttrValue) {
        let (_, _, stream) = find(hStream)?;
        // SAFETY: the caller's structure.
        let value = unsafe { out::read(param)? };
        match attr {
            Id::PRIORITY => {
                // SAFETY: the identifier says which member the caller filled in.
                let priority = unsafe { value.priority };
                if !(GREATEST_PRIORITY..=LEAST_PRIORITY).contains(&priority) {
                    return Err(CUresult::ERROR_INVALID_VALUE);
                }
                stream.set_priority(priority);
            }
            Id::SYNCHRONIZATION_POLICY => {
                // SAFETY: as above.
                let policy = unsafe { value.syncPolicy.0 };
                if !(AUTO_SYNCHRONIZATION..=4).contains(&policy) {
                    return Err(CUresult::ERROR_INVALID_VALUE);
                }
                stream.set_attribute(attr.0, stored(&value));
            }
            Id::ACCESS_POLICY_WINDOW | Id::MEM_SYNC_DOMAIN_MAP | Id::MEM_SYNC_DOMAIN => {
                stream.set_attribute(attr.0, stored(&value));
            }
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    fn cuStreamGetAttribute(hStream: CUstream, attr: Id, value: *mut CUstreamAttrValue) {
        let (_, _, stream) = find(hStream)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(value, get(&stream, attr)?) }
    }

    fn cuStreamCopyAttributes(dstStream: CUstream, srcStream: CUstream) {
        let (_, _, to) = find(dstStream)?;
        let (_, _, from) = find(srcStream)?;
        to.set_priority(from.priority());
        to.copy_attributes(&from);
        Ok(())
    }
}

fn get(stream: &Stream, attribute: Id) -> Answer<CUstreamAttrValue> {
    let mut value = CUstreamAttrValue::default();
    match (attribute, stream.attribute(attribute.0)) {
        (Id::PRIORITY, _) => value.priority = stream.priority(),
        (_, Some(words)) => value.pad = bytes(words),
        (Id::SYNCHRONIZATION_POLICY, None) => value.syncPolicy.0 = AUTO_SYNCHRONIZATION,
        (Id::MEM_SYNC_DOMAIN_MAP, None) => value.memSyncDomainMap.remote = 1,
        (Id::ACCESS_POLICY_WINDOW | Id::MEM_SYNC_DOMAIN, None) => {}
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    }
    Ok(value)
}

fn stored(value: &CUstreamAttrValue) -> StoredValue {
    // SAFETY: the pad covers the whole union; the caller's structure is read as bytes.
    let pad = unsafe { value.pad };
    std::array::from_fn(|word| {
        u64::from_le_bytes(std::array::from_fn(|byte| pad[8 * word + byte] as u8))
    })
}

fn bytes(words: StoredValue) -> [std::ffi::c_char; 64] {
    std::array::from_fn(|place| words[place / 8].to_le_bytes()[place % 8] as std::ffi::c_char)
}
