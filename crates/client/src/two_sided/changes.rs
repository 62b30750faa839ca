//! What has changed in a copy of some bytes.

use std::ops::Range;

/// What is compared at once.
const LINE_BYTES: usize = 64;

/// The ranges in which two equally long texts differ: nothing else may be carried over, since the
/// other side may have changed the bytes between them.
pub(crate) fn changes(before: &[u8], after: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let lines = before.chunks(LINE_BYTES).zip(after.chunks(LINE_BYTES)).enumerate();
    // Most lines are alike, which is found out at once.
    for (line, (old, new)) in lines.filter(|(_, (old, new))| old != new) {
        for (place, _) in old.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new) {
            let at = line * LINE_BYTES + place;
            match ranges.last_mut() {
                Some(last) if last.end == at => last.end += 1,
                _ => ranges.push(at..at + 1),
            }
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_found_byte_by_byte_across_lines() {
        let before = vec![0; 3 * LINE_BYTES + 5];
        let mut after = before.clone();
        assert_eq!(changes(&before, &after), []);
        for at in [0, 62, 63, 64, 66, 3 * LINE_BYTES + 4] {
            after[at] = 1;
        }
        let end = before.len();
        assert_eq!(changes(&before, &after), [0..1, 62..65, 66..67, end - 1..end]);
    }
}
