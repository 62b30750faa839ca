//! The syntax tree. Names and opcodes are slices of the text; operands of a body lie in one pool.

use std::ops::Range;

use super::types::{Space, Type};

/// A PTX module.
#[derive(Clone, Debug)]
pub struct Module<'a> {
    /// `.version` as (major, minor).
    pub version: (u32, u32),
    /// `.target` number: 86 for `sm_86`; 0 without `.target`.
    pub target: u32,
    /// Letter behind the target number (`sm_90a`), if any.
    pub target_suffix: Option<char>,
    /// `.address_size`; 32 when absent.
    pub address_size: u32,
    /// Module-scope variables in order.
    pub variables: Vec<Variable<'a>>,
    /// Functions and entries in order, declarations included.
    pub functions: Vec<Function<'a>>,
    /// `.alias` directives: (alias, aliasee).
    pub aliases: Vec<(&'a str, &'a str)>,
}

/// Linkage directives.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Linkage {
    Local,
    Extern,
    Visible,
    Weak,
    Common,
}

/// Entry or device function.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FunctionKind {
    Entry,
    Device,
}

/// A function, entry or declaration.
#[derive(Clone, Debug)]
pub struct Function<'a> {
    /// Name.
    pub name: &'a str,
    /// Entry or device function.
    pub kind: FunctionKind,
    /// Linkage.
    pub linkage: Linkage,
    /// Return parameters.
    pub returns: Vec<Variable<'a>>,
    /// Parameters.
    pub params: Vec<Variable<'a>>,
    /// Launch-bound directives.
    pub bounds: Bounds,
    /// Body; `None` for a declaration.
    pub body: Option<Body<'a>>,
    /// Bytes of the text from the first linkage or kind directive to the end of the body.
    pub span: Range<usize>,
    /// Line where `span` starts, 1-based.
    pub line: u32,
}

/// Launch-bound directives of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// `.maxntid`
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`
    pub required_threads: Option<[u32; 3]>,
    /// `.minnctapersm`
    pub min_blocks_per_sm: Option<u32>,
    /// `.maxnreg`
    pub max_registers: Option<u32>,
    /// `.reqnctapercluster`
    pub required_cluster: Option<[u32; 3]>,
}

/// A function's statements.
#[derive(Clone, Debug, Default)]
pub struct Body<'a> {
    /// Statements in order; scopes are flattened to open and close markers.
    pub statements: Vec<Statement<'a>>,
    /// Pool that operand ranges index.
    pub operands: Vec<Operand<'a>>,
}

impl<'a> Body<'a> {
    /// The operands of a range.
    pub fn operands(&self, range: OperandRange) -> &[Operand<'a>] {
        self.operands.get(range.start as usize..range.end as usize).unwrap_or(&[])
    }
}

/// A range of [`Body::operands`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OperandRange {
    /// First index.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

/// One statement.
#[derive(Clone, Debug)]
pub enum Statement<'a> {
    /// An instruction.
    Instruction(Instruction<'a>),
    /// `name:`
    Label(&'a str),
    /// `{`
    OpenScope,
    /// `}`
    CloseScope,
    /// A variable or register declaration.
    Variable(Box<Variable<'a>>),
    /// `name: .callprototype ...;`
    Prototype(&'a str, Box<Prototype<'a>>),
    /// `name: .branchtargets a, b;` or `.calltargets`
    Targets(&'a str, OperandRange),
    /// `.pragma "text";`
    Pragma(&'a str),
}

/// A `.callprototype`: shapes of an indirect call.
#[derive(Clone, Debug)]
pub struct Prototype<'a> {
    /// Return parameters.
    pub returns: Vec<Variable<'a>>,
    /// Parameters.
    pub params: Vec<Variable<'a>>,
}

/// One instruction.
#[derive(Clone, Copy, Debug)]
pub struct Instruction<'a> {
    /// Opcode with all modifiers as written, e.g. `ld.global.v4.u32`.
    pub opcode: &'a str,
    /// Guard predicate.
    pub guard: Option<Guard<'a>>,
    /// Operands.
    pub operands: OperandRange,
    /// Line, 1-based.
    pub line: u32,
    /// Column, 1-based.
    pub column: u32,
}

/// `@p` or `@!p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard<'a> {
    /// Predicate register.
    pub name: &'a str,
    /// `true` for `@!p`.
    pub negated: bool,
}

/// One operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand<'a> {
    /// Register, special register, label, symbol, function.
    Name(&'a str),
    /// `!name`
    Not(&'a str),
    /// `name+offset` outside brackets.
    Offset(&'a str, i64),
    /// Integer constant.
    Int(i64),
    /// Single-precision constant, by its bits (`0f...`).
    Float32(u32),
    /// Double-precision constant, by its bits (`0d...` or decimal).
    Float64(u64),
    /// `[name+offset]`
    Address(&'a str, i64),
    /// `[constant]`
    AbsoluteAddress(i64),
    /// `[a, b, {..}]`: texture and tensor operands.
    Bracket(OperandRange),
    /// `{a, b, ..}`
    Vector(OperandRange),
    /// `a|b`
    Pair(OperandRange),
    /// `(a, b)` of a call.
    Group(OperandRange),
}

/// A variable or register declaration.
#[derive(Clone, Debug)]
pub struct Variable<'a> {
    /// Name; the prefix for `%r<10>`.
    pub name: &'a str,
    /// State space.
    pub space: Space,
    /// Element type.
    pub ty: Type,
    /// Vector length: 1, 2, 4 or 8.
    pub vector: u32,
    /// `%r<10>`: how many registers the name stands for.
    pub count: Option<u32>,
    /// Explicit alignment, bytes.
    pub align: Option<u32>,
    /// Array dimensions; 0 for `[]`.
    pub dims: Vec<u64>,
    /// Linkage.
    pub linkage: Linkage,
    /// `.attribute(.managed)`
    pub managed: bool,
    /// Initialiser.
    pub init: Option<Init<'a>>,
    /// Line, 1-based.
    pub line: u32,
}

impl Variable<'_> {
    /// Size in bytes; an unsized array counts 0. Saturates.
    pub fn size_bytes(&self) -> u64 {
        let element = u64::from(self.ty.size_bytes()) * u64::from(self.vector);
        self.dims.iter().fold(element, |size, &dim| size.saturating_mul(dim))
    }

    /// Alignment in bytes: explicit or natural.
    pub fn align_bytes(&self) -> u64 {
        let natural = u64::from(self.ty.size_bytes()) * u64::from(self.vector);
        self.align.map_or(natural, u64::from).max(1).next_power_of_two()
    }
}

/// An initialiser.
#[derive(Clone, Debug, PartialEq)]
pub enum Init<'a> {
    /// Integer constant.
    Int(i64),
    /// Single-precision constant, by its bits.
    Float32(u32),
    /// Double-precision constant, by its bits.
    Float64(u64),
    /// Address of a symbol.
    Symbol {
        /// Name.
        name: &'a str,
        /// Added to the address.
        addend: i64,
        /// `0xFF00(name)`: only these bits of the address, shifted down; 0 for the whole address.
        mask: u64,
    },
    /// `{..}`
    List(Vec<Init<'a>>),
}
