//! Constant expressions: immediates, array dimensions, initialisers' integers.

use super::error::ParseError;
use super::lexer::{Cursor, Number};

/// Deepest nesting of parentheses and unary operators.
const DEPTH_LIMIT: u32 = 64;

/// A constant value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Constant {
    Int(i64),
    Float32(u32),
    Float64(u64),
}

/// A constant expression with C's operators and precedences. Integers are 64 bits wide and wrap.
pub(super) fn expression(cursor: &mut Cursor<'_>) -> Result<Constant, ParseError> {
    let condition = binary(cursor, 0, 0)?;
    if cursor.peek() != b'?' {
        return Ok(condition);
    }
    cursor.expect(b'?')?;
    let yes = binary(cursor, 0, 0)?;
    cursor.expect(b':')?;
    let no = binary(cursor, 0, 0)?;
    Ok(if condition == Constant::Int(0) { no } else { yes })
}

/// An integer constant expression.
pub(super) fn integer(cursor: &mut Cursor<'_>) -> Result<i64, ParseError> {
    match expression(cursor)? {
        Constant::Int(value) => Ok(value),
        _ => cursor.error("expected an integer constant"),
    }
}

/// A sign, digit or parenthesis: something that starts a constant.
pub(super) fn starts(cursor: &Cursor<'_>) -> bool {
    cursor.at_digit() || matches!(cursor.peek(), b'-' | b'+' | b'~' | b'(')
}

fn operator(cursor: &Cursor<'_>) -> Option<(&'static str, u32)> {
    let (a, b) = (cursor.peek(), cursor.peek_at(1));
    Some(match (a, b) {
        (b'|', b'|') => ("||", 1),
        (b'&', b'&') => ("&&", 2),
        (b'|', _) => ("|", 3),
        (b'^', _) => ("^", 4),
        (b'&', _) => ("&", 5),
        (b'=', b'=') => ("==", 6),
        (b'!', b'=') => ("!=", 6),
        (b'<', b'<') => ("<<", 8),
        (b'>', b'>') => (">>", 8),
        (b'<', b'=') => ("<=", 7),
        (b'>', b'=') => (">=", 7),
        (b'<', _) => ("<", 7),
        (b'>', _) => (">", 7),
        (b'+', _) => ("+", 9),
        (b'-', _) => ("-", 9),
        (b'*', _) => ("*", 10),
        (b'/', _) => ("/", 10),
        (b'%', _) => ("%", 10),
        _ => return None,
    })
}

fn binary(cursor: &mut Cursor<'_>, level: u32, depth: u32) -> Result<Constant, ParseError> {
    let mut left = unary(cursor, depth)?;
    while let Some((symbol, precedence)) = operator(cursor) {
        if precedence <= level {
            break;
        }
        for _ in 0..symbol.len() {
            cursor.bump();
        }
        cursor.skip()?;
        if depth >= DEPTH_LIMIT {
            return cursor.error("constant expression is nested too deeply");
        }
        let right = binary(cursor, precedence, depth + 1)?;
        let (Constant::Int(a), Constant::Int(b)) = (left, right) else {
            return cursor.error("operators work on integer constants only");
        };
        left = Constant::Int(match symbol {
            "||" => i64::from(a != 0 || b != 0),
            "&&" => i64::from(a != 0 && b != 0),
            "|" => a | b,
            "^" => a ^ b,
            "&" => a & b,
            "==" => i64::from(a == b),
            "!=" => i64::from(a != b),
            "<<" => a.checked_shl(b as u32).unwrap_or(0),
            ">>" => a.checked_shr(b as u32).unwrap_or(0),
            "<=" => i64::from(a <= b),
            ">=" => i64::from(a >= b),
            "<" => i64::from(a < b),
            ">" => i64::from(a > b),
            "+" => a.wrapping_add(b),
            "-" => a.wrapping_sub(b),
            "*" => a.wrapping_mul(b),
            _ if b == 0 => return cursor.error("division by zero in a constant expression"),
            "/" => a.wrapping_div(b),
            _ => a.wrapping_rem(b),
        });
    }
    Ok(left)
}

fn unary(cursor: &mut Cursor<'_>, depth: u32) -> Result<Constant, ParseError> {
    if depth >= DEPTH_LIMIT {
        return cursor.error("constant expression is nested too deeply");
    }
    match cursor.peek() {
        b'-' => {
            cursor.expect(b'-')?;
            Ok(match unary(cursor, depth + 1)? {
                Constant::Int(value) => Constant::Int(value.wrapping_neg()),
                Constant::Float32(bits) => Constant::Float32(bits ^ 1 << 31),
                Constant::Float64(bits) => Constant::Float64(bits ^ 1 << 63),
            })
        }
        b'+' => {
            cursor.expect(b'+')?;
            unary(cursor, depth + 1)
        }
        b'~' | b'!' => {
            let complement = cursor.peek() == b'~';
            cursor.bump();
            cursor.skip()?;
            match unary(cursor, depth + 1)? {
                Constant::Int(value) if complement => Ok(Constant::Int(!value)),
                Constant::Int(value) => Ok(Constant::Int(i64::from(value == 0))),
                _ => cursor.error("operators work on integer constants only"),
            }
        }
        b'(' => parenthesised(cursor, depth),
        _ if cursor.at_digit() => Ok(match cursor.number()? {
            Number::Int(value) => Constant::Int(value as i64),
            Number::Float32(bits) => Constant::Float32(bits),
            Number::Float64(bits) => Constant::Float64(bits),
        }),
        _ => {
            let mut ahead = cursor.clone();
            if ahead.raw_name() == Some("WARP_SZ") {
                cursor.name("a constant")?;
                return Ok(Constant::Int(32));
            }
            cursor.expected("a constant")
        }
    }
}

/// `(expression)` or a cast `(.s64) operand`.
fn parenthesised(cursor: &mut Cursor<'_>, depth: u32) -> Result<Constant, ParseError> {
    cursor.expect(b'(')?;
    if cursor.peek() == b'.' {
        cursor.directive()?;
        cursor.expect(b')')?;
        return unary(cursor, depth + 1);
    }
    let value = binary(cursor, 0, depth + 1)?;
    cursor.expect(b')')?;
    Ok(value)
}
