//! Evaluates a form, as PTX writes it, on one lane: what the families' tests are written with.

use super::forms::{CarryOut, Comparison, FormError, Visitor, visit};
use super::int::Carry;
use super::{Binary, Compare, LANES, Lane, Quaternary, Register, Ternary, Test, Unary};
use crate::exec::lanes::Portable;

/// The lane that carries the operands; the others hold different values, so a lane mix-up shows.
const PROBE: usize = 21;

/// The result register of `form` on the given operand registers; a predicate operand or result is 0
/// or 1.
pub(crate) fn eval(form: &str, operands: &[u64]) -> u64 {
    try_eval(form, operands).unwrap_or_else(|e| panic!("{form}: {e}"))
}

/// As [`eval`], with an error for forms that do not exist.
pub(crate) fn try_eval(form: &str, operands: &[u64]) -> Result<u64, FormError> {
    let mut parts = form.split('.');
    let opcode = parts.next().unwrap_or_default();
    visit(opcode, &parts.collect::<Vec<_>>(), Eval(operands))
}

struct Eval<'a>(&'a [u64]);

impl Eval<'_> {
    fn source<R: TestRegister>(&self, index: usize) -> [R; LANES] {
        core::array::from_fn(|lane| {
            let word = self.0[index];
            R::from_word(if lane == PROBE { word } else { word.rotate_left(lane as u32) ^ 0x5a })
        })
    }

    fn mask(&self, index: usize) -> u32 {
        if self.0[index] & 1 != 0 { 1 << PROBE } else { !(1 << PROBE) }
    }

    fn joined<C: Compare>(&self, how: Comparison) -> u32 {
        let [a, b] = how.sources([0, 1]);
        self.join(how, super::compare::<C, Portable>(&source(self, a), &source(self, b)))
    }

    fn joined_pair<C: Compare<A: Lane<Reg = u32>>>(&self, how: Comparison) -> (u32, u32) {
        let [a, b] = how.sources([0, 1]);
        let (low, high) = super::compare_pair::<C, Portable>(&source(self, a), &source(self, b));
        (self.join(how, low), self.join(how, high))
    }

    fn join(&self, how: Comparison, compared: u32) -> u32 {
        let mask = how.sense.apply(compared);
        how.join.map_or(mask, |join| join.join(mask, self.mask(2)))
    }
}

/// A register that a 64-bit test word fits or is cut to.
trait TestRegister: Register {
    fn from_word(word: u64) -> Self;
    fn into_word(self) -> u64;
}

impl TestRegister for u32 {
    fn from_word(word: u64) -> Self {
        word as u32
    }
    fn into_word(self) -> u64 {
        u64::from(self)
    }
}

impl TestRegister for u64 {
    fn from_word(word: u64) -> Self {
        word
    }
    fn into_word(self) -> u64 {
        self
    }
}

/// Reinterprets between a register type known to be `u32` or `u64` and its concrete array.
fn source<R: Register>(eval: &Eval<'_>, index: usize) -> [R; LANES] {
    let mut out = [R::default(); LANES];
    let any: &mut dyn core::any::Any = &mut out;
    if let Some(words) = any.downcast_mut::<[u32; LANES]>() {
        *words = eval.source(index);
    } else if let Some(words) = any.downcast_mut::<[u64; LANES]>() {
        *words = eval.source(index);
    }
    out
}

fn probe<R: Register>(regs: [R; LANES]) -> u64 {
    let any: &dyn core::any::Any = &regs[PROBE];
    any.downcast_ref::<u32>().map_or_else(
        || any.downcast_ref::<u64>().map_or(0, |word| word.into_word()),
        |word| word.into_word(),
    )
}

impl Visitor for Eval<'_> {
    type Output = u64;

    fn unary<O: Unary>(self) -> u64 {
        let mut d = [<O::D as Lane>::Reg::default(); LANES];
        super::unary::<O>(&source(&self, 0), &mut d);
        probe(d)
    }

    fn binary<O: Binary>(self) -> u64 {
        let mut d = [<O::D as Lane>::Reg::default(); LANES];
        super::binary::<O>(&source(&self, 0), &source(&self, 1), &mut d);
        probe(d)
    }

    fn ternary<O: Ternary>(self) -> u64 {
        let mut d = [<O::D as Lane>::Reg::default(); LANES];
        super::ternary::<O>(&source(&self, 0), &source(&self, 1), &source(&self, 2), &mut d);
        probe(d)
    }

    fn select<T: Lane>(self) -> u64 {
        let mut d = [T::Reg::default(); LANES];
        super::select(self.mask(2), &source(&self, 0), &source(&self, 1), &mut d);
        probe(d)
    }

    fn set_predicate<C: Compare>(self, how: Comparison) -> u64 {
        u64::from(self.joined::<C>(how) >> PROBE & 1)
    }

    fn quaternary<O: Quaternary>(self) -> Option<u64> {
        let mut d = [<O::D as Lane>::Reg::default(); LANES];
        super::quaternary::<O>(
            &source(&self, 0),
            &source(&self, 1),
            &source(&self, 2),
            &source(&self, 3),
            &mut d,
        );
        Some(probe(d))
    }

    fn test<O: Test>(self) -> Option<u64> {
        Some(u64::from(super::test::<O, Portable>(&source(&self, 0)) >> PROBE & 1))
    }

    /// Bit 0 is the low halves' predicate, bit 1 the high halves'.
    fn set_predicate_pair<C>(self, how: Comparison) -> Option<u64>
    where
        C: Compare,
        C::A: Lane<Reg = u32>,
    {
        let (low, high) = self.joined_pair::<C>(how);
        let bit = |mask: u32| u64::from(mask >> PROBE & 1);
        Some(bit(high) << 1 | bit(low))
    }

    fn set_pair<C>(self, how: Comparison, truth: u32) -> Option<u64>
    where
        C: Compare,
        C::A: Lane<Reg = u32>,
    {
        let (low, high) = self.joined_pair::<C>(how);
        let mut d = [0; LANES];
        super::expand_pair(truth, low, high, &mut d);
        Some(probe(d))
    }

    /// The last operand is the carry in; the carry out (if written) is returned in place of the
    /// result if `operands` has one word more.
    fn carry<O: Carry>(self, out: CarryOut) -> Option<u64> {
        let third = O::SOURCES - 1;
        let carries = self.mask(O::SOURCES);
        let mut d = [<O::T as Lane>::Reg::default(); LANES];
        let carried = super::int::carry::<O>(
            &source(&self, 0),
            &source(&self, 1),
            &source(&self, third),
            carries,
            &mut d,
        );
        let flag = if out == CarryOut::Write { carried } else { carries };
        Some(if self.0.len() > O::SOURCES + 1 { u64::from(flag >> PROBE & 1) } else { probe(d) })
    }

    fn set<C: Compare>(self, how: Comparison, truth: u32) -> u64 {
        let mut d = [0; LANES];
        super::expand(truth, self.joined::<C>(how), &mut d);
        probe(d)
    }
}

mod tests {
    use super::{eval, try_eval};

    #[test]
    fn forms_evaluate() {
        let f = |x: f32| u64::from(x.to_bits());
        assert_eq!(eval("add.s32", &[5, 0xffff_fffe]), 3);
        assert_eq!(eval("mul.wide.s32", &[0xffff_ffff, 7]), (-7i64) as u64);
        assert_eq!(eval("add.rz.f32", &[f(1.0), f(f32::MIN_POSITIVE)]), f(1.0));
        assert_eq!(eval("add.rp.f32", &[f(1.0), f(f32::MIN_POSITIVE)]), f(1.0f32.next_up()));
        assert_eq!(eval("setp.ltu.f32", &[f(f32::NAN), f(1.0)]), 1);
        assert_eq!(eval("setp.lt.and.f32", &[f(0.0), f(1.0), 0]), 0);
        // Low half: 1 < 2; high half: NaN < 2.
        assert_eq!(eval("set.lt.u32.f16x2", &[0x7e00_3c00, 0x4000_4000]), 0x0000_ffff);
        assert_eq!(eval("set.ltu.u32.bf16x2", &[0x7fc0_3f80, 0x4000_4000]), 0xffff_ffff);
        assert_eq!(eval("selp.b64", &[u64::MAX, 4, 1]), u64::MAX);
        assert_eq!(eval("cvt.rzi.u32.f32", &[f(-3.0)]), 0);
        assert!(try_eval("add.wide.s32", &[1, 2]).is_err());
        assert!(try_eval("frobnicate.s32", &[1, 2]).is_err());
    }
}
