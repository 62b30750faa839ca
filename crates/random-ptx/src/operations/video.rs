//! Scalar video instructions: PTX ISA, "Scalar Video Instructions".

use super::{Int, S32, U32};
use crate::operation::{Chooser, Class, Operation, Source};

/// A source with its selected byte or half.
fn selected(chooser: &mut Chooser) -> (&'static str, u32, u32) {
    chooser.pick(&[
        ("", 0, 32),
        ("", 0, 32),
        (".b0", 0, 8),
        (".b1", 8, 8),
        (".b2", 16, 8),
        (".b3", 24, 8),
        (".h0", 0, 16),
        (".h1", 16, 16),
    ])
}

/// vadd, vsub, vabsdiff, vmin, vmax with a second operation
pub(super) fn scalar(chooser: &mut Chooser) -> Operation {
    let word = chooser.pick(&["vadd", "vsub", "vabsdiff", "vmin", "vmax"]);
    let (d, a, b) =
        (chooser.pick(&[U32, S32]), chooser.pick(&[U32, S32]), chooser.pick(&[U32, S32]));
    let ((a_part, a_shift, a_bits), (b_part, b_shift, b_bits)) =
        (selected(chooser), selected(chooser));
    let saturate = chooser.chance(40);
    let sat = if saturate { ".sat" } else { "" };
    let second = chooser.pick(&["", ".add", ".min", ".max"]);
    let mut line = format!(
        "{word}.{}.{}.{}{sat}{second} {{d0}}, {{s0}}{a_part}, {{s1}}{b_part}",
        d.name(),
        a.name(),
        b.name()
    );
    let mut sources = vec![Source::register(Class::B32); 2];
    if !second.is_empty() {
        line.push_str(", {s2}");
        sources.push(Source::register(Class::B32));
    }
    Operation::from_lines(vec![line], &[Class::B32], &sources, move |s| {
        let x = Int::new(a_bits, a.signed).value(s[0] >> a_shift);
        let y = Int::new(b_bits, b.signed).value(s[1] >> b_shift);
        let first = match word {
            "vadd" => x + y,
            "vsub" => x - y,
            "vabsdiff" => (x - y).abs(),
            "vmin" => x.min(y),
            _ => x.max(y),
        };
        let first = if saturate { d.clamped(first) } else { first as u64 };
        let result = match second {
            "" => first,
            ".add" => first.wrapping_add(s[2]),
            ".min" => d.value(first).min(d.value(s[2])) as u64,
            _ => d.value(first).max(d.value(s[2])) as u64,
        };
        [result, 0, 0, 0]
    })
}
