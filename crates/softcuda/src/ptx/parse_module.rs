//! Module scope: version, target, functions, variables, debug sections.

use super::ast::{Bounds, Function, FunctionKind, Linkage, Module};
use super::constant;
use super::error::ParseError;
use super::forms;
use super::lexer::Cursor;
use super::parse_body::{body, skip_loc};
use super::parse_declaration::{declaration, parameters};
use super::types::Space;

/// Whether bodies are kept or only checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bodies {
    Keep,
    /// Parsed for errors, then dropped: memory stays proportional to the largest body.
    Check,
    /// As `Check`, and opcodes and modifiers must belong together.
    CheckForms,
}

impl<'a> Module<'a> {
    /// Parses a whole module, bodies included. Text ends at its first NUL.
    pub fn parse(text: &'a str) -> Result<Self, ParseError> {
        module(text, Bodies::Keep)
    }

    /// As [`parse`](Self::parse), but bodies are checked and dropped; [`Function::parse`] on a
    /// function's `span` and `line` gives them back. Here, the forms of instructions are checked,
    /// too.
    pub fn parse_outline(text: &'a str) -> Result<Self, ParseError> {
        module(text, Bodies::Check)
    }
}

impl<'a> Function<'a> {
    /// Parses one function from its span of the module text, which starts on `line`.
    pub fn parse(text: &'a str, line: u32) -> Result<Self, ParseError> {
        let mut cursor = Cursor::new(text, line);
        cursor.skip()?;
        let mut linkage = Linkage::Local;
        loop {
            let start = (cursor.pos(), cursor.line());
            match cursor.directive()? {
                "extern" => linkage = Linkage::Extern,
                "visible" => linkage = Linkage::Visible,
                "weak" => linkage = Linkage::Weak,
                "entry" => {
                    return function(
                        &mut cursor,
                        FunctionKind::Entry,
                        linkage,
                        Bodies::Keep,
                        start,
                    );
                }
                "func" => {
                    return function(
                        &mut cursor,
                        FunctionKind::Device,
                        linkage,
                        Bodies::Keep,
                        start,
                    );
                }
                other => return cursor.error(format!("expected a function, found .{other}")),
            }
        }
    }
}

fn module(text: &str, bodies: Bodies) -> Result<Module<'_>, ParseError> {
    let mut cursor = Cursor::new(text, 1);
    let mut module = Module {
        version: (0, 0),
        target: 0,
        target_suffix: None,
        address_size: 32,
        variables: Vec::new(),
        functions: Vec::new(),
        aliases: Vec::new(),
    };
    cursor.skip()?;
    if cursor.peek_directive() != "version" {
        return cursor.expected(".version");
    }
    while !cursor.at_end() {
        item(&mut cursor, &mut module, bodies)?;
    }
    Ok(module)
}

fn item<'a>(
    cursor: &mut Cursor<'a>,
    module: &mut Module<'a>,
    bodies: Bodies,
) -> Result<(), ParseError> {
    let start = (cursor.pos(), cursor.line());
    let mut linkage = Linkage::Local;
    loop {
        if cursor.eat(b';')? {
            return Ok(());
        }
        let name = cursor.directive()?;
        match name {
            "version" => return version(cursor, module),
            "target" => return target(cursor, module),
            "address_size" => {
                module.address_size = constant::integer(cursor)? as u32;
                return match module.address_size {
                    32 | 64 => Ok(()),
                    _ => cursor.error("address size must be 32 or 64"),
                };
            }
            "extern" => linkage = Linkage::Extern,
            "visible" => linkage = Linkage::Visible,
            "weak" => linkage = Linkage::Weak,
            "common" => linkage = Linkage::Common,
            "entry" | "func" => {
                let kind = if name == "entry" { FunctionKind::Entry } else { FunctionKind::Device };
                let is_known_version = module.version <= forms::NEWEST_VERSION;
                let bodies = match bodies {
                    Bodies::Check if is_known_version => Bodies::CheckForms,
                    bodies => bodies,
                };
                module.functions.push(function(cursor, kind, linkage, bodies, start)?);
                return Ok(());
            }
            "alias" => {
                let alias = cursor.name("a function name")?;
                cursor.expect(b',')?;
                let target = cursor.name("a function name")?;
                cursor.expect(b';')?;
                module.aliases.push((alias, target));
                return Ok(());
            }
            "file" | "loc" => return skip_loc(cursor),
            "section" => return skip_section(cursor),
            "pragma" => {
                cursor.string()?;
                while cursor.eat(b',')? {
                    cursor.string()?;
                }
                return cursor.expect(b';');
            }
            _ => {
                let Some(space) = Space::from_directive(name).filter(|&s| s != Space::Reg) else {
                    return cursor.error(format!("unknown directive .{name}"));
                };
                let variables = &mut module.variables;
                return declaration(cursor, space, linkage, |variable| variables.push(variable));
            }
        }
    }
}

fn version(cursor: &mut Cursor<'_>, module: &mut Module<'_>) -> Result<(), ParseError> {
    let major = version_part(cursor)?;
    let minor = if cursor.peek() == b'.' {
        cursor.bump();
        version_part(cursor)?
    } else {
        0
    };
    module.version = (major, minor);
    cursor.skip()
}

fn version_part(cursor: &mut Cursor<'_>) -> Result<u32, ParseError> {
    let mut value = 0u32;
    if !cursor.at_digit() {
        return cursor.expected("a version number");
    }
    while cursor.at_digit() {
        value = value.saturating_mul(10).saturating_add(u32::from(cursor.peek() - b'0'));
        cursor.bump();
    }
    Ok(value)
}

/// `.target sm_90a, texmode_independent, debug`.
fn target(cursor: &mut Cursor<'_>, module: &mut Module<'_>) -> Result<(), ParseError> {
    loop {
        let name = cursor.name("a target")?;
        let number = name.strip_prefix("sm_").or_else(|| name.strip_prefix("compute_"));
        if let Some(number) = number {
            let digits = number.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let Ok(value) = digits.parse() else {
                return cursor.error(format!("unknown target {name}"));
            };
            module.target = value;
            module.target_suffix = number[digits.len()..].chars().next();
        }
        if !cursor.eat(b',')? {
            return Ok(());
        }
    }
}

/// `.section name { .. }`: debug data, skipped without looking inside.
pub(super) fn skip_section(cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
    while cursor.peek() != b'{' {
        if cursor.at_end() {
            return cursor.expected("'{'");
        }
        cursor.bump();
    }
    cursor.expect(b'{')?;
    loop {
        match cursor.peek() {
            b'}' => return cursor.expect(b'}'),
            b'"' => {
                cursor.string()?;
            }
            _ if cursor.at_end() => return cursor.expected("'}'"),
            _ => {
                cursor.bump();
                cursor.skip()?;
            }
        }
    }
}

fn function<'a>(
    cursor: &mut Cursor<'a>,
    kind: FunctionKind,
    linkage: Linkage,
    bodies: Bodies,
    start: (usize, u32),
) -> Result<Function<'a>, ParseError> {
    while cursor.peek() == b'.' && cursor.peek_directive() == "attribute" {
        cursor.directive()?;
        skip_group(cursor)?;
    }
    let returns = if cursor.peek() == b'(' { parameters(cursor)? } else { Vec::new() };
    let name = cursor.name("a function name")?;
    let params = if cursor.peek() == b'(' { parameters(cursor)? } else { Vec::new() };
    let bounds = bounds(cursor)?;
    let mut function = Function {
        name,
        kind,
        linkage,
        returns,
        params,
        bounds,
        body: None,
        span: start.0..start.0,
        line: start.1,
    };
    if !cursor.eat(b';')? {
        let parsed = body(cursor)?;
        // A dropped body leaves an empty one: the function is defined.
        if bodies == Bodies::CheckForms {
            forms::check(&parsed)?;
        }
        function.body = Some(if bodies == Bodies::Keep { parsed } else { Default::default() });
    }
    function.span.end = cursor.pos();
    Ok(function)
}

fn skip_group(cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
    cursor.expect(b'(')?;
    let mut depth = 1u32;
    while depth > 0 {
        match cursor.peek() {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ if cursor.at_end() => return cursor.expected("')'"),
            _ => {}
        }
        cursor.bump();
        cursor.skip()?;
    }
    Ok(())
}

fn bounds(cursor: &mut Cursor<'_>) -> Result<Bounds, ParseError> {
    let mut bounds = Bounds::default();
    while cursor.peek() == b'.' {
        match cursor.directive()? {
            "maxntid" => bounds.max_threads = Some(triple(cursor)?),
            "reqntid" => bounds.required_threads = Some(triple(cursor)?),
            "reqnctapercluster" => bounds.required_cluster = Some(triple(cursor)?),
            "minnctapersm" => bounds.min_blocks_per_sm = Some(triple(cursor)?[0]),
            "maxnreg" => bounds.max_registers = Some(triple(cursor)?[0]),
            "pragma" => {
                cursor.string()?;
                cursor.expect(b';')?;
            }
            // Others constrain nothing here: .noreturn, .maxnctapersm 2, .explicitcluster,
            // .abi_preserve 4, ...
            _ => {
                if cursor.at_digit() {
                    triple(cursor)?;
                }
            }
        }
    }
    Ok(bounds)
}

/// One to three integers; missing ones are 1.
fn triple(cursor: &mut Cursor<'_>) -> Result<[u32; 3], ParseError> {
    let mut values = [1u32; 3];
    for (index, value) in values.iter_mut().enumerate() {
        if index > 0 && !cursor.eat(b',')? {
            break;
        }
        let Ok(number) = u32::try_from(constant::integer(cursor)?) else {
            return cursor.error("bound must be a small positive integer");
        };
        *value = number;
    }
    Ok(values)
}
