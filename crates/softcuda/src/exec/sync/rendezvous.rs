//! Barrier instructions: block-wide and cluster-wide.

use std::sync::Arc;

use super::barrier::{BARRIERS, BarrierCall, BarrierOp};
use super::cluster::Cluster;
use crate::exec::code::{Frame, Function};
use crate::exec::context::Context;
use crate::exec::fault::{Fault, FaultKind};
use crate::exec::run::BlockRun;
use crate::exec::warp::{Fragment, Wait};

impl BlockRun {
    /// Lanes of a fragment arrive at the barrier instruction it stands at.
    pub(in crate::exec) fn barrier(
        &mut self,
        cx: &mut Context<'_>,
        w: usize,
        index: usize,
        function: &Function,
        frame: Frame,
        lanes: u32,
    ) -> Result<(), Box<Fault>> {
        let fragment = self.warps[w].fragments[index];
        let ins = &function.ins[fragment.pc as usize];
        let call = BarrierCall::decode(ins.x);
        let mut whole_block = false;
        match (call.op, &self.cluster) {
            (BarrierOp::ClusterArrive | BarrierOp::ClusterWait, Some(cluster)) => {
                let cluster = Arc::clone(cluster);
                self.cluster_barrier(&cluster, w, index, call.op, lanes);
                return Ok(());
            }
            (BarrierOp::ClusterArrive, None) => {
                self.warps[w].fragments[index].pc += 1;
                return Ok(());
            }
            // A cluster of one block: waiting for it is waiting for the block.
            (BarrierOp::ClusterWait, None) => whole_block = true,
            _ => {}
        }
        let lane = lanes.trailing_zeros() as usize;
        // SAFETY: `a` and `b` are 32-bit registers, `c` a predicate, by the emitter.
        let (id, count, votes) = unsafe {
            (
                (*frame.at::<[u32; 32]>(ins.a))[lane],
                (*frame.at::<[u32; 32]>(ins.b))[lane],
                frame.predicate(ins.c),
            )
        };
        let (id, count, votes) =
            if whole_block { (BARRIERS as u32, 0, 0) } else { (id, count, votes) };
        if id as usize > BARRIERS || id as usize == BARRIERS && !whole_block {
            cx.raise(
                FaultKind::IllegalInstruction,
                lane as u32,
                format!("barrier {id} does not exist"),
            );
            return self.fault(cx, w, fragment.frame, fragment.pc);
        }
        let live = self.warps[w].live;
        self.open_barriers |= 1 << id;
        let barrier = &mut self.barriers[id as usize];
        if call.counted {
            barrier.expected = count;
        }
        barrier.arrive(w, lanes, live, votes & lanes);
        if call.op == BarrierOp::Arrive {
            self.warps[w].fragments[index].pc += 1;
        } else {
            let warp = &mut self.warps[w];
            let rest = Fragment { pc: fragment.pc + 1, mask: fragment.mask & !lanes, ..fragment };
            let current = &mut warp.fragments[index];
            current.mask = lanes;
            current.wait = Wait::Barrier(id as u8);
            warp.add(rest);
        }
        self.complete_barriers();
        Ok(())
    }

    /// Releases every barrier at which all expected threads have arrived.
    pub(in crate::exec) fn complete_barriers(&mut self) {
        let mut open = self.open_barriers;
        while open != 0 {
            let id = open.trailing_zeros() as usize;
            open &= open - 1;
            let live = self.warps.iter().map(|warp| warp.live);
            if !self.barriers[id].is_complete(live) {
                continue;
            }
            self.open_barriers &= !(1 << id);
            let (trues, votes) = (self.barriers[id].trues, self.barriers[id].votes);
            self.barriers[id].reset();
            let launch = &self.launch;
            for warp in &mut self.warps {
                for fragment in &mut warp.fragments {
                    if fragment.wait != Wait::Barrier(id as u8) {
                        continue;
                    }
                    let record = &warp.frames[fragment.frame as usize];
                    if let Some(Some(function)) = launch.kernel.code.functions.get(record.function)
                    {
                        let ins = &function.ins[fragment.pc as usize];
                        // SAFETY: the destination's kind follows from the operation, by the
                        // emitter.
                        unsafe {
                            match BarrierCall::decode(ins.x).op {
                                BarrierOp::Popc => {
                                    for lane in
                                        (0..32).filter(|lane| fragment.mask >> lane & 1 != 0)
                                    {
                                        *record.memory.at::<u32>(ins.d).add(lane) = trues;
                                    }
                                }
                                BarrierOp::And => {
                                    let all = if trues == votes { u32::MAX } else { 0 };
                                    record.memory.set_predicate(ins.d, all, fragment.mask);
                                }
                                BarrierOp::Or => {
                                    let any = if trues > 0 { u32::MAX } else { 0 };
                                    record.memory.set_predicate(ins.d, any, fragment.mask);
                                }
                                _ => {}
                            }
                        }
                    }
                    fragment.pc += 1;
                    fragment.wait = Wait::Ready;
                }
            }
        }
    }

    fn cluster_barrier(
        &mut self,
        cluster: &Cluster,
        w: usize,
        index: usize,
        op: BarrierOp,
        lanes: u32,
    ) {
        let warp = &mut self.warps[w];
        if op == BarrierOp::ClusterArrive {
            warp.cluster_phase = cluster.phase();
            warp.fragments[index].pc += 1;
            cluster.update(lanes.count_ones(), 0);
        } else if cluster.phase() != warp.cluster_phase {
            warp.fragments[index].pc += 1;
        } else {
            let fragment = warp.fragments[index];
            let rest = Fragment { pc: fragment.pc + 1, mask: fragment.mask & !lanes, ..fragment };
            warp.fragments[index].mask = lanes;
            warp.fragments[index].wait = Wait::Cluster;
            warp.add(rest);
        }
    }
}
