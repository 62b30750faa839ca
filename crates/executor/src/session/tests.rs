//! What a client that has waited counts as: whoever sees that its work has ended has nothing in
//! flight at that moment, whatever the session's thread has still to do.

use super::Step;
use crate::code::module::Touch;
use crate::testbed::{Bed, CODE_WITH_VARIABLE, Client, Work, load_of, observe_words, set_work};
use link::call::CallSlots;
use link::wire::command::{
    Copy, EventCreate, EventRecord, Fill, Launch, NO_CALL, Opcode, Signal, StreamCreate,
    StreamSynchronize, StreamWriteValue,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::IntoBytes;

const DEFAULT: u32 = 0;
const BLOCKING: u32 = 1;
const OTHER: u32 = 2;
const EVENT: u32 = 1;

/// A client with two blocking streams and an event.
fn client(bed: &Bed) -> Client {
    let mut client = bed.open();
    client.post(Opcode::EventCreate, EventCreate { event: EVENT, flags: 0 }.as_bytes());
    for stream in [BLOCKING, OTHER] {
        client.post(Opcode::StreamCreate, StreamCreate { stream, ..Default::default() }.as_bytes());
    }
    assert_eq!(client.serve(), Step::Nothing);
    client
}

fn launch(client: &mut Client, stream: u32) {
    let launch = Launch { stream, grid: [1; 3], block: [1; 3], ..Default::default() };
    client.post(Opcode::Launch, launch.as_bytes());
}

fn copy(client: &mut Client, stream: u32) {
    let [destination, source] = client.session.state().memory.window_bases();
    let copy = Copy { stream, destination, source, size_bytes: 1 << 20, reserved: 0 };
    client.post(Opcode::Copy, copy.as_bytes());
}

fn signal(client: &mut Client, stream: u32, value: u64) {
    client.post(Opcode::Signal, Signal { stream, value, reserved: 0 }.as_bytes());
}

/// Posts a record of the event, which says that it is reached as a signal does.
fn record(client: &mut Client, stream: u32, value: u64) {
    client.post(Opcode::EventRecord, EventRecord { event: EVENT, stream, value }.as_bytes());
}

/// Whether it had work in flight, for whoever takes over, when the last signal was seen.
fn when_seen(client: &mut Client) -> Rc<Cell<Option<bool>>> {
    let seen = Rc::<Cell<Option<bool>>>::default();
    let (state, sees) = (client.session.state(), Rc::clone(&seen));
    let (standing, handle) = (state.standing.clone(), Arc::clone(&state.handle));
    observe_words(move || {
        sees.set(Some(standing.in_flight(|slot| handle.words.completed(slot))));
    });
    seen
}

/// Does what `post` posts; says whether its client had work in flight when the last signal of that
/// was seen.
fn flies_when_seen(post: impl FnOnce(&mut Client)) -> Option<bool> {
    let bed = Bed::new();
    let mut client = client(&bed);
    client.some_memory();
    let seen = when_seen(&mut client);
    post(&mut client);
    assert_eq!(client.serve(), Step::Nothing);
    assert_eq!(client.session.state().handle.memory.error(), 0);
    seen.get()
}

#[test]
fn who_has_waited_for_a_stream_has_nothing_in_flight() {
    for stream in [DEFAULT, BLOCKING] {
        let waited = flies_when_seen(|client| {
            launch(client, stream);
            copy(client, stream);
            signal(client, stream, 1);
        });
        assert_eq!(waited, Some(false), "stream {stream}");
    }
    let other = flies_when_seen(|client| {
        launch(client, OTHER);
        launch(client, BLOCKING);
        signal(client, BLOCKING, 1);
    });
    assert_eq!(other, Some(true), "it has not waited for the other stream");
}

#[test]
fn who_has_waited_for_the_default_stream_has_waited_for_its_blocking_ones() {
    let copied = flies_when_seen(|client| {
        launch(client, BLOCKING);
        launch(client, OTHER);
        copy(client, DEFAULT);
        signal(client, DEFAULT, 1);
    });
    assert_eq!(copied, Some(false), "by a copy");
    let signalled = flies_when_seen(|client| {
        launch(client, BLOCKING);
        signal(client, DEFAULT, 7);
    });
    assert_eq!(signalled, Some(false), "by nothing else");
    let recorded = flies_when_seen(|client| {
        launch(client, BLOCKING);
        record(client, DEFAULT, 1);
    });
    assert_eq!(recorded, Some(false), "by an event");
    let later = flies_when_seen(|client| {
        launch(client, BLOCKING);
        copy(client, DEFAULT);
        launch(client, BLOCKING);
        signal(client, DEFAULT, 1);
        signal(client, BLOCKING, 1);
        launch(client, BLOCKING);
        copy(client, DEFAULT);
        launch(client, OTHER);
        signal(client, BLOCKING, 2);
    });
    assert_eq!(later, Some(true), "what came behind the copy");
}

#[test]
fn who_has_waited_for_a_blocking_stream_has_waited_for_what_the_default_one_had_before() {
    let fill = |client: &mut Client| {
        let [destination, _] = client.session.state().memory.window_bases();
        let (width, height) = (64, 1);
        let fill = Fill { element_bytes: 1, destination, width, height, ..Default::default() };
        client.post(Opcode::Fill, fill.as_bytes());
    };
    let filled = flies_when_seen(|client| {
        fill(client);
        launch(client, BLOCKING);
        signal(client, BLOCKING, 1);
    });
    assert_eq!(filled, Some(false));
    let through = flies_when_seen(|client| {
        launch(client, OTHER);
        fill(client);
        launch(client, BLOCKING);
        signal(client, BLOCKING, 1);
    });
    assert_eq!(through, Some(false), "the fill waits for the other stream");
    let later = flies_when_seen(|client| {
        fill(client);
        launch(client, BLOCKING);
        fill(client);
        signal(client, BLOCKING, 1);
    });
    assert_eq!(later, Some(true), "the second fill");
}

#[test]
fn who_has_waited_behind_a_value_has_nothing_in_flight() {
    for ends in [signal, record] {
        let word: &'static AtomicU64 = Box::leak(Box::default());
        let address = word.as_ptr().expose_provenance() as u64;
        let bed = Bed::new();
        let mut client = client(&bed);
        let memory = &mut client.session.state().memory;
        assert!(memory.addressable.insert(address, 8) && memory.readable.insert(address, 8));
        let seen = when_seen(&mut client);
        let wait =
            StreamWriteValue { value_bytes: 8, address, value: 1, flags: 1, ..Default::default() };
        client.post(Opcode::StreamWaitValue, wait.as_bytes());
        launch(&mut client, DEFAULT);
        ends(&mut client, DEFAULT, 1);
        assert_eq!(client.serve(), Step::Nothing);
        let state = client.session.state();
        assert!(state.standing.in_flight(|slot| state.handle.words.completed(slot)), "it is held");
        assert_eq!(seen.get(), None);
        word.store(1, Ordering::Relaxed);
        assert_eq!(client.serve(), Step::Nothing);
        assert_eq!(seen.get(), Some(false));
        let state = client.session.state();
        assert!(!state.standing.in_flight(|slot| state.handle.words.completed(slot)));
    }
}

#[test]
fn who_was_told_that_a_stream_has_ended_has_nothing_in_flight() {
    let bed = Bed::new();
    let mut client = client(&bed);
    let state = client.session.state();
    let (standing, handle) = (state.standing.clone(), Arc::clone(&state.handle));
    let slots = CallSlots::new(Arc::clone(&handle.memory));
    let call = slots.claim().unwrap();
    assert_ne!(call.slot(), NO_CALL);
    launch(&mut client, DEFAULT);
    let wanted = StreamSynchronize { stream: DEFAULT, reserved: 0 };
    client.post_call(Opcode::StreamSynchronize, call.slot(), wanted.as_bytes());
    assert_eq!(client.serve(), Step::Nothing);
    let flies = || standing.in_flight(|slot| handle.words.completed(slot));
    assert!(flies(), "it has no answer");
    client.session.answer_awaited().unwrap();
    assert!(!flies());
    call.cancel_unposted();
}

#[test]
fn variables_that_could_not_be_saved_are_tried_again() {
    let bed = Bed::new();
    let mut client = client(&bed);
    let state = client.session.state();
    state.load_image(load_of(1, CODE_WITH_VARIABLE), CODE_WITH_VARIABLE.to_vec(), None).unwrap();
    state.note_work();
    state.touch_variables(Touch::All);
    set_work(Work::Lasts);
    state.look_whether_idle();
    assert!(state.standing.has_unsaved(), "the copy does not end");
    set_work(Work::EndsAtOnce);
    state.look_whether_idle();
    assert!(!state.standing.has_unsaved());
}
