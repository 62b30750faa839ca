//! Handlers of the computational instructions: the operations of `alu`, applied under a lane mask.

use std::marker::PhantomData;

use crate::exec::alu::forms::{CarryOut, Comparison, Order, Sense};
use crate::exec::alu::int::Carry;
use crate::exec::alu::{
    self, Binary, BoolOp, Compare, LANES, Lane, Quaternary, Register, Ternary, Test, Unary, forms,
};
use crate::exec::code::{Flow, Frame, Ins, OpFn, Width};
use crate::exec::context::Context;
use crate::exec::lanes::{CHUNK, Vectors};
use crate::exec::simd::{Body, SimdLevel, pick};

/// A register of [`CHUNK`] lanes.
type Chunk<R> = [R; CHUNK];

/// Writes `value` to the lanes of `mask` (low [`CHUNK`] bits) of `d`.
///
/// # Safety
/// `d` is valid for a chunk.
#[inline(always)]
pub(super) unsafe fn store_chunk<R: Register>(d: *mut R, value: Chunk<R>, mask: u32) {
    // SAFETY: by the caller's contract.
    unsafe {
        let d = d.cast::<Chunk<R>>();
        if mask == (1 << CHUNK) - 1 {
            d.write(value);
        } else {
            let old = d.read();
            let mut new = value;
            for i in 0..CHUNK {
                new[i] = if mask >> i & 1 != 0 { value[i] } else { old[i] };
            }
            d.write(new);
        }
    }
}

/// First lane and mask of each chunk of a lane mask; empty ones are skipped by the caller.
#[inline(always)]
pub(super) fn chunks(mask: u32) -> impl Iterator<Item = (usize, u32)> {
    // A range, not an array: that would be laid out on the stack.
    (0..LANES / CHUNK).map(move |chunk| (chunk * CHUNK, mask >> (chunk * CHUNK) & 0xffff))
}

/// Handler of an operation with `SOURCES` sources. The operation stands before it in a pair: the
/// compiler puts a pair's methods into the unit of its first type's module, so that the operations
/// of all families are not compiled one after the other.
struct Vectorised<const SOURCES: usize>;

/// The same for an operation that is rare: lane by lane.
struct LaneByLane<const SOURCES: usize>;

impl<O: Unary> Body for (O, Vectorised<1>) {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: the operands are registers of these types, by the emitter.
            unsafe {
                let a = frame.at::<<O::A as Lane>::Reg>(ins.a).add(first).cast::<Chunk<_>>().read();
                let mut r = [<O::D as Lane>::Reg::default(); CHUNK];
                for i in 0..CHUNK {
                    r[i] = O::lane(O::A::from_reg(a[i])).into_reg();
                }
                store_chunk(frame.at::<<O::D as Lane>::Reg>(ins.d).add(first), r, part);
            }
        }
        Flow::Next
    }
}

impl<O: Binary> Body for (O, Vectorised<2>) {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: the operands are registers of these types, by the emitter.
            unsafe {
                let a = frame.at::<<O::A as Lane>::Reg>(ins.a).add(first).cast::<Chunk<_>>().read();
                let b = frame.at::<<O::B as Lane>::Reg>(ins.b).add(first).cast::<Chunk<_>>().read();
                let mut r = [<O::D as Lane>::Reg::default(); CHUNK];
                for i in 0..CHUNK {
                    r[i] = O::lane(O::A::from_reg(a[i]), O::B::from_reg(b[i])).into_reg();
                }
                store_chunk(frame.at::<<O::D as Lane>::Reg>(ins.d).add(first), r, part);
            }
        }
        Flow::Next
    }
}

/// The operation's function is called for each lane of `mask`, with registers as it has them.
///
/// # Safety
/// `d` and `a` are registers of these types.
#[inline(never)]
unsafe fn each_lane<D: Register, A: Register>(
    function: fn(A) -> D,
    ins: &Ins,
    frame: Frame,
    mask: u32,
) {
    for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
        // SAFETY: by the caller's contract.
        unsafe {
            let a = frame.at::<A>(ins.a).add(lane).read();
            frame.at::<D>(ins.d).add(lane).write(function(a));
        }
    }
}

/// As [`each_lane`], of two sources.
///
/// # Safety
/// `d`, `a` and `b` are registers of these types.
#[inline(never)]
unsafe fn each_lane_of_two<D: Register, A: Register, B: Register>(
    function: fn(A, B) -> D,
    ins: &Ins,
    frame: Frame,
    mask: u32,
) {
    for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
        // SAFETY: by the caller's contract.
        unsafe {
            let a = frame.at::<A>(ins.a).add(lane).read();
            let b = frame.at::<B>(ins.b).add(lane).read();
            frame.at::<D>(ins.d).add(lane).write(function(a, b));
        }
    }
}

impl<O: Unary> Body for (O, LaneByLane<1>) {
    const VECTOR: bool = false;

    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: the operands are registers of these types, by the emitter.
        unsafe { each_lane(|a| O::lane(O::A::from_reg(a)).into_reg(), ins, frame, mask) };
        Flow::Next
    }
}

impl<O: Binary> Body for (O, LaneByLane<2>) {
    const VECTOR: bool = false;

    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: the operands are registers of these types, by the emitter.
        unsafe {
            let lane = |a, b| O::lane(O::A::from_reg(a), O::B::from_reg(b)).into_reg();
            each_lane_of_two(lane, ins, frame, mask);
        }
        Flow::Next
    }
}

impl<O: Ternary> Body for (O, Vectorised<3>) {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: the operands are registers of these types, by the emitter.
            unsafe {
                let a = frame.at::<<O::A as Lane>::Reg>(ins.a).add(first).cast::<Chunk<_>>().read();
                let b = frame.at::<<O::B as Lane>::Reg>(ins.b).add(first).cast::<Chunk<_>>().read();
                let c = frame.at::<<O::C as Lane>::Reg>(ins.c).add(first).cast::<Chunk<_>>().read();
                let mut r = [<O::D as Lane>::Reg::default(); CHUNK];
                for i in 0..CHUNK {
                    r[i] =
                        O::lane(O::A::from_reg(a[i]), O::B::from_reg(b[i]), O::C::from_reg(c[i]))
                            .into_reg();
                }
                store_chunk(frame.at::<<O::D as Lane>::Reg>(ins.d).add(first), r, part);
            }
        }
        Flow::Next
    }
}

struct SelectBody<R>(PhantomData<R>);

impl<R: Register> Body for SelectBody<R> {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: `c` is a predicate, by the emitter.
        let chosen = unsafe { frame.predicate(ins.c) };
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: the operands are registers of this type, by the emitter.
            unsafe {
                let a = frame.at::<R>(ins.a).add(first).cast::<Chunk<R>>().read();
                let b = frame.at::<R>(ins.b).add(first).cast::<Chunk<R>>().read();
                let mut r = [R::default(); CHUNK];
                let chosen = chosen >> first;
                for i in 0..CHUNK {
                    r[i] = if chosen >> i & 1 != 0 { a[i] } else { b[i] };
                }
                store_chunk(frame.at::<R>(ins.d).add(first), r, part);
            }
        }
        Flow::Next
    }
}

/// Joins of `setp` and `set`, as the low bits of `ins.x` hold them.
const NO_JOIN: u32 = 0;
const JOIN_MASK: u32 = 3;
/// Bit of `ins.x`: the comparison is true where the operation does not hold.
const FAILS_BIT: u32 = 2;

fn encode(how: Comparison) -> u32 {
    let join = match how.join {
        None => NO_JOIN,
        Some(BoolOp::And) => 1,
        Some(BoolOp::Or) => 2,
        Some(BoolOp::Xor) => 3,
    };
    join | u32::from(how.sense == Sense::Fails) << FAILS_BIT
}

/// All lanes if the comparison is true where the operation does not hold, else none.
#[inline(always)]
fn fails(x: u32) -> u32 {
    (x >> FAILS_BIT & 1).wrapping_neg()
}

#[inline(always)]
fn joined(x: u32, holds: u32, c: u32) -> u32 {
    match x & JOIN_MASK {
        NO_JOIN => holds,
        1 => holds & c,
        2 => holds | c,
        _ => holds ^ c,
    }
}

/// The comparison's mask over all lanes.
///
/// # Safety
/// `a` and `b` are registers of the comparison's type.
#[inline(always)]
unsafe fn compared<C: Compare, V: Vectors>(ins: &Ins, frame: Frame) -> u32 {
    // SAFETY: by the caller's contract; the registers are only read.
    let holds = unsafe {
        alu::compare::<C, V>(
            &*frame.at::<alu::Regs<C::A>>(ins.a),
            &*frame.at::<alu::Regs<C::A>>(ins.b),
        )
    };
    holds ^ fails(ins.x)
}

struct SetPredicateBody<C>(PhantomData<C>);

impl<C: Compare> Body for SetPredicateBody<C> {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: operands by the emitter; without a join `c` is the always-true predicate.
        unsafe {
            let holds = compared::<C, V>(ins, frame);
            frame.set_predicate(ins.d, joined(ins.x, holds, frame.predicate(ins.c)), mask);
        }
        Flow::Next
    }
}

/// `setp p|q`.
struct SetPredicatesBody<C>(PhantomData<C>);

impl<C: Compare> Body for SetPredicatesBody<C> {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: operands by the emitter; destination 1 is in the operand list.
        unsafe {
            let holds = compared::<C, V>(ins, frame);
            let c = frame.predicate(ins.c);
            let opposite = cx.extra(ins.e, 1);
            frame.set_predicate(ins.d, joined(ins.x, holds, c), mask);
            frame.set_predicate(opposite, joined(ins.x, !holds, c), mask);
        }
        Flow::Next
    }
}

/// `set`; `ins.imm` is the true value.
struct SetBody<C>(PhantomData<C>);

impl<C: Compare> Body for SetBody<C> {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: operands by the emitter.
        unsafe {
            let holds = joined(ins.x, compared::<C, V>(ins, frame), frame.predicate(ins.c));
            let truth = ins.imm as u32;
            for (first, part) in chunks(mask) {
                if part == 0 {
                    continue;
                }
                let mut r = [0; CHUNK];
                for (i, r) in r.iter_mut().enumerate() {
                    *r = if holds >> (first + i) & 1 != 0 { truth } else { 0 };
                }
                store_chunk(frame.at::<u32>(ins.d).add(first), r, part);
            }
        }
        Flow::Next
    }
}

impl<O: Quaternary> Body for (O, Vectorised<4>) {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: the operands are registers of these types, by the emitter; the fourth is in
            // the list.
            unsafe {
                let a = frame.at::<<O::A as Lane>::Reg>(ins.a).add(first).cast::<Chunk<_>>().read();
                let b = frame.at::<<O::B as Lane>::Reg>(ins.b).add(first).cast::<Chunk<_>>().read();
                let c = frame.at::<<O::C as Lane>::Reg>(ins.c).add(first).cast::<Chunk<_>>().read();
                let e = frame.at::<<O::E as Lane>::Reg>(cx.extra(ins.e, 4));
                let e = e.add(first).cast::<Chunk<_>>().read();
                let mut r = [<O::D as Lane>::Reg::default(); CHUNK];
                for i in 0..CHUNK {
                    let (a, b) = (O::A::from_reg(a[i]), O::B::from_reg(b[i]));
                    r[i] = O::lane(a, b, O::C::from_reg(c[i]), O::E::from_reg(e[i])).into_reg();
                }
                store_chunk(frame.at::<<O::D as Lane>::Reg>(ins.d).add(first), r, part);
            }
        }
        Flow::Next
    }
}

struct TestBody<O>(PhantomData<O>);

impl<O: Test> Body for TestBody<O> {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: operands by the emitter.
        unsafe {
            let holds = alu::test::<O, V>(&*frame.at::<alu::Regs<O::A>>(ins.a));
            frame.set_predicate(ins.d, holds, mask);
        }
        Flow::Next
    }
}

/// The comparison's masks over all lanes' low and high halves.
///
/// # Safety
/// `a` and `b` are registers of packed halves.
#[inline(always)]
unsafe fn compared_pair<C, V: Vectors>(ins: &Ins, frame: Frame) -> (u32, u32)
where
    C: Compare,
    C::A: Lane<Reg = u32>,
{
    // SAFETY: by the caller's contract; the registers are only read.
    let (low, high) = unsafe { alu::compare_pair::<C, V>(&*frame.at(ins.a), &*frame.at(ins.b)) };
    (low ^ fails(ins.x), high ^ fails(ins.x))
}

/// `setp p|q` of packed halves.
struct SetPredicatePairBody<C>(PhantomData<C>);

impl<C> Body for SetPredicatePairBody<C>
where
    C: Compare,
    C::A: Lane<Reg = u32>,
{
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: operands by the emitter; destination 1 is in the operand list.
        unsafe {
            let (low, high) = compared_pair::<C, V>(ins, frame);
            let c = frame.predicate(ins.c);
            let second = cx.extra(ins.e, 1);
            frame.set_predicate(ins.d, joined(ins.x, low, c), mask);
            frame.set_predicate(second, joined(ins.x, high, c), mask);
        }
        Flow::Next
    }
}

/// `set` of packed halves; `ins.imm` is the true value.
struct SetPairBody<C>(PhantomData<C>);

impl<C> Body for SetPairBody<C>
where
    C: Compare,
    C::A: Lane<Reg = u32>,
{
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: operands by the emitter.
        unsafe {
            let (low, high) = compared_pair::<C, V>(ins, frame);
            let c = frame.predicate(ins.c);
            let mut r = [0u32; LANES];
            let (low, high) = (joined(ins.x, low, c), joined(ins.x, high, c));
            alu::expand_pair(ins.imm as u32, low, high, &mut r);
            alu::blend(mask, &r, &mut *frame.at(ins.d));
        }
        Flow::Next
    }
}

/// A carry chain's instruction: sources a, b, c, carry in; destinations d and, if `WRITES`, carry
/// out.
struct CarryBody<O, const WRITES: bool>(PhantomData<O>);

impl<O: Carry, const WRITES: bool> Body for CarryBody<O, WRITES> {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: operands by the emitter; the list holds one or two destinations and four sources.
        unsafe {
            let (a, b, c) = (
                frame.at::<alu::Regs<O::T>>(ins.a).read(),
                frame.at::<alu::Regs<O::T>>(ins.b).read(),
                frame.at::<alu::Regs<O::T>>(ins.c).read(),
            );
            let dsts = if WRITES { 2 } else { 1 };
            let carries = frame.predicate(cx.extra(ins.e, dsts + 3));
            let mut r = [<O::T as Lane>::Reg::default(); LANES];
            let out = alu::int::carry::<O>(&a, &b, &c, carries, &mut r);
            alu::blend(mask, &r, &mut *frame.at(ins.d));
            if WRITES {
                frame.set_predicate(cx.extra(ins.e, 1), out, mask);
            }
        }
        Flow::Next
    }
}

/// A computational instruction's handler and the shape of its operands.
pub(in crate::exec) struct Computation {
    pub(in crate::exec) run: OpFn,
    /// Handler for two destinations (`setp p|q`).
    pub(in crate::exec) run_pair: Option<OpFn>,
    pub(in crate::exec) d: Width,
    /// Widths of the sources.
    pub(in crate::exec) sources: Vec<Width>,
    /// Which way round the handler takes the first two.
    pub(in crate::exec) order: Order,
    /// Value of `ins.x`.
    pub(in crate::exec) x: u32,
    /// Value of `ins.imm`.
    pub(in crate::exec) imm: i64,
    /// Whether it is part of a carry chain, and writes the condition code.
    pub(in crate::exec) carry: Option<CarryOut>,
}

/// The handler of `opcode` with `modifiers`, for `level`.
pub(in crate::exec) fn computation(
    opcode: &str,
    modifiers: &[&str],
    level: SimdLevel,
) -> Result<Computation, forms::FormError> {
    forms::visit(opcode, modifiers, Build { level })
}

#[derive(Clone, Copy)]
struct Build {
    level: SimdLevel,
}

fn width<L: Lane>() -> Width {
    if <L::Reg as Register>::BITS == 64 { Width::W64 } else { Width::W32 }
}

impl Build {
    fn simple<B: Body>(self, d: Width, sources: Vec<Width>) -> Computation {
        Computation {
            run: pick::<B>(self.level),
            run_pair: None,
            d,
            sources,
            order: Order::AsWritten,
            x: 0,
            imm: 0,
            carry: None,
        }
    }

    fn comparison<B: Body>(self, how: Comparison, d: Width, source: Width) -> Computation {
        let sources = vec![source, source, Width::Pred];
        Computation { order: how.order, x: encode(how), ..self.simple::<B>(d, sources) }
    }
}

impl forms::Visitor for Build {
    type Output = Computation;

    fn unary<O: Unary>(self) -> Computation {
        let (d, sources) = (width::<O::D>(), vec![width::<O::A>()]);
        match O::IS_RARE {
            true => self.simple::<(O, LaneByLane<1>)>(d, sources),
            false => self.simple::<(O, Vectorised<1>)>(d, sources),
        }
    }

    fn binary<O: Binary>(self) -> Computation {
        let (d, sources) = (width::<O::D>(), vec![width::<O::A>(), width::<O::B>()]);
        match O::IS_RARE {
            true => self.simple::<(O, LaneByLane<2>)>(d, sources),
            false => self.simple::<(O, Vectorised<2>)>(d, sources),
        }
    }

    fn ternary<O: Ternary>(self) -> Computation {
        self.simple::<(O, Vectorised<3>)>(
            width::<O::D>(),
            vec![width::<O::A>(), width::<O::B>(), width::<O::C>()],
        )
    }

    fn select<T: Lane>(self) -> Computation {
        let w = width::<T>();
        self.simple::<SelectBody<T::Reg>>(w, vec![w, w, Width::Pred])
    }

    fn set_predicate<C: Compare>(self, how: Comparison) -> Computation {
        Computation {
            run_pair: Some(pick::<SetPredicatesBody<C>>(self.level)),
            ..self.comparison::<SetPredicateBody<C>>(how, Width::Pred, width::<C::A>())
        }
    }

    fn set<C: Compare>(self, how: Comparison, truth: u32) -> Computation {
        let set = self.comparison::<SetBody<C>>(how, Width::W32, width::<C::A>());
        Computation { imm: truth.into(), ..set }
    }

    fn quaternary<O: Quaternary>(self) -> Option<Computation> {
        let sources = vec![width::<O::A>(), width::<O::B>(), width::<O::C>(), width::<O::E>()];
        Some(self.simple::<(O, Vectorised<4>)>(width::<O::D>(), sources))
    }

    fn test<O: Test>(self) -> Option<Computation> {
        Some(self.simple::<TestBody<O>>(Width::Pred, vec![width::<O::A>()]))
    }

    fn set_predicate_pair<C>(self, how: Comparison) -> Option<Computation>
    where
        C: Compare,
        C::A: Lane<Reg = u32>,
    {
        let set = self.comparison::<SetPredicatePairBody<C>>(how, Width::Pred, Width::W32);
        Some(Computation { run_pair: Some(set.run), ..set })
    }

    fn set_pair<C>(self, how: Comparison, truth: u32) -> Option<Computation>
    where
        C: Compare,
        C::A: Lane<Reg = u32>,
    {
        let set = self.comparison::<SetPairBody<C>>(how, Width::W32, Width::W32);
        Some(Computation { imm: truth.into(), ..set })
    }

    fn carry<O: Carry>(self, out: CarryOut) -> Option<Computation> {
        let w = width::<O::T>();
        let sources = vec![w; O::SOURCES];
        let computation = match out {
            CarryOut::Write => self.simple::<CarryBody<O, true>>(w, sources),
            CarryOut::Discard => self.simple::<CarryBody<O, false>>(w, sources),
        };
        Some(Computation { carry: Some(out), ..computation })
    }
}
