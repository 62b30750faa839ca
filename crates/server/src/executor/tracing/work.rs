//! What a command has the device do.

use link::ring::Command;
use link::trace::{Work, WorkKind};
use link::wire::array::ArrayCopy;
use link::wire::command::{Copy, Copy3d, Fill, Launch, Opcode};
use link::wire::graph::GraphLaunch;
use zerocopy::FromBytes;

/// What a command is for a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Work, and the function that it launches.
    Work(Work, Option<u32>),
    /// It asks when earlier work ends, and holds up nothing.
    Question,
    /// Anything else: what comes after it may have waited for it.
    Other,
}

/// What a launch has the device do.
pub(super) fn kernel(launch: &Launch) -> Work {
    Work {
        grid: launch.grid,
        block: launch.block.map(|threads| threads as u16),
        shared_bytes: launch.dynamic_shared_bytes,
        ..of(WorkKind::Kernel, launch.stream, 0)
    }
}

/// What a command is.
pub(super) fn meaning(command: &Command<'_>) -> Meaning {
    let Some(opcode) = Opcode::from_number(command.header.opcode) else { return Meaning::Other };
    if matches!(opcode, Opcode::Signal | Opcode::EventRecord) {
        return Meaning::Question;
    }
    describe(opcode, command.body)
        .map_or(Meaning::Other, |(work, function)| Meaning::Work(work, function))
}

fn of(kind: WorkKind, stream: u32, size_bytes: u64) -> Work {
    Work {
        kind,
        stream,
        text: 0,
        position: 0,
        taken_ns: 0,
        start_ns: 0,
        end_ns: 0,
        grid: [0; 3],
        block: [0; 3],
        shared_bytes: 0,
        timed_together: 1,
        size_bytes,
    }
}

fn describe(opcode: Opcode, bytes: &[u8]) -> Option<(Work, Option<u32>)> {
    fn body<T: FromBytes>(bytes: &[u8]) -> Option<T> {
        T::read_from_prefix(bytes).ok().map(|(body, _)| body)
    }
    let product = |sizes: [u64; 3]| sizes.into_iter().fold(1, u64::saturating_mul);
    let work = match opcode {
        Opcode::Launch => {
            let launch: Launch = body(bytes)?;
            return Some((kernel(&launch), Some(launch.function)));
        }
        Opcode::GraphLaunch => of(WorkKind::Graph, body::<GraphLaunch>(bytes)?.stream, 0),
        Opcode::Copy => {
            let copy: Copy = body(bytes)?;
            of(WorkKind::Copy, copy.stream, copy.size_bytes)
        }
        Opcode::Copy3d => {
            let copy: Copy3d = body(bytes)?;
            let size = product([copy.width_bytes, copy.height, copy.depth]);
            of(WorkKind::Copy, copy.stream, size)
        }
        Opcode::ArrayCopy => {
            let copy: ArrayCopy = body(bytes)?;
            let size = product([copy.width_bytes, copy.height, copy.depth]);
            of(WorkKind::Copy, copy.stream, size)
        }
        Opcode::Fill => {
            let fill: Fill = body(bytes)?;
            let size = product([u64::from(fill.element_bytes), fill.width, fill.height]);
            of(WorkKind::Fill, fill.stream, size)
        }
        _ => return None,
    };
    Some((work, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::command::{Header, Signal};
    use zerocopy::IntoBytes;

    fn of_body(opcode: Opcode, body: &[u8]) -> Meaning {
        let header =
            Header { opcode: opcode as u16, call_slot: 0, size_bytes: 0, context: 0, reserved: 0 };
        meaning(&Command { header, body })
    }

    #[test]
    fn commands_are_work_questions_or_neither() {
        let fill = Fill { stream: 3, element_bytes: 4, width: 8, height: 2, ..Fill::default() };
        let Meaning::Work(work, None) = of_body(Opcode::Fill, fill.as_bytes()) else {
            panic!("a fill is work");
        };
        assert_eq!((work.kind, work.stream, work.size_bytes), (WorkKind::Fill, 3, 64));
        let huge = Fill { element_bytes: 4, width: u64::MAX, height: 2, ..fill };
        assert!(matches!(of_body(Opcode::Fill, huge.as_bytes()),
            Meaning::Work(work, None) if work.size_bytes == u64::MAX));
        let signal = Signal { stream: 3, value: 1, reserved: 0 };
        assert_eq!(of_body(Opcode::Signal, signal.as_bytes()), Meaning::Question);
        assert_eq!(of_body(Opcode::Release, &[]), Meaning::Other);
        assert_eq!(of_body(Opcode::Fill, &[1, 2]), Meaning::Other, "too short");
    }
}
