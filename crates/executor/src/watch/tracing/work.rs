//! What a command has the device do.

use link::ring::Command;
use link::trace::{Work, WorkKind};
use link::wire::command::{Does, Launch, Opcode, Request};

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
    let kind = match opcode.facts().does {
        Does::Other => return Meaning::Other,
        Does::Question => return Meaning::Question,
        Does::Kernel => WorkKind::Kernel,
        Does::Graph => WorkKind::Graph,
        Does::Copy => WorkKind::Copy,
        Does::Fill => WorkKind::Fill,
    };
    match Request::read(opcode, command.body) {
        None => Meaning::Other,
        Some(Request::Launch(launch, _)) => Meaning::Work(kernel(&launch), Some(launch.function)),
        Some(request) => match request.order().stream() {
            Some(stream) => Meaning::Work(of(kind, stream, size_bytes(&request)), None),
            None => Meaning::Other,
        },
    }
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

/// How much is copied or filled.
fn size_bytes(request: &Request<'_>) -> u64 {
    let product = |sizes: [u64; 3]| sizes.into_iter().fold(1, u64::saturating_mul);
    match request {
        Request::Copy(copy, _) => copy.size_bytes,
        Request::Copy3d(copy, _) => product([copy.width_bytes, copy.height, copy.depth]),
        Request::ArrayCopy(copy, _) => product([copy.width_bytes, copy.height, copy.depth]),
        Request::Fill(fill, _) => product([u64::from(fill.element_bytes), fill.width, fill.height]),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::command::{Fill, Header, Signal};
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
