//! Lowering of video instructions, scalar and SIMD.

use super::opcode::Opcode;
use super::{Lower, Result};
use crate::exec::code::Width;
use crate::exec::ir::Kind;
use crate::exec::op::video::{Part, Second, Video, VideoForm, VideoOp};
use crate::exec::simd::plain;
use crate::ptx::{Operand, Type};

/// The operation of an opcode's name, and its parts: 0 for a scalar one.
fn operation(name: &str) -> Option<(VideoOp, u8)> {
    let (word, lanes) = match name.strip_suffix(['2', '4']) {
        Some(word) => (word, if name.ends_with('2') { 2 } else { 4 }),
        None => (name, 0),
    };
    let op = match word {
        "vadd" => VideoOp::Add,
        "vsub" => VideoOp::Subtract,
        "vabsdiff" => VideoOp::AbsoluteDifference,
        "vmin" => VideoOp::Min,
        "vmax" => VideoOp::Max,
        "vset" => VideoOp::Compare,
        "vavrg" if lanes > 0 => VideoOp::Average,
        "vshl" if lanes == 0 => VideoOp::ShiftLeft,
        "vshr" if lanes == 0 => VideoOp::ShiftRight,
        "vmad" if lanes == 0 => VideoOp::Multiply,
        _ => return None,
    };
    Some((op, lanes))
}

/// An operand without its selector, and that.
fn selected<'a>(operand: &Operand<'a>) -> (Operand<'a>, Option<&'a str>) {
    if let Operand::Name(name) = *operand
        && let Some((name, selector)) = name.rsplit_once('.')
        && selector.starts_with(['b', 'h'])
        && selector[1..].bytes().all(|byte| byte.is_ascii_digit())
    {
        return (Operand::Name(name), Some(selector));
    }
    (*operand, None)
}

impl<'a> Lower<'a, '_> {
    /// Instructions of this module; `None` for others.
    pub(super) fn lower_video(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
    ) -> Option<Result<()>> {
        let (op, lanes) = operation(opcode.name)?;
        // Differences of all parts have handlers of their own, which are quicker.
        let is_plain = operands.iter().all(|operand| selected(operand).1.is_none());
        if op == VideoOp::AbsoluteDifference && lanes > 0 && is_plain && !opcode.has("sat") {
            return None;
        }
        Some(self.video(opcode, operands, op, lanes))
    }

    fn video(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
        op: VideoOp,
        lanes: u8,
    ) -> Result<()> {
        let [d, a, b, rest @ ..] = operands else {
            return Err("it needs three operands".to_owned());
        };
        let ((d, d_selector), (a, a_selector), (b, b_selector)) =
            (selected(d), selected(a), selected(b));
        let (mut form, needs_c) = video_form(opcode, op, lanes)?;
        let needs_c = if lanes > 0 {
            let (a, b) = if lanes == 2 { (0o10, 0o32) } else { (0o3210, 0o7654) };
            form.selectors =
                [pieces(a_selector, lanes)?.unwrap_or(a), pieces(b_selector, lanes)?.unwrap_or(b)];
            form.mask = written(d_selector, lanes)?;
            true
        } else {
            let part = |selector: Option<&str>| match selector {
                None => Ok(Part::WORD),
                Some(selector) => Part::from_selector(selector)
                    .ok_or_else(|| format!("there is no part {selector}")),
            };
            form.parts = [part(d_selector)?, part(a_selector)?, part(b_selector)?];
            needs_c || d_selector.is_some()
        };
        if d_selector.is_some() && lanes == 0 && form.second != Second::None {
            return Err("a part is merged or combined, not both".to_owned());
        }
        if lanes == 0 && is_disputed(&form) {
            return Err("hardware does something else than the PTX ISA says of it".to_owned());
        }
        let c = match (needs_c, rest) {
            (true, [c]) => *c,
            (false, []) => Operand::Int(0),
            _ => return Err("the number of operands is wrong".to_owned()),
        };
        let mut sources = Vec::with_capacity(3);
        for operand in [a, b, c] {
            sources.push(self.source(&operand, Width::W32, Type::B32)?);
        }
        let d = self.destination(&d, Width::W32, form.signed[0])?;
        self.push(plain::<Video>(), Kind::Pure, &[d], &sources, form.pack(), 0);
        Ok(())
    }
}

/// What the modifiers say, and whether a third operand belongs to it.
fn video_form(opcode: &Opcode<'_>, op: VideoOp, lanes: u8) -> Result<(VideoForm, bool)> {
    let types: Vec<bool> = opcode.types().iter().map(|ty| matches!(ty, Type::S32)).collect();
    let signed = match (op, types.as_slice()) {
        (VideoOp::Compare, &[a, b]) => [false, a, b],
        (_, &[d, a, b]) => [d, a, b],
        _ => return Err("the number of types is wrong".to_owned()),
    };
    let position =
        |list: &[&str]| opcode.one_of(list).and_then(|m| list.iter().position(|n| *n == m));
    let detail = match op {
        VideoOp::Compare => {
            position(&["eq", "ne", "lt", "le", "gt", "ge"]).ok_or("it needs a comparison")? as u8
        }
        VideoOp::ShiftLeft | VideoOp::ShiftRight => {
            position(&["clamp", "wrap"]).ok_or("it needs .clamp or .wrap")? as u8
        }
        VideoOp::Multiply => match position(&["shr7", "shr15"]) {
            Some(0) => 7,
            Some(_) => 15,
            None => 0,
        },
        _ => 0,
    };
    // The names of operations are not among the modifiers, so these are second ones.
    let second = match opcode.one_of(&["add", "min", "max"]) {
        Some("add") => Second::Add,
        Some("min") if lanes == 0 => Second::Min,
        Some("max") if lanes == 0 => Second::Max,
        Some(other) => return Err(format!("there is no second operation {other}")),
        None => Second::None,
    };
    let form = VideoForm {
        op,
        second,
        signed,
        saturates: opcode.has("sat"),
        parts: [Part::WORD; 3],
        detail,
        plus_one: opcode.has("po"),
        lanes,
        mask: 0,
        selectors: [0; 2],
    };
    Ok((form, second != Second::None || op == VideoOp::Multiply))
}

/// Whether an H200 gives other results for a scalar form than the PTX ISA's definition: then nobody
/// can count on either.
fn is_disputed(form: &VideoForm) -> bool {
    let [d, _, b] = form.signed;
    let merges = form.parts[0] != Part::WORD;
    match form.op {
        VideoOp::Multiply => !b && (form.saturates || form.detail != 0),
        VideoOp::ShiftLeft if form.saturates => true,
        VideoOp::ShiftLeft | VideoOp::ShiftRight | VideoOp::Compare if merges => true,
        _ => {
            let compares = matches!(form.second, Second::Min | Second::Max);
            form.saturates && (merges || !d) || compares && !d
        }
    }
}

/// The parts of b:a that `hxy` or `bxyzw` names, lowest first, three bits each.
fn pieces(selector: Option<&str>, lanes: u8) -> Result<Option<u16>> {
    let Some(selector) = selector else { return Ok(None) };
    let (kind, digits) = selector.split_at(1);
    let wrong = || format!("there is no selector {selector}");
    if digits.len() != usize::from(lanes) || kind != (if lanes == 2 { "h" } else { "b" }) {
        return Err(wrong());
    }
    let mut packed = 0;
    for digit in digits.bytes() {
        let piece = u16::from(digit - b'0');
        if piece >= 2 * u16::from(lanes) {
            return Err(wrong());
        }
        packed = packed << 3 | piece;
    }
    Ok(Some(packed))
}

/// The parts of d that a mask like `h1` or `b320` names; all without one.
fn written(mask: Option<&str>, lanes: u8) -> Result<u8> {
    let Some(mask) = mask else { return Ok((1 << lanes) - 1) };
    let mut parts = 0;
    for digit in mask.bytes().skip(1) {
        if digit - b'0' >= lanes {
            return Err(format!("there is no part {mask}"));
        }
        parts |= 1 << (digit - b'0');
    }
    Ok(parts)
}
