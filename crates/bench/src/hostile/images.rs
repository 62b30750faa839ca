//! Images that are none: containers whose sizes and offsets lead nowhere, and texts of code with
//! damage in them.

use super::{Random, mutate};

/// Bytes of a container that is made up.
const CONTAINER_BYTES: usize = 4096;

/// An image for `cuModuleLoadData`, which finds its size by itself: whatever it is, at least
/// [`CONTAINER_BYTES`] are there, and the last ones are 0.
pub fn image(random: &mut Random, text: &str) -> Vec<u8> {
    let mut image = match random.below(3) {
        0 => elf(random),
        1 => fatbin(random),
        _ => text.as_bytes().to_vec(),
    };
    match &image[..4] {
        // What says how long it is must keep its word: the driver reads that much.
        b"\x7fELF" | [0x50, 0xed, 0x55, 0xba] => {
            let mut inside = image.split_off(64);
            mutate(random, &mut inside);
            image.extend(inside);
        }
        _ => mutate(random, &mut image),
    }
    image.resize(image.len().max(CONTAINER_BYTES) + 8, 0);
    image
}

/// An ELF file for a GPU whose section headers lead nowhere.
fn elf(random: &mut Random) -> Vec<u8> {
    let mut elf = vec![0u8; CONTAINER_BYTES];
    elf[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\x33\x07\0\0\0\0\0\0\0");
    elf[16..18].copy_from_slice(&2u16.to_le_bytes());
    elf[18..20].copy_from_slice(&190u16.to_le_bytes());
    elf[40..48].copy_from_slice(&64u64.to_le_bytes());
    elf[52..54].copy_from_slice(&64u16.to_le_bytes());
    elf[58..60].copy_from_slice(&64u16.to_le_bytes());
    elf[60..62].copy_from_slice(&8u16.to_le_bytes());
    elf[64..576].fill(random.pick(&[0xee, 0, 0xff, 1]));
    elf
}

/// A fatbin with an entry of garbage.
fn fatbin(random: &mut Random) -> Vec<u8> {
    let mut fatbin = vec![random.pick(&[0xa5u8, 0, 0xff, 2]); CONTAINER_BYTES];
    fatbin[..4].copy_from_slice(&0xba55_ed50u32.to_le_bytes());
    fatbin[4..6].copy_from_slice(&1u16.to_le_bytes());
    fatbin[6..8].copy_from_slice(&16u16.to_le_bytes());
    fatbin[8..16].copy_from_slice(&2048u64.to_le_bytes());
    fatbin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_end_and_differ() {
        let images: Vec<Vec<u8>> =
            (0..50).map(|seed| image(&mut Random(seed), "text of code")).collect();
        assert!(images.iter().all(|image| image.ends_with(&[0; 8])));
        assert!(images.windows(2).any(|pair| pair[0] != pair[1]));
    }
}
