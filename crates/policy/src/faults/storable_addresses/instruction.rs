//! As much of machine code as says what an instruction reads of banks of constants.
//!
//! Nobody publishes the format. This was observed on the output of CUDA 11.8, 12.9 and 13.0, and
//! compared with what NVIDIA's disassembler says of some 600,000 instructions with changed bits, of
//! compute capability 7.5 to 12.0. What an instruction does beyond that is not known here.

use std::collections::BTreeSet;

/// What differs between architectures whose instructions have 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Architecture {
    /// In bank 0: where the address of the program's `__constant__` variables is.
    pub(super) constants_at: u64,
    /// In bank 0: where a kernel's parameters begin.
    pub(super) parameters_at: u64,
}

impl Architecture {
    /// The one of this number; `None` if it was not observed.
    pub(super) fn of(number: u32) -> Option<Self> {
        let (constants_at, parameters_at) = match number {
            75 | 80 | 86..=89 => (0x50, 0x160),
            90 => (0xd0, 0x210),
            100 | 103 | 110 | 120 | 121 => (0x120, 0x380),
            _ => return None,
        };
        Some(Self { constants_at, parameters_at })
    }
}

/// Banks that matter here.
pub(super) const PARAMETERS: u8 = 0;
pub(super) const ADDRESSES: u8 = 4;

/// What an instruction reads of banks of constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Nothing,
    /// So many bytes from a place on.
    Fixed {
        bank: u8,
        offset: u64,
        size_bytes: u64,
    },
    /// From a place on that is counted from an offset.
    Indexed {
        bank: u8,
        offset: i16,
    },
    /// By a description of a bank that it has in a register.
    Elsewhere,
}

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    low: u64,
    high: u64,
}

/// Operations, without how their operands are given.
mod operation {
    pub(super) const LOAD_CONSTANT: u64 = 0x182;
    pub(super) const LOAD_CONSTANT_UNIFORM: [u64; 2] = [0xb9, 0xbb];
    pub(super) const LOAD_CONSTANT_UNIFORM_100: u64 = 0x1ac;
    /// Generic, global, local and shared.
    pub(super) const LOADS: [u64; 4] = [0x180, 0x181, 0x183, 0x184];
    pub(super) const CALL_REGISTER: u64 = 0x143;
    /// It tells where the code is.
    pub(super) const PROGRAM_COUNTER: u64 = 0x14e;
    /// All that goes elsewhere, waits for threads or ends.
    pub(super) const CONTROL: std::ops::Range<u64> = 0x140..0x160;
    /// Generic, global, shared.
    pub(super) const PLAIN_STORES: [u64; 3] = [0x185, 0x186, 0x188];
    /// To memory that others see: stores, atomic operations.
    pub(super) const STORES: [u64; 13] =
        [0x185, 0x186, 0x188, 0x189, 0x18a, 0x18b, 0x18c, 0x18d, 0x18e, 0x1a6, 0x1a8, 0x1a9, 0x1aa];
}

impl Instruction {
    pub(super) const BYTES: usize = 16;
    /// As a number of a register: none, zero.
    const NO_REGISTER: u8 = 255;
    const WIDE: u64 = 6;

    pub(super) fn new(low: u64, high: u64) -> Self {
        Self { low, high }
    }

    pub(super) fn all(code: &[u8]) -> Vec<Self> {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        let (instructions, _) = code.as_chunks::<{ Self::BYTES }>();
        instructions.iter().map(|it| Self::new(word(&it[..8]), word(&it[8..]))).collect()
    }

    fn bits(self, at: u32, count: u32) -> u64 {
        self.low >> at & ((1 << count) - 1)
    }

    fn operation(self) -> u64 {
        self.bits(0, 9)
    }

    /// How operands are given: registers, an immediate value, constants.
    fn form(self) -> u64 {
        self.bits(9, 3)
    }

    /// Whether it is done whatever a predicate says.
    fn is_unconditional(self) -> bool {
        self.bits(12, 4) == 7
    }

    fn bank(self) -> u8 {
        self.bits(54, 5) as u8
    }

    /// What it reads of banks of constants.
    pub(super) fn reading(self) -> Reading {
        let bank = self.bank();
        let has_descriptor = self.high >> 27 & 1 != 0;
        let size_bytes = if self.high >> 9 & 7 == Self::WIDE { 16 } else { 8 };
        let index = self.bits(24, 8) as u8;
        match (self.operation(), self.form()) {
            (operation::LOAD_CONSTANT, 5) => {
                // Otherwise the register has a bank, too.
                let has_plain_index = self.high >> 14 & 3 == 0;
                match index {
                    _ if !has_plain_index => Reading::Elsewhere,
                    Self::NO_REGISTER => {
                        Reading::Fixed { bank, offset: self.bits(38, 16), size_bytes }
                    }
                    _ => Reading::Indexed { bank, offset: self.bits(38, 16) as i16 },
                }
            }
            (0xb9, 5) if !has_descriptor => {
                Reading::Fixed { bank, offset: self.bits(38, 16), size_bytes }
            }
            (0xbb, 5) => Reading::Indexed { bank, offset: self.bits(38, 16) as i16 },
            (operation::LOAD_CONSTANT_UNIFORM_100, form @ (3 | 6)) => {
                let size_bytes = if form == 6 { 32 } else { size_bytes };
                match index {
                    Self::NO_REGISTER => {
                        Reading::Fixed { bank, offset: self.bits(37, 16), size_bytes }
                    }
                    _ => Reading::Indexed { bank, offset: self.bits(37, 16) as i16 },
                }
            }
            (operation::LOAD_CONSTANT | operation::LOAD_CONSTANT_UNIFORM_100, _) => {
                Reading::Elsewhere
            }
            (uniform, _) if operation::LOAD_CONSTANT_UNIFORM.contains(&uniform) => {
                Reading::Elsewhere
            }
            (_, 3 | 5) if has_descriptor => Reading::Elsewhere,
            (_, 3 | 5) => Reading::Fixed { bank, offset: self.bits(40, 14) << 2, size_bytes: 8 },
            _ => Reading::Nothing,
        }
    }

    /// The first register that it writes to, if it writes to any.
    pub(super) fn result(self) -> u8 {
        self.bits(16, 8) as u8
    }

    /// Registers that it may read, or the first of several.
    pub(super) fn operands(self) -> [u8; 3] {
        [self.bits(24, 8) as u8, self.bits(32, 8) as u8, self.high as u8]
    }

    /// Whether a pair of registers may be another one afterwards.
    pub(super) fn may_change(self, pair: u8) -> bool {
        let operation = self.operation();
        let is_load =
            operation == operation::LOAD_CONSTANT || operation::LOADS.contains(&operation);
        let more = match self.high >> 9 & 7 {
            _ if !is_load => 0,
            5 => 1,
            6 => 3,
            7 => 7,
            _ => 0,
        };
        self.result() <= pair.saturating_add(1) && self.result().saturating_add(more) >= pair
    }

    /// The pair of registers whose value it calls, in any case.
    pub(super) fn called(self) -> Option<u8> {
        let calls = self.operation() == operation::CALL_REGISTER && self.is_unconditional();
        calls.then_some(self.bits(24, 8) as u8)
    }

    /// Whether the next instruction may be another one than the following one, or be reached from
    /// elsewhere.
    pub(super) fn is_control(self) -> bool {
        let operation = self.operation();
        operation::CONTROL.contains(&operation) && operation != operation::PROGRAM_COUNTER
    }

    /// Whether it may write one of these registers to memory that others see.
    pub(super) fn may_store(self, registers: &BTreeSet<u8>) -> bool {
        const MOST_REGISTERS: u8 = 4;
        let [_, value, other] = self.operands();
        // A plain store has a description of memory there.
        let is_plain = operation::PLAIN_STORES.contains(&self.operation());
        let values = if is_plain { [value; 2] } else { [value, other] };
        let range = |first: u8| first..first.saturating_add(MOST_REGISTERS);
        operation::STORES.contains(&self.operation())
            && values.iter().any(|&first| registers.range(range(first)).next().is_some())
    }
}
