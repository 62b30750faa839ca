//! Builders of images for tests.

/// A fatbin entry to build.
pub(crate) struct EntrySpec {
    pub(crate) kind: u16,
    pub(crate) architecture: u32,
    pub(crate) flags: u64,
    /// As stored.
    pub(crate) payload: Vec<u8>,
    /// Size when decompressed, 0 if stored as it is.
    pub(crate) uncompressed_bytes: u64,
    /// For the driver's compiler.
    pub(crate) options: &'static [u8],
}

pub(crate) fn plain(kind: u16, architecture: u32, payload: &[u8]) -> EntrySpec {
    EntrySpec {
        kind,
        architecture,
        flags: 0x11,
        payload: payload.to_vec(),
        uncompressed_bytes: 0,
        options: b"",
    }
}

pub(crate) fn zstd(kind: u16, architecture: u32, contents: &[u8]) -> EntrySpec {
    let payload =
        ruzstd::encoding::compress_to_vec(contents, ruzstd::encoding::CompressionLevel::Fastest);
    let uncompressed_bytes = contents.len() as u64;
    EntrySpec { kind, architecture, flags: 0x8011, payload, uncompressed_bytes, options: b"" }
}

pub(crate) fn lz4(kind: u16, architecture: u32, contents: &[u8]) -> EntrySpec {
    let mut payload = vec![0; lz4_flex::block::get_maximum_output_size(contents.len())];
    let written = lz4_flex::block::compress_into(contents, &mut payload).unwrap();
    payload.truncate(written);
    let uncompressed_bytes = contents.len() as u64;
    EntrySpec { kind, architecture, flags: 0x2011, payload, uncompressed_bytes, options: b"" }
}

pub(crate) fn fatbin(entries: &[EntrySpec]) -> Vec<u8> {
    let mut body = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        // Header sizes vary in real files.
        let header_bytes = match entry.options.len() {
            0 => 64 + 8 * (i as u32 % 3),
            length => (72 + length as u32).next_multiple_of(8),
        };
        let padded_bytes = entry.payload.len().next_multiple_of(8);
        let compressed_bytes =
            if entry.uncompressed_bytes == 0 { 0 } else { entry.payload.len() as u32 };
        let start = body.len();
        body.extend(entry.kind.to_le_bytes());
        body.extend(0x101u16.to_le_bytes());
        body.extend(header_bytes.to_le_bytes());
        body.extend((padded_bytes as u64).to_le_bytes());
        body.extend(compressed_bytes.to_le_bytes());
        body.extend(if entry.options.is_empty() { 0u32 } else { 64 }.to_le_bytes());
        body.extend([0; 4]);
        body.extend(entry.architecture.to_le_bytes());
        body.extend([0; 8]);
        body.extend(entry.flags.to_le_bytes());
        body.extend([0; 8]);
        body.extend(entry.uncompressed_bytes.to_le_bytes());
        if !entry.options.is_empty() {
            body.extend(72u32.to_le_bytes());
            body.extend((entry.options.len() as u32).to_le_bytes());
            body.extend(entry.options);
        }
        body.resize(start + header_bytes as usize, 0);
        body.extend(&entry.payload);
        body.resize(start + header_bytes as usize + padded_bytes, 0);
    }
    let mut out = Vec::new();
    out.extend(super::fatbin::MAGIC.to_le_bytes());
    out.extend(1u16.to_le_bytes());
    out.extend(16u16.to_le_bytes());
    out.extend((body.len() as u64).to_le_bytes());
    out.extend(body);
    out
}

/// A cubin for sm_90 as toolkit 13 writes it, with the given sections.
pub(crate) fn elf(sections: &[(&str, &[u8])]) -> Vec<u8> {
    let mut names = vec![0];
    let mut out = vec![0; 64];
    let mut headers = vec![[0u64; 8]];
    let mut add = |out: &mut Vec<u8>, name: &str, contents: &[u8], names: &mut Vec<u8>| {
        let name_offset = names.len() as u64;
        names.extend(name.as_bytes());
        names.push(0);
        let offset = out.len() as u64;
        let contents = if name == ".shstrtab" { names.clone() } else { contents.to_vec() };
        out.extend(&contents);
        // Name and type share the first word.
        headers.push([name_offset | 1 << 32, 0, 0, offset, contents.len() as u64, 0, 1, 0]);
    };
    for (name, contents) in sections {
        add(&mut out, name, contents, &mut names);
    }
    add(&mut out, ".shstrtab", &[], &mut names);
    let section_offset = out.len() as u64;
    let section_count = headers.len() as u16;
    for header in &headers {
        out.extend(header.iter().flat_map(|word| word.to_le_bytes()));
    }
    out[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\x41\x08\0\0\0\0\0\0\0");
    out[18..20].copy_from_slice(&0xbeu16.to_le_bytes());
    out[40..48].copy_from_slice(&section_offset.to_le_bytes());
    out[48..52].copy_from_slice(&0x06005a04u32.to_le_bytes());
    out[52..54].copy_from_slice(&64u16.to_le_bytes());
    out[54..56].copy_from_slice(&56u16.to_le_bytes());
    out[58..60].copy_from_slice(&64u16.to_le_bytes());
    out[60..62].copy_from_slice(&section_count.to_le_bytes());
    out[62..64].copy_from_slice(&(section_count - 1).to_le_bytes());
    out
}

/// Kernel information with one record per parameter, as nvcc orders them (last first).
pub(crate) fn kernel_info(parameters: &[(u16, u32)], wide: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for (ordinal, (offset, size)) in parameters.iter().enumerate().rev() {
        out.extend([4, if wide { 0x45 } else { 0x17 }]);
        out.extend(12u16.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        out.extend((ordinal as u16).to_le_bytes());
        out.extend(offset.to_le_bytes());
        out.extend(if wide { *size } else { size << 18 | 0xf500 }.to_le_bytes());
    }
    let total = parameters.iter().map(|(offset, size)| u32::from(*offset) + size).max();
    out.extend([3, 0x19]);
    out.extend((total.unwrap_or(0) as u16).to_le_bytes());
    out.extend([4, 0x0a]);
    out.extend(8u16.to_le_bytes());
    out.extend(5u32.to_le_bytes());
    out.extend(0x210u16.to_le_bytes());
    out.extend((total.unwrap_or(0) as u16).to_le_bytes());
    out
}
