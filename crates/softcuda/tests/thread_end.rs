//! A thread that ends: destructors of its thread-locals still have the current context.

mod support;

use std::cell::{Cell, OnceCell};
use std::sync::mpsc::{Sender, channel};

use support::context;

/// Calls CUDA at its end.
struct AtEnd(Cell<u64>, Sender<(u32, u32)>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        let mut current = 0usize;
        let asked = cu!(cuCtxGetCurrent(&mut current => *mut usize));
        let freed = cu!(cuMemFree_v2(self.0.get() => u64));
        assert_ne!(current, 0);
        self.1.send((asked, freed)).expect("the test listens");
    }
}

thread_local! {
    static OLDER: OnceCell<AtEnd> = const { OnceCell::new() };
}

#[test]
fn a_thread_local_that_is_older_than_the_context_can_free_its_memory() {
    let (sender, results) = channel();
    std::thread::spawn(move || {
        // Older than all that the driver has in this thread: it ends later.
        OLDER.with(|older| drop(older.set(AtEnd(Cell::new(0), sender))));
        context();
        let address = support::allocate(4096);
        OLDER.with(|older| older.get().expect("set above").0.set(address));
    })
    .join()
    .expect("no panic");
    assert_eq!(results.recv().expect("sent"), (0, 0));
}
