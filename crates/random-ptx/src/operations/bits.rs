//! Logic, shifts and bit fields: PTX ISA, "Logic and Shift Instructions" and the bit instructions
//! among the integer ones.

use super::{Int, S32, U32};
use crate::operation::{Chooser, Class, Operation, Source};

fn untyped(chooser: &mut Chooser) -> (Class, String) {
    let bits = chooser.pick(&[16, 32, 32, 64]);
    (Class::of_bits(bits), format!("b{bits}"))
}

/// and, or, xor, not, cnot, lop3
pub(super) fn logic(chooser: &mut Chooser) -> Operation {
    let (class, name) = untyped(chooser);
    let two = [Source::integer(class); 2];
    match chooser.random.below(7) {
        0 | 1 => Operation::new(format!("and.{name}"), class, &two, |s| s[0] & s[1]),
        2 => Operation::new(format!("or.{name}"), class, &two, |s| s[0] | s[1]),
        3 => Operation::new(format!("xor.{name}"), class, &two, |s| s[0] ^ s[1]),
        4 => Operation::new(format!("not.{name}"), class, &[Source::register(class)], |s| !s[0]),
        5 => Operation::new(format!("cnot.{name}"), class, &[Source::register(class)], |s| {
            u64::from(s[0] == 0)
        }),
        _ => {
            let table = chooser.random.below(256) as u64;
            let line = format!("lop3.b32 {{d0}}, {{s0}}, {{s1}}, {{s2}}, 0x{table:x}");
            let sources = [Source::integer(Class::B32); 3];
            Operation::from_lines(vec![line], &[Class::B32], &sources, move |s| {
                let bit = |i: u32| {
                    let index = (s[0] >> i & 1) << 2 | (s[1] >> i & 1) << 1 | s[2] >> i & 1;
                    (table >> index & 1) << i
                };
                [(0..32).map(bit).sum(), 0, 0, 0]
            })
        }
    }
}

/// shl, shr, shf
pub(super) fn shifts(chooser: &mut Chooser) -> Operation {
    // A constant beyond 16 bits confuses ptxas.
    let amount = Source::byte();
    match chooser.random.below(4) {
        0 => {
            let (class, name) = untyped(chooser);
            let sources = [Source::register(class), amount];
            Operation::new(format!("shl.{name}"), class, &sources, move |s| {
                if s[1] >= u64::from(class.bits()) { 0 } else { s[0] << s[1] }
            })
        }
        1 | 2 => {
            let t = Int::any(chooser);
            let sources = [Source::register(t.class()), amount];
            let untyped = !t.signed && chooser.chance(30);
            let name = if untyped { format!("b{}", t.bits) } else { t.name() };
            Operation::new(format!("shr.{name}"), t.class(), &sources, move |s| {
                (t.value(s[0]) >> s[1].min(u64::from(t.bits))) as u64
            })
        }
        _ => {
            let (left, wrap) = (chooser.chance(50), chooser.chance(50));
            let name = format!(
                "shf.{}.{}.b32",
                if left { "l" } else { "r" },
                if wrap { "wrap" } else { "clamp" }
            );
            let sources = [Source::register(Class::B32), Source::register(Class::B32), amount];
            Operation::new(name, Class::B32, &sources, move |s| {
                let by = if wrap { s[2] & 31 } else { s[2].min(32) };
                let both = u128::from(s[1] << 32 | s[0]);
                (if left { both << by >> 32 } else { both >> by }) as u64
            })
        }
    }
}

/// popc, clz, brev, bfind, fns, bfe, bfi, bmsk, szext, prmt
pub(super) fn fields(chooser: &mut Chooser) -> Operation {
    let bits = chooser.pick(&[32, 64]);
    let class = Class::of_bits(bits);
    let one = [Source::register(class)];
    let small = Source::integer(Class::B32);
    match chooser.random.below(11) {
        0 => Operation::new(format!("popc.b{bits}"), Class::B32, &one, |s| {
            (0..64).map(|i| s[0] >> i & 1).sum()
        }),
        1 => Operation::new(format!("clz.b{bits}"), Class::B32, &one, move |s| {
            (0..bits).take_while(|i| s[0] >> (bits - 1 - i) & 1 == 0).count() as u64
        }),
        2 => Operation::new(format!("brev.b{bits}"), class, &one, move |s| {
            (0..bits).map(|i| (s[0] >> i & 1) << (bits - 1 - i)).sum()
        }),
        3 => {
            let t = Int::new(bits, chooser.chance(50));
            let amount = chooser.chance(50);
            let suffix = if amount { ".shiftamt" } else { "" };
            Operation::new(format!("bfind{suffix}.{}", t.name()), Class::B32, &one, move |s| {
                let negative = t.value(s[0]) < 0;
                let wanted = if negative { 0 } else { 1 };
                let found = (0..bits).rev().find(|i| s[0] >> i & 1 == wanted);
                match found {
                    None => 0xffff_ffff,
                    Some(i) if amount => u64::from(bits - 1 - i),
                    Some(i) => u64::from(i),
                }
            })
        }
        4 => find_nth(chooser),
        5 | 6 => {
            let t = Int::new(bits, chooser.chance(50));
            let sources = [Source::register(class), Source::byte(), Source::byte()];
            let operation = move |s: &[u64]| {
                let (from, length) = (s[1] & 255, s[2] & 255);
                let top = u64::from(bits - 1);
                let sign = t.signed && length > 0 && s[0] >> (from + length - 1).min(top) & 1 == 1;
                (0..u64::from(bits))
                    .filter(|&i| {
                        if i < length && from + i <= top {
                            s[0] >> (from + i) & 1 == 1
                        } else {
                            sign
                        }
                    })
                    .map(|i| 1 << i)
                    .sum()
            };
            let line = format!("bfe.{} {{d0}}, {{s0}}, %x0, %x1", t.name());
            Operation::from_lines(of_bytes(1, line), &[class], &sources, move |s| {
                [operation(s), 0, 0, 0]
            })
        }
        7 => {
            let register = Source::register(class);
            let sources = [register, register, Source::byte(), Source::byte()];
            let operation = move |s: &[u64]| {
                let (at, length) = (s[2] & 255, s[3] & 255);
                (0..u64::from(bits))
                    .filter(|&i| {
                        let inserted = i >= at && i - at < length;
                        (if inserted { s[0] >> (i - at) } else { s[1] >> i }) & 1 == 1
                    })
                    .map(|i| 1 << i)
                    .sum()
            };
            let line = format!("bfi.b{bits} {{d0}}, {{s0}}, {{s1}}, %x0, %x1");
            Operation::from_lines(of_bytes(2, line), &[class], &sources, move |s| {
                [operation(s), 0, 0, 0]
            })
        }
        8 => {
            let clamp = chooser.chance(50);
            let name = format!("bmsk.{}.b32", if clamp { "clamp" } else { "wrap" });
            Operation::new(name, Class::B32, &[small, small], move |s| {
                let (start, width) =
                    if clamp { (s[0].min(32), s[1].min(32)) } else { (s[0] & 31, s[1] & 31) };
                (0..32u64).filter(|&i| i >= start && i - start < width).map(|i| 1 << i).sum()
            })
        }
        9 => {
            let t = if chooser.chance(50) { S32 } else { U32 };
            let clamp = chooser.chance(50);
            let mode = if clamp { "clamp" } else { "wrap" };
            let sources = [Source::register(Class::B32), small];
            Operation::new(format!("szext.{mode}.{}", t.name()), Class::B32, &sources, move |s| {
                let width = if clamp { s[1].min(32) } else { s[1] & 31 } as u32;
                match width {
                    0 => 0,
                    _ => Int::new(width, t.signed).value(s[0]) as u64,
                }
            })
        }
        _ => permute(chooser),
    }
}

/// Position and length of a field, cut to the 8 bits that the ISA allows.
fn of_bytes(first: usize, line: String) -> Vec<String> {
    let cut = |scratch: usize| format!("and.b32 %x{scratch}, {{s{}}}, 255", first + scratch);
    vec![cut(0), cut(1), line]
}

/// fns
fn find_nth(chooser: &mut Chooser) -> Operation {
    let base = chooser.random.below(32) as i64;
    // Hardware finds something else than the ISA's text says beyond the width.
    let nth = chooser.random.below(65) as i64 - 32;
    let line = format!("fns.b32 {{d0}}, {{s0}}, {base}, {nth}");
    let sources = [Source::register(Class::B32)];
    Operation::from_lines(vec![line], &[Class::B32], &sources, move |s| {
        let set = |at: &i64| s[0] >> at & 1 == 1;
        let found = match nth {
            0 => Some(base).filter(set),
            1.. => (base..32).filter(set).nth(nth as usize - 1),
            _ => (0..=base).rev().filter(set).nth(nth.unsigned_abs() as usize - 1),
        };
        [found.map_or(0xffff_ffff, |at| at as u64), 0, 0, 0]
    })
}

/// prmt
fn permute(chooser: &mut Chooser) -> Operation {
    let mode = chooser.pick(&["", "", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"]);
    let sources =
        [Source::register(Class::B32), Source::register(Class::B32), Source::integer(Class::B32)];
    Operation::new(format!("prmt.b32{mode}"), Class::B32, &sources, move |s| {
        let bytes = s[1] << 32 | s[0];
        let c = s[2] & 3;
        let selectors: [u64; 4] = match mode {
            ".f4e" => [c, c + 1, c + 2, c + 3],
            ".b4e" => [c, (c + 7) % 8, (c + 6) % 8, (c + 5) % 8],
            ".rc8" => [c; 4],
            ".ecl" => [0, 1, 2, 3].map(|i: u64| i.max(c)),
            ".ecr" => [0, 1, 2, 3].map(|i: u64| i.min(c)),
            ".rc16" => [0, 1, 0, 1].map(|i| i + (c & 1) * 2),
            _ => [0, 4, 8, 12].map(|shift| s[2] >> shift & 15),
        };
        let byte = |selector: u64| {
            let byte = bytes >> ((selector & 7) * 8) & 255;
            if selector & 8 == 0 { byte } else { (byte >> 7) * 255 }
        };
        (0..4).map(|i| byte(selectors[i]) << (i * 8)).sum()
    })
}
