//! Lowering of loads, stores and address arithmetic.

use super::names::{Symbol, Words};
use super::opcode::Opcode;
use super::operands::AddressBase;
use super::{Lower, Result};
use crate::exec::code::{FillValue, OpFn, Width};
use crate::exec::ir::{Kind, VReg};
use crate::exec::op::address::{Generic, Global, Local, Shared};
use crate::exec::op::control::{Fence, LightFence};
use crate::exec::op::load_store::{Element, Load, S8, S16, Store, U8, U16, W32, W64};
use crate::exec::op::moves::{
    ExtractBits, HighWord, InsertBits, IsOwnShared, IsSpace, Join, PredicateAnd, PredicateNot,
    PredicateOr, SignExtendBits, Truncate,
};
use crate::exec::simd::{SimdLevel, pick, plain};
use crate::exec::window;
use crate::ptx::{Operand, Type};

/// The state space of an access and the width of its address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Global,
    Shared32,
    Shared64,
    Local,
    Generic,
}

impl Target {
    pub(super) fn address_width(self) -> Width {
        match self {
            Self::Shared32 | Self::Local => Width::W32,
            Self::Global | Self::Shared64 | Self::Generic => Width::W64,
        }
    }
}

/// Calls macro `$m` with the space type of `$target`.
macro_rules! for_target {
    ($target:expr, $S:ident => $body:expr) => {
        match $target {
            Target::Global => {
                type $S = Global;
                $body
            }
            Target::Shared32 => {
                type $S = Shared<u32>;
                $body
            }
            Target::Shared64 => {
                type $S = Shared<u64>;
                $body
            }
            Target::Local => {
                type $S = Local<u32>;
                $body
            }
            Target::Generic => {
                type $S = Generic;
                $body
            }
        }
    };
}
pub(super) use for_target;

fn load_of<E: Element>(target: Target, n: usize, level: SimdLevel) -> Option<OpFn> {
    Some(for_target!(target, S => match n {
        1 => pick::<Load<S, E, 1>>(level),
        2 => pick::<Load<S, E, 2>>(level),
        4 => pick::<Load<S, E, 4>>(level),
        8 => pick::<Load<S, E, 8>>(level),
        _ => return None,
    }))
}

fn store_of<E: Element>(target: Target, n: usize, level: SimdLevel) -> Option<OpFn> {
    Some(for_target!(target, S => match n {
        1 => pick::<Store<S, E, 1>>(level),
        2 => pick::<Store<S, E, 2>>(level),
        4 => pick::<Store<S, E, 4>>(level),
        8 => pick::<Store<S, E, 8>>(level),
        _ => return None,
    }))
}

fn load_handler(target: Target, ty: Type, n: usize, level: SimdLevel) -> Option<OpFn> {
    match (ty.size_bytes(), ty.is_signed()) {
        (1, false) => load_of::<U8>(target, n, level),
        (1, true) => load_of::<S8>(target, n, level),
        (2, false) => load_of::<U16>(target, n, level),
        (2, true) => load_of::<S16>(target, n, level),
        (4, _) => load_of::<W32>(target, n, level),
        (8, _) => load_of::<W64>(target, n, level),
        _ => None,
    }
}

fn store_handler(target: Target, ty: Type, n: usize, level: SimdLevel) -> Option<OpFn> {
    match ty.size_bytes() {
        1 => store_of::<U8>(target, n, level),
        2 => store_of::<U16>(target, n, level),
        4 => store_of::<W32>(target, n, level),
        8 => store_of::<W64>(target, n, level),
        _ => None,
    }
}

/// A window that no address is in.
const NO_TAG: u64 = u32::MAX as u64;

impl<'a> Lower<'a, '_> {
    /// The space that the modifiers and the address name, the address register and its immediate.
    pub(super) fn target(
        &mut self,
        opcode: &Opcode<'_>,
        operand: &Operand<'a>,
    ) -> Result<(Target, VReg, i64)> {
        let (base, _) = self.address(operand)?;
        let target = if opcode.has("global") || opcode.has("const") {
            Target::Global
        } else if opcode.has("shared") {
            match base {
                AddressBase::Reg(reg) if self.width(reg) == Width::W64 => Target::Shared64,
                _ => Target::Shared32,
            }
        } else if opcode.has("local") {
            Target::Local
        } else {
            // Generic: a symbol says itself where it lies.
            match base {
                AddressBase::Symbol(Symbol::Shared(_) | Symbol::DynamicShared) => Target::Shared32,
                AddressBase::Symbol(Symbol::Local(_)) => Target::Local,
                AddressBase::Symbol(Symbol::Global(_)) => Target::Global,
                _ => Target::Generic,
            }
        };
        let (reg, imm) = self.address_register(operand, target.address_width())?;
        Ok((target, reg, imm))
    }

    pub(super) fn lower_load(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
    ) -> Result<()> {
        let [d, address, ..] = operands else {
            return Err("it needs a destination and an address".to_owned());
        };
        let ty = opcode.ty().ok_or("it needs a type")?;
        let parts = self.parts(d);
        if parts.len() != opcode.vector() {
            return Err("vector length and destination differ".to_owned());
        }
        if let (AddressBase::Symbol(symbol), offset) = self.address(address)? {
            match symbol {
                Symbol::KernelParam { offset: at, size } => {
                    return self.load_kernel_param(at, size, offset, ty, &parts);
                }
                Symbol::Words(words) => return self.load_words(&words, offset, ty, &parts),
                _ => {}
            }
        }
        let (target, base, imm) = self.target(opcode, address)?;
        let slot = self.memory_slot();
        if ty == Type::B128 {
            let dsts = self.halves_of(&parts)?;
            let run = load_of::<W64>(target, dsts.len(), self.level)
                .ok_or("unsupported vector length")?;
            self.push(run, Kind::Effect, &dsts, &[base], imm, slot);
            return Ok(());
        }
        let width = if ty.size_bytes() == 8 { Width::W64 } else { Width::W32 };
        let mut dsts = Vec::with_capacity(parts.len());
        for part in &parts {
            dsts.push(self.destination(part, width, ty.is_signed())?);
        }
        let run = load_handler(target, ty, parts.len(), self.level).ok_or("unsupported type")?;
        self.push(run, Kind::Effect, &dsts, &[base], imm, slot);
        if ["acquire", "volatile", "relaxed"].iter().any(|m| opcode.has_exactly(m)) {
            self.ir.waits = true;
            self.push(plain::<LightFence>(), Kind::Effect, &[], &[], 0, 0);
        }
        Ok(())
    }

    /// The 64-bit halves of 128-bit register operands.
    pub(super) fn halves_of(&mut self, parts: &[Operand<'a>]) -> Result<Vec<VReg>> {
        let mut halves = Vec::new();
        for part in parts {
            let Operand::Name(name) = *part else {
                return Err("operand is no register".to_owned());
            };
            match self.symbol(name)? {
                Symbol::Reg128(low, high) => halves.extend([low, high]),
                _ => return Err(format!("{name} is no 128-bit register")),
            }
        }
        Ok(halves)
    }

    fn load_kernel_param(
        &mut self,
        at: u32,
        _size: u32,
        offset: i64,
        ty: Type,
        parts: &[Operand<'a>],
    ) -> Result<()> {
        let size = ty.size_bytes().min(8) as u8;
        let width = if size == 8 { Width::W64 } else { Width::W32 };
        for (index, part) in parts.iter().enumerate() {
            let position = i64::from(at) + offset + (index * ty.size_bytes() as usize) as i64;
            let Ok(position) = u32::try_from(position) else {
                return Err("parameter offset is negative".to_owned());
            };
            let param = |delta: u32| FillValue::Param {
                offset: position + delta,
                size,
                signed: ty.is_signed(),
            };
            if ty == Type::B128 {
                let halves = self.halves_of(std::slice::from_ref(part))?;
                for (half, delta) in halves.into_iter().zip([0, 8]) {
                    let source = self.fill(width, param(delta));
                    self.copy(half, source);
                }
                continue;
            }
            // A wider register gets the value extended by the fill itself.
            let value = param(0);
            let Operand::Name(name) = *part else {
                return Err("destination is no register".to_owned());
            };
            if name == "_" {
                continue;
            }
            let d = self.register(name)?;
            let source = self.fill(self.ir.vregs[d as usize].width.max_value(width), value);
            let source = self.convert(source, self.ir.vregs[d as usize].width)?;
            self.copy(d, source);
        }
        Ok(())
    }

    /// `ld.param` of a call's result or a device function's parameter.
    fn load_words(
        &mut self,
        words: &Words,
        offset: i64,
        ty: Type,
        parts: &[Operand<'a>],
    ) -> Result<()> {
        for (index, part) in parts.iter().enumerate() {
            let at = offset + (index * ty.size_bytes() as usize) as i64;
            let (word, bit) = word_of(words, at, ty)?;
            let signed = ty.is_signed();
            match ty.size_bytes() {
                16 => {
                    let halves = self.halves_of(std::slice::from_ref(part))?;
                    self.pure::<Join>(halves[0], &[words.words[word], words.words[word + 1]]);
                    self.pure::<Join>(halves[1], &[words.words[word + 2], words.words[word + 3]]);
                }
                8 => {
                    let d = self.destination(part, Width::W64, false)?;
                    self.pure::<Join>(d, &[words.words[word], words.words[word + 1]]);
                }
                4 => {
                    let d = self.destination(part, Width::W32, signed)?;
                    self.copy(d, words.words[word]);
                }
                size => {
                    let d = self.destination(part, Width::W32, signed)?;
                    let run = if signed {
                        pick::<SignExtendBits>(self.level)
                    } else {
                        pick::<ExtractBits>(self.level)
                    };
                    self.push(
                        run,
                        Kind::Pure,
                        &[d],
                        &[words.words[word]],
                        0,
                        bit | (size * 8) << 8,
                    );
                }
            }
        }
        Ok(())
    }

    pub(super) fn lower_store(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
    ) -> Result<()> {
        let [address, value, ..] = operands else {
            return Err("it needs an address and a value".to_owned());
        };
        let ty = opcode.ty().ok_or("it needs a type")?;
        let parts = self.parts(value);
        if parts.len() != opcode.vector() {
            return Err("vector length and source differ".to_owned());
        }
        if let (AddressBase::Symbol(Symbol::Words(words)), offset) = self.address(address)? {
            return self.store_words(&words, offset, ty, &parts);
        }
        if opcode.has_exactly("release") || opcode.has_exactly("volatile") {
            self.push(plain::<LightFence>(), Kind::Effect, &[], &[], 0, 0);
        }
        let (target, base, imm) = self.target(opcode, address)?;
        let slot = self.memory_slot();
        let mut sources = vec![base];
        let run = if ty == Type::B128 {
            sources.extend(self.halves_of(&parts)?);
            store_of::<W64>(target, sources.len() - 1, self.level)
        } else {
            let width = if ty.size_bytes() == 8 { Width::W64 } else { Width::W32 };
            for part in &parts {
                sources.push(self.source(part, width, ty)?);
            }
            store_handler(target, ty, parts.len(), self.level)
        };
        self.push_listed(run.ok_or("unsupported type")?, &[], &sources, imm, slot, parts.len());
        if opcode.has_exactly("sc") {
            self.push(plain::<Fence>(), Kind::Effect, &[], &[], 0, 0);
        }
        Ok(())
    }

    /// Appends a memory instruction; one with a vector needs its operand list, so short ones are
    /// padded.
    fn push_listed(
        &mut self,
        run: OpFn,
        dsts: &[VReg],
        sources: &[VReg],
        imm: i64,
        x: u32,
        vector: usize,
    ) {
        let mut sources = sources.to_vec();
        while vector > 1 && dsts.len() <= 1 && sources.len() <= 3 {
            sources.push(sources[0]);
        }
        if vector == 1 && sources.len() == 3 {
            // One 128-bit element: two halves.
            sources.push(sources[0]);
        }
        self.push(run, Kind::Effect, dsts, &sources, imm, x);
    }

    fn store_words(
        &mut self,
        words: &Words,
        offset: i64,
        ty: Type,
        parts: &[Operand<'a>],
    ) -> Result<()> {
        for (index, part) in parts.iter().enumerate() {
            let at = offset + (index * ty.size_bytes() as usize) as i64;
            let (word, bit) = word_of(words, at, ty)?;
            match ty.size_bytes() {
                16 => {
                    let halves = self.halves_of(std::slice::from_ref(part))?;
                    for (index, half) in halves.into_iter().enumerate() {
                        self.pure::<Truncate>(words.words[word + index * 2], &[half]);
                        self.pure::<HighWord>(words.words[word + index * 2 + 1], &[half]);
                    }
                }
                8 => {
                    let value = self.source(part, Width::W64, ty)?;
                    self.pure::<Truncate>(words.words[word], &[value]);
                    self.pure::<HighWord>(words.words[word + 1], &[value]);
                }
                4 => {
                    let value = self.source(part, Width::W32, ty)?;
                    self.copy(words.words[word], value);
                }
                size => {
                    let value = self.source(part, Width::W32, ty)?;
                    let d = words.words[word];
                    if words.size <= size {
                        self.copy(d, value);
                    } else {
                        self.push(
                            pick::<InsertBits>(self.level),
                            Kind::Pure,
                            &[d],
                            &[d, value],
                            0,
                            bit | (size * 8) << 8,
                        );
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn lower_cvta(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
    ) -> Result<()> {
        let [d, a, ..] = operands else { return Err("it needs two operands".to_owned()) };
        let to = opcode.has_exactly("to");
        let tag = if opcode.has("shared") {
            Some(window::SHARED_WINDOW)
        } else if opcode.has("local") {
            Some(window::LOCAL_WINDOW)
        } else {
            None
        };
        let d = self.destination(d, Width::W64, false)?;
        let a = self.source(a, Width::W64, Type::U64)?;
        match (tag, to) {
            (None, _) => self.copy(d, a),
            (Some(window), false) => {
                let window = self.constant(Width::W64, window);
                self.compute("or", &["b64"], d, &[a, window])?;
            }
            (Some(_), true) => {
                let low = self.constant(Width::W64, u64::from(u32::MAX));
                self.compute("and", &["b64"], d, &[a, low])?;
            }
        }
        Ok(())
    }

    pub(super) fn lower_isspacep(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
    ) -> Result<()> {
        let [d, a, ..] = operands else { return Err("it needs two operands".to_owned()) };
        let space = opcode.modifiers.first().copied().unwrap_or("").split("::").next();
        let tag = match space {
            Some("shared") => window::SHARED_TAG,
            Some("local") => window::LOCAL_TAG,
            Some("param") => window::PARAM_TAG,
            Some("global") => 0,
            _ => NO_TAG,
        };
        let d = self.destination(d, Width::Pred, false)?;
        let a = self.source(a, Width::W64, Type::U64)?;
        let run = match opcode.modifiers.first().copied() {
            // Without a word on it, another block's part of the cluster's shared memory does not
            // count.
            Some("shared" | "shared::cta") => plain::<IsOwnShared>(),
            _ => plain::<IsSpace>(),
        };
        match space {
            // Constants lie in device memory among everything else: no window tells them apart.
            Some("const") => {
                let constant = self.is_constant(a)?;
                self.copy(d, constant);
            }
            Some("global") => {
                let (device, other) = (self.ir.vreg(Width::Pred), self.ir.vreg(Width::Pred));
                self.push(run, Kind::Pure, &[device], &[a], 0, tag as u32);
                let constant = self.is_constant(a)?;
                self.push(plain::<PredicateNot>(), Kind::Pure, &[other], &[constant], 0, 0);
                self.push(plain::<PredicateAnd>(), Kind::Pure, &[d], &[device, other], 0, 0);
            }
            _ => self.push(run, Kind::Pure, &[d], &[a], 0, tag as u32),
        }
        Ok(())
    }

    /// A predicate: address `a` is in a `.const` variable.
    fn is_constant(&mut self, a: VReg) -> Result<VReg> {
        let mut found = self.ir.vreg(Width::Pred);
        self.push(plain::<IsSpace>(), Kind::Pure, &[found], &[a], 0, NO_TAG as u32);
        for (address, size) in self.scope.constants() {
            let (start, size) =
                (self.constant(Width::W64, address), self.constant(Width::W64, size));
            let offset = self.ir.vreg(Width::W64);
            let (inside, either) = (self.ir.vreg(Width::Pred), self.ir.vreg(Width::Pred));
            self.compute("sub", &["s64"], offset, &[a, start])?;
            self.compute("setp", &["lt", "u64"], inside, &[offset, size])?;
            self.push(plain::<PredicateOr>(), Kind::Pure, &[either], &[found, inside], 0, 0);
            found = either;
        }
        Ok(found)
    }

    /// Cache hints change nothing; one with a result gives zero.
    pub(super) fn lower_hint(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
    ) -> Result<()> {
        if opcode.name == "createpolicy"
            && let Some(d) = operands.first()
        {
            let d = self.destination(d, Width::W64, false)?;
            let zero = self.constant(Width::W64, 0);
            self.copy(d, zero);
        }
        Ok(())
    }
}

impl Width {
    /// The wider of two value widths.
    fn max_value(self, other: Self) -> Self {
        if self == Self::W64 || other == Self::W64 { Self::W64 } else { Self::W32 }
    }
}

/// Word and first bit of an access at byte `at` of a `.param` variable.
fn word_of(words: &Words, at: i64, ty: Type) -> Result<(usize, u32)> {
    let size = i64::from(ty.size_bytes());
    if at < 0 || at % size.min(4) != 0 || (at + size + 3) / 4 > words.words.len() as i64 {
        return Err(format!("access at byte {at} of a parameter of {} bytes", words.size));
    }
    Ok(((at / 4) as usize, (at % 4) as u32 * 8))
}
