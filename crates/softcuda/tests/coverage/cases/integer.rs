//! Integer arithmetic, logic, shifts, bit fields, selections.

use crate::case::{Case, RESULT, Slot, computation, plain_body};
use crate::form::{Form, bits_of, is_float, is_signed, mask_of};
use crate::operands::{Domain, tuples};

pub(crate) fn case(form: &Form<'_>) -> Option<Case> {
    if form.has("cc") || matches!(form.name, "addc" | "subc" | "madc") {
        return Some(carry_chain(form));
    }
    let ty = form.ty();
    if is_float(ty) && form.name != "selp" {
        return None;
    }
    match form.name {
        "add" | "sub" | "mul" | "mad" | "div" | "rem" | "min" | "max" | "abs" | "neg" => {
            Some(arithmetic(form))
        }
        "and" | "or" | "xor" | "not" => Some(logic(form)),
        "shl" | "shr" => Some(shift(form)),
        "selp" => Some(select(form)),
        "popc" | "clz" | "brev" | "bfind" | "bfe" | "bfi" | "bmsk" | "fns" | "sad" | "dp4a"
        | "prmt" | "shf" | "vabsdiff4" => Some(bits(form)),
        _ => None,
    }
}

/// The value of the low bits as type `ty` has it.
fn signed_value(x: u64, ty: &str) -> i128 {
    let (bits, x) = (bits_of(ty), x & mask_of(bits_of(ty)));
    if is_signed(ty) && x >> (bits - 1) & 1 == 1 {
        i128::from(x) - (1i128 << bits)
    } else {
        i128::from(x)
    }
}

/// Full product, two's complement.
fn product(a: u64, b: u64, ty: &str) -> i128 {
    if is_signed(ty) {
        signed_value(a, ty) * signed_value(b, ty)
    } else {
        (u128::from(a) * u128::from(b)) as i128
    }
}

fn arithmetic(form: &Form<'_>) -> Case {
    let ty = form.ty();
    let bits = bits_of(ty);
    let wide = match ty {
        _ if !form.has("wide") => ty,
        "u16" | "s16" => "b32",
        _ => "b64",
    };
    let operands: Vec<&str> = match form.name {
        "abs" | "neg" => vec![ty],
        "mad" => vec![ty, ty, wide],
        _ => vec![ty, ty],
    };
    let domains: Vec<Domain> = operands.iter().map(|ty| Domain::Int(bits_of(ty))).collect();
    let divides = matches!(form.name, "div" | "rem");
    let tuples = tuples(&domains, |t| {
        // Division by zero and overflow of a quotient have no defined result.
        !divides || t[1] != 0 && !(is_signed(ty) && t[1] == mask_of(bits))
    });
    let mask = mask_of(bits_of(wide));
    let name = form.name;
    let high = form.has("hi");
    computation(&operands, &[wide], plain_body(form.text, &operands, wide), &tuples, move |t| {
        let a = signed_value(t[0], ty);
        let b = signed_value(t.get(1).copied().unwrap_or(0), ty);
        let value = match name {
            "add" => a + b,
            "sub" => a - b,
            "mul" if high => product(t[0], t[1], ty) >> bits,
            "mul" => product(t[0], t[1], ty),
            "mad" => product(t[0], t[1], ty).wrapping_add(i128::from(t[2])),
            "div" => a / b,
            "rem" => a % b,
            "min" => a.min(b),
            "max" => a.max(b),
            "abs" => a.abs(),
            _ => -a,
        };
        vec![Slot::Bits(value as u64 & mask)]
    })
}

fn logic(form: &Form<'_>) -> Case {
    let (ty, name) = (form.ty(), form.name);
    let operands = if name == "not" { vec![ty] } else { vec![ty, ty] };
    let domain = if ty == "pred" { Domain::Bool } else { Domain::Int(bits_of(ty)) };
    let tuples = tuples(&vec![domain; operands.len()], |_| true);
    computation(&operands, &[ty], plain_body(form.text, &operands, ty), &tuples, move |t| {
        let value = match name {
            "and" => t[0] & t[1],
            "or" => t[0] | t[1],
            "xor" => t[0] ^ t[1],
            _ => !t[0],
        };
        vec![Slot::Bits(value & mask_of(bits_of(ty)))]
    })
}

fn shift(form: &Form<'_>) -> Case {
    let (ty, left) = (form.ty(), form.name == "shl");
    let bits = bits_of(ty);
    let operands = [ty, "b32"];
    let mut domains = [Domain::Int(bits), Domain::Below(u64::from(bits) + 8)];
    let mut all = tuples(&domains, |_| true);
    // Amounts far beyond the width are clamped, not reduced.
    domains[1] = Domain::Int(32);
    all.extend(tuples(&domains, |_| true));
    computation(&operands, &[ty], plain_body(form.text, &operands, ty), &all, move |t| {
        let amount = t[1].min(64) as u32;
        let value =
            if left { i128::from(t[0]) << amount } else { signed_value(t[0], ty) >> amount };
        vec![Slot::Bits(value as u64 & mask_of(bits))]
    })
}

fn select(form: &Form<'_>) -> Case {
    let ty = form.ty();
    let operands = [ty, ty, "pred"];
    let word = Domain::Int(bits_of(ty));
    let tuples = tuples(&[word, word, Domain::Bool], |_| true);
    computation(&operands, &[ty], plain_body(form.text, &operands, ty), &tuples, |t| {
        vec![Slot::Bits(if t[2] == 1 { t[0] } else { t[1] })]
    })
}

fn bits(form: &Form<'_>) -> Case {
    let ty = form.ty();
    let width = bits_of(ty);
    let word = Domain::Int(width);
    let field = Domain::Below(u64::from(width) + 8);
    let (operands, domains): (Vec<&str>, Vec<Domain>) = match form.name {
        "popc" | "clz" | "brev" | "bfind" => (vec![ty], vec![word]),
        "bfe" => (vec![ty, "b32", "b32"], vec![word, field, field]),
        "bfi" => (vec![ty, ty, "b32", "b32"], vec![word, word, field, field]),
        "bmsk" => (vec!["b32", "b32"], vec![Domain::Below(40), Domain::Below(40)]),
        "fns" => (vec!["b32", "b32", "s32"], vec![word, Domain::Below(32), Domain::Int(6)]),
        "prmt" => (vec!["b32", "b32", "b32"], vec![word, word, Domain::Int(16)]),
        "shf" => (vec!["b32", "b32", "b32"], vec![word, word, Domain::Below(80)]),
        _ => (vec!["b32", "b32", "b32"], vec![Domain::Int(32); 3]),
    };
    let result = if matches!(form.name, "popc" | "clz" | "bfind") { "b32" } else { ty };
    let mut tuples = tuples(&domains, |_| true);
    if form.name == "fns" {
        // From the 32nd set bit downwards to the 32nd upwards.
        for tuple in &mut tuples {
            tuple[2] = (tuple[2] as i32 - 32) as u32 as u64;
        }
    }
    let owned: Vec<String> = form.modifiers.iter().map(|m| (*m).to_owned()).collect();
    let name = form.name;
    let body = plain_body(form.text, &operands, result);
    computation(&operands, &[result], body, &tuples, move |t| {
        let has = |m: &str| owned.iter().any(|have| have == m);
        let value = match name {
            "popc" => u64::from(t[0].count_ones()),
            "clz" => u64::from((t[0] << (64 - width)).leading_zeros().min(width)),
            "brev" => t[0].reverse_bits() >> (64 - width),
            "bfind" => match 63u64.checked_sub(u64::from(t[0].leading_zeros())) {
                None => 0xffff_ffff,
                Some(top) if has("shiftamt") => u64::from(width) - 1 - top,
                Some(top) => top,
            },
            "bfe" => bit_field(t[0], t[1], t[2], width, has("s32") || has("s64")),
            "bfi" => {
                let (at, length) = (t[2] & 255, t[3] & 255);
                let field = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
                let field = if at >= 64 { 0 } else { field << at };
                let value = if at >= 64 { 0 } else { t[0] << at };
                (t[1] & !field | value & field) & mask_of(width)
            }
            "bmsk" => {
                let (at, length) = (t[0], t[1]);
                (0..32).filter(|&bit| bit >= at && bit < at + length).map(|bit| 1 << bit).sum()
            }
            "fns" => nth_set(t[0] as u32, t[1] as u32, t[2] as u32 as i32).into(),
            "sad" => {
                let difference =
                    (i64::from(t[0] as u32 as i32) - i64::from(t[1] as u32 as i32)).abs();
                (difference as u64).wrapping_add(t[2]) & 0xffff_ffff
            }
            "dp4a" => {
                let byte = |x: u64, k: u32| i64::from((x >> (8 * k)) as u8 as i8);
                let dot: i64 = (0..4).map(|k| byte(t[0], k) * byte(t[1], k)).sum();
                t[2].wrapping_add(dot as u64) & 0xffff_ffff
            }
            "prmt" => {
                (0..4).map(|k| permuted_byte(t[0] | t[1] << 32, t[2] >> (4 * k)) << (8 * k)).sum()
            }
            "shf" => {
                let pair = t[0] | t[1] << 32;
                let amount = t[2] & 31;
                let value = if has("l") { pair << amount >> 32 } else { pair >> amount };
                value & 0xffff_ffff
            }
            "vabsdiff4" => {
                let byte = |x: u64, k: u32| (x >> (8 * k)) as u8;
                let difference = |k| u64::from(byte(t[0], k).abs_diff(byte(t[1], k)));
                if has("add") {
                    (t[2] + (0..4).map(difference).sum::<u64>()) & 0xffff_ffff
                } else {
                    (0..4).map(|k| difference(k) << (8 * k)).sum()
                }
            }
            _ => unreachable!("{name}"),
        };
        vec![Slot::Bits(value)]
    })
}

/// `bfe`: bit by bit; bits beyond the field or the word are the field's sign.
fn bit_field(a: u64, at: u64, length: u64, width: u32, signed: bool) -> u64 {
    let (at, length, top) = (at & 255, length & 255, u64::from(width) - 1);
    let sign = if !signed || length == 0 { 0 } else { a >> (at + length - 1).min(top) & 1 };
    let bit = |k: u64| if k < length && at + k <= top { a >> (at + k) & 1 } else { sign };
    (0..u64::from(width)).map(|k| bit(k) << k).sum()
}

/// `fns`: the bit where the `offset`-th set bit from `base` on lies.
fn nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    let set = |bit: &u32| mask >> bit & 1 == 1;
    let found = match offset {
        0 => Some(base).filter(set),
        1.. => (base..32).filter(set).nth(offset as usize - 1),
        _ => (0..=base).rev().filter(set).nth((-offset) as usize - 1),
    };
    found.unwrap_or(u32::MAX)
}

/// `prmt`: the byte that a selector's low four bits choose.
fn permuted_byte(pair: u64, selector: u64) -> u64 {
    let byte = pair >> (8 * (selector & 7)) & 0xff;
    match selector >> 3 & 1 {
        0 => byte,
        _ if byte >= 0x80 => 0xff,
        _ => 0,
    }
}

/// A link of a chain with what makes its carry and what shows it.
fn carry_chain(form: &Form<'_>) -> Case {
    let (subtract, multiply) = (form.name.starts_with("sub"), form.name.starts_with("mad"));
    let takes = form.name.ends_with('c');
    let gives = form.has("cc");
    let last = if multiply { 3 } else { 2 };
    let mut body = String::new();
    if takes {
        // Carry in from registers of their own.
        let giver = if subtract { "sub.cc.u32" } else { "add.cc.u32" };
        body += &format!("{giver} %r30, %r{}, %r{};\n", last + 1, last + 2);
    }
    let list: Vec<String> = (1..=last).map(|n| format!("%r{n}")).collect();
    body += &format!("{} %r{RESULT}, {};\n", form.text, list.join(", "));
    let shows = if subtract { "subc.u32" } else { "addc.u32" };
    body += &format!("{shows} %r{}, 0, 0;", RESULT + 1);
    let operands = vec!["u32"; last + 2];
    let tuples = tuples(&vec![Domain::Int(32); last + 2], |_| true);
    let high = form.has("hi");
    let mut case = computation(&operands, &["u32", "u32"], body, &tuples, move |t| {
        let carry_in = if !takes {
            0
        } else if subtract {
            u64::from(t[last] < t[last + 1])
        } else {
            (t[last] + t[last + 1]) >> 32
        };
        let (value, carry) = if subtract {
            let value = i128::from(t[0]) - i128::from(t[1]) - i128::from(carry_in);
            (value as u64, u64::from(value < 0))
        } else {
            let first = if !multiply {
                t[0]
            } else if high {
                (t[0] * t[1]) >> 32
            } else {
                (t[0] * t[1]) & 0xffff_ffff
            };
            let value = first + t[last - 1] + carry_in;
            (value, value >> 32)
        };
        // Without `.cc` the link leaves the carry as it was.
        let shown = if gives { carry } else { carry_in };
        let shown = if subtract { 0u64.wrapping_sub(shown) } else { shown };
        vec![Slot::Bits(value & 0xffff_ffff), Slot::Bits(shown & 0xffff_ffff)]
    });
    // The line that shows the carry may be of the same form: it is not the one to break.
    if let Some((body, shown)) = case.body.rsplit_once('\n') {
        case.finish = format!("{shown}\n{}", case.finish);
        case.body = body.to_owned();
    }
    case
}
