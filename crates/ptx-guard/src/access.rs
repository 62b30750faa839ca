//! Which accesses to global memory an instruction makes.

use crate::scan::{is_name, split_at_commas};

/// An instruction, taken apart.
#[derive(Debug)]
pub(crate) struct Instruction<'a> {
    /// With `!` before it where it is negated.
    pub(crate) predicate: Option<&'a str>,
    pub(crate) parts: Vec<&'a str>,
    pub(crate) operands: Vec<&'a str>,
}

/// How many bytes are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size<'a> {
    /// Known, [`crate::table::WIDEST_BYTES`] at most.
    Bytes(u64),
    /// At most 16, but what this operand says.
    Narrow(&'a str),
    /// What this operand says.
    Any(&'a str),
}

/// One access that is to be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access<'a> {
    /// What is between the brackets.
    pub(crate) address: &'a str,
    pub(crate) size: Size<'a>,
    /// A predicate under which nothing is touched.
    pub(crate) unless: Option<&'a str>,
}

/// What an instruction is to the guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict<'a> {
    /// It touches no global memory, or what it does with it harms nobody.
    Harmless,
    Check(Access<'a>),
    /// It may touch global memory, unchecked.
    Uncovered,
    /// It touches memory in a way that is not known.
    Unknown,
}

impl<'a> Instruction<'a> {
    /// Takes a statement apart; `None`: it is a directive.
    pub(crate) fn parse(statement: &'a str) -> Option<Self> {
        let mut rest = statement.trim().strip_suffix(';')?.trim_end();
        let mut predicate = None;
        if let Some(after) = rest.strip_prefix('@') {
            let after = after.trim_start();
            let negation = after.len() - after.trim_start_matches('!').trim_start().len();
            let name = after[negation..].bytes().take_while(|byte| is_name(*byte)).count();
            predicate = Some(&after[..negation + name]);
            rest = after[negation + name..].trim_start();
        }
        if rest.starts_with('.') {
            return None;
        }
        let end = rest.find(|c: char| c.is_ascii_whitespace()).unwrap_or(rest.len());
        let (opcode, operands) = rest.split_at(end);
        Some(Self {
            predicate,
            parts: opcode.split('.').collect(),
            operands: split_at_commas(operands),
        })
    }

    fn has(&self, part: &str) -> bool {
        self.parts.contains(&part)
    }

    /// `is_predicate` tells registers that hold predicates from others.
    pub(crate) fn verdict(&self, is_predicate: impl Fn(&str) -> bool) -> Verdict<'a> {
        match (self.parts[0], self.parts.get(1).copied().unwrap_or("")) {
            ("ld" | "ldu" | "st" | "atom" | "red", second) => {
                if second == "async" || self.has("bulk") || !self.reaches_global() {
                    return Verdict::Harmless;
                }
                match self.bytes() {
                    Some(size) => self.check(0, Size::Bytes(size), None),
                    None => Verdict::Unknown,
                }
            }
            ("wmma", "load" | "store") if self.reaches_global() => {
                self.check(0, Size::Bytes(16), None)
            }
            ("cp", "async" | "reduce") if self.has("tensor") => match self.has("prefetch") {
                true => Verdict::Harmless,
                false => Verdict::Uncovered,
            },
            ("cp", "async" | "reduce") if self.has("bulk") => self.bulk(),
            ("cp", "async") if self.has("global") => self.asynchronous(is_predicate),
            ("tex" | "tld4" | "suld" | "sust" | "sured" | "multimem" | "discard", _) => {
                Verdict::Uncovered
            }
            _ => Verdict::Harmless,
        }
    }

    /// Whether its state space is `.global`, or none.
    fn reaches_global(&self) -> bool {
        let space = |part: &&&str| {
            let name = part.split("::").next().unwrap_or(part);
            matches!(name, "global" | "shared" | "local" | "const" | "param")
        };
        self.parts.iter().skip(1).find(space).is_none_or(|space| *space == "global")
    }

    /// Bytes of a plain access, by its type and vector.
    fn bytes(&self) -> Option<u64> {
        let vector = match self.parts.iter().find(|part| matches!(**part, "v2" | "v4" | "v8")) {
            Some(part) => part[1..].parse().ok()?,
            None => 1,
        };
        let size = |part: &&str| -> Option<u64> {
            Some(match *part {
                "b8" | "u8" | "s8" => 1,
                "b16" | "u16" | "s16" | "f16" | "bf16" => 2,
                "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => 4,
                "b64" | "u64" | "s64" | "f64" => 8,
                "b128" => 16,
                _ => return None,
            })
        };
        self.parts.iter().rev().find_map(size).map(|size| size * vector)
    }

    fn bulk(&self) -> Verdict<'a> {
        if self.has("prefetch") {
            return Verdict::Harmless;
        }
        let spaces: Vec<&str> = self
            .parts
            .iter()
            .map(|part| part.split("::").next().unwrap_or(part))
            .filter(|part| matches!(*part, "global" | "shared"))
            .collect();
        let Some(side) = spaces.iter().take(2).position(|space| *space == "global") else {
            return Verdict::Harmless;
        };
        match self.operands.get(2) {
            Some(size) => self.check(side, Size::Any(size), None),
            None => Verdict::Unknown,
        }
    }

    /// `cp.async [to], [from], bytes {, source bytes | ignore} {, policy}`.
    fn asynchronous(&self, is_predicate: impl Fn(&str) -> bool) -> Verdict<'a> {
        let hinted = usize::from(self.has("L2::cache_hint"));
        let operands = &self.operands[..self.operands.len().saturating_sub(hinted)];
        match operands {
            [_, _, size] => match size.parse() {
                Ok(size) => self.check(1, Size::Bytes(size), None),
                Err(_) => self.check(1, Size::Narrow(size), None),
            },
            [_, _, size, last] if is_predicate(last) => match size.parse() {
                Ok(size) => self.check(1, Size::Bytes(size), Some(last)),
                Err(_) => self.check(1, Size::Narrow(size), Some(last)),
            },
            [_, _, _, source_bytes] => self.check(1, Size::Narrow(source_bytes), None),
            _ => Verdict::Harmless,
        }
    }

    /// The operand in brackets of that number.
    fn check(&self, number: usize, size: Size<'a>, unless: Option<&'a str>) -> Verdict<'a> {
        let in_brackets = |operand: &&'a str| {
            let inner = operand.trim().strip_prefix('[')?;
            Some(inner[..inner.find(']')?].trim())
        };
        match self.operands.iter().filter_map(in_brackets).nth(number) {
            Some(address) => Verdict::Check(Access { address, size, unless }),
            None => Verdict::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(statement: &str) -> Verdict<'_> {
        let instruction = Instruction::parse(statement).unwrap();
        instruction.verdict(|name| name.starts_with("%p"))
    }

    fn checked<'a>(statement: &'a str) -> (&'a str, Size<'a>) {
        match verdict(statement) {
            Verdict::Check(access) => (access.address, access.size),
            other => panic!("{statement}: {other:?}"),
        }
    }

    #[test]
    fn sizes_follow_from_types_and_vectors() {
        for (statement, address, size) in [
            ("ld.global.u32 %r1, [%rd1+8];", "%rd1+8", 4),
            (
                "ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];",
                "%rd1",
                16,
            ),
            ("st.v2.b64 [%rd2+-16], {%rd3, %rd4};", "%rd2+-16", 16),
            ("atom.global.add.noftz.f16x2 %r1, [%rd1], %r2;", "%rd1", 4),
            ("atom.acq_rel.gpu.global.cas.b128 %a, [%rd1], %b, %c;", "%rd1", 16),
            ("red.relaxed.sys.global.add.f64 [%rd1], %fd1;", "%rd1", 8),
            ("ld.relaxed.gpu.u8 %rs1, [ %rd9 ];", "%rd9", 1),
            ("ld.global.v8.f32 {%f1,%f2,%f3,%f4,%f5,%f6,%f7,%f8}, [%rd1];", "%rd1", 32),
            ("cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16;", "%rd1", 16),
            (
                "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r1,%r2}, [%rd4], %r9;",
                "%rd4",
                16,
            ),
        ] {
            assert_eq!(checked(statement), (address, Size::Bytes(size)), "{statement}");
        }
    }

    #[test]
    fn copies_are_as_long_as_they_say() {
        let copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], %r2, [%r3];";
        assert_eq!(checked(copy), ("%rd1", Size::Any("%r2")));
        let copy = "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 64;";
        assert_eq!(checked(copy), ("%rd1", Size::Any("64")));
        let copy = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r1], %r2;";
        assert_eq!(checked(copy), ("%rd1", Size::Any("%r2")));
        let copy = "cp.async.ca.shared.global [%r1], [%rd1], 16, %r9;";
        assert_eq!(checked(copy), ("%rd1", Size::Narrow("%r9")));
        let copy = "cp.async.ca.shared.global.L2::cache_hint [%r1], [%rd1], 16, %p1, %rd7;";
        let Verdict::Check(access) = verdict(copy) else { panic!() };
        assert_eq!((access.size, access.unless), (Size::Bytes(16), Some("%p1")));
    }

    #[test]
    fn other_state_spaces_are_left_alone() {
        for statement in [
            "ld.param.u64 %rd1, [values];",
            "ld.shared::cluster.u32 %r1, [%r2];",
            "st.local.v4.u32 [%rd1], {%r1,%r2,%r3,%r4};",
            "ld.const.f32 %f1, [table+4];",
            "atom.shared.add.u32 %r1, [%r2], 1;",
            "prefetch.global.L2 [%rd1];",
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1], %r2, [%r3];",
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r2], 16, [%r3];",
            "cp.async.commit_group;",
            "add.s32 %r1, %r2, %r3;",
        ] {
            assert_eq!(verdict(statement), Verdict::Harmless, "{statement}");
        }
        let tensor = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];";
        assert_eq!(verdict(tensor), Verdict::Uncovered);
        assert_eq!(verdict("ld.global.e5m2 %r1, [%rd1];"), Verdict::Unknown);
    }

    #[test]
    fn predicates_are_kept() {
        let parsed = Instruction::parse("@!%p3 st.global.u32 [%rd1], %r1;").unwrap();
        assert_eq!((parsed.predicate, parsed.parts[0]), (Some("!%p3"), "st"));
        assert!(Instruction::parse(".reg .b32 %r<4>;").is_none());
    }
}
