//! Variable and register declarations, parameters, initialisers.

use super::ast::{Init, Linkage, Variable};
use super::constant::{self, Constant};
use super::error::ParseError;
use super::lexer::Cursor;
use super::types::{Space, Type};

/// Deepest nesting of braces in an initialiser.
const DEPTH_LIMIT: u32 = 16;
/// Most dimensions of an array.
const DIMENSION_LIMIT: usize = 16;

/// What precedes the names of a declaration: space, alignment, vector length, type.
struct Shape {
    space: Space,
    ty: Type,
    vector: u32,
    align: Option<u32>,
    managed: bool,
}

/// A declaration after its space directive: `.align 8 .b8 name[16] = {..}, other;`.
pub(super) fn declaration<'a>(
    cursor: &mut Cursor<'a>,
    space: Space,
    linkage: Linkage,
    mut sink: impl FnMut(Variable<'a>),
) -> Result<(), ParseError> {
    let shape = shape(cursor, space)?;
    loop {
        let mut variable = declarator(cursor, &shape, linkage)?;
        if cursor.eat(b'=')? {
            variable.init = Some(init(cursor, 0)?);
            size_from_init(&mut variable);
        }
        sink(variable);
        if !cursor.eat(b',')? {
            break;
        }
    }
    cursor.expect(b';')
}

/// A parenthesised parameter list.
pub(super) fn parameters<'a>(cursor: &mut Cursor<'a>) -> Result<Vec<Variable<'a>>, ParseError> {
    let mut params = Vec::new();
    cursor.expect(b'(')?;
    while cursor.peek() != b')' {
        let directive = cursor.directive()?;
        let Some(space) = Space::from_directive(directive) else {
            return cursor.error("expected .param or .reg");
        };
        let shape = shape(cursor, space)?;
        params.push(declarator(cursor, &shape, Linkage::Local)?);
        if !cursor.eat(b',')? {
            break;
        }
    }
    cursor.expect(b')')?;
    Ok(params)
}

fn shape(cursor: &mut Cursor<'_>, space: Space) -> Result<Shape, ParseError> {
    let mut shape = Shape { space, ty: Type::B32, vector: 1, align: None, managed: false };
    let mut typed = false;
    while cursor.peek() == b'.' {
        let directive = cursor.directive()?;
        match directive {
            "align" => shape.align = Some(alignment(cursor)?),
            "v2" => shape.vector = 2,
            "v4" => shape.vector = 4,
            "v8" => shape.vector = 8,
            "attribute" => shape.managed |= attribute(cursor)?,
            // Pointer annotations of kernel parameters: `.ptr .global .align 8`.
            "ptr" | "global" | "shared" | "const" | "local" | "generic" | "unsigned" => {
                if directive == "ptr" {
                    pointer_annotation(cursor)?;
                }
            }
            _ => match Type::from_suffix(directive) {
                Some(ty) => {
                    shape.ty = ty;
                    typed = true;
                }
                None => return cursor.error(format!("unknown type or attribute .{directive}")),
            },
        }
    }
    if typed { Ok(shape) } else { cursor.expected("a type") }
}

/// What follows `.ptr`: a space and an alignment of the memory pointed to.
fn pointer_annotation(cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
    while cursor.peek() == b'.' {
        match cursor.peek_directive() {
            "global" | "shared" | "const" | "local" => {
                cursor.directive()?;
            }
            "align" => {
                cursor.directive()?;
                alignment(cursor)?;
            }
            _ => break,
        }
    }
    Ok(())
}

fn alignment(cursor: &mut Cursor<'_>) -> Result<u32, ParseError> {
    let value = constant::integer(cursor)?;
    match u32::try_from(value) {
        Ok(align) if align.is_power_of_two() && align <= 1 << 16 => Ok(align),
        _ => cursor.error("alignment must be a power of two up to 65536"),
    }
}

/// `.attribute(.managed, .unified(..))`: whether `.managed` is among them.
fn attribute(cursor: &mut Cursor<'_>) -> Result<bool, ParseError> {
    let mut managed = false;
    cursor.expect(b'(')?;
    while cursor.peek() == b'.' {
        managed |= cursor.directive()? == "managed";
        if cursor.eat(b'(')? {
            while cursor.peek() != b')' {
                constant::integer(cursor)?;
                if !cursor.eat(b',')? {
                    break;
                }
            }
            cursor.expect(b')')?;
        }
        if !cursor.eat(b',')? {
            break;
        }
    }
    cursor.expect(b')')?;
    Ok(managed)
}

fn declarator<'a>(
    cursor: &mut Cursor<'a>,
    shape: &Shape,
    linkage: Linkage,
) -> Result<Variable<'a>, ParseError> {
    let line = cursor.line();
    let name = cursor.name("a variable name")?;
    // libNVVM before 5 wrote `.ptr` after the name as well; `%r<10>` declares ten registers.
    let mut count = None;
    if cursor.peek() == b'<' {
        cursor.expect(b'<')?;
        let value = constant_count(cursor)?;
        cursor.expect(b'>')?;
        count = Some(value);
    }
    let mut dims = Vec::new();
    while cursor.peek() == b'[' {
        cursor.expect(b'[')?;
        let dim = if cursor.peek() == b']' { 0 } else { constant::integer(cursor)? };
        cursor.expect(b']')?;
        let Ok(dim) = u64::try_from(dim) else {
            return cursor.error("array dimension is negative");
        };
        if dims.len() >= DIMENSION_LIMIT {
            return cursor.error("too many array dimensions");
        }
        dims.push(dim);
    }
    Ok(Variable {
        name,
        space: shape.space,
        ty: shape.ty,
        vector: shape.vector,
        count,
        align: shape.align,
        dims,
        linkage,
        managed: shape.managed,
        init: None,
        line,
    })
}

fn constant_count(cursor: &mut Cursor<'_>) -> Result<u32, ParseError> {
    // A plain number: `<` and `>` are operators of constant expressions.
    match cursor.number()? {
        super::lexer::Number::Int(value) if value <= 1 << 24 => Ok(value as u32),
        _ => cursor.error("register count must be an integer up to 16777216"),
    }
}

/// Gives an unsized array (`name[]`) the size of its initialiser.
fn size_from_init(variable: &mut Variable<'_>) {
    if variable.dims.first() == Some(&0)
        && let Some(Init::List(items)) = &variable.init
    {
        variable.dims[0] = items.len() as u64;
    }
}

fn init<'a>(cursor: &mut Cursor<'a>, depth: u32) -> Result<Init<'a>, ParseError> {
    if cursor.peek() == b'{' {
        if depth >= DEPTH_LIMIT {
            return cursor.error("initialiser is nested too deeply");
        }
        cursor.expect(b'{')?;
        let mut items = Vec::new();
        while cursor.peek() != b'}' {
            items.push(init(cursor, depth + 1)?);
            if !cursor.eat(b',')? {
                break;
            }
        }
        cursor.expect(b'}')?;
        return Ok(Init::List(items));
    }
    if cursor.peek() == b'"' {
        let text = cursor.string()?;
        return Ok(Init::List(text.bytes().map(|b| Init::Int(i64::from(b))).collect()));
    }
    if cursor.at_name() {
        return symbol_init(cursor);
    }
    let value = match constant::expression(cursor)? {
        Constant::Int(value) => Init::Int(value),
        Constant::Float32(bits) => Init::Float32(bits),
        Constant::Float64(bits) => Init::Float64(bits),
    };
    // `0xFF00(symbol)`: selected bits of an address.
    if cursor.peek() == b'('
        && let Init::Int(mask) = value
    {
        cursor.expect(b'(')?;
        let symbol = symbol_init(cursor)?;
        cursor.expect(b')')?;
        if let Init::Symbol { name, addend, .. } = symbol {
            return Ok(Init::Symbol { name, addend, mask: mask as u64 });
        }
    }
    Ok(value)
}

fn symbol_init<'a>(cursor: &mut Cursor<'a>) -> Result<Init<'a>, ParseError> {
    let name = cursor.name("a symbol")?;
    if name == "WARP_SZ" {
        return Ok(Init::Int(32));
    }
    if name == "generic" && cursor.peek() == b'(' {
        cursor.expect(b'(')?;
        let mut symbol = symbol_init(cursor)?;
        cursor.expect(b')')?;
        if let Init::Symbol { addend, .. } = &mut symbol
            && matches!(cursor.peek(), b'+' | b'-')
        {
            *addend = addend.wrapping_add(constant::integer(cursor)?);
        }
        return Ok(symbol);
    }
    let addend = if matches!(cursor.peek(), b'+' | b'-') { constant::integer(cursor)? } else { 0 };
    Ok(Init::Symbol { name, addend, mask: 0 })
}
