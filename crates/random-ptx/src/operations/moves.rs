//! mov, packing and unpacking: PTX ISA, "Data Movement and Conversion Instructions".

use crate::operation::{Chooser, Class, Operation, Source, one};

/// mov between a register and its halves or quarters
pub(super) fn packing(chooser: &mut Chooser) -> Operation {
    let (whole, part) = chooser.pick(&[
        (Class::B64, Class::B32),
        (Class::B32, Class::B16),
        (Class::B64, Class::B16),
    ]);
    let parts = (whole.bits() / part.bits()) as usize;
    let list = |letter: char| {
        let names: Vec<String> = (0..parts).map(|i| format!("{{{letter}{i}}}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let bits = part.bits();
    if chooser.chance(50) {
        let line = format!("mov.b{} {{d0}}, {}", whole.bits(), list('s'));
        let sources = vec![Source::register(part); parts];
        Operation::from_lines(vec![line], &[whole], &sources, move |s| {
            one(s.iter().enumerate().map(|(i, part)| part << (i as u32 * bits)).sum())
        })
    } else {
        let line = format!("mov.b{} {}, {{s0}}", whole.bits(), list('d'));
        let results = vec![part; parts];
        Operation::from_lines(vec![line], &results, &[Source::register(whole)], move |s| {
            [0, 1, 2, 3].map(|i| s[0].checked_shr(i * bits).unwrap_or(0))
        })
    }
}

/// mov of a register or a constant
pub(super) fn plain(chooser: &mut Chooser) -> Operation {
    let (name, source) = chooser.pick(&[
        ("b16", Source::integer(Class::B16)),
        ("u32", Source::integer(Class::B32)),
        ("b32", Source::integer(Class::B32)),
        ("s64", Source::integer(Class::B64)),
        ("b64", Source::integer(Class::B64)),
    ]);
    Operation::new(format!("mov.{name}"), source.class, &[source], |s| s[0])
}
