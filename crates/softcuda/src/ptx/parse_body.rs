//! Function bodies: statements between braces.

use super::ast::{Body, Guard, Instruction, Linkage, Operand, Prototype, Statement};
use super::error::ParseError;
use super::lexer::Cursor;
use super::parse_declaration::{declaration, parameters};
use super::parse_module::skip_section;
use super::parse_operand::operand_list;
use super::types::Space;

/// Deepest nesting of scopes in a body.
const SCOPE_LIMIT: u32 = 256;

/// A body with its braces; the cursor stands on the opening one.
pub(super) fn body<'a>(cursor: &mut Cursor<'a>) -> Result<Body<'a>, ParseError> {
    let mut body = Body::default();
    cursor.expect(b'{')?;
    let mut depth = 0u32;
    loop {
        match cursor.peek() {
            b'}' => {
                cursor.expect(b'}')?;
                if depth == 0 {
                    return Ok(body);
                }
                depth -= 1;
                body.statements.push(Statement::CloseScope);
            }
            b'{' => {
                cursor.expect(b'{')?;
                depth += 1;
                if depth > SCOPE_LIMIT {
                    return cursor.error("scopes are nested too deeply");
                }
                body.statements.push(Statement::OpenScope);
            }
            b'.' => directive(cursor, &mut body)?,
            b';' => cursor.expect(b';')?,
            _ => statement(cursor, &mut body)?,
        }
    }
}

/// A label or an instruction.
fn statement<'a>(cursor: &mut Cursor<'a>, body: &mut Body<'a>) -> Result<(), ParseError> {
    let (line, column) = (cursor.line(), cursor.column());
    let guard = guard(cursor)?;
    let start = cursor.pos();
    let Some(name) = cursor.raw_name() else {
        return cursor.expected("an instruction, a label or '}'");
    };
    if guard.is_none() {
        let mut ahead = cursor.clone();
        ahead.skip()?;
        if ahead.peek() == b':' && ahead.peek_at(1) != b':' {
            ahead.expect(b':')?;
            *cursor = ahead;
            return label(cursor, body, name);
        }
    }
    let opcode = cursor.opcode_from(start)?;
    let operands = operand_list(cursor, &mut body.operands)?;
    let least = least_operands(opcode);
    if operands.end - operands.start < least {
        return cursor.error(format!("{opcode} needs at least {least} operands"));
    }
    body.statements.push(Statement::Instruction(Instruction {
        opcode,
        guard,
        operands,
        line,
        column,
    }));
    Ok(())
}

/// How many operands an instruction has whatever its modifiers: what has fewer is no PTX, whereas a
/// form that is not known may be one of a newer ISA.
fn least_operands(opcode: &str) -> u32 {
    match opcode.split('.').next().unwrap_or_default() {
        "add" | "sub" | "mul" | "div" | "rem" | "min" | "max" | "and" | "or" | "xor" | "shl"
        | "shr" | "setp" => 3,
        "mad" | "fma" | "selp" => 4,
        "mov" | "ld" | "st" | "cvt" | "cvta" | "neg" | "not" | "abs" => 2,
        _ => 0,
    }
}

fn guard<'a>(cursor: &mut Cursor<'a>) -> Result<Option<Guard<'a>>, ParseError> {
    if !cursor.eat(b'@')? {
        return Ok(None);
    }
    let negated = cursor.eat(b'!')?;
    let name = cursor.name("a predicate register")?;
    Ok(Some(Guard { name, negated }))
}

/// What follows `name:`: a prototype, branch targets, or nothing (a plain label).
fn label<'a>(
    cursor: &mut Cursor<'a>,
    body: &mut Body<'a>,
    name: &'a str,
) -> Result<(), ParseError> {
    if cursor.peek() != b'.' {
        body.statements.push(Statement::Label(name));
        return Ok(());
    }
    match cursor.peek_directive() {
        "callprototype" => {
            cursor.directive()?;
            let returns = if cursor.peek() == b'(' { parameters(cursor)? } else { Vec::new() };
            cursor.name("'_'")?;
            let params = if cursor.peek() == b'(' { parameters(cursor)? } else { Vec::new() };
            // `.noreturn`, `.abi_preserve 4` may follow.
            while cursor.peek() == b'.' {
                cursor.directive()?;
                if cursor.at_digit() {
                    cursor.number()?;
                }
            }
            cursor.expect(b';')?;
            body.statements
                .push(Statement::Prototype(name, Box::new(Prototype { returns, params })));
        }
        "branchtargets" | "calltargets" => {
            cursor.directive()?;
            let targets = operand_list(cursor, &mut body.operands)?;
            body.statements.push(Statement::Targets(name, targets));
        }
        _ => body.statements.push(Statement::Label(name)),
    }
    Ok(())
}

fn directive<'a>(cursor: &mut Cursor<'a>, body: &mut Body<'a>) -> Result<(), ParseError> {
    let mut linkage = Linkage::Local;
    loop {
        let name = cursor.directive()?;
        match name {
            "extern" => linkage = Linkage::Extern,
            "visible" => linkage = Linkage::Visible,
            "weak" => linkage = Linkage::Weak,
            "common" => linkage = Linkage::Common,
            "loc" => return skip_loc(cursor),
            "file" => {
                cursor.skip_line();
                return cursor.skip();
            }
            "pragma" => {
                let text = cursor.string()?;
                while cursor.eat(b',')? {
                    cursor.string()?;
                }
                cursor.expect(b';')?;
                body.statements.push(Statement::Pragma(text));
                return Ok(());
            }
            "section" => return skip_section(cursor),
            _ => {
                let Some(space) = Space::from_directive(name) else {
                    return cursor.error(format!("unknown directive .{name}"));
                };
                let statements = &mut body.statements;
                return declaration(cursor, space, linkage, |variable| {
                    statements.push(Statement::Variable(Box::new(variable)));
                });
            }
        }
    }
}

/// `.loc file line column [, function_name label [+ n], inlined_at file line column]`: no semicolon
/// ends it.
pub(super) fn skip_loc(cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
    cursor.skip_line();
    cursor.skip()
}

const _: () = assert!(std::mem::size_of::<Operand<'_>>() <= 32, "operands are kept small");
