//! What surrounds a program's instructions: signatures, declarations, first values, and the dump at
//! the end.

use std::fmt::Write;

use super::{Printer, constant, register};
use crate::operation::{Class, Immediate};
use crate::print::kernel_name;
use crate::program::{
    COMMON_BYTES, DOUBLES, DUMP_BYTES, Function, HALVES, INITIAL_BYTES, PREDICATES, Passing,
    RESULT_BYTES, Register, SLOT_BYTES, WORDS, counter_bytes, function_constant,
};

const DECLARATIONS: [(&str, &str, usize); 4] =
    [("pred", "p", PREDICATES), ("b16", "h", HALVES), ("b32", "r", WORDS), ("b64", "d", DOUBLES)];

impl Printer<'_> {
    pub(super) fn program(&mut self) {
        let program = self.program;
        for (index, function) in program.functions.iter().enumerate() {
            let signature = self.signature(index, function);
            let _ = writeln!(self.text, "{signature};");
        }
        for (index, function) in program.functions.iter().enumerate() {
            self.function(index, function);
        }
        let name = kernel_name(self.index);
        let _ = writeln!(
            self.text,
            "\n.visible .entry {name}(.param .u64 input, .param .u64 output)\n{{"
        );
        self.scope = "K";
        self.declare();
        self.kernel_prologue();
        self.body(&program.body);
        self.kernel_epilogue();
        self.text.push_str("}\n");
    }

    fn declare(&mut self) {
        for (class, letter, count) in DECLARATIONS {
            self.line(format_args!(".reg .{class} %{letter}<{count}>"));
        }
        self.line(".reg .pred %q<2>");
        self.line(".reg .b16 %z<2>");
        self.line(".reg .b32 %x<4>");
        self.line(".reg .b64 %y<4>");
        self.line(".reg .b64 %common, %common_generic, %scratch, %scratch_generic, %shared, %shared_generic, %local, %local_generic, %constant");
        self.line(".reg .b64 %counters, %result, %initial, %shared_counters, %exchange");
        self.line(".reg .b32 %thread");
        self.line(format_args!(".local .align 16 .b8 own[{SLOT_BYTES}]"));
    }

    fn kernel_prologue(&mut self) {
        let threads = self.program.threads;
        let counters = counter_bytes();
        let shared = counters as u32 + threads * (SLOT_BYTES + 8);
        self.line(format_args!(".shared .align 16 .b8 block[{shared}]"));
        for line in [
            "mov.u32 %x0, %tid.x",
            "mov.u32 %x1, %ctaid.x",
            "mov.u32 %x2, %ntid.x",
            "mad.lo.u32 %thread, %x1, %x2, %x0",
            "ld.param.u64 %common_generic, [input]",
            "cvta.to.global.u64 %common, %common_generic",
            "ld.param.u64 %y0, [output]",
            "cvta.to.global.u64 %counters, %y0",
        ] {
            self.line(line);
        }
        self.line(format_args!("mad.wide.u32 %initial, %thread, {INITIAL_BYTES}, %common"));
        self.line(format_args!("mad.wide.u32 %y1, %thread, {RESULT_BYTES}, %y0"));
        let first = counters + counters * self.program.blocks as usize;
        self.line(format_args!("add.u64 %y1, %y1, {first}"));
        self.line(format_args!("add.u64 %scratch_generic, %y1, {DUMP_BYTES}"));
        self.line("cvta.to.global.u64 %result, %y1");
        self.line("cvta.to.global.u64 %scratch, %scratch_generic");
        self.line("mov.u64 %shared_counters, block");
        self.line(format_args!("mad.wide.u32 %shared, %x0, {SLOT_BYTES}, %shared_counters"));
        self.line(format_args!("add.u64 %shared, %shared, {counters}"));
        self.line("cvta.shared.u64 %shared_generic, %shared");
        let exchange = counters as u32 + threads * SLOT_BYTES;
        self.line(format_args!("add.u64 %exchange, %shared_counters, {exchange}"));
        self.memories();
        for at in (0..SLOT_BYTES).step_by(8) {
            self.line(format_args!("st.shared.b64 [%shared+{at}], 0"));
        }
        if !self.program.independent {
            self.line("setp.eq.u32 %q0, %x0, 0");
            for at in (0..counters).step_by(8) {
                self.line(format_args!("@%q0 st.shared.b64 [%shared_counters+{at}], 0"));
            }
            self.line("bar.sync 0");
        }
        let mut at = COMMON_BYTES;
        for index in 0..DOUBLES {
            self.line(format_args!("ld.global.b64 %d{index}, [%initial+{at}]"));
            at += 8;
        }
        for index in 0..WORDS {
            if index < 10 {
                self.line(format_args!("ld.global.b32 %r{index}, [%initial+{at}]"));
                at += 4;
            } else {
                self.line(format_args!("mov.b32 %r{index}, 0"));
            }
        }
        for index in 0..HALVES {
            self.line(format_args!("ld.global.b16 %h{index}, [%initial+{at}]"));
            at += 2;
        }
        self.line(format_args!("ld.global.b32 %x0, [%initial+{at}]"));
        for index in 0..PREDICATES {
            self.line(format_args!("and.b32 %x1, %x0, {}", 1 << index));
            self.line(format_args!("setp.ne.u32 %p{index}, %x1, 0"));
        }
    }

    /// Addresses of the memories that kernels and functions have alike.
    fn memories(&mut self) {
        self.line("mov.u64 %constant, constants");
        self.line("mov.u64 %local, own");
        self.line("cvta.local.u64 %local_generic, %local");
        for at in (0..SLOT_BYTES).step_by(8) {
            self.line(format_args!("st.local.b64 [%local+{at}], 0"));
        }
    }

    fn kernel_epilogue(&mut self) {
        let mut at = 0;
        for index in 0..DOUBLES {
            self.line(format_args!("st.global.b64 [%result+{at}], %d{index}"));
            at += 8;
        }
        for index in 0..10 {
            self.line(format_args!("st.global.b32 [%result+{at}], %r{index}"));
            at += 4;
        }
        for index in 0..HALVES {
            self.line(format_args!("st.global.b16 [%result+{at}], %h{index}"));
            at += 2;
        }
        self.line("mov.b32 %x0, 0");
        for index in 0..6 {
            self.line(format_args!("@%p{index} or.b32 %x0, %x0, {}", 1 << index));
        }
        self.line(format_args!("st.global.b32 [%result+{at}], %x0"));
        for (part, space) in [(1, "shared"), (2, "local")] {
            for at in (0..SLOT_BYTES).step_by(16) {
                self.line(format_args!("ld.{space}.v2.b64 {{%y0, %y1}}, [%{space}+{at}]"));
                let to = DUMP_BYTES + part * SLOT_BYTES + at;
                self.line(format_args!("st.global.v2.b64 [%result+{to}], {{%y0, %y1}}"));
            }
        }
        if !self.program.independent {
            self.line("bar.sync 0");
            self.line("mov.u32 %x0, %tid.x");
            self.line("mov.u32 %x1, %ctaid.x");
            self.line("setp.eq.u32 %q0, %x0, 0");
            let bytes = counter_bytes();
            self.line(format_args!("mad.wide.u32 %y0, %x1, {bytes}, %counters"));
            for at in (0..bytes).step_by(8) {
                self.line(format_args!("@%q0 ld.shared.b64 %y1, [%shared_counters+{at}]"));
                self.line(format_args!("@%q0 st.global.b64 [%y0+{}], %y1", bytes + at));
            }
        }
        self.line("ret");
    }

    pub(super) fn function_name(&self, function: usize) -> String {
        format!("function{}_{function}", self.index)
    }

    fn signature(&self, index: usize, function: &Function) -> String {
        let declare = |kind: &str, registers: &[Register]| {
            let all: Vec<String> = registers
                .iter()
                .enumerate()
                .map(|(i, r)| match function.passing {
                    Passing::Parameters => format!(".param .b{} {kind}{i}", r.class.bits()),
                    Passing::Registers => format!(".reg .b{} %{kind}{i}", r.class.bits()),
                })
                .collect();
            all.join(", ")
        };
        let results = match function.results.is_empty() {
            true => String::new(),
            false => format!("({}) ", declare("result", &function.results)),
        };
        let name = self.function_name(index);
        format!(".func {results}{name}({})", declare("argument", &function.parameters))
    }

    fn function(&mut self, index: usize, function: &Function) {
        let signature = self.signature(index, function);
        let _ = writeln!(self.text, "\n{signature}\n{{");
        self.scope = "F";
        self.declare();
        self.memories();
        for (class, letter, count) in DECLARATIONS {
            for i in 0..count {
                let class_of = match class {
                    "pred" => Class::Predicate,
                    "b16" => Class::B16,
                    "b32" => Class::B32,
                    _ => Class::B64,
                };
                let value = function_constant(Register::new(class_of, i as u8));
                if class == "pred" {
                    self.line(format_args!("setp.ne.u32 %p{i}, {value}, 0"));
                } else {
                    self.line(format_args!(
                        "mov.{class} %{letter}{i}, {}",
                        constant(value, Immediate::Integer, class_of)
                    ));
                }
            }
        }
        for (i, &parameter) in function.parameters.iter().enumerate() {
            let bits = parameter.class.bits();
            match function.passing {
                Passing::Parameters => {
                    self.line(format_args!(
                        "ld.param.b{bits} {}, [argument{i}]",
                        register(parameter)
                    ));
                }
                Passing::Registers => {
                    self.line(format_args!("mov.b{bits} {}, %argument{i}", register(parameter)));
                }
            }
        }
        self.body(&function.body);
        for (i, &result) in function.results.iter().enumerate() {
            let bits = result.class.bits();
            match function.passing {
                Passing::Parameters => {
                    self.line(format_args!("st.param.b{bits} [result{i}], {}", register(result)));
                }
                Passing::Registers => {
                    self.line(format_args!("mov.b{bits} %result{i}, {}", register(result)));
                }
            }
        }
        self.line("ret");
        self.text.push_str("}\n");
    }
}
