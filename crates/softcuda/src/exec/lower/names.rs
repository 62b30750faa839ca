//! Names of a function: scopes with shadowing, register ranges, labels.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use crate::exec::ir::{Label, VReg};
use crate::ptx::Type;

/// A quick hash for short names; names come from a text that is small enough to be parsed, so
/// floods cost time only.
#[derive(Default)]
pub(in crate::exec) struct NameHasher(u64);

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0.rotate_left(5) ^ u64::from_le_bytes(word))
                .wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    }
}

/// A map by name.
pub(in crate::exec) type NameMap<K, V> = HashMap<K, V, BuildHasherDefault<NameHasher>>;

/// What a name of a function's body stands for.
#[derive(Clone, Debug)]
pub(super) enum Symbol {
    /// A register.
    Reg(VReg),
    /// A 128-bit register: low and high half.
    Reg128(VReg, VReg),
    /// A vector register: its components.
    Vector(Vec<VReg>),
    /// A `.param` variable of a call or a device function: its words.
    Words(Words),
    /// A kernel parameter in the parameter buffer.
    KernelParam { offset: u32, size: u32 },
    /// A code label.
    Label(Label),
    /// Offset in the function's local memory.
    Local(u64),
    /// Offset in the kernel's static shared memory.
    Shared(u64),
    /// Dynamic shared memory.
    DynamicShared,
    /// Device address.
    Global(u64),
    /// Program-wide function number.
    Function(usize),
    /// A label list of `.branchtargets`, by the index of its operand range.
    Targets(usize),
    /// A call prototype: types of its parameters, if any of them is a register.
    Prototype(Rc<[Type]>),
}

/// A `.param` variable as consecutive 32-bit words.
#[derive(Clone, Debug)]
pub(super) struct Words {
    pub(super) words: Vec<VReg>,
    pub(super) size: u32,
    /// Where the variable also lies in local memory, if its address is taken.
    pub(super) local: Option<u64>,
}

struct Range<'a> {
    prefix: &'a str,
    count: u32,
    ty: Type,
}

#[derive(Default)]
struct Scope<'a> {
    parent: usize,
    symbols: NameMap<&'a str, Symbol>,
    ranges: Vec<Range<'a>>,
}

/// A register named by a range, not yet made.
pub(super) enum Found<'s> {
    Symbol(&'s Symbol),
    /// Scope to define it in, and its type.
    RangeMember(usize, Type),
    Nothing,
}

/// All scopes of a function; scope 0 is its outermost.
pub(super) struct Names<'a> {
    scopes: Vec<Scope<'a>>,
    current: usize,
    entered: usize,
}

impl<'a> Names<'a> {
    pub(super) fn new() -> Self {
        Self { scopes: vec![Scope::default()], current: 0, entered: 0 }
    }

    /// Opens a new scope inside the current one.
    pub(super) fn open(&mut self) {
        self.scopes.push(Scope { parent: self.current, ..Scope::default() });
        self.current = self.scopes.len() - 1;
    }

    /// Leaves the current scope.
    pub(super) fn close(&mut self) {
        self.current = self.scopes[self.current].parent;
    }

    /// Starts over at the outermost scope; [`reopen`](Self::reopen) then enters the scopes again in
    /// the same order.
    pub(super) fn rewind(&mut self) {
        self.current = 0;
        self.entered = 0;
    }

    /// Enters the next scope of those opened before.
    pub(super) fn reopen(&mut self) {
        self.entered += 1;
        self.current = self.entered;
    }

    /// Defines `name` in the current scope; `false` if it is defined there already.
    pub(super) fn define(&mut self, name: &'a str, symbol: Symbol) -> bool {
        self.scopes[self.current].symbols.insert(name, symbol).is_none()
    }

    /// Defines `name` in scope `scope`.
    pub(super) fn define_in(&mut self, scope: usize, name: &'a str, symbol: Symbol) {
        self.scopes[scope].symbols.insert(name, symbol);
    }

    /// Declares the registers `prefix0` to `prefix(count-1)`.
    pub(super) fn define_range(&mut self, prefix: &'a str, count: u32, ty: Type) {
        self.scopes[self.current].ranges.push(Range { prefix, count, ty });
    }

    /// Looks `name` up from the current scope outwards.
    pub(super) fn find(&self, name: &str) -> Found<'_> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (prefix, number) = name.split_at(name.len() - digits);
        let number: Option<u32> =
            if digits > 1 && number.starts_with('0') { None } else { number.parse().ok() };
        let mut scope = self.current;
        loop {
            let s = &self.scopes[scope];
            if let Some(symbol) = s.symbols.get(name) {
                return Found::Symbol(symbol);
            }
            if let Some(number) = number
                && let Some(range) =
                    s.ranges.iter().rev().find(|r| r.prefix == prefix && number < r.count)
            {
                return Found::RangeMember(scope, range.ty);
            }
            if scope == 0 {
                return Found::Nothing;
            }
            scope = s.parent;
        }
    }
}
