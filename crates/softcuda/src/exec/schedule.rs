//! Scheduling inside a warp: what happens between stretches of straight execution.

use super::code::{Flow, Frame, Function};
use super::context::Context;
use super::fault::{Fault, FaultKind};
use super::fill::FillContext;
use super::interpret::{Company, Event, execute};
use super::run::BlockRun;
use super::warp::{CALLEE_LIMIT_BYTES, Fragment, NO_FRAME, Wait};
use super::window;

/// Backward branches after which a fragment lets others run: in code that looks like waiting, and
/// in other code.
const SPIN_LIMIT_WAITING: u32 = 16;
const SPIN_LIMIT: u32 = 8192;

type Outcome = Result<(), Box<Fault>>;

impl BlockRun {
    /// Runs warp `w` until its quantum of fuel is spent or no fragment can run.
    pub(super) fn run_warp(&mut self, cx: &mut Context<'_>, w: usize, fuel: &mut u64) -> Outcome {
        let functions = &cx.launch.kernel.code.functions;
        while *fuel > 0 {
            let warp = &mut self.warps[w];
            let Some(index) = warp.next() else { return Ok(()) };
            let index = if warp.fragments.len() > 1 { warp.merge(index) } else { index };
            let fragment = warp.fragments[index];
            let record = &warp.frames[fragment.frame as usize];
            let Some(Some(function)) = functions.get(record.function) else {
                cx.raise(
                    FaultKind::InvalidProgramCounter,
                    fragment.mask.trailing_zeros(),
                    "no such function",
                );
                return self.fault(cx, w, fragment.frame, fragment.pc);
            };
            if let Some(reason) = &function.refused {
                cx.raise(
                    FaultKind::IllegalInstruction,
                    fragment.mask.trailing_zeros(),
                    reason.as_str(),
                );
                return self.fault(cx, w, fragment.frame, fragment.pc);
            }
            let released = fragment.wait == Wait::Released;
            cx.live = if released { fragment.mask } else { warp.live };
            let company = if warp.fragments.len() > 1 { Company::Others } else { Company::Alone };
            let mut slice = if released { 1 } else { *fuel };
            let before = slice;
            // SAFETY: the frame belongs to the function; program counters come from its code.
            let (event, pc, spins) = unsafe {
                execute(
                    cx,
                    function,
                    record.memory,
                    fragment.mask,
                    fragment.pc,
                    &mut slice,
                    company,
                )
            };
            *fuel -= before - slice;
            let frame = record.memory;
            let current = &mut self.warps[w].fragments[index];
            current.pc = pc;
            current.wait = Wait::Ready;
            match event {
                Event::Fuel => {}
                Event::Join => {
                    current.spins += spins;
                    let limit = if function.waits { SPIN_LIMIT_WAITING } else { SPIN_LIMIT };
                    if current.spins >= limit {
                        current.spins = 0;
                        current.epoch += 1;
                    }
                }
                Event::Diverge(taken) => {
                    let target = function.ins[pc as usize].imm as u32;
                    self.split(w, index, taken, target);
                }
                Event::Flow(flow, lanes) => {
                    let pause = flow == Flow::Pause;
                    self.handle(cx, w, index, function, frame, flow, lanes)?;
                    if pause {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Lanes `taken` of a fragment go to `target`, the others to the next instruction.
    fn split(&mut self, w: usize, index: usize, taken: u32, target: u32) {
        let warp = &mut self.warps[w];
        let current = &mut warp.fragments[index];
        let rest = Fragment { pc: current.pc + 1, mask: current.mask & !taken, ..*current };
        current.mask = taken;
        current.pc = target;
        warp.add(rest);
    }

    /// Takes `lanes` out of a fragment; what remains goes on behind the instruction. The fragment
    /// keeps `lanes`.
    fn isolate(&mut self, w: usize, index: usize, lanes: u32) {
        let warp = &mut self.warps[w];
        let current = &mut warp.fragments[index];
        let rest = Fragment { pc: current.pc + 1, mask: current.mask & !lanes, ..*current };
        current.mask = lanes;
        warp.add(rest);
    }

    #[allow(clippy::too_many_arguments)]
    fn handle(
        &mut self,
        cx: &mut Context<'_>,
        w: usize,
        index: usize,
        function: &Function,
        frame: Frame,
        flow: Flow,
        lanes: u32,
    ) -> Outcome {
        let fragment = self.warps[w].fragments[index];
        match flow {
            Flow::Next | Flow::Jump => {}
            Flow::Pause => {
                let current = &mut self.warps[w].fragments[index];
                current.pc += 1;
                current.epoch += 1;
            }
            Flow::Exit => self.exit(w, index, lanes),
            Flow::Fault => return self.fault(cx, w, fragment.frame, fragment.pc),
            Flow::Return => self.return_lanes(w, index, function, frame, lanes),
            Flow::Call => {
                let callee = function.ins[fragment.pc as usize].imm as usize;
                return self.call(cx, w, index, function, lanes, callee, 0);
            }
            Flow::CallIndirect => return self.call_indirect(cx, w, index, function, frame, lanes),
            Flow::JumpIndexed => return self.jump_indexed(cx, w, index, function, frame, lanes),
            Flow::Barrier => return self.barrier(cx, w, index, function, frame, lanes),
            Flow::Collective => {
                self.isolate(w, index, lanes);
                self.park_collective(w, index, function, frame);
            }
        }
        Ok(())
    }

    pub(super) fn fault(&self, cx: &mut Context<'_>, w: usize, frame: u32, pc: u32) -> Outcome {
        let (function, line) = self.place(w, frame, pc);
        let pending = cx.fault.take();
        let lane = pending.as_ref().map_or(0, |p| p.lane);
        Err(Box::new(Fault {
            kind: pending.as_ref().map_or(FaultKind::IllegalInstruction, |p| p.kind),
            access: pending.as_ref().and_then(|p| p.access),
            address: pending.as_ref().and_then(|p| p.address),
            size_bytes: pending.as_ref().map_or(0, |p| p.size_bytes),
            position: self.position(w, lane),
            function: function.to_owned(),
            ptx_line: line,
            detail: pending.map(|p| p.detail).unwrap_or_default(),
        }))
    }

    fn exit(&mut self, w: usize, index: usize, lanes: u32) {
        if self.warps[w].live == lanes {
            // The last threads of the warp: nobody is left to take anything apart for.
            self.warps[w].end();
            self.live_warps -= 1;
        } else {
            self.isolate(w, index, lanes);
            let warp = &mut self.warps[w];
            warp.live &= !lanes;
            warp.remove(index);
        }
        if let Some(cluster) = &self.cluster {
            cluster.update(0, lanes.count_ones());
        }
        if self.warps[w].live != 0 {
            self.release_collectives(w);
        }
        self.complete_barriers();
    }

    /// Returns `lanes` to the caller, with their result words.
    fn return_lanes(
        &mut self,
        w: usize,
        index: usize,
        function: &Function,
        frame: Frame,
        lanes: u32,
    ) {
        let fragment = self.warps[w].fragments[index];
        let record = &self.warps[w].frames[fragment.frame as usize];
        let (parent, call_pc) = (record.parent, record.call_pc);
        if parent == NO_FRAME {
            // A device function can be an entry only through broken code; its return ends the
            // thread.
            return self.exit(w, index, lanes);
        }
        let launch = &self.launch;
        let caller = &self.warps[w].frames[parent as usize];
        if let Some(Some(caller_code)) = launch.kernel.code.functions.get(caller.function) {
            let ret = &function.ins[fragment.pc as usize];
            let call = &caller_code.ins[call_pc as usize];
            let count = ret.x.min(call.x & 0xffff) as usize;
            for word in 0..count {
                let from = function.extras[ret.e as usize + word];
                let to = caller_code.extras[call.e as usize + word];
                // SAFETY: both are 32-bit registers of their frames, by the emitter.
                unsafe { copy_word(frame, from, caller.memory, to, lanes) };
            }
        }
        self.isolate(w, index, lanes);
        let warp = &mut self.warps[w];
        let returned = Fragment { pc: call_pc + 1, frame: parent, ..warp.fragments[index] };
        warp.add(returned);
        warp.remove(index);
    }

    /// Calls function `callee`; `skip` operands stand between the call's results and arguments.
    #[allow(clippy::too_many_arguments)]
    fn call(
        &mut self,
        cx: &mut Context<'_>,
        w: usize,
        index: usize,
        function: &Function,
        lanes: u32,
        callee: usize,
        skip: usize,
    ) -> Outcome {
        let launch = cx.launch;
        let fragment = self.warps[w].fragments[index];
        let Some(Some(callee_code)) = launch.kernel.code.functions.get(callee) else {
            cx.raise(
                FaultKind::InvalidProgramCounter,
                lanes.trailing_zeros(),
                "call of no known function",
            );
            return self.fault(cx, w, fragment.frame, fragment.pc);
        };
        let caller = &self.warps[w].frames[fragment.frame as usize];
        let local_end = caller.local_base + function.local_bytes + callee_code.local_bytes;
        let frames = self.warps[w].callee_bytes + callee_code.frame_bytes as usize;
        let is_deep = caller.depth >= 24 + launch.stack_bytes / 16 || local_end > cx.local_bytes;
        if is_deep || frames > CALLEE_LIMIT_BYTES {
            let what = match is_deep {
                true => "the call depth exceeds the stack",
                false => "the calls have too many registers",
            };
            cx.raise(FaultKind::StackOverflow, lanes.trailing_zeros(), what);
            return self.fault(cx, w, fragment.frame, fragment.pc);
        }
        self.isolate(w, index, lanes);
        let call = &function.ins[fragment.pc as usize];
        let (results, words) = ((call.x & 0xffff) as usize, (call.x >> 16) as usize);
        let mut context = FillContext {
            launch,
            block_index: self.index,
            warp: w as u32,
            local_base: 0,
            nsmid: cx.machine.nsmid(),
        };
        let warp = &mut self.warps[w];
        let frame = warp.call(
            callee,
            callee_code,
            fragment.frame,
            fragment.pc,
            function.local_bytes,
            &mut context,
        );
        let (from, to) =
            (warp.frames[fragment.frame as usize].memory, warp.frames[frame as usize].memory);
        for (word, &formal) in callee_code.formals.iter().take(words).enumerate() {
            let actual = function.extras[call.e as usize + results + skip + word];
            // SAFETY: both are 32-bit registers of their frames, by the emitter.
            unsafe { copy_word(from, actual, to, formal, lanes) };
        }
        let inside = Fragment { pc: 0, frame, ..warp.fragments[index] };
        warp.add(inside);
        warp.remove(index);
        Ok(())
    }

    fn call_indirect(
        &mut self,
        cx: &mut Context<'_>,
        w: usize,
        index: usize,
        function: &Function,
        frame: Frame,
        lanes: u32,
    ) -> Outcome {
        let fragment = self.warps[w].fragments[index];
        let ins = &function.ins[fragment.pc as usize];
        // SAFETY: `a` is a 64-bit register, by the emitter.
        let targets = unsafe { &*frame.at::<[u64; 32]>(ins.a) };
        let first = targets[lanes.trailing_zeros() as usize];
        let same = matching(lanes, |lane| targets[lane] == first);
        let number = first.wrapping_sub(window::CODE_WINDOW) / window::CODE_STEP;
        if first < window::CODE_WINDOW || first % window::CODE_STEP != 0 {
            let detail = format!("call of {first:#x}, which is no function");
            cx.raise(FaultKind::InvalidProgramCounter, lanes.trailing_zeros(), detail);
            return self.fault(cx, w, fragment.frame, fragment.pc);
        }
        if same != lanes {
            // The others call when they come to it again.
            self.isolate(w, index, lanes);
            let warp = &mut self.warps[w];
            let others = Fragment { mask: lanes & !same, ..warp.fragments[index] };
            warp.fragments[index].mask = same;
            warp.add(others);
        }
        self.call(cx, w, index, function, same, number as usize, 1)
    }

    fn jump_indexed(
        &mut self,
        cx: &mut Context<'_>,
        w: usize,
        index: usize,
        function: &Function,
        frame: Frame,
        lanes: u32,
    ) -> Outcome {
        let fragment = self.warps[w].fragments[index];
        let ins = &function.ins[fragment.pc as usize];
        let table = &function.tables[ins.x as usize];
        // SAFETY: `a` is a 32-bit register, by the emitter.
        let chosen = unsafe { &*frame.at::<[u32; 32]>(ins.a) };
        self.isolate(w, index, lanes);
        let mut left = lanes;
        while left != 0 {
            let entry = chosen[left.trailing_zeros() as usize];
            let same = matching(left, |lane| chosen[lane] == entry);
            let Some(&target) = table.get(entry as usize) else {
                let detail = format!("entry {entry} of a branch table of {}", table.len());
                cx.raise(FaultKind::InvalidProgramCounter, left.trailing_zeros(), detail);
                return self.fault(cx, w, fragment.frame, fragment.pc);
            };
            let warp = &mut self.warps[w];
            let going = Fragment { pc: target, mask: same, ..warp.fragments[index] };
            warp.add(going);
            left &= !same;
        }
        self.warps[w].remove(index);
        Ok(())
    }

    /// Parks a fragment at a collective, by member mask, and releases those that are complete.
    fn park_collective(&mut self, w: usize, index: usize, function: &Function, frame: Frame) {
        let fragment = self.warps[w].fragments[index];
        let ins = &function.ins[fragment.pc as usize];
        // SAFETY: `a` of a collective is the member mask, a 32-bit register.
        let members = unsafe { &*frame.at::<[u32; 32]>(ins.a) };
        let mut left = fragment.mask;
        let warp = &mut self.warps[w];
        while left != 0 {
            let member = members[left.trailing_zeros() as usize];
            let same = matching(left, |lane| members[lane] == member);
            let group = Fragment { mask: same, wait: Wait::Collective, ..fragment };
            if left == fragment.mask {
                warp.fragments[index] = group;
            } else {
                warp.add(group);
            }
            left &= !same;
        }
        self.release_collectives(w);
    }

    /// Lets parked fragments run whose partners have all arrived.
    fn release_collectives(&mut self, w: usize) {
        let launch = &self.launch;
        let warp = &mut self.warps[w];
        if warp.fragments.iter().all(|f| f.wait != Wait::Collective) {
            return;
        }
        let member_of = |f: &Fragment, warp: &super::warp::Warp| -> u32 {
            let record = &warp.frames[f.frame as usize];
            let Some(Some(function)) = launch.kernel.code.functions.get(record.function) else {
                return 0;
            };
            let ins = &function.ins[f.pc as usize];
            // SAFETY: `a` of a collective is the member mask, a 32-bit register.
            unsafe { (*record.memory.at::<[u32; 32]>(ins.a))[f.mask.trailing_zeros() as usize] }
        };
        let mut index = 0;
        while index < warp.fragments.len() {
            let f = warp.fragments[index];
            index += 1;
            if f.wait != Wait::Collective {
                continue;
            }
            let member = member_of(&f, warp);
            let need = if member & f.mask == 0 { f.mask } else { member & warp.live | f.mask };
            let partners: Vec<usize> = (0..warp.fragments.len())
                .filter(|&i| {
                    warp.fragments[i].wait == Wait::Collective
                        && member_of(&warp.fragments[i], warp) == member
                })
                .collect();
            let union = partners.iter().fold(0, |mask, &i| mask | warp.fragments[i].mask);
            if union & need != need {
                continue;
            }
            // Those at the same place become one; partners elsewhere proceed at their own places.
            let mut kept: Vec<usize> = Vec::new();
            let mut gone: Vec<usize> = Vec::new();
            for &i in &partners {
                let this = warp.fragments[i];
                let same = kept.iter().copied().find(|&k| {
                    let other = warp.fragments[k];
                    other.pc == this.pc && other.frame == this.frame
                });
                match same {
                    Some(k) => {
                        let epoch = warp.fragments[k].epoch.max(this.epoch);
                        warp.fragments[k].mask |= this.mask;
                        warp.fragments[k].epoch = epoch;
                        gone.push(i);
                    }
                    None => {
                        warp.fragments[i].wait = Wait::Released;
                        kept.push(i);
                    }
                }
            }
            gone.sort_unstable();
            for &i in gone.iter().rev() {
                warp.remove(i);
            }
            index = 0;
        }
    }
}

/// The lanes of `mask` that satisfy `holds`.
fn matching(mask: u32, holds: impl Fn(usize) -> bool) -> u32 {
    (0..32).filter(|&lane| mask >> lane & 1 != 0 && holds(lane)).fold(0, |m, lane| m | 1 << lane)
}

/// Copies a 32-bit register between frames for the lanes of `mask`.
///
/// # Safety
/// Both offsets are 32-bit registers of their frames.
unsafe fn copy_word(from: Frame, a: u32, to: Frame, d: u32, mask: u32) {
    // SAFETY: by the caller's contract.
    unsafe {
        let (a, d) = (from.at::<[u32; 32]>(a).read(), &mut *to.at::<[u32; 32]>(d));
        for lane in 0..32 {
            d[lane] = if mask >> lane & 1 != 0 { a[lane] } else { d[lane] };
        }
    }
}
