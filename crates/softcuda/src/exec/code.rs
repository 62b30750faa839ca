//! Executable code: decoded instructions with their handlers, and the layout of a function's
//! register frame.
//!
//! A frame is one warp's registers for one call of a function, structure of arrays: a predicate is
//! a `u32` lane mask, a register of up to 32 bits is `[u32; 32]`, one of 64 bits `[u64; 32]`.
//! Operands are byte offsets into the frame. Offset 0 holds the always-true predicate. Constants,
//! parameters and special registers are registers filled before the first instruction.

use super::context::Context;

/// What the interpreter does after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Flow {
    /// Go on with the next instruction.
    Next,
    /// Lanes of the guard go to `ins.imm`.
    Jump,
    /// Each lane goes to entry `[a]` of the branch table at `ins.x`.
    JumpIndexed,
    /// Lanes return from the function.
    Return,
    /// Lanes end.
    Exit,
    /// Lanes call function `ins.imm`.
    Call,
    /// Each lane calls the function whose address is in `[a]`.
    CallIndirect,
    /// Lanes arrive at a barrier described by `ins.x`.
    Barrier,
    /// The lanes named by the member mask must come together first.
    Collective,
    /// Another thread should run: the instruction is done, the fragment goes to the back.
    Pause,
    /// `Context::fault` holds a fault.
    Fault,
}

/// A handler: executes an instruction for the lanes of a non-empty mask.
pub(super) type OpFn = unsafe fn(&mut Context<'_>, &Ins, Frame, u32) -> Flow;

/// A decoded instruction.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Ins {
    /// Handler.
    pub(super) run: OpFn,
    /// Frame offset of the guard predicate.
    pub(super) guard: u32,
    /// All ones for a negated guard.
    pub(super) guard_xor: u32,
    /// Frame offset of the first destination.
    pub(super) d: u32,
    /// Frame offsets of the first three sources.
    pub(super) a: u32,
    pub(super) b: u32,
    pub(super) c: u32,
    /// Immediate: address offset, branch target, callee.
    pub(super) imm: i64,
    /// Small immediate, per handler.
    pub(super) x: u32,
    /// Index into [`Function::extras`] of all destinations, then all sources, when they do not fit
    /// `d` to `c`.
    pub(super) e: u32,
}

impl std::fmt::Debug for Ins {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "d{} a{} b{} c{} imm {} x {} e {} guard {}^{:x}",
            self.d, self.a, self.b, self.c, self.imm, self.x, self.e, self.guard, self.guard_xor
        )
    }
}

/// A register frame in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame(pub(super) *mut u8);

impl Frame {
    /// The register at a byte offset.
    ///
    /// # Safety
    /// `offset` was assigned for this frame's function to a register of lane type `T`.
    #[inline(always)]
    pub(super) unsafe fn at<T>(self, offset: u32) -> *mut T {
        // SAFETY: offsets lie inside the frame by the caller's contract.
        unsafe { self.0.add(offset as usize).cast() }
    }

    /// The predicate at a byte offset.
    ///
    /// # Safety
    /// `offset` was assigned to a predicate of this frame's function.
    #[inline(always)]
    pub(super) unsafe fn predicate(self, offset: u32) -> u32 {
        // SAFETY: as `at`.
        unsafe { *self.at::<u32>(offset) }
    }

    /// Sets the lanes of `mask` of a predicate to those of `value`.
    ///
    /// # Safety
    /// As [`predicate`](Self::predicate).
    #[inline(always)]
    pub(super) unsafe fn set_predicate(self, offset: u32, value: u32, mask: u32) {
        // SAFETY: as `at`.
        unsafe {
            let p = self.at::<u32>(offset);
            *p = *p & !mask | value & mask;
        }
    }
}

/// Special registers.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NwarpId,
    NsmId,
    GridId,
    LanemaskEq,
    LanemaskLe,
    LanemaskLt,
    LanemaskGe,
    LanemaskGt,
    Envreg(u8),
    TotalSmem,
    AggregateSmem,
    DynamicSmem,
    ReservedSmem(u8),
    ClusterId(u8),
    NclusterId(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterCtarank,
    ClusterNctarank,
    IsExplicitCluster,
}

impl Special {
    /// Whether the lanes of a warp have different values.
    pub(super) fn is_per_lane(self) -> bool {
        matches!(
            self,
            Self::Tid(_)
                | Self::LaneId
                | Self::LanemaskEq
                | Self::LanemaskLe
                | Self::LanemaskLt
                | Self::LanemaskGe
                | Self::LanemaskGt
        )
    }

    /// Whether its value is the same for the same warp of every block of a launch.
    pub(super) fn is_per_launch(self) -> bool {
        !matches!(
            self,
            Self::Ctaid(_) | Self::ClusterId(_) | Self::ClusterCtaid(_) | Self::ClusterCtarank
        )
    }
}

/// Where a prefilled register's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FillValue {
    /// The same bits in every lane.
    Constant(u64),
    /// A special register.
    Special(Special),
    /// Bytes of the kernel's parameter buffer.
    Param { offset: u32, size: u8, signed: bool },
    /// Offset in the thread's local memory: that of the frame's part, plus this.
    Local(u64),
    /// Generic address of the same.
    LocalGeneric(u64),
    /// Offset in shared memory: the end of the kernel's static part, plus this.
    DynamicShared(u64),
}

/// Register widths in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Width {
    /// `u32` lane mask.
    Pred,
    /// `[u32; 32]`
    W32,
    /// `[u64; 32]`
    W64,
}

impl FillValue {
    /// Whether it differs between blocks of a launch.
    pub(super) fn is_per_block(self) -> bool {
        matches!(self, Self::Special(special) if !special.is_per_launch())
    }
}

/// A prefilled register.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    /// Frame offset.
    pub(super) offset: u32,
    /// Width.
    pub(super) width: Width,
    /// Value.
    pub(super) value: FillValue,
}

/// A branch target list of `brx.idx`.
pub(super) type BranchTable = Box<[u32]>;

/// Executable code of one function.
#[derive(Debug)]
pub(super) struct Function {
    /// Name.
    pub(super) name: String,
    /// Instructions; the last one never falls through.
    pub(super) ins: Box<[Ins]>,
    /// PTX line of each instruction.
    pub(super) lines: Box<[u32]>,
    /// Whether an instruction starts a block that several paths reach (where fragments meet).
    pub(super) joins: Box<[bool]>,
    /// Operand lists of instructions with many operands.
    pub(super) extras: Box<[u32]>,
    /// Branch tables.
    pub(super) tables: Vec<BranchTable>,
    /// Frame size, bytes; a multiple of 128.
    pub(super) frame_bytes: u32,
    /// Prefilled registers; those that differ between blocks of a launch come first.
    pub(super) fills: Vec<Fill>,
    /// How many of them differ between blocks.
    pub(super) block_fills: usize,
    /// Frame offsets of the words that parameters arrive in.
    pub(super) formals: Box<[u32]>,
    /// Local memory per thread, bytes; a multiple of 16.
    pub(super) local_bytes: u32,
    /// Whether its loops may wait for other threads.
    pub(super) waits: bool,
    /// Why the function cannot be executed after all; a call of it faults.
    pub(super) refused: Option<String>,
}
