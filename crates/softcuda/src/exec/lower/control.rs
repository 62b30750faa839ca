//! Lowering of branches, returns and traps.

use super::names::Symbol;
use super::opcode::Opcode;
use super::{Lower, Result};
use crate::exec::code::Width;
use crate::exec::ir::Kind;
use crate::exec::op::control::{Exit, Jump, JumpIndexed, Nothing, Pause, Return, Trap};
use crate::exec::simd::plain;
use crate::ptx::{Operand, Type};

impl<'a> Lower<'a, '_> {
    pub(super) fn lower_control(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
    ) -> Result<()> {
        match opcode.name {
            "bra" => {
                let [Operand::Name(name)] = operands else {
                    return Err("it needs a label".to_owned());
                };
                let label = self.label(name)?;
                self.push(plain::<Jump>(), Kind::Branch(label), &[], &[], 0, 0);
            }
            "brx" => {
                let [index, Operand::Name(list)] = operands else {
                    return Err("it needs an index and a target list".to_owned());
                };
                let Symbol::Targets(list) = self.symbol(list)? else {
                    return Err(format!("{list} is no target list"));
                };
                let mut table = Vec::new();
                for operand in self.range(self.targets[list]) {
                    let Operand::Name(name) = operand else {
                        return Err("target is no label".to_owned());
                    };
                    table.push(self.label(name)?);
                }
                let index = self.source(index, Width::W32, Type::U32)?;
                self.ir.tables.push(table);
                let table = self.ir.tables.len() as u32 - 1;
                self.push(plain::<JumpIndexed>(), Kind::Indexed(table), &[], &[index], 0, table);
            }
            "ret" => self.emit_return(),
            "exit" => self.push(plain::<Exit>(), Kind::End, &[], &[], 0, 0),
            "trap" => self.push(plain::<Trap>(), Kind::End, &[], &[], 0, 0),
            // Without a debugger attached a breakpoint does nothing here.
            "brkpt" => self.push(plain::<Nothing>(), Kind::Effect, &[], &[], 0, 0),
            "nanosleep" => {
                self.ir.waits = true;
                self.push(plain::<Pause>(), Kind::Effect, &[], &[], 0, 0);
            }
            _ => return self.lower_call(opcode, operands),
        }
        Ok(())
    }

    pub(super) fn emit_return(&mut self) {
        if self.entry {
            self.push(plain::<Exit>(), Kind::End, &[], &[], 0, 0);
        } else {
            // The operand list is needed even for few words.
            let mut words = self.return_words();
            let count = words.len() as u32;
            while words.len() < 4 {
                let filler = self.constant(Width::W32, 0);
                words.push(filler);
            }
            self.push(plain::<Return>(), Kind::End, &[], &words, 0, count);
        }
    }
}
