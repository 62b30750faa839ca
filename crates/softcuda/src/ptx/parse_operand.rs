//! Instruction operands, appended to the body's pool.

use super::ast::{Operand, OperandRange};
use super::constant::{self, Constant};
use super::error::ParseError;
use super::lexer::Cursor;

/// Deepest nesting of vectors and brackets.
const DEPTH_LIMIT: u32 = 4;

/// The operands of one instruction up to its semicolon; returns their range in the pool.
pub(super) fn operand_list<'a>(
    cursor: &mut Cursor<'a>,
    pool: &mut Vec<Operand<'a>>,
) -> Result<OperandRange, ParseError> {
    let mut list = Small::default();
    if cursor.peek() != b';' {
        loop {
            let operand = operand(cursor, pool, 0)?;
            list.push(cursor, operand)?;
            if !cursor.eat(b',')? {
                break;
            }
        }
    }
    cursor.expect(b';')?;
    Ok(list.commit(pool))
}

/// A list under construction: nested lists go to the pool first, so a list is contiguous.
struct Small<'a> {
    items: [Operand<'a>; 8],
    len: usize,
    spill: Vec<Operand<'a>>,
}

/// Most operands of one list; the largest real one is a 128-register `wgmma` accumulator.
const LIST_LIMIT: usize = 4096;

impl Default for Small<'_> {
    fn default() -> Self {
        Self { items: [Operand::Int(0); 8], len: 0, spill: Vec::new() }
    }
}

impl<'a> Small<'a> {
    fn push(&mut self, cursor: &Cursor<'_>, operand: Operand<'a>) -> Result<(), ParseError> {
        if self.len < self.items.len() {
            self.items[self.len] = operand;
        } else if self.len >= LIST_LIMIT {
            return cursor.error("too many operands");
        } else {
            self.spill.push(operand);
        }
        self.len += 1;
        Ok(())
    }

    fn commit(self, pool: &mut Vec<Operand<'a>>) -> OperandRange {
        let start = pool.len() as u32;
        pool.extend_from_slice(&self.items[..self.len.min(self.items.len())]);
        pool.extend(self.spill);
        OperandRange { start, end: pool.len() as u32 }
    }
}

fn list_until<'a>(
    cursor: &mut Cursor<'a>,
    pool: &mut Vec<Operand<'a>>,
    open: u8,
    close: u8,
    depth: u32,
) -> Result<OperandRange, ParseError> {
    if depth >= DEPTH_LIMIT {
        return cursor.error("operand is nested too deeply");
    }
    cursor.expect(open)?;
    let mut list = Small::default();
    if cursor.peek() != close {
        loop {
            let item = operand(cursor, pool, depth + 1)?;
            list.push(cursor, item)?;
            if !cursor.eat(b',')? {
                break;
            }
        }
    }
    cursor.expect(close)?;
    Ok(list.commit(pool))
}

/// One operand.
fn operand<'a>(
    cursor: &mut Cursor<'a>,
    pool: &mut Vec<Operand<'a>>,
    depth: u32,
) -> Result<Operand<'a>, ParseError> {
    let first = match cursor.peek() {
        b'{' => Operand::Vector(list_until(cursor, pool, b'{', b'}', depth)?),
        b'[' => bracket(cursor, pool, depth)?,
        b'!' => {
            cursor.expect(b'!')?;
            Operand::Not(cursor.operand_name()?)
        }
        b'(' if group_ahead(cursor) => Operand::Group(list_until(cursor, pool, b'(', b')', depth)?),
        _ if cursor.at_name() => name_operand(cursor)?,
        _ if constant::starts(cursor) => immediate(cursor)?,
        _ => return cursor.expected("an operand"),
    };
    if cursor.peek() == b'|' {
        cursor.expect(b'|')?;
        let mut pair = Small::default();
        pair.push(cursor, first)?;
        let second = name_operand(cursor)?;
        pair.push(cursor, second)?;
        return Ok(Operand::Pair(pair.commit(pool)));
    }
    Ok(first)
}

/// Whether a parenthesis opens a call's list rather than a constant expression.
fn group_ahead(cursor: &Cursor<'_>) -> bool {
    let mut ahead = cursor.clone();
    ahead.bump();
    if ahead.skip().is_err() {
        return false;
    }
    if ahead.at_name() || matches!(ahead.peek(), b')' | b'{') {
        return true;
    }
    // `(4, %r1)`: a constant that a comma follows; `(4)`: one argument. A cast or an expression is
    // no group.
    if ahead.peek() == b'.' || constant::expression(&mut ahead).is_err() {
        return false;
    }
    match ahead.peek() {
        b',' => true,
        b')' => ahead.eat(b')').is_ok() && matches!(ahead.peek(), b';' | b','),
        _ => false,
    }
}

fn name_operand<'a>(cursor: &mut Cursor<'a>) -> Result<Operand<'a>, ParseError> {
    let name = cursor.operand_name()?;
    if name == "WARP_SZ" {
        return Ok(Operand::Int(32));
    }
    match cursor.peek() {
        b'+' | b'-' => Ok(Operand::Offset(name, constant::integer(cursor)?)),
        _ => Ok(Operand::Name(name)),
    }
}

fn immediate<'a>(cursor: &mut Cursor<'a>) -> Result<Operand<'a>, ParseError> {
    Ok(match constant::expression(cursor)? {
        Constant::Int(value) => Operand::Int(value),
        Constant::Float32(bits) => Operand::Float32(bits),
        Constant::Float64(bits) => Operand::Float64(bits),
    })
}

fn bracket<'a>(
    cursor: &mut Cursor<'a>,
    pool: &mut Vec<Operand<'a>>,
    depth: u32,
) -> Result<Operand<'a>, ParseError> {
    let range = list_until(cursor, pool, b'[', b']', depth)?;
    if range.end - range.start == 1 {
        let simple = match pool.last() {
            Some(Operand::Name(name)) => Some(Operand::Address(name, 0)),
            Some(Operand::Offset(name, offset)) => Some(Operand::Address(name, *offset)),
            Some(Operand::Int(address)) => Some(Operand::AbsoluteAddress(*address)),
            _ => None,
        };
        if let Some(simple) = simple {
            pool.pop();
            return Ok(simple);
        }
    }
    if range.end == range.start {
        return cursor.error("empty address");
    }
    Ok(Operand::Bracket(range))
}
