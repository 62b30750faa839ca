//! Lowering: from a function's syntax tree to instructions over virtual registers.
//!
//! Constants, special registers, addresses and kernel parameters become prefilled registers;
//! `.param` variables of calls become registers word by word; everything else is one handler per
//! instruction, with width conversions inserted where operands differ.

mod access;
mod bulk;
mod calls;
mod compute;
mod control;
pub(super) mod names;
mod opcode;
mod operands;
mod special;
mod sync;
mod tensor;
mod texture;
mod transfer;
pub(super) mod variables;
mod video;

use std::collections::HashMap;

use super::code::{FillValue, OpFn, Special, Width};
use super::ir::{GuardReg, Inst, Ir, Kind, VReg, VRegInfo};
use super::simd::{Body, SimdLevel, pick, plain};
use crate::ptx::{self, FunctionKind, Instruction, OperandRange, Space, Statement, Type, Variable};
use names::{Names, Symbol};
use opcode::Opcode;

/// What a function can see of the program around it.
pub(super) trait Scope {
    /// The module-scope symbol `name`.
    fn symbol(&self, name: &str) -> Option<ModuleSymbol>;

    /// Types of the parameters of a function of the program, if any of them is a register.
    fn register_params(&self, function: usize) -> &[Type];

    /// Addresses and sizes in bytes of the program's `.const` variables.
    fn constants(&self) -> Vec<(u64, u64)>;
}

/// A module-scope symbol.
#[derive(Clone, Debug)]
pub(super) enum ModuleSymbol {
    /// A variable in device memory.
    Global(u64),
    /// A shared variable: name key, size and alignment, bytes.
    Shared { size: u64, align: u64 },
    /// Dynamic shared memory.
    DynamicShared,
    /// A function or kernel by program-wide number.
    Function(usize),
    /// A declared function that no module defines.
    External,
}

/// Types of parameters of which some are registers; empty when all travel by `.param` variables,
/// which say themselves how wide they are.
pub(super) fn register_params(params: &[Variable<'_>]) -> Box<[Type]> {
    match params.iter().any(|param| param.space == Space::Reg) {
        true => params.iter().map(|param| param.ty).collect(),
        false => Box::default(),
    }
}

/// Shared memory of one kernel, laid out as its functions are lowered.
#[derive(Default)]
pub(super) struct SharedLayout {
    offsets: HashMap<String, u64>,
    pub(super) bytes: u64,
}

impl SharedLayout {
    fn place(&mut self, key: &str, size: u64, align: u64) -> u64 {
        if let Some(&offset) = self.offsets.get(key) {
            return offset;
        }
        let offset = self.bytes.next_multiple_of(align.clamp(1, 1 << 16));
        self.bytes = offset.saturating_add(size).min(1 << 40);
        self.offsets.insert(key.to_owned(), offset);
        offset
    }
}

/// Why a function cannot be lowered.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) line: u32,
    pub(super) reason: String,
}

/// A lowered function and what it refers to.
pub(super) struct Lowered {
    pub(super) ir: Ir,
    /// Functions that it calls directly.
    pub(super) calls: Vec<usize>,
    /// Functions whose address it takes.
    pub(super) addresses: Vec<usize>,
    /// Whether it calls through pointers.
    pub(super) indirect: bool,
}

type Result<T> = std::result::Result<T, String>;

/// Lowers one function.
pub(super) fn lower(
    function: &ptx::Function<'_>,
    scope: &dyn Scope,
    shared: &mut SharedLayout,
    level: SimdLevel,
) -> std::result::Result<Lowered, Refusal> {
    let Some(body) = &function.body else {
        return Err(Refusal {
            line: function.line,
            reason: format!("function {} has no body", function.name),
        });
    };
    let mut lower = Lower {
        scope,
        shared,
        level,
        body,
        function: function.name,
        entry: function.kind == FunctionKind::Entry,
        ir: Ir { name: function.name.to_owned(), ..Ir::default() },
        names: Names::new(),
        fills: HashMap::new(),
        returns: Vec::new(),
        targets: Vec::new(),
        line: function.line,
        guard: None,
        after: Vec::new(),
        memory_slots: 0,
        overflowed: false,
        carry: None,
        calls: Vec::new(),
        addresses: Vec::new(),
        indirect: false,
    };
    match lower.function(function) {
        Ok(()) => Ok(Lowered {
            ir: lower.ir,
            calls: lower.calls,
            addresses: lower.addresses,
            indirect: lower.indirect,
        }),
        Err(reason) => Err(Refusal { line: lower.line, reason }),
    }
}

/// State of lowering one function.
struct Lower<'a, 'e> {
    scope: &'e dyn Scope,
    shared: &'e mut SharedLayout,
    level: SimdLevel,
    body: &'a ptx::Body<'a>,
    function: &'a str,
    entry: bool,
    ir: Ir,
    names: Names<'a>,
    fills: HashMap<(Width, FillValue), VReg>,
    /// Registers of the return values: the words of `.param` ones, `.reg` ones whole.
    returns: Vec<VReg>,
    /// Operand ranges of `.branchtargets`.
    targets: Vec<OperandRange>,
    line: u32,
    guard: Option<GuardReg>,
    /// Widenings of results, to be emitted behind the instruction: (register, temporary, signed).
    after: Vec<(VReg, VReg, bool)>,
    memory_slots: u32,
    /// Set when an instruction had more operands than a list can have.
    overflowed: bool,
    /// The carry flag of `.cc` instructions.
    carry: Option<VReg>,
    calls: Vec<usize>,
    addresses: Vec<usize>,
    indirect: bool,
}

impl<'a> Lower<'a, '_> {
    fn function(&mut self, function: &ptx::Function<'a>) -> Result<()> {
        self.declare_labels()?;
        self.declare_parameters(function)?;
        for statement in &self.body.statements {
            self.statement(statement)?;
        }
        // A body that ends without `ret` ends as if it had one.
        self.line = self.line.max(function.line);
        self.guard = None;
        self.emit_return();
        if self.overflowed {
            return Err(format!("an instruction has more than {} operands", u16::MAX));
        }
        Ok(())
    }

    /// Labels of all scopes, ahead of the branches to them.
    fn declare_labels(&mut self) -> Result<()> {
        for statement in &self.body.statements {
            match statement {
                Statement::OpenScope => self.names.open(),
                Statement::CloseScope => self.names.close(),
                Statement::Label(name) => {
                    let label = self.ir.labels;
                    self.ir.labels += 1;
                    if !self.names.define(name, Symbol::Label(label)) {
                        return Err(format!("label {name} is defined twice"));
                    }
                }
                Statement::Targets(name, range) => {
                    self.names.define(name, Symbol::Targets(self.targets.len()));
                    self.targets.push(*range);
                }
                Statement::Prototype(name, prototype) => {
                    let types = register_params(&prototype.params);
                    self.names.define(name, Symbol::Prototype(types.into()));
                }
                _ => {}
            }
        }
        self.names.rewind();
        Ok(())
    }

    fn statement(&mut self, statement: &'a Statement<'a>) -> Result<()> {
        match statement {
            Statement::OpenScope => self.names.reopen(),
            Statement::CloseScope => self.names.close(),
            Statement::Label(name) => {
                let label = self.label(name)?;
                self.guard = None;
                self.push(
                    plain::<super::op::control::Nothing>(),
                    Kind::Label(label),
                    &[],
                    &[],
                    0,
                    0,
                );
            }
            Statement::Variable(variable) => {
                self.line = variable.line;
                self.declare(variable)?;
            }
            Statement::Instruction(instruction) => {
                self.line = instruction.line;
                self.instruction(instruction)
                    .map_err(|reason| format!("{}: {reason}", instruction.opcode))?;
            }
            Statement::Prototype(..) | Statement::Targets(..) | Statement::Pragma(_) => {}
        }
        Ok(())
    }

    fn instruction(&mut self, instruction: &Instruction<'a>) -> Result<()> {
        self.guard = None;
        if let Some(guard) = instruction.guard {
            let reg = self.register(guard.name)?;
            if self.ir.vregs[reg as usize].width != Width::Pred {
                return Err(format!("guard {} is no predicate", guard.name));
            }
            self.guard = Some(GuardReg { reg, negated: guard.negated });
        }
        let opcode = Opcode::split(instruction.opcode);
        let operands = self.body.operands(instruction.operands);
        match opcode.name {
            "mov" => self.lower_mov(&opcode, operands),
            "ld" | "ldu" => self.lower_load(&opcode, operands),
            "st" => self.lower_store(&opcode, operands),
            "cvta" => self.lower_cvta(&opcode, operands),
            "isspacep" => self.lower_isspacep(&opcode, operands),
            "prefetch" | "prefetchu" | "applypriority" | "discard" | "createpolicy" | "pmevent" => {
                self.lower_hint(&opcode, operands)
            }
            "bra" | "brx" | "ret" | "exit" | "trap" | "brkpt" | "call" | "nanosleep" => {
                self.lower_control(&opcode, operands)
            }
            "setmaxnreg" | "griddepcontrol" => Ok(()),
            _ => {
                let special = self.lower_warp(&opcode, operands);
                let special = special.or_else(|| self.lower_transfer(&opcode, operands));
                let special = special.or_else(|| self.lower_tensor(&opcode, operands));
                let special = special.or_else(|| self.lower_video(&opcode, operands));
                match special.or_else(|| self.lower_texture(&opcode, operands)) {
                    Some(result) => result,
                    None => self.lower_computation(&opcode, operands),
                }
            }
        }?;
        for (reg, temporary, signed) in std::mem::take(&mut self.after) {
            let run = if signed {
                pick::<super::op::moves::SignExtend>(self.level)
            } else {
                pick::<super::op::moves::ZeroExtend>(self.level)
            };
            self.push(run, Kind::Pure, &[reg], &[temporary], 0, 0);
        }
        Ok(())
    }

    /// Appends an instruction under the current guard.
    fn push(&mut self, run: OpFn, kind: Kind, dst: &[VReg], src: &[VReg], imm: i64, x: u32) {
        let most = u16::MAX as usize;
        self.overflowed |= dst.len() > most || src.len() > most;
        let first = self.ir.operands.len() as u32;
        self.ir.operands.extend_from_slice(dst);
        self.ir.operands.extend_from_slice(src);
        self.ir.insts.push(Inst {
            run,
            kind,
            first,
            dst: dst.len() as u16,
            src: src.len() as u16,
            guard: self.guard,
            imm,
            x,
            line: self.line,
        });
    }

    /// Appends handler `B` without effects: `d = B(src)`.
    fn pure<B: Body>(&mut self, d: VReg, src: &[VReg]) {
        self.push(pick::<B>(self.level), Kind::Pure, &[d], src, 0, 0);
    }

    fn copy(&mut self, d: VReg, a: VReg) {
        use super::op::moves::{Copy, PredicateCopy};
        let run = match self.ir.vregs[d as usize].width {
            Width::Pred => plain::<PredicateCopy>(),
            Width::W32 => pick::<Copy<u32>>(self.level),
            Width::W64 => pick::<Copy<u64>>(self.level),
        };
        self.push(run, Kind::Copy, &[d], &[a], 0, 0);
    }

    fn width(&self, reg: VReg) -> Width {
        self.ir.vregs[reg as usize].width
    }

    /// A prefilled register.
    fn fill(&mut self, width: Width, value: FillValue) -> VReg {
        if let Some(&reg) = self.fills.get(&(width, value)) {
            return reg;
        }
        self.ir.vregs.push(VRegInfo { width, fill: Some(value) });
        let reg = (self.ir.vregs.len() - 1) as VReg;
        self.fills.insert((width, value), reg);
        reg
    }

    fn constant(&mut self, width: Width, bits: u64) -> VReg {
        let bits = if width == Width::W32 { bits & u64::from(u32::MAX) } else { bits };
        self.fill(width, FillValue::Constant(bits))
    }

    fn special(&mut self, special: Special) -> VReg {
        self.fill(Width::W32, FillValue::Special(special))
    }

    /// The next entry of the range cache, for a memory instruction.
    fn memory_slot(&mut self) -> u32 {
        self.memory_slots = self.memory_slots.wrapping_add(1);
        self.memory_slots
    }
}
