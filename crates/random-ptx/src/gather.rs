//! Instructions that the threads of a warp or a block execute together.

use crate::evaluate::{State, Thread};
use crate::operation::Class;
use crate::program::{Action, Gather, Instruction, Register};

/// A waiting thread's instruction, taken apart.
struct Pending<'a> {
    gather: Gather,
    results: &'a [Register],
    sources: &'a [Register],
    mask: Option<Register>,
}

fn pending<'a>(
    thread: &Thread,
    bodies: &impl Fn(Option<usize>) -> &'a [Instruction],
) -> Option<Pending<'a>> {
    if thread.state != State::Waiting {
        return None;
    }
    let (function, next, _) = thread.position();
    match &bodies(function).get(next)?.action {
        Action::Gather { gather, results, sources, mask } => {
            Some(Pending { gather: *gather, results, sources, mask: *mask })
        }
        _ => None,
    }
}

fn resume(thread: &mut Thread) {
    thread.frame().next += 1;
    thread.state = State::Running;
}

/// The instructions of one warp whose lanes have all arrived.
pub(crate) fn warp_gather<'a>(
    warp: &mut [Thread],
    bodies: impl Fn(Option<usize>) -> &'a [Instruction],
) -> bool {
    let mut progress = false;
    for lane in 0..warp.len() {
        let Some(first) = pending(&warp[lane], &bodies) else { continue };
        if first.gather.is_of_block() {
            continue;
        }
        let mask_of = |thread: &mut Thread| match first.mask {
            None => u32::MAX,
            Some(register) => thread.frame().get(register) as u32,
        };
        let mask = mask_of(&mut warp[lane]);
        let position = warp[lane].position();
        let lanes: Vec<usize> = (0..32).filter(|i| mask >> i & 1 == 1).collect();
        let complete = mask >> lane & 1 == 1
            && lanes.iter().all(|&i| {
                warp.get_mut(i).is_some_and(|thread| {
                    thread.state == State::Waiting
                        && thread.position() == position
                        && mask_of(thread) == mask
                })
            });
        if !complete {
            continue;
        }
        progress = true;
        let value = |warp: &mut [Thread], i: usize| {
            first.sources.first().map_or(0, |&source| warp[i].frame().get(source))
        };
        let values: Vec<u64> = (0..warp.len()).map(|i| value(warp, i)).collect();
        for &i in &lanes {
            let results = lane_results(first.gather, i, &lanes, &values);
            for (&register, result) in first.results.iter().zip(results) {
                warp[i].frame().set(register, register.class.truncated(result));
            }
        }
        for &i in &lanes {
            resume(&mut warp[i]);
        }
    }
    progress
}

/// What lane `lane` gets.
fn lane_results(gather: Gather, lane: usize, lanes: &[usize], values: &[u64]) -> [u64; 2] {
    let set = |f: &dyn Fn(usize) -> bool| -> u64 {
        lanes.iter().filter(|&&i| f(i)).map(|&i| 1u64 << i).sum()
    };
    let equal = |class: Class| set(&|i| class.truncated(values[i] ^ values[lane]) == 0);
    let all: u64 = set(&|_| true);
    match gather {
        Gather::Shuffle { mode, b, c } => {
            let (lane_id, b, segment) = (lane as i64, i64::from(b & 31), i64::from(c >> 8 & 31));
            let clamp = i64::from(c & 31);
            let first = lane_id & segment;
            let last = first | clamp & !segment & 31;
            let (from, valid) = match mode {
                "up" => (lane_id - b, lane_id - b >= last),
                "down" => (lane_id + b, lane_id + b <= last),
                "bfly" => (lane_id ^ b, lane_id ^ b <= last),
                _ => {
                    let from = first | b & !segment & 31;
                    (from, from <= last)
                }
            };
            let from = if valid { from as usize } else { lane };
            [values[from], u64::from(valid)]
        }
        Gather::All => [u64::from(lanes.iter().all(|&i| values[i] == 1)), 0],
        Gather::Any => [u64::from(lanes.iter().any(|&i| values[i] == 1)), 0],
        Gather::Uniform => [u64::from(lanes.iter().all(|&i| values[i] == values[lanes[0]])), 0],
        Gather::Ballot => [set(&|i| values[i] == 1), 0],
        Gather::MatchAny(class) => [equal(class), 0],
        Gather::MatchAll(class) if equal(class) == all => [all, 1],
        Gather::MatchAll(_) => [0, 0],
        Gather::Reduce(name) => [reduce(name, lanes.iter().map(|&i| values[i] as u32)), 0],
        _ => [0, 0],
    }
}

fn reduce(name: &str, values: impl Iterator<Item = u32>) -> u64 {
    let f: fn(u32, u32) -> u32 = match name {
        "add.u32" | "add.s32" => u32::wrapping_add,
        "min.u32" => u32::min,
        "max.u32" => u32::max,
        "min.s32" => |a, b| (a as i32).min(b as i32) as u32,
        "max.s32" => |a, b| (a as i32).max(b as i32) as u32,
        "and.b32" => |a, b| a & b,
        "or.b32" => |a, b| a | b,
        _ => |a, b| a ^ b,
    };
    values.reduce(f).unwrap_or(0).into()
}

/// The instruction of the whole block, if all its threads have arrived.
pub(crate) fn block_gather<'a>(
    threads: &mut [Thread],
    bodies: impl Fn(Option<usize>) -> &'a [Instruction],
) -> bool {
    let Some(first) = pending(&threads[0], &bodies) else { return false };
    let position = threads[0].position();
    let arrived = |thread: &Thread| thread.state == State::Waiting && thread.position() == position;
    if !first.gather.is_of_block() || !threads.iter().all(arrived) {
        return false;
    }
    let values: Vec<u64> = threads
        .iter_mut()
        .map(|thread| first.sources.first().map_or(0, |&source| thread.frame().get(source)))
        .collect();
    let count = threads.len();
    for thread in threads {
        let result = match first.gather {
            Gather::BlockAnd => u64::from(values.iter().all(|&value| value == 1)),
            Gather::BlockOr => u64::from(values.contains(&1)),
            Gather::BlockCount => values.iter().sum(),
            Gather::Exchange { distance } => {
                values[(thread.index as usize + distance as usize) % count]
            }
            _ => 0,
        };
        if let Some(&register) = first.results.first() {
            thread.frame().set(register, result);
        }
        resume(thread);
    }
    true
}
