//! Prefilled registers of a frame: constants, special registers, parameters.

use super::code::{Fill, FillValue, Frame, Function, Special, Width};
use super::context::thread_index;
use super::emit::TRUE;
use super::launch::Launch;

/// Which registers to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// All of them: new memory.
    All,
    /// Those that differ between blocks of a launch.
    PerBlock,
    /// Those that differ between calls of a function by the same warp.
    PerCall,
}

/// What the values depend on.
pub(super) struct FillContext<'a> {
    pub(super) launch: &'a Launch,
    pub(super) block_index: [u32; 3],
    pub(super) warp: u32,
    /// Offset of the frame's part of the thread's local memory.
    pub(super) local_base: u32,
    pub(super) nsmid: u32,
}

/// Fills the registers `which` of `frame`, which belongs to `function`.
///
/// # Safety
/// `frame` is memory of `function.frame_bytes` bytes.
pub(super) unsafe fn fill(function: &Function, frame: Frame, cx: &FillContext<'_>, which: Which) {
    if which == Which::All {
        // SAFETY: every frame starts with the always-true predicate.
        unsafe { *frame.at::<u32>(TRUE) = u32::MAX };
    }
    let fills = match which {
        Which::PerBlock => &function.fills[..function.block_fills],
        Which::All | Which::PerCall => &function.fills,
    };
    for fill in fills {
        let is_local = matches!(fill.value, FillValue::Local(_) | FillValue::LocalGeneric(_));
        if which != Which::PerCall || is_local {
            // SAFETY: fills lie inside the frame.
            unsafe { fill_one(frame, fill, cx) };
        }
    }
}

unsafe fn fill_one(frame: Frame, fill: &Fill, cx: &FillContext<'_>) {
    let uniform = |value: u64| {
        // SAFETY: by the caller's contract.
        unsafe {
            match fill.width {
                Width::Pred => *frame.at::<u32>(fill.offset) = value as u32,
                Width::W32 => *frame.at::<[u32; 32]>(fill.offset) = [value as u32; 32],
                Width::W64 => *frame.at::<[u64; 32]>(fill.offset) = [value; 32],
            }
        }
    };
    match fill.value {
        FillValue::Constant(bits) => uniform(bits),
        FillValue::Param { offset, size, signed } => {
            uniform(param(&cx.launch.params, offset, size, signed))
        }
        FillValue::Local(offset) => uniform(u64::from(cx.local_base) + offset),
        FillValue::LocalGeneric(offset) => {
            uniform(super::window::LOCAL_WINDOW + u64::from(cx.local_base) + offset);
        }
        FillValue::DynamicShared(offset) => {
            uniform(u64::from(cx.launch.kernel.static_shared_bytes).wrapping_add(offset));
        }
        FillValue::Special(special) if !special.is_per_lane() => {
            uniform(special_value(special, cx, 0));
        }
        FillValue::Special(special) => {
            for lane in 0..32u32 {
                let value = special_value(special, cx, lane);
                // SAFETY: by the caller's contract.
                unsafe {
                    match fill.width {
                        Width::W64 => *frame.at::<u64>(fill.offset).add(lane as usize) = value,
                        _ => *frame.at::<u32>(fill.offset).add(lane as usize) = value as u32,
                    }
                }
            }
        }
    }
}

/// A parameter's bytes as a value; bytes beyond the buffer read zero.
fn param(params: &[u8], offset: u32, size: u8, signed: bool) -> u64 {
    let mut bytes = [0u8; 8];
    for (index, byte) in bytes.iter_mut().enumerate().take(usize::from(size)) {
        *byte = params.get(offset as usize + index).copied().unwrap_or(0);
    }
    let value = u64::from_le_bytes(bytes);
    let unused = 64 - u32::from(size).clamp(1, 8) * 8;
    if signed { ((value << unused) as i64 >> unused) as u64 } else { value }
}

fn special_value(special: Special, cx: &FillContext<'_>, lane: u32) -> u64 {
    let launch = cx.launch;
    let cluster = launch.cluster.map(|n| n.max(1));
    let axis = |values: [u32; 3], axis: u8, fourth: u32| {
        values.get(axis as usize).copied().unwrap_or(fourth)
    };
    let in_cluster = |axis: usize| cx.block_index[axis] % cluster[axis];
    let value = match special {
        Special::Tid(a) => axis(thread_index(launch.block, cx.warp * 32 + lane), a, 0),
        Special::Ntid(a) => axis(launch.block, a, 0),
        Special::Ctaid(a) => axis(cx.block_index, a, 0),
        Special::Nctaid(a) => axis(launch.grid, a, 0),
        Special::LaneId => lane,
        Special::WarpId => cx.warp,
        Special::NwarpId => launch.threads_per_block().div_ceil(32),
        Special::NsmId => cx.nsmid,
        Special::GridId => return launch.grid_id,
        Special::LanemaskEq => 1 << lane,
        Special::LanemaskLe => u32::MAX >> (31 - lane),
        Special::LanemaskLt => (1 << lane) - 1,
        Special::LanemaskGe => u32::MAX << lane,
        Special::LanemaskGt => u32::MAX << lane << 1,
        Special::Envreg(1) => (launch.grid_workspace >> 32) as u32,
        Special::Envreg(2) => launch.grid_workspace as u32,
        Special::Envreg(_) => 0,
        Special::TotalSmem | Special::AggregateSmem => {
            launch.kernel.static_shared_bytes.saturating_add(launch.dynamic_shared_bytes)
        }
        Special::DynamicSmem => launch.dynamic_shared_bytes,
        Special::ReservedSmem(_) => 0,
        Special::ClusterId(a) => axis([0, 1, 2].map(|i| cx.block_index[i] / cluster[i]), a, 0),
        Special::NclusterId(a) => axis([0, 1, 2].map(|i| launch.grid[i] / cluster[i]), a, 0),
        Special::ClusterCtaid(a) => axis([0, 1, 2].map(in_cluster), a, 0),
        Special::ClusterNctaid(a) => axis(cluster, a, 0),
        Special::ClusterCtarank => cluster_rank(cluster, cx.block_index),
        Special::ClusterNctarank => cluster.iter().product(),
        Special::IsExplicitCluster => u32::from(cluster != [1, 1, 1]),
    };
    u64::from(value)
}

/// Rank in its cluster of the block at `index` of the grid.
pub(super) fn cluster_rank(cluster: [u32; 3], index: [u32; 3]) -> u32 {
    let [x, y, z] = [0, 1, 2].map(|i| index[i] % cluster[i]);
    x + cluster[0] * (y + cluster[1] * z)
}
