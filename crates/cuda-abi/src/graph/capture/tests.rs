//! Captures without a driver: streams are numbers, work is a letter.

use super::super::shape::Shape;
use super::*;
use crate::types::CUstreamCaptureMode as Mode;
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard};

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::GLOBAL) };
}

#[derive(Debug, Default)]
struct Letters(Mutex<Shape<char>>);

impl Letters {
    fn shape(&self) -> MutexGuard<'_, Shape<char>> {
        self.0.lock().unwrap()
    }
}

impl CapturedGraph for Letters {
    type Work = char;

    fn add_captured(
        self: &Arc<Self>,
        work: char,
        after: &[(usize, EdgeData)],
    ) -> Result<usize, CUresult> {
        let mut shape = self.shape();
        let key = shape.len() + 1;
        shape.add(key, work, None, after).map(|()| key)
    }

    fn ancestors(&self, of: &[usize]) -> BTreeSet<usize> {
        self.shape().ancestors(of)
    }

    fn has_all(&self, nodes: &[(usize, EdgeData)]) -> bool {
        nodes.iter().all(|(node, _)| self.shape().contains(*node))
    }

    fn thread_mode() -> Mode {
        MODE.get()
    }
}

fn stream(id: u64) -> Stream {
    Stream { id, context: 1, ordering: LegacyOrder::NonBlocking }
}

fn begin(captures: &Captures<Letters>, id: u64, mode: Mode) -> Answer {
    captures.begin(stream(id), mode, None, || Ok(Arc::default()))
}

fn add(captures: &Captures<Letters>, id: u64, work: char) -> Answer<usize> {
    captures.active(stream(id))?.expect("captured").add(stream(id), work)
}

fn record(captures: &Captures<Letters>, id: u64) -> Recorded<Letters> {
    Recorded::Captured(captures.find(stream(id)).expect("captured").point(stream(id)))
}

fn end(captures: &Captures<Letters>, id: u64) -> Result<Arc<Letters>, CUresult> {
    match captures.end(stream(id)) {
        Ended::Graph(graph) => Ok(graph),
        Ended::Failed(code, _) => Err(code),
    }
}

#[test]
fn streams_fork_and_join_by_events() {
    let captures = Captures::<Letters>::default();
    begin(&captures, 1, Mode::GLOBAL).unwrap();
    add(&captures, 1, 'a').unwrap();
    assert_eq!(captures.wait(stream(2), record(&captures, 1)), Ok(Wait::Nothing));
    add(&captures, 2, 'b').unwrap();
    add(&captures, 1, 'c').unwrap();
    assert_eq!(captures.wait(stream(1), record(&captures, 2)), Ok(Wait::Nothing));
    add(&captures, 1, 'd').unwrap();
    let graph = end(&captures, 1).unwrap();
    let edges: Vec<_> = graph.shape().edges().map(|edge| (edge.from, edge.to)).collect();
    assert_eq!(edges, [(1, 2), (1, 3), (3, 4), (2, 4)]);
    assert!(captures.find(stream(1)).is_none() && captures.find(stream(2)).is_none());
}

#[test]
fn what_is_not_joined_or_mixes_ends_a_capture() {
    let captures = Captures::<Letters>::default();
    begin(&captures, 1, Mode::GLOBAL).unwrap();
    captures.wait(stream(2), record(&captures, 1)).unwrap();
    add(&captures, 2, 'x').unwrap();
    assert_eq!(end(&captures, 2).err(), Some(CUresult::ERROR_STREAM_CAPTURE_UNMATCHED));
    assert_eq!(end(&captures, 1).err(), Some(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED));
    begin(&captures, 1, Mode::GLOBAL).unwrap();
    captures.wait(stream(2), record(&captures, 1)).unwrap();
    add(&captures, 2, 'x').unwrap();
    assert_eq!(end(&captures, 1).err(), Some(CUresult::ERROR_STREAM_CAPTURE_UNJOINED));
    begin(&captures, 1, Mode::GLOBAL).unwrap();
    begin(&captures, 2, Mode::GLOBAL).unwrap();
    assert_eq!(begin(&captures, 2, Mode::GLOBAL), Err(CUresult::ERROR_ILLEGAL_STATE));
    let other = record(&captures, 2);
    assert_eq!(captures.wait(stream(1), other), Err(CUresult::ERROR_STREAM_CAPTURE_MERGE));
    for id in [1, 2] {
        assert_eq!(add(&captures, id, 'x'), Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED));
        assert_eq!(end(&captures, id).err(), Some(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED));
    }
    begin(&captures, 1, Mode::GLOBAL).unwrap();
    let isolation = Err(CUresult::ERROR_STREAM_CAPTURE_ISOLATION);
    assert_eq!(captures.wait(stream(1), Recorded::Outside), isolation);
    assert!(captures.abandon(stream(1)).is_some(), "its graph goes with it");
    assert_eq!(captures.wait(stream(1), Recorded::Outside), Ok(Wait::Needed));
}

#[test]
fn modes_say_which_threads_may_do_what() {
    const REFUSED: Answer = Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let captures = Captures::<Letters>::default();
    let elsewhere = || {
        std::thread::scope(|scope| scope.spawn(|| captures.refuse_unsafe_call()).join().unwrap())
    };
    for (mode, here, there) in [
        (Mode::GLOBAL, REFUSED, REFUSED),
        (Mode::THREAD_LOCAL, REFUSED, Ok(())),
        (Mode::RELAXED, Ok(()), Ok(())),
    ] {
        begin(&captures, 1, mode).unwrap();
        assert_eq!((captures.refuse_unsafe_call(), elsewhere()), (here, there), "{mode:?}");
        assert_eq!(end(&captures, 1).is_ok(), here.is_ok() && there.is_ok());
    }
    begin(&captures, 1, Mode::GLOBAL).unwrap();
    MODE.set(known_mode(Mode::RELAXED).unwrap());
    assert_eq!(captures.refuse_unsafe_call(), Ok(()));
    MODE.set(Mode::GLOBAL);
    assert!(known_mode(CUstreamCaptureMode(3)).is_err());
    assert_eq!(captures.refuse_synchronizing(1), REFUSED);
}

#[test]
fn the_legacy_stream_cannot_be_used_beside_a_captured_blocking_one() {
    let captures = Captures::<Letters>::default();
    let blocking = Stream { ordering: LegacyOrder::Blocking, ..stream(1) };
    let legacy = Stream { ordering: LegacyOrder::Itself, ..stream(0) };
    let make = || Ok(Arc::default());
    let unsupported = Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(captures.begin(legacy, Mode::RELAXED, None, make), unsupported);
    captures.begin(blocking, Mode::RELAXED, None, make).unwrap();
    let implicit = Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_eq!(captures.refuse_legacy(1, Effect::Keep), implicit);
    assert_eq!(captures.refuse_legacy(2, Effect::Invalidate), Ok(()));
    assert_eq!(captures.info(blocking).map(|info| info.status), Some(Status::ACTIVE));
    assert_eq!(captures.refuse_legacy(1, Effect::Invalidate), implicit);
    assert_eq!(captures.info(blocking).map(|info| info.status), Some(Status::INVALIDATED));
}

use crate::types::CUstreamCaptureMode;

/// As NVIDIA's driver 580 was observed: what counts is captured work, not what streams depend on.
#[test]
fn work_is_unjoined_that_no_stream_was_made_to_forget() {
    struct Fork(Captures<Letters>);
    impl Fork {
        fn work(&self, id: u64) {
            add(&self.0, id, 'w').unwrap();
        }
        fn fork(&self, from: u64, to: u64) {
            assert_eq!(self.0.wait(stream(to), record(&self.0, from)), Ok(Wait::Nothing));
        }
        fn tips(&self, id: u64) -> Tips {
            let capture = self.0.find(stream(id)).unwrap();
            capture.lock().streams[&id].tips.clone()
        }
        fn by_hand(&self, after: &[(usize, EdgeData)]) -> Tips {
            let graph = &self.0.find(stream(1)).unwrap().graph;
            vec![(graph.add_captured('h', after).unwrap(), EdgeData::default())]
        }
        fn update(&self, id: u64, change: Change, tips: Tips) {
            self.0.update(stream(id), change, tips).unwrap();
        }
    }
    type Steps = fn(&Fork);
    let cases: [(&str, Steps, bool); 14] = [
        ("work", |c| c.work(2), false),
        ("Set to a node by hand", |c| c.update(2, Change::Set, c.by_hand(&[])), true),
        ("Add a node by hand", |c| c.update(2, Change::Add, c.by_hand(&[])), true),
        ("work, Set to nothing", |c| (c.work(2), c.update(2, Change::Set, vec![])).1, true),
        (
            "Set to a node by hand, work",
            |c| (c.update(2, Change::Set, c.by_hand(&[])), c.work(2)).1,
            false,
        ),
        (
            "work, Add a node by hand",
            |c| (c.work(2), c.update(2, Change::Add, c.by_hand(&[]))).1,
            false,
        ),
        (
            "work, Set to a node by hand after it",
            |c| (c.work(2), c.update(2, Change::Set, c.by_hand(&c.tips(2)))).1,
            true,
        ),
        (
            "work, joined, Set to a node by hand after it",
            |c| (c.work(2), c.fork(2, 1), c.update(2, Change::Set, c.by_hand(&c.tips(2)))).2,
            true,
        ),
        ("work, Set to the same", |c| (c.work(2), c.update(2, Change::Set, c.tips(2))).1, true),
        (
            "work, another stream Set to it, this one Set to nothing",
            |c| {
                c.work(2);
                c.fork(1, 3);
                c.update(3, Change::Set, c.tips(2));
                c.update(2, Change::Set, vec![]);
            },
            true,
        ),
        ("work, destroyed", |c| (c.work(2), assert!(c.0.abandon(stream(2)).is_none())).1, false),
        (
            "work, forked, Set to nothing",
            |c| (c.work(2), c.fork(2, 3), c.update(2, Change::Set, vec![])).2,
            true,
        ),
        ("work, the origin Adds it", |c| (c.work(2), c.update(1, Change::Add, c.tips(2))).1, true),
        (
            "the origin's work, Set to a node by hand",
            |c| (c.work(1), c.update(1, Change::Set, c.by_hand(&[]))).1,
            true,
        ),
    ];
    for (what, steps, joined) in cases {
        let fork = Fork(Captures::default());
        begin(&fork.0, 1, Mode::RELAXED).unwrap();
        fork.work(1);
        fork.fork(1, 2);
        steps(&fork);
        let expected = if joined { None } else { Some(CUresult::ERROR_STREAM_CAPTURE_UNJOINED) };
        assert_eq!(end(&fork.0, 1).err(), expected, "{what}");
    }
}
