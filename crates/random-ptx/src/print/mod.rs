//! Programs as PTX text.
//!
//! A module holds a `.const` array and any number of programs; kernel `i` is called `kernel{i}`.
//! Each kernel loads its registers from its thread's part of the input, and at the end stores
//! registers and memories to its part of the output.

mod frame;

use std::fmt::Write;

use crate::operation::{Class, Immediate};
use crate::program::{
    Action, Addressing, COUNTER_BYTES, Gather, Guard, Instruction, Operand, Passing, Place,
    Program, Register, Space, constants,
};

/// Name of a program's kernel in its module.
pub fn kernel_name(index: usize) -> String {
    format!("kernel{index}")
}

/// A module of all the programs.
pub fn module(programs: &[Program]) -> String {
    let mut text = String::from(".version 8.0\n.target sm_90\n.address_size 64\n\n");
    let table: Vec<String> = constants().iter().map(u8::to_string).collect();
    let _ = writeln!(
        text,
        ".const .align 16 .b8 constants[{}] = {{{}}};",
        table.len(),
        table.join(", ")
    );
    for (index, program) in programs.iter().enumerate() {
        Printer { text: &mut text, program, index, calls: 0, scope: "K" }.program();
    }
    text
}

struct Printer<'a> {
    text: &'a mut String,
    program: &'a Program,
    index: usize,
    calls: usize,
    /// Distinguishes the labels of functions.
    scope: &'static str,
}

fn register(register: Register) -> String {
    let letter = match register.class {
        Class::Predicate => 'p',
        Class::B16 => 'h',
        Class::B32 => 'r',
        Class::B64 => 'd',
    };
    format!("%{letter}{}", register.index)
}

fn constant(bits: u64, style: Immediate, class: Class) -> String {
    match style {
        Immediate::F32 => format!("0f{bits:08X}"),
        Immediate::F64 => format!("0d{bits:016X}"),
        _ if bits >> (class.bits() - 1) & 1 == 1 && class != Class::B64 => {
            format!("-{}", (1u64 << class.bits()) - bits)
        }
        _ if bits & 1 == 0 => format!("{}", bits as i64),
        _ => format!("0x{bits:x}"),
    }
}

fn operand(operand: Operand, class: Class) -> String {
    match operand {
        Operand::Register(r) => register(r),
        Operand::Constant(bits, style) => constant(bits, style, class),
    }
}

fn list(registers: &[Register]) -> String {
    let names: Vec<String> = registers.iter().map(|&r| register(r)).collect();
    if names.len() == 1 { names[0].clone() } else { format!("{{{}}}", names.join(", ")) }
}

fn prefix(guard: Option<Guard>) -> String {
    match guard {
        None => String::new(),
        Some(guard) => format!("@{}%p{} ", if guard.negated { "!" } else { "" }, guard.predicate),
    }
}

impl Printer<'_> {
    fn line(&mut self, line: impl std::fmt::Display) {
        let _ = writeln!(self.text, "    {line};");
    }

    fn body(&mut self, body: &[Instruction]) {
        for instruction in body {
            self.instruction(instruction);
        }
    }

    fn instruction(&mut self, instruction: &Instruction) {
        let guard = prefix(instruction.guard);
        match &instruction.action {
            Action::Compute { operation, results, sources } => {
                for line in &operation.lines {
                    let mut line = line.clone();
                    for (i, &result) in results.iter().enumerate() {
                        line = line.replace(&format!("{{d{i}}}"), &register(result));
                    }
                    for (i, &source) in sources.iter().enumerate() {
                        let text = operand(source, operation.sources[i].class);
                        line = line.replace(&format!("{{s{i}}}"), &text);
                    }
                    self.line(format_args!("{guard}{line}"));
                }
            }
            Action::Special { result, name } => {
                self.line(format_args!("{guard}mov.u32 {}, {name}", register(*result)));
            }
            Action::Load { place, element, modifier, results } => {
                let address = self.address(&guard, place, element.bits / 8 * results.len() as u32);
                let vector = ["", "", ".v2", "", ".v4"][results.len()];
                let space = space(place);
                let results = list(results);
                let name = element.name;
                self.line(format_args!(
                    "{guard}ld{space}{modifier}{vector}.{name} {results}, [{address}]"
                ));
            }
            Action::Store { place, element, sources } => {
                let address = self.address(&guard, place, element.bits / 8 * sources.len() as u32);
                let vector = ["", "", ".v2", "", ".v4"][sources.len()];
                let space = space(place);
                let sources = list(sources);
                self.line(format_args!(
                    "{guard}st{space}{vector}.{} [{address}], {sources}",
                    element.name
                ));
            }
            Action::Atomic { place, atomic, result, sources } => {
                let address = self.address(&guard, place, atomic.class.bits() / 8);
                let space = space(place);
                let sources: Vec<String> = sources.iter().map(|&r| register(r)).collect();
                let sources = sources.join(", ");
                match result {
                    Some(result) => self.line(format_args!(
                        "{guard}atom{space}.{} {}, [{address}], {sources}",
                        atomic.name,
                        register(*result)
                    )),
                    None => self.line(format_args!(
                        "{guard}red{space}.{} [{address}], {sources}",
                        atomic.name
                    )),
                }
            }
            Action::Count { counter, source } => {
                let atomic = self.program.counters[*counter];
                let at = *counter as u32 % 4 * COUNTER_BYTES;
                let (space, base) = if *counter < 4 {
                    ("global", "counters")
                } else {
                    ("shared", "shared_counters")
                };
                self.line(format_args!(
                    "{guard}red.{space}.{} [%{base}+{at}], {}",
                    atomic.name,
                    register(*source)
                ));
            }
            Action::Jump(label) => {
                let scope = self.scope;
                self.line(format_args!("{guard}bra {scope}{}", label.0));
            }
            Action::Switch { index, targets } => {
                let names: Vec<String> =
                    targets.iter().map(|label| format!("{}{}", self.scope, label.0)).collect();
                let table = format!("T{}{}", self.scope, self.calls);
                self.calls += 1;
                let _ = writeln!(self.text, "{table}: .branchtargets {};", names.join(", "));
                self.line(format_args!("{guard}brx.idx {}, {table}", register(*index)));
            }
            Action::Mark(label) => {
                let _ = writeln!(self.text, "{}{}:", self.scope, label.0);
            }
            Action::Gather { gather, results, sources, mask } => {
                self.gather(&guard, *gather, results, sources, *mask);
            }
            Action::Call { function, arguments, results } => {
                self.call(&guard, *function, arguments, results);
            }
            Action::Return => self.line(format_args!("{guard}ret")),
        }
    }

    /// Lines that compute an address, and the address.
    fn address(&mut self, guard: &str, place: &Place, align: u32) -> String {
        let generic = if place.addressing == Addressing::Generic { "_generic" } else { "" };
        let base = match place.space {
            Space::Common => "common",
            Space::Scratch => "scratch",
            Space::Shared => "shared",
            Space::Local => "local",
            Space::Constant => "constant",
        };
        let mask = (place.space.size_bytes() - 1) & !(align - 1);
        match place.at {
            Operand::Constant(at, _) => format!("%{base}{generic}+{}", at as u32 & mask),
            Operand::Register(index) => {
                self.line(format_args!("{guard}and.b32 %x1, {}, {mask}", register(index)));
                self.line(format_args!("{guard}cvt.u64.u32 %y1, %x1"));
                self.line(format_args!("{guard}add.s64 %y1, %{base}{generic}, %y1"));
                "%y1".to_owned()
            }
        }
    }

    fn gather(
        &mut self,
        guard: &str,
        gather: Gather,
        results: &[Register],
        sources: &[Register],
        mask: Option<Register>,
    ) {
        let mask = mask.map_or("0xffffffff".to_owned(), register);
        let r = |i: usize| results.get(i).map_or(String::new(), |&r| register(r));
        let s = |i: usize| sources.get(i).map_or(String::new(), |&r| register(r));
        let line = match gather {
            Gather::Shuffle { mode, b, c } => {
                format!("shfl.sync.{mode}.b32 {}|{}, {}, {b}, {c}, {mask}", r(0), r(1), s(0))
            }
            Gather::All => format!("vote.sync.all.pred {}, {}, {mask}", r(0), s(0)),
            Gather::Any => format!("vote.sync.any.pred {}, {}, {mask}", r(0), s(0)),
            Gather::Uniform => format!("vote.sync.uni.pred {}, {}, {mask}", r(0), s(0)),
            Gather::Ballot => format!("vote.sync.ballot.b32 {}, {}, {mask}", r(0), s(0)),
            Gather::MatchAny(class) => {
                format!("match.any.sync.b{} {}, {}, {mask}", class.bits(), r(0), s(0))
            }
            Gather::MatchAll(class) => {
                format!("match.all.sync.b{} {}|{}, {}, {mask}", class.bits(), r(0), r(1), s(0))
            }
            Gather::Reduce(name) => format!("redux.sync.{name} {}, {}, {mask}", r(0), s(0)),
            Gather::WarpBarrier => format!("bar.warp.sync {mask}"),
            Gather::BlockBarrier => "bar.sync 0".to_owned(),
            Gather::BlockAnd => format!("barrier.red.and.pred {}, 0, {}", r(0), s(0)),
            Gather::BlockOr => format!("barrier.red.or.pred {}, 0, {}", r(0), s(0)),
            Gather::BlockCount => format!("bar.red.popc.u32 {}, 0, {}", r(0), s(0)),
            Gather::Exchange { distance } => {
                for line in [
                    "bar.sync 0".to_owned(),
                    "mov.u32 %x1, %tid.x".to_owned(),
                    "mad.wide.u32 %y1, %x1, 8, %exchange".to_owned(),
                    format!("st.shared.b64 [%y1], {}", s(0)),
                    "bar.sync 0".to_owned(),
                    format!("add.u32 %x1, %x1, {distance}"),
                    "mov.u32 %x2, %ntid.x".to_owned(),
                    "rem.u32 %x1, %x1, %x2".to_owned(),
                    "mad.wide.u32 %y1, %x1, 8, %exchange".to_owned(),
                ] {
                    self.line(line);
                }
                format!("ld.shared.b64 {}, [%y1]", r(0))
            }
        };
        self.line(format_args!("{guard}{line}"));
    }

    fn call(&mut self, guard: &str, function: usize, arguments: &[Operand], results: &[Register]) {
        let callee = &self.program.functions[function];
        let name = self.function_name(function);
        let names = |kind: &str, count: usize| {
            (0..count).map(|i| format!("{kind}{i}")).collect::<Vec<_>>().join(", ")
        };
        let classes: Vec<Class> = callee.parameters.iter().map(|r| r.class).collect();
        if callee.passing == Passing::Registers {
            let given: Vec<String> =
                arguments.iter().zip(&classes).map(|(&a, &class)| operand(a, class)).collect();
            let taken: Vec<String> = results.iter().map(|&r| register(r)).collect();
            let taken =
                if taken.is_empty() { String::new() } else { format!("({}), ", taken.join(", ")) };
            self.line(format_args!("{guard}call {taken}{name}, ({})", given.join(", ")));
            return;
        }
        self.text.push_str("    {\n");
        for (i, class) in classes.iter().enumerate() {
            self.line(format_args!(".param .b{} given{i}", class.bits()));
        }
        for (i, result) in results.iter().enumerate() {
            self.line(format_args!(".param .b{} taken{i}", result.class.bits()));
        }
        for (i, (&argument, &class)) in arguments.iter().zip(&classes).enumerate() {
            let text = operand(argument, class);
            self.line(format_args!("{guard}st.param.b{} [given{i}], {text}", class.bits()));
        }
        let taken = match results.is_empty() {
            true => String::new(),
            false => format!("({}), ", names("taken", results.len())),
        };
        let given = names("given", arguments.len());
        self.line(format_args!("{guard}call {taken}{name}, ({given})"));
        for (i, &result) in results.iter().enumerate() {
            let bits = result.class.bits();
            self.line(format_args!("{guard}ld.param.b{bits} {}, [taken{i}]", register(result)));
        }
        self.text.push_str("    }\n");
    }
}

/// `.shared`, or nothing for generic accesses.
fn space(place: &Place) -> &'static str {
    match (place.addressing, place.space) {
        (Addressing::Generic, _) => "",
        (_, Space::Common | Space::Scratch) => ".global",
        (_, Space::Shared) => ".shared",
        (_, Space::Local) => ".local",
        (_, Space::Constant) => ".const",
    }
}
