//! The rewriting itself: one pass that gathers what the module declares, one that writes.

use crate::GuardError;
use crate::access::{Access, Instruction, Verdict};
use crate::emit::{Dialect, Names};
use crate::scan::{Piece, Scanner, is_function, is_name, split_at_commas};
use std::collections::HashSet;

/// A guarded module.
#[derive(Clone, Debug)]
pub struct Guarded {
    /// The text.
    pub text: String,
    /// The name of the variable that [`crate::table`] is about.
    pub table: String,
    /// What is checked.
    pub sites: Vec<Site>,
    /// Instructions that are not, though they may touch global memory.
    pub unchecked: usize,
}

/// A checked access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The kernel, or the function that kernels call.
    pub function: String,
    /// In the text that went in.
    pub line: u32,
    /// The instruction.
    pub instruction: String,
}

/// Guards a module. Text ends at its first NUL.
///
/// # Errors
/// [`GuardError`]: it cannot be guarded, or is not understood.
pub fn instrument(text: &str) -> Result<Guarded, GuardError> {
    let text = text.split('\0').next().unwrap_or_default();
    let module = Module::gather(text)?;
    let names = Names::of(text);
    let mut writer = Writer {
        text,
        names: &names,
        module: &module,
        scanner: Scanner::new(text),
        out: String::with_capacity(text.len() * 2),
        copied: 0,
        sites: Vec::new(),
        unchecked: 0,
    };
    writer.module()?;
    let Writer { out, sites, unchecked, .. } = writer;
    Ok(Guarded { text: out, table: names.table.clone(), sites, unchecked })
}

/// What a module declares.
#[derive(Debug, Default)]
struct Module {
    dialect: Dialect,
    /// All variables by name.
    variables: HashSet<String>,
    /// Those in global memory, with their lengths.
    own: Vec<(String, u64)>,
}

impl Module {
    fn gather(text: &str) -> Result<Self, GuardError> {
        let mut module = Self::default();
        let mut scanner = Scanner::new(text);
        let mut wide = false;
        loop {
            scanner.skip()?;
            let line = scanner.line();
            match scanner.in_module()? {
                None => break,
                Some(Piece::Head(_)) => skip_body(&mut scanner)?,
                Some(Piece::Statement(statement)) => {
                    let words: Vec<&str> = statement.split_ascii_whitespace().collect();
                    let name_of = |word: &str| word.trim_end_matches(';').to_owned();
                    match words.as_slice() {
                        [".version", version, ..] => {
                            let mut parts = name_of(version)
                                .split('.')
                                .map(|part| part.parse().unwrap_or(0))
                                .collect::<Vec<u32>>()
                                .into_iter();
                            let mut next = || parts.next().unwrap_or(0);
                            module.dialect.version = (next(), next());
                        }
                        [".target", target, ..] => {
                            let digits: String =
                                target.chars().filter(char::is_ascii_digit).collect();
                            module.dialect.target = digits.parse().unwrap_or(0);
                        }
                        [".address_size", size, ..] => wide = name_of(size) == "64",
                        _ if is_function(statement) => {
                            if statement.split(|c: char| !is_name(c as u8)).any(|w| w == "malloc") {
                                return Err(GuardError::DeviceHeap);
                            }
                        }
                        _ => module.variable(statement, line)?,
                    }
                }
                Some(_) => return scanner.malformed("a brace stands outside of functions"),
            }
        }
        if wide { Ok(module) } else { Err(GuardError::NotWide) }
    }

    /// `[.visible] .global .align 4 .v2 .f32 name[8][2] = {...}, other;` and the like.
    fn variable(&mut self, statement: &str, line: u32) -> Result<(), GuardError> {
        let malformed = |what: &str| GuardError::Malformed { line, what: what.to_owned() };
        let statement = without_comments(statement);
        let mut rest = statement.trim().trim_end_matches(';').trim_end();
        let (mut is_global, mut element_bytes, mut vector, mut is_variable) =
            (false, None, 1, false);
        while let Some(after) = rest.strip_prefix('.') {
            let length = after.bytes().take_while(|byte| is_name(*byte)).count();
            let (word, behind) = after.split_at(length);
            rest = behind.trim_start();
            match word {
                "global" | "const" | "shared" | "local" | "texref" | "surfref" | "samplerref" => {
                    is_variable = true;
                    is_global |= word == "global";
                }
                "align" => {
                    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
                    rest = rest[digits..].trim_start();
                }
                "attribute" => {
                    let end =
                        rest.find(')').ok_or_else(|| malformed("an attribute is not closed"))?;
                    rest = rest[end + 1..].trim_start();
                }
                "v2" => vector = 2,
                "v4" => vector = 4,
                "v8" => vector = 8,
                "b8" | "u8" | "s8" => element_bytes = Some(1),
                "b16" | "u16" | "s16" | "f16" | "bf16" => element_bytes = Some(2),
                "b32" | "u32" | "s32" | "f32" | "f16x2" => element_bytes = Some(4),
                "b64" | "u64" | "s64" | "f64" => element_bytes = Some(8),
                "b128" => element_bytes = Some(16),
                _ => {}
            }
            if length == 0 {
                break;
            }
        }
        if !is_variable {
            return Ok(());
        }
        for declared in split_at_commas(rest) {
            let name_bytes = declared.bytes().take_while(|byte| is_name(*byte)).count();
            let (name, behind) = declared.split_at(name_bytes);
            if name.is_empty() {
                return Err(malformed("a variable has no name"));
            }
            self.variables.insert(name.to_owned());
            if !is_global {
                continue;
            }
            let element_bytes =
                element_bytes.ok_or_else(|| malformed("a variable has no known type"))?;
            let size_bytes = elements(behind)
                .and_then(|elements| elements.checked_mul(element_bytes * vector))
                .ok_or_else(|| malformed("a variable's length is not known"))?;
            self.own.push((name.to_owned(), size_bytes));
        }
        Ok(())
    }
}

/// How many elements `[8][2] = {...}` says that there are.
fn elements(declarator: &str) -> Option<u64> {
    let (dimensions, initial) = declarator.split_once('=').unwrap_or((declarator, ""));
    let mut count = 1u64;
    for dimension in dimensions.split('[').skip(1) {
        let inside = dimension.split(']').next()?.trim();
        let inside = inside.trim_end_matches(['U', 'u']);
        count = count.checked_mul(match inside.strip_prefix("0x") {
            _ if inside.is_empty() => {
                // As many as there are initial values.
                let values = initial.trim().strip_prefix('{')?.strip_suffix('}')?;
                split_at_commas(values).len() as u64
            }
            Some(digits) => u64::from_str_radix(digits, 16).ok()?,
            None => inside.parse().ok()?,
        })?;
    }
    Some(count)
}

fn without_comments(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        plain.push_str(&rest[..at]);
        let end = if rest[at..].starts_with("//") { "\n" } else { "*/" };
        rest = rest[at..].split_once(end).map_or("", |(_, after)| after);
        plain.push(' ');
    }
    plain + rest
}

fn skip_body(scanner: &mut Scanner<'_>) -> Result<(), GuardError> {
    let mut depth = 0u32;
    loop {
        match scanner.in_body()? {
            Some(Piece::Open) => depth += 1,
            Some(Piece::Close) if depth <= 1 => return Ok(()),
            Some(Piece::Close) => depth -= 1,
            Some(_) => {}
            None => return scanner.malformed("a function does not end"),
        }
    }
}

struct Writer<'a> {
    text: &'a str,
    names: &'a Names,
    module: &'a Module,
    scanner: Scanner<'a>,
    out: String,
    /// Up to here the text has been written.
    copied: usize,
    sites: Vec<Site>,
    unchecked: usize,
}

impl<'a> Writer<'a> {
    fn module(&mut self) -> Result<(), GuardError> {
        while let Some(piece) = self.scanner.in_module()? {
            match piece {
                Piece::Head(head) => self.function(function_name(head))?,
                Piece::Statement(statement) if statement.starts_with(".address_size") => {
                    self.copy_to(self.scanner.position());
                    self.out.push_str(&self.names.declarations());
                }
                _ => {}
            }
        }
        self.copy_to(self.text.len());
        self.out.push_str(&self.names.finder(self.module.dialect, &self.module.own));
        Ok(())
    }

    fn copy_to(&mut self, position: usize) {
        self.out.push_str(&self.text[self.copied..position]);
        self.copied = position;
    }

    fn function(&mut self, name: &str) -> Result<(), GuardError> {
        let mut depth = 0u32;
        let mut body = (self.out.len(), self.sites.len());
        let mut predicates = Predicates::default();
        loop {
            let start = self.scanner.skip()?;
            let line = self.scanner.line();
            match self.scanner.in_body()? {
                Some(Piece::Open) => {
                    depth += 1;
                    if depth == 1 {
                        self.copy_to(self.scanner.position());
                        body = (self.out.len(), self.sites.len());
                    }
                }
                Some(Piece::Close) => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        break;
                    }
                }
                Some(Piece::Statement(statement)) => match Instruction::parse(statement) {
                    Some(instruction) => {
                        self.instruction(name, start, line, statement, &instruction, &predicates)?;
                    }
                    None if statement.starts_with(".global") => {
                        return Err(GuardError::LocalVariable { line });
                    }
                    None => predicates.note(statement),
                },
                Some(Piece::Label | Piece::Head(_)) => {}
                None => return self.scanner.malformed("a function does not end"),
            }
        }
        let (begins, sites) = body;
        if self.sites.len() > sites {
            self.out.insert_str(begins, &self.names.prologue());
        }
        Ok(())
    }

    fn instruction(
        &mut self,
        function: &str,
        start: usize,
        line: u32,
        statement: &str,
        instruction: &Instruction<'_>,
        predicates: &Predicates,
    ) -> Result<(), GuardError> {
        let access: Access<'_> = match instruction.verdict(|name| predicates.contain(name)) {
            Verdict::Harmless => return Ok(()),
            Verdict::Uncovered => {
                self.unchecked += 1;
                return Ok(());
            }
            Verdict::Unknown => {
                let what = format!("an access of an unknown kind: {statement}");
                return Err(GuardError::Malformed { line, what });
            }
            Verdict::Check(access) => access,
        };
        let (base, offset) = base_and_offset(access.address);
        if self.module.variables.contains(base) {
            return Ok(());
        }
        let site = self.sites.len();
        self.copy_to(start);
        let check = self.names.check(&access, (base, &offset), instruction.predicate, site);
        self.out.push_str(&check);
        self.sites.push(Site {
            function: function.to_owned(),
            line,
            instruction: brief(statement),
        });
        Ok(())
    }
}

/// An instruction in one line, for people; what is longer than any compiler writes is cut off.
fn brief(statement: &str) -> String {
    const MOST_CHARACTERS: usize = 200;
    let words = statement.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().take(MOST_CHARACTERS).collect()
}

/// `%rd1+8`, `%rd1+-8`, `%rd1-8`, `variable`, `0x10`.
fn base_and_offset(address: &str) -> (&str, String) {
    let end = address.bytes().take_while(|byte| is_name(*byte)).count();
    let (base, rest) = address.split_at(end);
    let rest: String = rest.trim_end_matches(".unified").split_ascii_whitespace().collect();
    let offset = match rest.strip_prefix('+') {
        Some(offset) => offset.to_owned(),
        None if rest.is_empty() => "0".to_owned(),
        None => rest,
    };
    (base, offset)
}

/// Registers that hold predicates.
#[derive(Debug, Default)]
struct Predicates {
    names: HashSet<String>,
    /// `%p<9>` are all whose names begin so.
    prefixes: Vec<String>,
}

impl Predicates {
    fn note(&mut self, directive: &str) {
        let Some(rest) = directive.trim().strip_prefix(".reg") else { return };
        let Some(rest) = rest.trim().strip_prefix(".pred") else { return };
        for name in rest.trim_end_matches(';').split(',') {
            match name.trim().split_once('<') {
                Some((prefix, _)) => self.prefixes.push(prefix.to_owned()),
                None => drop(self.names.insert(name.trim().to_owned())),
            }
        }
    }

    fn contain(&self, name: &str) -> bool {
        let name = name.trim_start_matches('!').trim();
        let numbered = |prefix: &String| {
            let digits = name.strip_prefix(prefix.as_str());
            digits.is_some_and(|digits| {
                !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
            })
        };
        self.names.contains(name) || self.prefixes.iter().any(numbered)
    }
}

/// `.visible .entry name(...)`, `.func (.param .b64 r) name (...)`.
fn function_name(head: &str) -> &str {
    let after = head.find(".entry").map(|at| &head[at + 6..]);
    let after = after.or_else(|| head.find(".func").map(|at| &head[at + 5..]));
    let mut rest = after.unwrap_or_default().trim_start();
    if let Some(inside) = rest.strip_prefix('(') {
        rest = inside.split_once(')').map_or("", |(_, behind)| behind).trim_start();
    }
    let end = rest.bytes().take_while(|byte| is_name(*byte)).count();
    &rest[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";

    fn guarded(body: &str) -> Result<Guarded, GuardError> {
        instrument(&format!("{HEAD}{body}"))
    }

    #[test]
    fn accesses_get_a_check_and_all_else_stays() {
        let text = ".visible .entry k(.param .u64 p)\n{\n .reg .pred %p<2>;\n .reg .b64 %rd<3>;\n .reg .b32 %r<3>;\n ld.param.u64 %rd1, [p];\nL:\n @!%p1 st.global.v2.u32 [%rd1+8], {%r1, %r2};\n ret;\n}\n";
        let done = guarded(text).unwrap();
        assert_eq!(done.sites.len(), 1);
        let site = &done.sites[0];
        assert_eq!((site.function.as_str(), site.line), ("k", 11));
        assert_eq!(site.instruction, "@!%p1 st.global.v2.u32 [%rd1+8], {%r1, %r2};");
        assert!(done.text.contains("setp.gt.and.u64 %guard_q, %guard_t, %guard_max, !%p1;"));
        assert!(done.text.contains("(%guard_a, 8, 0);"));
        // Without what was added, it is the same.
        let kept: Vec<&str> = done.text.lines().map(str::trim).collect();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            assert!(kept.contains(&line), "{line} is gone from\n{}", done.text);
        }
    }

    #[test]
    fn a_function_without_accesses_is_left_alone() {
        let done = guarded(".visible .entry k()\n{\n ret;\n}\n").unwrap();
        assert!(done.sites.is_empty());
        let body = &done.text[done.text.find(".entry").unwrap()..];
        assert!(!body[..body.find("ret;").unwrap()].contains("guard_lo"));
    }

    #[test]
    fn variables_are_listed_with_their_lengths() {
        let done = guarded(
            ".global .align 4 .b8 a[12];\n.visible .global .v2 .f32 b[3][2];\n.global .u64 c = 5, d[] = {1, 2, 3};\n.const .f32 e[4];\n.global .attribute(.managed) .align 8 .b64 f;\n.func g()\n{\n .reg .b64 %rd<2>; .reg .b32 %r;\n ld.global.u32 %r, [a+4];\n ld.global.u32 %r, [%rd1];\n ret;\n}\n",
        )
        .unwrap();
        let list = "{generic(a), 12, generic(b), 48, generic(c), 8, generic(d), 24, generic(f), 8}";
        assert!(done.text.contains(list), "{}", done.text);
        assert_eq!(done.sites.len(), 1, "a variable and a constant is the program's own");
    }

    #[test]
    fn what_cannot_be_guarded_is_said() {
        let refused = |text: &str| guarded(text).unwrap_err();
        let malloc = ".extern .func (.param .b64 r) malloc (.param .b64 s);\n";
        assert_eq!(refused(malloc), GuardError::DeviceHeap);
        assert_eq!(instrument(".version 7.0\n.target sm_70\n").unwrap_err(), GuardError::NotWide);
        let local = ".func f()\n{\n .global .u32 x;\n ret;\n}\n";
        assert_eq!(refused(local), GuardError::LocalVariable { line: 6 });
        for text in [
            ".func f()\n{\n ret;\n",
            "{",
            ".global .u32",
            ".global .b64 x[0x2000000000000001];",
            "/* ",
            ".func f() { ld.global.zz %r, [%rd]; }",
        ] {
            assert!(matches!(refused(text), GuardError::Malformed { .. }), "{text}");
        }
    }

    #[test]
    fn comments_strings_and_sections_hold_no_code() {
        let done = guarded(
            ".file 1 \"a{b;c\"\n.func f()\n{\n // st.global.u32 [%rd1], 1; }\n .loc 1 2 3\n .pragma \"nounroll; }\";\n /* } */ ret;\n}\n.section .debug_str\n{\n .b8 1,2\n}\n.func g()\n{\n .reg .b64 %rd<2>;\n st.global.u32 [%rd1], 1;\n ret;\n}\n",
        )
        .unwrap();
        assert_eq!(done.sites.len(), 1);
        assert_eq!(done.sites[0].function, "g");
    }
}
