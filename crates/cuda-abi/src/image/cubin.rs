//! Kernels of a cubin and the layout of their parameters.
//!
//! Section `.nv.info.<kernel>` holds records: format byte, attribute byte, then a 16-bit value or,
//! in format 4, a 16-bit length and that many bytes.

use super::ImageError;
use super::bytes::{slice, u16_at, u32_at};
use super::elf::Elf;

const INFO_PREFIX: &[u8] = b".nv.info.";
const TEXT_PREFIX: &[u8] = b".text.";
const FORMAT_SIZED: u8 = 4;
const ATTRIBUTE_PARAM_CBANK: u8 = 0x0a;
const ATTRIBUTE_KPARAM_INFO: u8 = 0x17;
const ATTRIBUTE_CBANK_PARAM_SIZE: u8 = 0x19;
const ATTRIBUTE_KPARAM_INFO_V2: u8 = 0x45;

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Where it begins in the parameter buffer.
    pub offset_bytes: u32,
    /// Its size.
    pub size_bytes: u32,
}

/// The layout of a kernel's parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParameterLayout {
    /// The parameters in order.
    pub parameters: Vec<Parameter>,
    /// Size of the whole buffer.
    pub total_bytes: u32,
    /// Where the buffer begins in constant bank 0, if the cubin says so.
    pub bank_offset_bytes: Option<u32>,
}

/// A kernel of a cubin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its symbol.
    pub name: String,
    /// The layout of its parameters.
    pub layout: ParameterLayout,
}

/// All functions with code in a cubin that also have information, kernels foremost, by name.
pub fn kernels(elf: &Elf<'_>) -> Result<Vec<Kernel>, ImageError> {
    let mut code = Vec::new();
    let mut infos = Vec::new();
    for section in elf.sections() {
        let section = section?;
        if let Some(name) = section.name.strip_prefix(TEXT_PREFIX) {
            code.push(name);
        } else if let Some(name) = section.name.strip_prefix(INFO_PREFIX) {
            infos.push((name, section.contents));
        }
    }
    code.sort_unstable();
    code.dedup();
    let mut kernels = Vec::new();
    for name in code {
        let info = infos.iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, info)| info);
        let name = String::from_utf8_lossy(name).into_owned();
        kernels.push(Kernel { name, layout: parameter_layout(info)? });
    }
    Ok(kernels)
}

/// The parameter layout in a kernel's information section.
pub fn parameter_layout(info: &[u8]) -> Result<ParameterLayout, ImageError> {
    let mut layout = ParameterLayout::default();
    let mut found: Vec<(u16, Parameter)> = Vec::new();
    let mut offset = 0;
    while offset < info.len() as u64 {
        let head = slice(info, offset, 4, "kernel information record")?;
        let (format, attribute) = (head[0], head[1]);
        let value = u16::from_le_bytes([head[2], head[3]]);
        offset += 4;
        if format != FORMAT_SIZED {
            if attribute == ATTRIBUTE_CBANK_PARAM_SIZE {
                layout.total_bytes = u32::from(value);
            }
            continue;
        }
        let data = slice(info, offset, u64::from(value), "kernel information")?;
        offset += u64::from(value);
        match attribute {
            ATTRIBUTE_KPARAM_INFO | ATTRIBUTE_KPARAM_INFO_V2 => {
                let ordinal = u16_at(data, 4, "parameter ordinal")?;
                let word = u32_at(data, 8, "parameter size")?;
                let size_bytes = if attribute == ATTRIBUTE_KPARAM_INFO { word >> 18 } else { word };
                let offset_bytes = u32::from(u16_at(data, 6, "parameter offset")?);
                found.push((ordinal, Parameter { offset_bytes, size_bytes }));
            }
            ATTRIBUTE_PARAM_CBANK => {
                layout.bank_offset_bytes = Some(u32::from(u16_at(data, 4, "parameter bank")?));
                layout.total_bytes = u32::from(u16_at(data, 6, "parameter bank")?);
            }
            ATTRIBUTE_CBANK_PARAM_SIZE => layout.total_bytes = u32_at(data, 0, "parameter bank")?,
            _ => {}
        }
    }
    found.sort_by_key(|(ordinal, _)| *ordinal);
    if found.iter().enumerate().any(|(i, (ordinal, _))| usize::from(*ordinal) != i) {
        return Err(ImageError::Malformed("kernel parameters are not numbered from 0"));
    }
    layout.parameters = found.into_iter().map(|(_, parameter)| parameter).collect();
    let end = layout.parameters.iter().map(|p| p.offset_bytes.saturating_add(p.size_bytes)).max();
    layout.total_bytes = layout.total_bytes.max(end.unwrap_or(0));
    if layout.total_bytes > PARAMETER_LIMIT_BYTES {
        return Err(ImageError::Malformed("kernel parameters exceed 64 KiB"));
    }
    Ok(layout)
}

/// Parameter offsets have 16 bits.
const PARAMETER_LIMIT_BYTES: u32 = 1 << 16;
