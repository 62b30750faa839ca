//! A program: a kernel and the functions that it calls, as lists of instructions with labels.

use crate::operation::{Class, Immediate, Operation};

/// Registers of each class that operations choose from; those after them are counters of loops and
/// the like.
pub(crate) const POOL: [(Class, u8); 4] =
    [(Class::Predicate, 6), (Class::B16, 6), (Class::B32, 10), (Class::B64, 6)];

/// Registers of each class in all.
pub(crate) const PREDICATES: usize = 8;
pub(crate) const HALVES: usize = 6;
pub(crate) const WORDS: usize = 16;
pub(crate) const DOUBLES: usize = 6;

/// Bytes of each memory that a thread has for itself, and of the area that all may read.
pub(crate) const SLOT_BYTES: u32 = 64;
pub(crate) const COMMON_BYTES: u32 = 1024;
pub(crate) const CONSTANT_BYTES: u32 = 256;

/// First values of a thread's registers: doubles, words, halves, predicates.
pub(crate) const INITIAL_BYTES: u32 = 128;

/// Counters that all threads change, in global and in shared memory.
pub(crate) const COUNTERS: usize = 4;
pub(crate) const COUNTER_BYTES: u32 = 8;

/// What a thread leaves behind: registers, global scratch, copies of its shared and its local
/// memory.
pub(crate) const DUMP_BYTES: u32 = 112;
pub(crate) const RESULT_BYTES: u32 = DUMP_BYTES + 3 * SLOT_BYTES;

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Register {
    pub(crate) class: Class,
    pub(crate) index: u8,
}

impl Register {
    pub(crate) const fn new(class: Class, index: u8) -> Self {
        Self { class, index }
    }
}

/// A source as chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    Register(Register),
    /// Bits and how they are written.
    Constant(u64, Immediate),
}

/// `@%p` or `@!%p`
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    pub(crate) predicate: u8,
    pub(crate) negated: bool,
}

/// Place of a jump's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(pub(crate) u32);

/// Memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// Global, read by all threads.
    Common,
    /// Global, of one thread.
    Scratch,
    /// Shared, of one thread.
    Shared,
    /// Local.
    Local,
    /// Constant.
    Constant,
}

impl Space {
    pub(crate) fn size_bytes(self) -> u32 {
        match self {
            Space::Common => COMMON_BYTES,
            Space::Constant => CONSTANT_BYTES,
            _ => SLOT_BYTES,
        }
    }
}

/// How an access names its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addressing {
    /// `ld.shared`
    Direct,
    /// `ld`
    Generic,
}

/// Where an access goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) space: Space,
    /// A 32-bit register or a constant; cut to the space's size and aligned.
    pub(crate) at: Operand,
    pub(crate) addressing: Addressing,
}

/// What is loaded or stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element {
    pub(crate) bits: u32,
    pub(crate) signed: bool,
    /// Type as written, e.g. `s8`.
    pub(crate) name: &'static str,
}

/// An atomic operation on one word.
#[derive(Clone, Copy)]
pub(crate) struct Atomic {
    /// `add.u32`
    pub(crate) name: &'static str,
    pub(crate) class: Class,
    /// `cas` has two sources.
    pub(crate) sources: usize,
    /// The new value from the old one and the sources.
    pub(crate) update: fn(u64, u64, u64) -> u64,
}

impl std::fmt::Debug for Atomic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Something that threads do together. The first ones concern the lanes of a mask, the last ones
/// the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gather {
    /// `shfl.sync`: the mode's letters and the constants b and c.
    Shuffle {
        mode: &'static str,
        b: u32,
        c: u32,
    },
    All,
    Any,
    Uniform,
    Ballot,
    MatchAny(Class),
    MatchAll(Class),
    /// `redux.sync`: operation and type.
    Reduce(&'static str),
    WarpBarrier,
    BlockBarrier,
    BlockAnd,
    BlockOr,
    BlockCount,
    /// Through shared memory: the value of the thread so many places further.
    Exchange {
        distance: u32,
    },
}

impl Gather {
    pub(crate) fn is_of_block(self) -> bool {
        matches!(
            self,
            Gather::BlockBarrier
                | Gather::BlockAnd
                | Gather::BlockOr
                | Gather::BlockCount
                | Gather::Exchange { .. }
        )
    }
}

/// What an instruction does.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Compute {
        operation: Operation,
        results: Vec<Register>,
        sources: Vec<Operand>,
    },
    /// `mov` from a special register.
    Special {
        result: Register,
        name: &'static str,
    },
    Load {
        place: Place,
        element: Element,
        modifier: &'static str,
        results: Vec<Register>,
    },
    Store {
        place: Place,
        element: Element,
        sources: Vec<Register>,
    },
    /// On the thread's own memory, with a known old value.
    Atomic {
        place: Place,
        atomic: Atomic,
        result: Option<Register>,
        sources: Vec<Register>,
    },
    /// On a counter of all threads, with no result.
    Count {
        counter: usize,
        source: Register,
    },
    Jump(Label),
    Switch {
        index: Register,
        targets: Vec<Label>,
    },
    Mark(Label),
    /// `mask`: the lanes, all of them when there is none.
    Gather {
        gather: Gather,
        results: Vec<Register>,
        sources: Vec<Register>,
        mask: Option<Register>,
    },
    Call {
        function: usize,
        arguments: Vec<Operand>,
        results: Vec<Register>,
    },
    Return,
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub(crate) guard: Option<Guard>,
    pub(crate) action: Action,
}

/// How a function takes its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// `.param`
    Parameters,
    /// `.reg`
    Registers,
}

/// The first values of a function's registers that are no parameters, and of its local memory.
pub(crate) fn function_constant(register: Register) -> u64 {
    let mixed = (u64::from(register.index) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    register.class.truncated(mixed >> (register.index * 3))
}

/// A `.func`. Its first parameter says how much deeper it may call itself.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) parameters: Vec<Register>,
    pub(crate) results: Vec<Register>,
    pub(crate) passing: Passing,
    pub(crate) body: Vec<Instruction>,
}

/// A kernel with its functions, its launch and its data.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) body: Vec<Instruction>,
    pub(crate) functions: Vec<Function>,
    /// Operations of the counters: global ones, then shared ones.
    pub(crate) counters: Vec<Atomic>,
    /// Whether threads may leave early; then there are no barriers.
    pub(crate) independent: bool,
    pub(crate) threads: u32,
    pub(crate) blocks: u32,
    /// Contents of the input buffer.
    pub(crate) input: Vec<u8>,
}

impl Program {
    /// Threads per block.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// Blocks of the grid.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The buffer whose address is the kernel's first parameter.
    pub fn input(&self) -> &[u8] {
        &self.input
    }

    /// Bytes of the zeroed buffer whose address is the kernel's second parameter.
    pub fn output_bytes(&self) -> usize {
        let threads = (self.threads * self.blocks) as usize;
        counter_bytes() + (self.blocks as usize) * counter_bytes() + threads * RESULT_BYTES as usize
    }

    /// Instructions, without labels.
    pub fn instructions(&self) -> usize {
        let bodies = self.functions.iter().map(|function| &function.body);
        let all = bodies.chain([&self.body]).flatten();
        all.filter(|instruction| !matches!(instruction.action, Action::Mark(_))).count()
    }
}

/// Bytes of one set of counters.
pub(crate) const fn counter_bytes() -> usize {
    COUNTERS * COUNTER_BYTES as usize
}

/// The `.const` array of every module.
pub(crate) fn constants() -> Vec<u8> {
    let mut random = crate::random::Random::new(7);
    (0..CONSTANT_BYTES).map(|_| random.bits() as u8).collect()
}

impl Program {
    /// Says where two outputs first differ.
    pub fn describe(&self, expected: &[u8], actual: &[u8]) -> String {
        let Some(at) = expected.iter().zip(actual).position(|(a, b)| a != b) else {
            return "the outputs have different lengths".to_owned();
        };
        let word = |bytes: &[u8], width: usize, at: usize| {
            let bits =
                bytes[at..at + width].iter().rev().fold(0u64, |bits, &b| bits << 8 | u64::from(b));
            format!("{bits:#x}")
        };
        let threads = counter_bytes() * (1 + self.blocks as usize);
        if at < threads {
            let at = at & !7;
            let (e, a) = (word(expected, 8, at), word(actual, 8, at));
            return format!("counter {}: expected {e}, got {a}", at / 8);
        }
        let thread = (at - threads) / RESULT_BYTES as usize;
        let offset = (at - threads) % RESULT_BYTES as usize;
        let (name, width, start) = match offset {
            0..48 => (format!("%d{}", offset / 8), 8, offset / 8 * 8),
            48..88 => (format!("%r{}", (offset - 48) / 4), 4, offset & !3),
            88..100 => (format!("%h{}", (offset - 88) / 2), 2, offset & !1),
            100..104 => ("predicates".to_owned(), 4, 100),
            _ => {
                let memory = ["global", "shared", "local"];
                let place = offset - DUMP_BYTES as usize;
                (format!("{} memory +{}", memory[place / 64], place % 64), 1, offset)
            }
        };
        let base = threads + thread * RESULT_BYTES as usize + start;
        let (e, a) = (word(expected, width, base), word(actual, width, base));
        format!("thread {thread}, {name}: expected {e}, got {a}")
    }
}
