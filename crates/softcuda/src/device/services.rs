//! What a context offers its kernels beyond memory: console and device heap.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use super::memory::heap::Heap;
use super::memory::{Account, AddressSpace};

/// Alignment of device `malloc`, in bytes.
const MALLOC_ALIGN_BYTES: u64 = 16;
/// Console output kept before it is written without waiting for a synchronisation.
const CONSOLE_BYTES: usize = 1 << 20;

/// Services of one context; kernels hold it while they run.
#[derive(Debug)]
pub(crate) struct ContextServices {
    pub(crate) context: u64,
    pub(crate) device: u32,
    pub(crate) space: Arc<AddressSpace>,
    pub(crate) account: Arc<Account>,
    pub(crate) sm_count: u32,
    console: Mutex<Vec<u8>>,
    heap: Mutex<DeviceHeap>,
}

#[derive(Debug)]
struct DeviceHeap {
    limit_bytes: u64,
    pieces: Heap,
    is_mapped: bool,
}

impl ContextServices {
    pub(crate) fn new(
        context: u64,
        device: u32,
        space: Arc<AddressSpace>,
        account: Arc<Account>,
        sm_count: u32,
        heap_bytes: u64,
    ) -> Self {
        let heap = DeviceHeap {
            limit_bytes: heap_bytes,
            pieces: Heap::new(MALLOC_ALIGN_BYTES),
            is_mapped: false,
        };
        ContextServices {
            context,
            device,
            space,
            account,
            sm_count,
            console: Mutex::default(),
            heap: Mutex::new(heap),
        }
    }

    /// Takes text of device `printf`.
    pub(crate) fn print(&self, text: &[u8]) {
        let mut console = self.console.lock().unwrap_or_else(PoisonError::into_inner);
        console.extend_from_slice(text);
        if console.len() >= CONSOLE_BYTES {
            write_out(&mut console);
        }
    }

    /// Writes pending device output to standard output; called at synchronisation points.
    pub(crate) fn flush_console(&self) {
        write_out(&mut self.console.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sets the heap's size; `false` once a kernel has used it.
    pub(crate) fn set_heap_limit(&self, limit_bytes: u64) -> bool {
        let mut heap = self.heap.lock().unwrap_or_else(PoisonError::into_inner);
        if !heap.is_mapped {
            heap.limit_bytes = limit_bytes;
        }
        !heap.is_mapped
    }

    pub(crate) fn heap_limit_bytes(&self) -> u64 {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner).limit_bytes
    }

    /// Device `malloc`.
    pub(crate) fn malloc(&self, size_bytes: u64) -> Option<u64> {
        let mut heap = self.heap.lock().unwrap_or_else(PoisonError::into_inner);
        if !heap.is_mapped {
            let limit = heap.limit_bytes;
            let base = self.space.allocate(self.device, &self.account, self.context, limit).ok()?;
            heap.pieces.add_chunk(self.device, base, limit & !(MALLOC_ALIGN_BYTES - 1));
            heap.is_mapped = true;
        }
        heap.pieces.take(self.device, size_bytes)
    }

    /// Device `free`; `false` when nothing was allocated there.
    pub(crate) fn free(&self, address: u64) -> bool {
        let mut heap = self.heap.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = heap.limit_bytes;
        match heap.pieces.give(address) {
            None => false,
            Some(super::memory::heap::Freed::Piece) => true,
            Some(super::memory::heap::Freed::Chunk(base)) => {
                // The heap stays mapped for the context's life.
                heap.pieces.add_chunk(self.device, base, limit & !(MALLOC_ALIGN_BYTES - 1));
                true
            }
        }
    }
}

/// Through the C library's stream, so that it keeps its place among the program's own output.
fn write_out(console: &mut Vec<u8>) {
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
    }
    if console.is_empty() {
        return;
    }
    // SAFETY: `stdout` is the C library's initialised stream; the buffer is valid for its length.
    let written = unsafe { libc::fwrite(console.as_ptr().cast(), 1, console.len(), stdout) };
    if written < console.len() {
        // The program closed its standard output: nowhere to print to.
        let _ = std::io::stderr().flush();
    }
    console.clear();
}
