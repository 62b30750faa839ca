//! What the kernel says of this process's pages (`/proc/self/maps`, proc(5)).

use std::io::{BufRead, BufReader};

/// Who sees what is written to a range of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// This process alone.
    Private,
    /// Other processes or a file, or some page is not mapped.
    Other,
}

/// Who sees what is written to a range.
pub(crate) fn sharing(address: u64, size_bytes: u64) -> Sharing {
    let Ok(maps) = std::fs::File::open("/proc/self/maps") else { return Sharing::Other };
    let lines = BufReader::new(maps).lines().map_while(core::result::Result::ok);
    sharing_in(lines, address, size_bytes)
}

/// The range of a line, and whether it is private.
fn parse(line: &str) -> Option<(u64, u64, bool)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_private = words.next()?.ends_with('p');
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?, is_private))
}

fn sharing_in(
    lines: impl Iterator<Item = impl AsRef<str>>,
    address: u64,
    size_bytes: u64,
) -> Sharing {
    let Some(end) = address.checked_add(size_bytes) else { return Sharing::Other };
    let mut next = address;
    for line in lines {
        let Some((from, to, is_private)) = parse(line.as_ref()) else { continue };
        if to <= next {
            continue;
        }
        if from > next || !is_private {
            return Sharing::Other;
        }
        next = to;
        if next >= end {
            return Sharing::Private;
        }
    }
    Sharing::Other
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0                          [heap]
55d0c0a21000-55d0c0a23000 rw-p 00000000 00:00 0
7f0000000000-7f0000002000 rw-s 00000000 00:19 7                          /dev/shm/a b
7f0000002000-7f0000003000 r--p 00000000 00:00 0
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]";

    #[test]
    fn only_whole_ranges_of_private_pages_are_private() {
        let ask = |address, size_bytes| sharing_in(MAPS.lines(), address, size_bytes);
        assert_eq!(ask(0x55d0_c0a0_0000, 0x2_3000), Sharing::Private, "two mappings in a row");
        assert_eq!(ask(0x55d0_c0a2_2000, 0x1000), Sharing::Private);
        assert_eq!(ask(0x55d0_c0a2_2000, 0x2000), Sharing::Other, "not mapped");
        assert_eq!(ask(0x7f00_0000_1000, 0x1000), Sharing::Other, "shared");
        assert_eq!(ask(0x7f00_0000_1000, 0x2000), Sharing::Other);
        assert_eq!(ask(0x7f00_0000_2000, 0x1000), Sharing::Private);
        assert_eq!(ask(0x1000, u64::MAX), Sharing::Other);
    }

    #[test]
    fn this_process_knows_its_own() {
        let own = Box::new([0_u8; 64]);
        let address = own.as_ptr().addr() as u64;
        assert_eq!(sharing(address, 64), Sharing::Private);
    }
}
