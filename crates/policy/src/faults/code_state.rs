//! Whether code has variables of its own, and which: it is like new for its next user when all of
//! them are as they were loaded.

use cuda_abi::image::Image;
use cuda_abi::image::elf::{Elf, Section};
use std::ffi::CString;

/// Whether an image may have variables: global, constant or managed ones, or references to
/// textures. What cannot be told has some.
pub fn may_have_variables(image: &[u8]) -> bool {
    match Image::parse(image) {
        Ok(Image::Elf(elf)) => {
            elf.sections().any(|section| section.is_ok_and(|section| has_variables_in(&section)))
        }
        Ok(Image::Ptx(text)) => text_has_variables(text),
        _ => true,
    }
}

/// Whether a section consists of variables.
pub(super) fn has_variables_in(section: &Section<'_>) -> bool {
    section.name.starts_with(b".nv.global") || section.name.starts_with(b".nv.constant3")
}

/// Directives that declare variables, outside of parameters.
const DECLARING: [&[u8]; 5] = [b".global", b".const", b".texref", b".surfref", b".samplerref"];

fn text_has_variables(text: &[u8]) -> bool {
    Declarations::of(text).next().is_some()
}

/// Declarations of variables in a text, one after the other.
struct Declarations<'a> {
    rest: &'a [u8],
    /// Of parentheses.
    depth: i32,
    is_external: bool,
    /// What comes before is part of a word: of an instruction, as `ld` before `.global`.
    in_word: bool,
}

/// One of them.
struct Declaration<'a> {
    /// One of [`DECLARING`].
    space: &'a [u8],
    /// From there up to its semicolon.
    text: &'a [u8],
    /// Another image declares it, too, and has it.
    is_external: bool,
}

impl<'a> Declarations<'a> {
    fn of(text: &'a [u8]) -> Self {
        Self { rest: text, depth: 0, is_external: false, in_word: false }
    }
}

impl<'a> Iterator for Declarations<'a> {
    type Item = Declaration<'a>;

    fn next(&mut self) -> Option<Declaration<'a>> {
        while let Some(&first) = self.rest.first() {
            let rest = self.rest;
            let (mut found, mut skipped) = (None, 1);
            let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            match first {
                b'/' if rest.starts_with(b"//") => skipped = length_to(rest, b"\n"),
                b'/' if rest.starts_with(b"/*") => skipped = length_to(rest, b"*/"),
                b'"' => skipped = 1 + length_to(&rest[1..], b"\""),
                b'(' => self.depth += 1,
                b')' => self.depth -= 1,
                b';' => self.is_external = false,
                b'.' => {
                    skipped = 1 + rest[1..].iter().take_while(|byte| is_part(byte)).count();
                    let word = &rest[..skipped];
                    self.is_external |= word == b".extern";
                    if self.depth <= 0 && !self.in_word && DECLARING.contains(&word) {
                        // All of it: initial values may contain anything.
                        skipped = skipped.max(length_to(rest, b";"));
                        let is_external = std::mem::take(&mut self.is_external);
                        found =
                            Some(Declaration { space: word, text: &rest[..skipped], is_external });
                    }
                }
                _ => {}
            }
            self.in_word = rest.get(skipped - 1).is_some_and(is_part);
            self.rest = rest.get(skipped..).unwrap_or_default();
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

/// Bytes up to the end of what is looked for, or all.
fn length_to(text: &[u8], end: &[u8]) -> usize {
    text.windows(end.len()).position(|window| window == end).map_or(text.len(), |at| at + end.len())
}

/// The names of an image's variables; `None` if they cannot be told, or are of a kind that cannot
/// be copied.
pub fn variable_names(image: &[u8]) -> Option<Vec<Vec<u8>>> {
    match Image::parse(image).ok()? {
        Image::Elf(elf) => names_in_elf(&elf),
        Image::Ptx(text) => names_in_text(text),
        _ => None,
    }
}

/// The names of all variables that a text without comments declares, its own or another image's;
/// `None` if they cannot be told.
pub(super) fn declared_variables(text: &[u8]) -> Option<Vec<Vec<u8>>> {
    let name = |it: Declaration<'_>| match it.space {
        b".global" | b".const" => name_declared(it.text),
        _ => None,
    };
    Declarations::of(text).map(name).collect()
}

/// What is external is another image's.
fn names_in_text(text: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for Declaration { space, text, is_external } in Declarations::of(text) {
        if space != b".global" && space != b".const" {
            return None;
        }
        let name = name_declared(text)?;
        if !is_external && !is_constant(&name) {
            names.push(name);
        }
    }
    Some(names)
}

/// The name in a declaration up to its semicolon; `None` for what cannot be copied.
fn name_declared(declaration: &[u8]) -> Option<Vec<u8>> {
    let head = declaration.split(|byte| matches!(byte, b'=' | b';')).next()?;
    let contains = |what: &[u8]| head.windows(what.len()).any(|window| window == what);
    if declares_several(declaration) {
        return None;
    }
    let references: [&[u8]; 3] = [b".texref", b".surfref", b".samplerref"];
    if contains(b".managed") || contains(b",") || references.into_iter().any(contains) {
        return None;
    }
    let head = head.split(|byte| *byte == b'[').next()?;
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%');
    let name = head.split(|byte| !is_part(byte)).rfind(|word| !word.is_empty())?;
    Some(name.to_vec())
}

/// Whether a comma is outside of all initial values.
fn declares_several(declaration: &[u8]) -> bool {
    let mut depth = 0;
    declaration.iter().any(|byte| {
        match byte {
            b'{' | b'(' => depth += 1,
            b'}' | b')' => depth -= 1,
            _ => {}
        }
        *byte == b',' && depth == 0
    })
}

/// Objects in sections of variables.
fn names_in_elf(elf: &Elf<'_>) -> Option<Vec<Vec<u8>>> {
    let sections: Vec<_> = elf.sections().collect::<Result<_, _>>().ok()?;
    let is_of_variables = |symbol: &Symbol<'_>| {
        symbol.kind == Symbol::OBJECT && sections.get(symbol.section).is_some_and(has_variables_in)
    };
    let mut names = Vec::new();
    for symbol in symbols(&sections)? {
        let symbol = symbol?;
        if is_of_variables(&symbol) && !is_constant(symbol.name) {
            names.push(symbol.name.to_vec());
        }
    }
    Some(names)
}

/// A name of an ELF file's.
pub(super) struct Symbol<'a> {
    pub(super) name: &'a [u8],
    pub(super) kind: u8,
    pub(super) is_managed: bool,
    /// Where it lies: a section's number, and the offset there.
    pub(super) section: usize,
    offset: u64,
    size_bytes: u64,
}

impl Symbol<'_> {
    pub(super) const OBJECT: u8 = 1;
    /// Of a symbol's "other" byte; observed on the output of nvcc 13.0.
    const MANAGED: u8 = 4;
    /// References to textures, to surfaces, samplers.
    pub(super) const REFERENCES: std::ops::RangeInclusive<u8> = 10..=12;
}

/// All names; `None` in place of one that is cut off.
pub(super) fn symbols<'a>(
    sections: &[Section<'a>],
) -> Option<impl Iterator<Item = Option<Symbol<'a>>>> {
    const SYMBOL_BYTES: usize = 24;
    const SYMBOLS: u32 = 2;
    let table = sections.iter().find(|section| section.kind == SYMBOLS)?;
    let strings = sections.iter().find(|section| section.name == b".strtab")?.contents;
    Some(table.contents.chunks_exact(SYMBOL_BYTES).map(move |symbol| {
        let name = u32::from_le_bytes(symbol[..4].try_into().ok()?) as usize;
        Some(Symbol {
            name: strings.get(name..)?.split(|byte| *byte == 0).next()?,
            kind: symbol[4] & 0xf,
            is_managed: symbol[5] & Symbol::MANAGED != 0,
            section: u16::from_le_bytes(symbol[6..8].try_into().ok()?).into(),
            offset: u64::from_le_bytes(symbol[8..16].try_into().ok()?),
            size_bytes: u64::from_le_bytes(symbol[16..].try_into().ok()?),
        })
    }))
}

/// A variable that is set when code is loaded.
#[derive(Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name in the image.
    pub name: CString,
    /// Its length; `None` where only the driver says it.
    pub size_bytes: Option<u64>,
}

/// All variables that loading an image sets, whoever has access to them; `None` if they cannot be
/// told, or if some cannot be copied.
pub fn all_variables(image: &[u8]) -> Option<Vec<Variable>> {
    match Image::parse(image).ok()? {
        Image::Elf(elf) => all_in_elf(&elf),
        Image::Ptx(text) => all_in_text(text),
        _ => None,
    }
}

fn all_in_text(text: &[u8]) -> Option<Vec<Variable>> {
    let mut all = Vec::new();
    for declaration in Declarations::of(text) {
        if declaration.space != b".global" && declaration.space != b".const" {
            return None;
        }
        let has_comment = declaration.text.windows(2).any(|two| two == b"/*" || two == b"//");
        let name = name_declared(declaration.text).filter(|_| !has_comment)?;
        if !declaration.is_external {
            all.push(Variable { name: CString::new(name).ok()?, size_bytes: None });
        }
    }
    Some(all)
}

/// Variables lie apart from each other on a GPU (H200), not as in the file, so that each has a name
/// or is not found.
fn all_in_elf(elf: &Elf<'_>) -> Option<Vec<Variable>> {
    let sections: Vec<_> = elf.sections().collect::<Result<_, _>>().ok()?;
    let symbols: Vec<_> = symbols(&sections)?.collect::<Option<_>>()?;
    if symbols.iter().any(|symbol| Symbol::REFERENCES.contains(&symbol.kind)) {
        return None;
    }
    let mut all = Vec::new();
    for (number, section) in sections.iter().enumerate() {
        if !has_variables_in(section) {
            continue;
        }
        let objects = symbols.iter().filter(|symbol| {
            symbol.kind == Symbol::OBJECT && symbol.section == number && symbol.size_bytes > 0
        });
        let mut objects: Vec<_> = objects.collect();
        objects.sort_by_key(|symbol| symbol.offset);
        let mut covered_bytes = 0;
        for symbol in objects {
            let end = symbol.offset.checked_add(symbol.size_bytes)?;
            if symbol.is_managed
                || end > section.size_bytes
                || symbol.offset.saturating_sub(covered_bytes) >= GAP_BYTES
            {
                return None;
            }
            covered_bytes = end.max(covered_bytes);
            let name = CString::new(symbol.name).ok()?;
            all.push(Variable { name, size_bytes: Some(symbol.size_bytes) });
        }
        if section.size_bytes - covered_bytes >= GAP_BYTES {
            return None;
        }
    }
    Some(all)
}

/// So much of a section without a name is more than what aligns the next variable.
const GAP_BYTES: u64 = 16;

/// What compilers put beside the program's own variables, and nobody writes to: tables, texts,
/// empty objects of header libraries.
fn is_constant(name: &[u8]) -> bool {
    let contains = |what: &[u8]| name.windows(what.len()).any(|window| window == what);
    name.starts_with(b"$str")
        || name.starts_with(b"__unnamed")
        || name.starts_with(b"__cudart_i2opi")
        || contains(b"_INTERNAL_")
            // As namespaces are mangled: the name of the file is in there, too.
            && (contains(b"6thrust") || contains(b"cuda3std") || contains(b"3cub"))
}

#[cfg(test)]
mod tests {
    use super::{Variable, all_variables, may_have_variables, variable_names};
    use std::ffi::CString;

    #[test]
    fn names_of_variables_are_those_declared() {
        let names = |body: &str| {
            let names = variable_names(format!("{HEAD}{body}").as_bytes())?;
            Some(names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>())
        };
        let body = ".visible .global .align 4 .u32 x = 5;\n.const .align 4 .f32 t[4] = {0f00000000, 0f3F800000, 0f00000000, 0f00000000};\n\
                    .extern .global .u32 elsewhere;\n.global .align 1 .b8 $text[3] = {104, 105, 0};\n\
                    .visible .entry k()\n{\n .shared .u32 s;\n ret;\n}\n.weak .global .u64 last[];\n";
        assert_eq!(names(body).unwrap(), ["x", "t", "$text", "last"]);
        assert_eq!(names(".visible .entry k()\n{\n ret;\n}\n").unwrap(), [""; 0]);
        assert_eq!(names(".global .texref t;"), None);
        assert_eq!(names(".global .attribute(.managed) .u32 m;"), None);
    }

    const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";

    fn text(body: &str) -> bool {
        may_have_variables(format!("{HEAD}{body}").as_bytes())
    }

    #[test]
    fn texts_with_kernels_alone_have_none() {
        let kernel = ".visible .entry k(.param .u64 .ptr .global .align 4 p)\n.maxntid 128\n{\n\
                      .shared .align 4 .b8 s[64];\n ld.global.u32 %r1, [%rd1];\n ld.const.u32 %r1, [4];\n}\n";
        assert!(!text(kernel));
        assert!(!text(&format!(
            "// .global .u32 x;\n/* .const .u32 y; */\n.file 1 \"a .global b\"\n{kernel}"
        )));
    }

    #[test]
    fn variables_are_found_wherever_they_are_declared() {
        for variable in [
            ".visible .entry k()\n{\n .global .u32 x;\n ret;\n}\n",
            ".global .align 4 .u32 x;",
            ".visible .global .align 4 .u32 x;",
            ".const .align 4 .f32 table[4] = {0f00000000};",
            ".global .texref t;",
            ".func f() { ret; }\n.visible .global .attribute(.managed) .u32 m;",
        ] {
            assert!(text(variable), "{variable}");
        }
        assert!(may_have_variables(b"\x01\x02\x03\x04what is this"));
    }

    #[test]
    fn all_that_a_text_sets_is_told_or_nothing() {
        let names = |body: &str| {
            let all = all_variables(format!("{HEAD}{body}").as_bytes())?;
            let name = |variable: Variable| variable.name.into_string().unwrap();
            Some(all.into_iter().map(name).collect::<Vec<_>>())
        };
        // What nobody is said to write to is set, too.
        let body = ".global .align 1 .b8 $str[3] = {104, 105, 0};\n.extern .global .u32 elsewhere;\n.const .f32 t[2] = {0f00000000, 0f3F800000};\n\
                    .visible .entry k(.param .u64 .ptr .global .align 4 p)\n{\n ld.volatile.global.u32 %r1, [%rd1];\n ret;\n}\n.global .u32 _ZZ1kvE1n = 7;\n";
        assert_eq!(names(body).unwrap(), ["$str", "t", "_ZZ1kvE1n"]);
        assert_eq!(names(".visible .entry k()\n{\n .global .u32 x;\n ret;\n}\n").unwrap(), ["x"]);
        for untold in [
            ".global .u32 a, b;",
            ".global .u32 a = 1, b = 2;",
            ".global .u32 t[2] = {1, 2}, b;",
            ".global /* x; */ .u32 a;",
            ".global .attribute(.managed) .u32 m;",
            ".global .texref t;",
            ".surfref s;",
        ] {
            assert_eq!(names(untold), None, "{untold}");
        }
    }

    /// A cubin with an object in each section of variables; names: offset of the name, kind (and
    /// the managed mark), section, offset and length there.
    fn cubin(symbols: &[(u32, u8, u16, u64, u64)]) -> Vec<u8> {
        const NAMES: &[u8] = b"\0.strtab\0.symtab\0.nv.global\0.nv.constant3\0x\0local\0";
        let table: Vec<u8> = symbols
            .iter()
            .flat_map(|&(name, kind, section, offset, size_bytes)| {
                let mut symbol = name.to_le_bytes().to_vec();
                symbol.extend([kind & 0x1f, kind >> 5]);
                symbol.extend(section.to_le_bytes());
                symbol.extend(offset.to_le_bytes());
                symbol.extend(size_bytes.to_le_bytes());
                symbol
            })
            .collect();
        let mut file = vec![0_u8; 64];
        file[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\x33");
        file[18..20].copy_from_slice(&0xbe_u16.to_le_bytes());
        file.extend(NAMES);
        let table_at = file.len() as u64;
        file.extend(&table);
        let sections_at = file.len() as u64;
        // Name, type, flags, offset and length.
        let sections = [
            (0, 0, 0, 0, 0),
            (1, 3, 0, 64, NAMES.len() as u64),
            (9, 2, 0, table_at, table.len() as u64),
            (17, 8, 3, 0, 24),
            (28, 1, 2, 64, 8),
        ];
        for (name, kind, flags, offset, size_bytes) in sections {
            let mut header = [0_u8; 64];
            header[..4].copy_from_slice(&u32::to_le_bytes(name));
            header[4..8].copy_from_slice(&u32::to_le_bytes(kind));
            header[8..16].copy_from_slice(&u64::to_le_bytes(flags));
            header[24..32].copy_from_slice(&u64::to_le_bytes(offset));
            header[32..40].copy_from_slice(&u64::to_le_bytes(size_bytes));
            file.extend(header);
        }
        file[40..48].copy_from_slice(&sections_at.to_le_bytes());
        file[52..54].copy_from_slice(&64_u16.to_le_bytes());
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&5_u16.to_le_bytes());
        file[62..64].copy_from_slice(&1_u16.to_le_bytes());
        file
    }

    #[test]
    fn variables_of_machine_code_are_told_all_or_not_at_all() {
        const X: u32 = 42;
        const LOCAL: u32 = 44;
        let global = (X, 0x11, 3, 8, 16);
        let constant = (LOCAL, 1, 4, 0, 8);
        let named = |name: &str, size_bytes| Variable {
            name: CString::new(name).unwrap(),
            size_bytes: Some(size_bytes),
        };
        // A kernel and a section have names, too.
        let whole = cubin(&[(0, 3, 3, 0, 0), global, (LOCAL, 0x12, 1, 0, 64), constant]);
        assert!(may_have_variables(&whole));
        assert_eq!(all_variables(&whole).unwrap(), [named("x", 16), named("local", 8)]);
        for (what, symbols) in [
            ("a managed variable", vec![global, constant, (X, 0x81, 4, 0, 8)]),
            ("its end is nobody's", vec![(X, 1, 3, 0, 8), constant]),
            ("its beginning is nobody's", vec![(X, 1, 3, 16, 8), constant]),
            ("nothing has a name", vec![constant]),
            ("it ends outside", vec![global, constant, (X, 1, 4, 4, 8)]),
            ("its end overflows", vec![global, constant, (X, 1, 4, u64::MAX, 8)]),
            ("a reference to a texture", vec![global, constant, (LOCAL, 0x1a, 0, 0, 8)]),
            ("its name is cut off", vec![global, (9999, 1, 4, 0, 8)]),
        ] {
            assert_eq!(all_variables(&cubin(&symbols)), None, "{what}");
        }
    }
}
