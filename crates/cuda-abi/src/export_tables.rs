//! The tables that libraries get from `cuGetExportTable`.
//!
//! libcudart, cuBLAS and cuFFT work only with a driver that has them. They are undocumented; which
//! slots are used and what they must answer was learned by running unmodified libraries against
//! test drivers. A table is an array of words: its size in bytes, then functions (the context
//! storage has no size). Slots that nobody was seen to call answer `CUDA_ERROR_NOT_SUPPORTED`.
//!
//! A driver library implements [`Driver`] and has one `static TABLES: Tables = Tables::new::<D>()`;
//! their addresses enter the [`handshake`](crate::handshake), so there must be only one.

use core::cell::UnsafeCell;
use core::ffi::{c_uint, c_void};
use core::ptr;

use crate::boundary::guard;
use crate::context_storage::{ContextStorage, Destructor};
use crate::handshake::{self, DeviceIdentity, Request};
use crate::types::{CUcontext, CUdevice, CUfunction, CUmodule, CUresult, CUstream, CUuuid};

/// What the tables need of a driver library. Calls may come before `cuInit` and on any thread.
pub trait Driver: 'static {
    /// The library's only tables.
    fn tables() -> &'static Tables;
    /// Its values per context.
    fn context_storage() -> &'static ContextStorage;
    /// Whether `cuInit` has succeeded in this process.
    fn initialized() -> bool;
    /// What `cuDriverGetVersion` tells.
    fn driver_version() -> u32;
    /// All visible devices by ordinal, with the very values that the public functions tell.
    fn device_identities() -> Result<Vec<DeviceIdentity>, CUresult>;
    /// The handle of the device's primary context, whether or not it is active; it is not made
    /// current. The same handle that `cuDevicePrimaryCtxRetain` gives.
    fn primary_context(device: CUdevice) -> Result<CUcontext, CUresult>;
    /// The calling thread's current context, or null.
    fn current_context() -> CUcontext;
    /// What `cuCtxGetId` tells of a context.
    fn context_id(context: CUcontext) -> Result<u64, CUresult>;
    /// What `cuStreamGetId` tells of a stream of the current context.
    fn stream_id(stream: CUstream) -> Result<u64, CUresult>;
    /// Loads an image (fatbin wrapper, fatbin or other) into the current context.
    ///
    /// # Safety
    /// `image` points to an image, as for `cuModuleLoadData`.
    unsafe fn load_module(image: *const c_void) -> Result<CUmodule, CUresult>;
    /// The functions of a module.
    fn module_functions(module: CUmodule) -> Result<Vec<CUfunction>, CUresult>;
}

/// A word of a table: a size or the address of a function.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Word(*const c_void);

// SAFETY: an address of code or a number; never written through.
unsafe impl Sync for Word {}

/// Memory that is lent to other libraries for good.
#[repr(transparent)]
struct Lent<const SIZE: usize>(UnsafeCell<[u8; SIZE]>);

// SAFETY: this crate hands out the address only and never reads or writes the bytes.
unsafe impl<const SIZE: usize> Sync for Lent<SIZE> {}

const NULL_WORD: Word = Word(ptr::null());

/// All export tables of a driver library.
pub struct Tables {
    cudart_interface: [Word; 13],
    callback_hooks: [Word; 7],
    tools_tls: [Word; 3],
    context_local_storage: [Word; 4],
    integrity_check: [Word; 3],
    context_checks: [Word; 5],
    tools_context: [Word; 88],
    tools_module: [Word; 93],
    unnamed_1734dc26: [Word; 16],
    hook_flags: Lent<1024>,
    hook_state: Lent<14>,
}

impl Tables {
    /// The tables of driver library `D`.
    pub const fn new<D: Driver>() -> Self {
        Self {
            cudart_interface: table([
                (1, cudart_load_wrapper::<D> as *const c_void),
                (2, cudart_primary_context::<D> as *const c_void),
                (6, cudart_load_module::<D> as *const c_void),
                (7, cudart_unregister as *const c_void),
                (8, cudart_load_fatbin::<D> as *const c_void),
                (12, succeed as *const c_void),
            ]),
            callback_hooks: table([
                (2, hooks_flags::<D> as *const c_void),
                (6, hooks_state::<D> as *const c_void),
            ]),
            tools_tls: table([(2, tls_current::<D> as *const c_void)]),
            context_local_storage: [
                Word(storage_set::<D> as *const c_void),
                Word(storage_delete::<D> as *const c_void),
                Word(storage_get::<D> as *const c_void),
                NULL_WORD,
            ],
            integrity_check: table([(1, integrity_answer::<D> as *const c_void)]),
            context_checks: table([
                (2, check_context as *const c_void),
                (3, succeed as *const c_void),
            ]),
            tools_context: table([
                (4, tools_context_id::<D> as *const c_void),
                (39, tools_stream_id as *const c_void),
                (51, tools_stream::<D> as *const c_void),
            ]),
            tools_module: table([(7, tools_module_functions::<D> as *const c_void)]),
            unnamed_1734dc26: table([]),
            hook_flags: Lent(UnsafeCell::new([0; 1024])),
            hook_state: Lent(UnsafeCell::new([0; 14])),
        }
    }

    /// The table with this identifier, if there is one.
    pub fn find(&self, uuid: &[u8; 16]) -> Option<*const c_void> {
        let table: &[Word] = match u128::from_be_bytes(*uuid) {
            0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9 => &self.cudart_interface,
            0xa094798c_2e74_2e74_93f2_0800200c0a66 => &self.callback_hooks,
            0x42d85a81_23f6_cb47_8298_f6e78a3aecdc => &self.tools_tls,
            0xc693336e_1121_df11_a8c3_68f355d89593 => &self.context_local_storage,
            0xd4082055_bde6_704b_8d34_ba123c66e1f2 => &self.integrity_check,
            0x263e8860_7cd2_6143_92f6_bbd5006dfa7e => &self.context_checks,
            0x21318c60_9714_3248_8ca6_41ff7324c8f2 => &self.tools_context,
            0x6e163fbe_b958_444d_835c_e182aff1991e => &self.tools_module,
            0x1734dc26_800d_4745_8726_c0f1e7dd8bca => &self.unnamed_1734dc26,
            // Among them f8cff951-..., which drivers refuse and cuDNN misbehaves with.
            _ => return None,
        };
        Some(table.as_ptr().cast())
    }

    /// Answers `cuGetExportTable`: an unknown table is `CUDA_ERROR_INVALID_VALUE` and null.
    ///
    /// # Safety
    /// Both pointers are null or valid.
    pub unsafe fn get(&self, out: *mut *const c_void, uuid: *const CUuuid) -> CUresult {
        if out.is_null() || uuid.is_null() {
            return CUresult::ERROR_INVALID_VALUE;
        }
        // SAFETY: valid by the caller's promise; the identifier is 16 bytes of any alignment.
        let uuid = unsafe { uuid.cast::<[u8; 16]>().read() };
        let found = self.find(&uuid);
        // SAFETY: valid by the caller's promise.
        unsafe { out.write(found.unwrap_or(ptr::null())) };
        if found.is_some() { CUresult::SUCCESS } else { CUresult::ERROR_INVALID_VALUE }
    }
}

/// A table with a size word, the given functions, and refusal everywhere else.
const fn table<const WORDS: usize, const USED: usize>(
    used: [(usize, *const c_void); USED],
) -> [Word; WORDS] {
    let mut words = [Word(refuse as *const c_void); WORDS];
    words[0] = size_word(WORDS);
    let mut i = 0;
    while i < USED {
        words[used[i].0] = Word(used[i].1);
        i += 1;
    }
    words
}

const fn size_word(words: usize) -> Word {
    Word(ptr::without_provenance(words * size_of::<Word>()))
}

/// Stores a result through a pointer that may be null.
///
/// # Safety
/// `out` is null or valid for a write.
unsafe fn store<T>(out: *mut T, value: Result<T, CUresult>) -> CUresult {
    match value {
        _ if out.is_null() => CUresult::ERROR_INVALID_VALUE,
        Ok(value) => {
            // SAFETY: not null, hence valid.
            unsafe { out.write(value) };
            CUresult::SUCCESS
        }
        Err(error) => error,
    }
}

/// `context`, or the current one in place of null.
fn or_current<D: Driver>(context: CUcontext) -> Result<CUcontext, CUresult> {
    let context = if context.is_null() { D::current_context() } else { context };
    if context.is_null() { Err(CUresult::ERROR_INVALID_CONTEXT) } else { Ok(context) }
}

// The slots. All are called by foreign code with the C convention; where a slot that takes
// arguments is served by a function without, the caller cleans up its own arguments.

unsafe extern "C" fn refuse() -> CUresult {
    CUresult::ERROR_NOT_SUPPORTED
}

unsafe extern "C" fn succeed() -> CUresult {
    CUresult::SUCCESS
}

unsafe extern "C" fn cudart_load_wrapper<D: Driver>(
    out: *mut CUmodule,
    wrapper: *const c_void,
) -> CUresult {
    // SAFETY: the caller's pointers, as for `cuModuleLoadData`.
    guard(|| unsafe { load_into::<D>(out, wrapper) })
}

unsafe extern "C" fn cudart_primary_context<D: Driver>(
    out: *mut CUcontext,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the caller's pointer.
    guard(|| unsafe { store(out, D::primary_context(device)) })
}

unsafe extern "C" fn cudart_load_module<D: Driver>(
    out: *mut CUmodule,
    wrapper: *const c_void,
    _reserved1: *mut c_void,
    _reserved2: *mut c_void,
    _reserved3: c_uint,
) -> CUresult {
    // SAFETY: the caller's pointers, as for `cuModuleLoadData`.
    guard(|| unsafe { load_into::<D>(out, wrapper) })
}

unsafe extern "C" fn cudart_load_fatbin<D: Driver>(
    fatbin: *const c_void,
    out: *mut CUmodule,
    _reserved1: *mut c_void,
    _reserved2: *mut c_void,
    _reserved3: c_uint,
) -> CUresult {
    // SAFETY: the caller's pointers, as for `cuModuleLoadData`.
    guard(|| unsafe { load_into::<D>(out, fatbin) })
}

/// # Safety
/// `out` is null or valid; `image` is null or points to an image.
unsafe fn load_into<D: Driver>(out: *mut CUmodule, image: *const c_void) -> CUresult {
    if out.is_null() || image.is_null() {
        return CUresult::ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { store(out, D::load_module(image)) }
}

/// The runtime tells that an image goes away; its module is unloaded separately.
unsafe extern "C" fn cudart_unregister(_wrapper: *const c_void) -> CUresult {
    CUresult::SUCCESS
}

unsafe extern "C" fn hooks_flags<D: Driver>(
    buffer: *mut *mut c_void,
    size_bytes: *mut usize,
) -> CUresult {
    // SAFETY: the caller's pointers.
    guard(|| unsafe { lend(&D::tables().hook_flags, buffer, size_bytes) })
}

unsafe extern "C" fn hooks_state<D: Driver>(
    buffer: *mut *mut c_void,
    size_bytes: *mut usize,
) -> CUresult {
    // SAFETY: the caller's pointers.
    guard(|| unsafe { lend(&D::tables().hook_state, buffer, size_bytes) })
}

/// # Safety
/// The pointers are null or valid.
unsafe fn lend<const SIZE: usize>(
    memory: &'static Lent<SIZE>,
    buffer: *mut *mut c_void,
    size_bytes: *mut usize,
) -> CUresult {
    if buffer.is_null() || size_bytes.is_null() {
        return CUresult::ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, hence valid.
    unsafe {
        buffer.write(memory.0.get().cast());
        size_bytes.write(SIZE);
    }
    CUresult::SUCCESS
}

unsafe extern "C" fn tls_current<D: Driver>(out: *mut CUcontext) -> CUresult {
    // SAFETY: the caller's pointer.
    guard(|| unsafe { store(out, Ok(D::current_context())) })
}

unsafe extern "C" fn storage_set<D: Driver>(
    context: CUcontext,
    key: *mut c_void,
    value: *mut c_void,
    destructor: Destructor,
) -> CUresult {
    guard(|| match or_current::<D>(context) {
        Ok(context) => {
            D::context_storage().set(context, key, value, destructor);
            CUresult::SUCCESS
        }
        Err(error) => error,
    })
}

unsafe extern "C" fn storage_delete<D: Driver>(context: CUcontext, key: *mut c_void) -> CUresult {
    guard(|| or_current::<D>(context).and_then(|c| D::context_storage().delete(c, key)).into())
}

unsafe extern "C" fn storage_get<D: Driver>(
    out: *mut *mut c_void,
    context: CUcontext,
    key: *mut c_void,
) -> CUresult {
    guard(|| {
        let value = or_current::<D>(context).and_then(|c| D::context_storage().get(c, key));
        // SAFETY: the caller's pointer.
        unsafe { store(out, value) }
    })
}

unsafe extern "C" {
    safe fn pthread_self() -> usize;
}

unsafe extern "C" fn integrity_answer<D: Driver>(
    version: u32,
    unix_seconds: u64,
    out: *mut [u8; 16],
) -> CUresult {
    guard(|| {
        if out.is_null() {
            return CUresult::ERROR_INVALID_VALUE;
        }
        if !D::initialized() {
            return CUresult::ERROR_NOT_INITIALIZED;
        }
        let tables = D::tables();
        let request = Request {
            driver_version: D::driver_version(),
            version,
            pid: std::process::id(),
            pthread_self: pthread_self() as u64,
            cudart_table: tables.cudart_interface.as_ptr() as u64,
            integrity_table: tables.integrity_check.as_ptr() as u64,
            slot1: tables.integrity_check[1].0 as u64,
            unix_seconds,
        };
        let answer = D::device_identities().map(|devices| handshake::answer(&request, &devices));
        // SAFETY: the caller's pointer to 16 bytes.
        unsafe { store(out, answer) }
    })
}

unsafe extern "C" fn check_context(
    _context: CUcontext,
    state: *mut u32,
    detail: *mut *mut c_void,
) -> CUresult {
    guard(|| {
        if !state.is_null() {
            // SAFETY: not null, hence valid by the caller's promise.
            unsafe { state.write(0) };
        }
        if !detail.is_null() {
            // SAFETY: as above.
            unsafe { detail.write(ptr::null_mut()) };
        }
        CUresult::SUCCESS
    })
}

/// 0 on a thread without a context, as observed on an H200: cuBLAS asks there before it makes one
/// current.
unsafe extern "C" fn tools_context_id<D: Driver>(context: CUcontext, out: *mut u64) -> CUresult {
    let id = || or_current::<D>(context).map_or(Ok(0), D::context_id);
    // SAFETY: the caller's pointer.
    guard(|| unsafe { store(out, id()) })
}

/// The driver's own object of a stream. cuBLAS asks for it where it keeps its workspace by context
/// and stream, and then only for the object's identity ([`tools_stream_id`]); so it is that, and
/// never null. The context may be, on a thread that has none.
unsafe extern "C" fn tools_stream<D: Driver>(
    _context: CUcontext,
    stream: CUstream,
    out: *mut u64,
    per_thread: u32,
) -> CUresult {
    let stream = if stream.is_null() && per_thread != 0 { CUstream::PER_THREAD } else { stream };
    let object = || D::stream_id(stream)?.checked_add(1).ok_or(CUresult::ERROR_INVALID_HANDLE);
    // SAFETY: the caller's pointer.
    guard(|| unsafe { store(out, object()) })
}

/// The identity of a stream's object.
unsafe extern "C" fn tools_stream_id(_context: CUcontext, object: u64, out: *mut u64) -> CUresult {
    let identity = object.checked_sub(1).ok_or(CUresult::ERROR_INVALID_VALUE);
    // SAFETY: the caller's pointer.
    guard(|| unsafe { store(out, identity) })
}

/// Called for each function of a module.
type FunctionVisitor = Option<unsafe extern "C" fn(*mut c_void, CUfunction, CUmodule)>;

unsafe extern "C" fn tools_module_functions<D: Driver>(
    _context: CUcontext,
    module: CUmodule,
    visit: FunctionVisitor,
    user: *mut c_void,
) -> CUresult {
    guard(|| {
        let Some(visit) = visit else { return CUresult::ERROR_INVALID_VALUE };
        match D::module_functions(module) {
            Ok(functions) => {
                for function in functions {
                    // SAFETY: the caller's own function, with the argument that it asked for.
                    unsafe { visit(user, function, module) };
                }
                // cuFFT goes on only when the answer is 1.
                CUresult(1)
            }
            Err(error) => error,
        }
    })
}

#[cfg(test)]
mod tests;
