//! Whether code has variables of its own: then it is like new for its next user only when it is loaded anew.

use cuda_abi::image::Image;
use cuda_abi::image::elf::Elf;

/// Whether an image may have variables: global, constant or managed ones, or references to textures. What cannot be told has some.
pub(crate) fn may_have_variables(image: &[u8]) -> bool {
    match Image::parse(image) {
        Ok(Image::Elf(elf)) => elf.sections().any(|section| {
            section.is_ok_and(|section| {
                section.name.starts_with(b".nv.global")
                    || section.name.starts_with(b".nv.constant3")
            })
        }),
        Ok(Image::Ptx(text)) => text_has_variables(text),
        _ => true,
    }
}

/// Directives that declare variables, outside of functions and their parameters.
const DECLARING: [&[u8]; 5] = [b".global", b".const", b".texref", b".surfref", b".samplerref"];

fn text_has_variables(text: &[u8]) -> bool {
    Declarations::of(text).next().is_some()
}

/// Declarations of variables in a text, one after the other.
struct Declarations<'a> {
    rest: &'a [u8],
    /// Of braces and parentheses.
    depth: i32,
    is_external: bool,
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
        Self { rest: text, depth: 0, is_external: false }
    }
}

impl<'a> Iterator for Declarations<'a> {
    type Item = Declaration<'a>;

    fn next(&mut self) -> Option<Declaration<'a>> {
        while let Some(&first) = self.rest.first() {
            let rest = self.rest;
            let (mut found, mut skipped) = (None, 1);
            match first {
                b'/' if rest.starts_with(b"//") => skipped = length_to(rest, b"\n"),
                b'/' if rest.starts_with(b"/*") => skipped = length_to(rest, b"*/"),
                b'"' => skipped = 1 + length_to(&rest[1..], b"\""),
                b'{' | b'(' => self.depth += 1,
                b'}' | b')' => self.depth -= 1,
                b';' => self.is_external = false,
                b'.' => {
                    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                    skipped = 1 + rest[1..].iter().take_while(|byte| is_part(byte)).count();
                    let word = &rest[..skipped];
                    self.is_external |= word == b".extern";
                    if self.depth <= 0 && DECLARING.contains(&word) {
                        // All of it: initial values may contain anything.
                        skipped = skipped.max(length_to(rest, b";"));
                        let is_external = std::mem::take(&mut self.is_external);
                        found =
                            Some(Declaration { space: word, text: &rest[..skipped], is_external });
                    }
                }
                _ => {}
            }
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

/// The names of an image's variables; `None` if they cannot be told, or are of a kind that cannot be copied.
pub(crate) fn variable_names(image: &[u8]) -> Option<Vec<Vec<u8>>> {
    match Image::parse(image).ok()? {
        Image::Elf(elf) => names_in_elf(&elf),
        Image::Ptx(text) => names_in_text(text),
        _ => None,
    }
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
    let references: [&[u8]; 3] = [b".texref", b".surfref", b".samplerref"];
    if contains(b".managed") || contains(b",") || references.into_iter().any(contains) {
        return None;
    }
    let head = head.split(|byte| *byte == b'[').next()?;
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%');
    let name = head.split(|byte| !is_part(byte)).rfind(|word| !word.is_empty())?;
    Some(name.to_vec())
}

/// Objects in sections of variables.
fn names_in_elf(elf: &Elf<'_>) -> Option<Vec<Vec<u8>>> {
    const OBJECT: u8 = 1;
    const SYMBOL_BYTES: usize = 24;
    const SYMBOLS: u32 = 2;
    let sections: Vec<_> = elf.sections().collect::<Result<_, _>>().ok()?;
    let is_of_variables = |index: usize| {
        sections.get(index).is_some_and(|section| {
            section.name.starts_with(b".nv.global") || section.name.starts_with(b".nv.constant3")
        })
    };
    let symbols = sections.iter().find(|section| section.kind == SYMBOLS)?;
    let strings = sections.iter().find(|section| section.name == b".strtab")?;
    let mut names = Vec::new();
    for symbol in symbols.contents.chunks_exact(SYMBOL_BYTES) {
        let name = u32::from_le_bytes(symbol[..4].try_into().ok()?) as usize;
        let section = u16::from_le_bytes(symbol[6..8].try_into().ok()?);
        if symbol[4] & 0xf != OBJECT || !is_of_variables(section.into()) {
            continue;
        }
        let name = strings.contents.get(name..)?;
        let name = name.split(|byte| *byte == 0).next()?;
        if !is_constant(name) {
            names.push(name.to_vec());
        }
    }
    Some(names)
}

/// What compilers put beside the program's own variables, and nobody writes to: tables, texts, empty objects of header libraries.
fn is_constant(name: &[u8]) -> bool {
    let contains = |what: &[u8]| name.windows(what.len()).any(|window| window == what);
    name.starts_with(b"$str")
        || name.starts_with(b"__unnamed")
        || name.starts_with(b"__cudart_i2opi")
        || contains(b"_INTERNAL_")
            && (contains(b"thrust") || contains(b"cuda3std") || contains(b"cub"))
}

#[cfg(test)]
mod tests {
    use super::{may_have_variables, variable_names};

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
}
