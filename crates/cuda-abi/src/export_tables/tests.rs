//! The tables as a foreign library uses them: by address, slot number and C prototype.

use super::*;

struct Fake;

static TABLES: Tables = Tables::new::<Fake>();
static STORAGE: ContextStorage = ContextStorage::new();

const DEVICE: DeviceIdentity =
    DeviceIdentity { uuid: [7; 16], pci_domain: 0x10000, pci_bus: 3, pci_device: 1 };

thread_local! {
    static CURRENT: std::cell::Cell<CUcontext> = const { std::cell::Cell::new(CUcontext::NULL) };
    static INITIALIZED: std::cell::Cell<bool> = const { std::cell::Cell::new(true) };
}

impl Driver for Fake {
    fn tables() -> &'static Tables {
        &TABLES
    }
    fn context_storage() -> &'static ContextStorage {
        &STORAGE
    }
    fn initialized() -> bool {
        INITIALIZED.get()
    }
    fn driver_version() -> u32 {
        13000
    }
    fn device_identities() -> Result<Vec<DeviceIdentity>, CUresult> {
        Ok(vec![DEVICE])
    }
    fn primary_context(device: CUdevice) -> Result<CUcontext, CUresult> {
        if device == 0 { Ok(CUcontext(0x100)) } else { Err(CUresult::ERROR_INVALID_DEVICE) }
    }
    fn current_context() -> CUcontext {
        CURRENT.get()
    }
    fn context_id(context: CUcontext) -> Result<u64, CUresult> {
        Ok(context.0 as u64 + 1)
    }
    fn stream_id(stream: CUstream) -> Result<u64, CUresult> {
        if stream.is_null() { Ok(7) } else { Ok(stream.0 as u64) }
    }
    unsafe fn load_module(image: *const c_void) -> Result<CUmodule, CUresult> {
        if image as usize == 0xdead {
            panic!("on purpose")
        }
        Ok(CUmodule(image as usize))
    }
    fn module_functions(module: CUmodule) -> Result<Vec<CUfunction>, CUresult> {
        Ok(vec![CUfunction(module.0 + 1), CUfunction(module.0 + 2)])
    }
}

fn uuid(text: &str) -> CUuuid {
    let number = u128::from_str_radix(&text.replace('-', ""), 16).unwrap();
    CUuuid { bytes: number.to_be_bytes().map(|byte| byte as _) }
}

fn get(text: &str) -> Option<*const usize> {
    let mut out = ptr::dangling();
    // SAFETY: both pointers are valid.
    match unsafe { TABLES.get(&mut out, &uuid(text)) } {
        CUresult::SUCCESS => Some(out.cast()),
        error => {
            assert_eq!(error, CUresult::ERROR_INVALID_VALUE);
            assert!(out.is_null());
            None
        }
    }
}

/// Word `index` of a table.
fn word(table: *const usize, index: usize) -> usize {
    // SAFETY: the tests ask for words inside the tables' sizes.
    unsafe { *table.add(index) }
}

/// Slot `index` of a table as a function of type `F`.
fn slot<F: Copy>(table: *const usize, index: usize) -> F {
    assert_eq!(size_of::<F>(), size_of::<usize>());
    let address = word(table, index);
    assert_ne!(address, 0);
    // SAFETY: the test names the prototype of the slot.
    unsafe { core::mem::transmute_copy(&address) }
}

const CUDART: &str = "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9";
const HOOKS: &str = "a094798c-2e74-2e74-93f2-0800200c0a66";
const TLS: &str = "42d85a81-23f6-cb47-8298-f6e78a3aecdc";
const STORAGE_TABLE: &str = "c693336e-1121-df11-a8c3-68f355d89593";
const INTEGRITY: &str = "d4082055-bde6-704b-8d34-ba123c66e1f2";
const CHECKS: &str = "263e8860-7cd2-6143-92f6-bbd5006dfa7e";
const TOOLS_CONTEXT: &str = "21318c60-9714-3248-8ca6-41ff7324c8f2";
const TOOLS_MODULE: &str = "6e163fbe-b958-444d-835c-e182aff1991e";
const UNNAMED: &str = "1734dc26-800d-4745-8726-c0f1e7dd8bca";

#[test]
fn sizes_are_announced_and_no_slot_is_null() {
    let sizes = [
        (CUDART, 0x68),
        (HOOKS, 0x38),
        (TLS, 0x18),
        (INTEGRITY, 0x18),
        (CHECKS, 0x28),
        (TOOLS_CONTEXT, 0x2c0),
        (TOOLS_MODULE, 0x2e8),
        (UNNAMED, 0x80),
    ];
    for (name, size_bytes) in sizes {
        let table = get(name).unwrap();
        assert_eq!(word(table, 0), size_bytes, "{name}");
        assert!((1..size_bytes / 8).all(|index| word(table, index) != 0), "{name}");
        assert_eq!(get(name), Some(table));
    }
    let table = get(STORAGE_TABLE).unwrap();
    assert!((0..3).all(|index| word(table, index) != 0));
    assert_eq!(word(table, 3), 0);
}

#[test]
fn a_streams_object_tells_its_identity() {
    let table = get(TOOLS_CONTEXT).unwrap();
    // SAFETY: the slots' types, as documented there.
    let (object_of, identity_of) = unsafe {
        (
            core::mem::transmute::<
                usize,
                unsafe extern "C" fn(CUcontext, CUstream, *mut u64, u32) -> CUresult,
            >(word(table, 51)),
            core::mem::transmute::<usize, unsafe extern "C" fn(CUcontext, u64, *mut u64) -> CUresult>(
                word(table, 39),
            ),
        )
    };
    let identity = |stream, per_thread| {
        let (mut object, mut identity) = (0, 0);
        // SAFETY: places of our own.
        unsafe {
            let context = CUcontext(0x100);
            assert_eq!(object_of(context, stream, &mut object, per_thread), CUresult::SUCCESS);
            assert_ne!(object, 0);
            assert_eq!(identity_of(context, object, &mut identity), CUresult::SUCCESS);
            assert_eq!(identity_of(context, 0, &mut 0), CUresult::ERROR_INVALID_VALUE);
        }
        identity
    };
    assert_eq!(identity(CUstream::NULL, 0), 7);
    assert_eq!(identity(CUstream::NULL, 1), CUstream::PER_THREAD.0 as u64);
    assert_eq!(identity(CUstream(0x500), 0), 0x500);
    // A thread without a context knows its streams, too.
    let (mut object, mut number) = (0, 0);
    // SAFETY: places of our own.
    unsafe {
        CURRENT.set(CUcontext::NULL);
        let none = CUcontext::NULL;
        assert_eq!(object_of(none, CUstream(0x500), &mut object, 0), CUresult::SUCCESS);
        assert_eq!(identity_of(none, object, &mut number), CUresult::SUCCESS);
    }
    assert_eq!(number, 0x500);
}

#[test]
fn unknown_and_refused_tables_are_invalid_values() {
    assert_eq!(get("f8cff951-2146-8b4e-b9e2-fb469e7c0dd9"), None);
    assert_eq!(get("da9151d3-3ae6-cc41-a5c0-4f26d533e328"), None);
    assert_eq!(get("00000000-0000-0000-0000-000000000000"), None);
    // SAFETY: null is allowed.
    let result = unsafe { TABLES.get(ptr::null_mut(), &uuid(CUDART)) };
    assert_eq!(result, CUresult::ERROR_INVALID_VALUE);
}

#[test]
fn unused_slots_are_not_supported() {
    let refuse: unsafe extern "C" fn() -> CUresult = slot(get(UNNAMED).unwrap(), 4);
    // SAFETY: takes nothing.
    assert_eq!(unsafe { refuse() }, CUresult::ERROR_NOT_SUPPORTED);
}

#[test]
fn cudart_interface() {
    let table = get(CUDART).unwrap();
    let primary: unsafe extern "C" fn(*mut CUcontext, CUdevice) -> CUresult = slot(table, 2);
    let load: unsafe extern "C" fn(*mut CUmodule, usize, usize, usize, u32) -> CUresult =
        slot(table, 6);
    let preload: unsafe extern "C" fn() -> CUresult = slot(table, 12);
    let (mut context, mut module) = (CUcontext::NULL, CUmodule::NULL);
    // SAFETY: valid out pointers; the fake looks at no image.
    unsafe {
        assert_eq!(primary(&mut context, 0), CUresult::SUCCESS);
        assert_eq!(context, CUcontext(0x100));
        assert_eq!(primary(&mut context, 1), CUresult::ERROR_INVALID_DEVICE);
        assert_eq!(load(&mut module, 0x500, 0, 0, 0), CUresult::SUCCESS);
        assert_eq!(module, CUmodule(0x500));
        assert_eq!(load(&mut module, 0, 0, 0, 0), CUresult::ERROR_INVALID_VALUE);
        assert_eq!(load(&mut module, 0xdead, 0, 0, 0), CUresult::ERROR_UNKNOWN);
        assert_eq!(preload(), CUresult::SUCCESS);
    }
}

#[test]
fn hooks_lend_zeroed_buffers_of_the_sizes_that_runtimes_need() {
    let table = get(HOOKS).unwrap();
    for (index, expected) in [(2, 1024), (6, 14)] {
        let lend: unsafe extern "C" fn(*mut *mut c_void, *mut usize) -> CUresult =
            slot(table, index);
        let (mut buffer, mut size_bytes) = (ptr::null_mut(), 0);
        // SAFETY: valid out pointers; the buffer is as long as announced.
        unsafe {
            assert_eq!(lend(&mut buffer, &mut size_bytes), CUresult::SUCCESS);
            assert_eq!(size_bytes, expected);
            let bytes = core::slice::from_raw_parts(buffer.cast::<u8>(), size_bytes);
            assert!(bytes.iter().all(|byte| *byte == 0));
            assert_eq!(lend(&mut buffer, ptr::null_mut()), CUresult::ERROR_INVALID_VALUE);
        }
    }
}

#[test]
fn context_storage_takes_null_for_the_current_context() {
    type Set = unsafe extern "C" fn(CUcontext, usize, usize, Destructor) -> CUresult;
    type Delete = unsafe extern "C" fn(CUcontext, usize) -> CUresult;
    type Get = unsafe extern "C" fn(*mut usize, CUcontext, usize) -> CUresult;
    let table = get(STORAGE_TABLE).unwrap();
    let (set, delete, get): (Set, Delete, Get) = (slot(table, 0), slot(table, 1), slot(table, 2));
    let context = CUcontext(0x9000);
    let mut value = 0;
    // SAFETY: valid out pointers.
    unsafe {
        assert_eq!(get(&mut value, CUcontext::NULL, 5), CUresult::ERROR_INVALID_CONTEXT);
        CURRENT.set(context);
        assert_eq!(set(CUcontext::NULL, 5, 50, None), CUresult::SUCCESS);
        assert_eq!(get(&mut value, context, 5), CUresult::SUCCESS);
        assert_eq!(value, 50);
        assert_eq!(delete(context, 5), CUresult::SUCCESS);
        assert_eq!(get(&mut value, CUcontext::NULL, 5), CUresult::ERROR_INVALID_VALUE);
    }
}

#[test]
fn integrity_answers_hash_this_process_and_thread() {
    let table = get(INTEGRITY).unwrap();
    let ask: unsafe extern "C" fn(u32, u64, *mut [u8; 16]) -> CUresult = slot(table, 1);
    let request = |version| Request {
        driver_version: 13000,
        version,
        pid: std::process::id(),
        pthread_self: pthread_self() as u64,
        cudart_table: get(CUDART).unwrap() as u64,
        integrity_table: table as u64,
        slot1: word(table, 1) as u64,
        unix_seconds: 1_700_000_000,
    };
    let mut out = [0; 16];
    for version in [12090, 12091, 12092] {
        // SAFETY: a valid out pointer.
        assert_eq!(unsafe { ask(version, 1_700_000_000, &mut out) }, CUresult::SUCCESS);
        assert_eq!(out, handshake::answer(&request(version), &[DEVICE]));
    }
    INITIALIZED.set(false);
    let mut untouched = [1; 16];
    // SAFETY: a valid out pointer, or null, which is refused.
    unsafe {
        assert_eq!(ask(12090, 0, &mut untouched), CUresult::ERROR_NOT_INITIALIZED);
        assert_eq!(ask(12090, 0, ptr::null_mut()), CUresult::ERROR_INVALID_VALUE);
    }
    assert_eq!(untouched, [1; 16]);
}

#[test]
fn tools_tables() {
    let current: unsafe extern "C" fn(*mut CUcontext) -> CUresult = slot(get(TLS).unwrap(), 2);
    let id: unsafe extern "C" fn(CUcontext, *mut u64) -> CUresult =
        slot(get(TOOLS_CONTEXT).unwrap(), 4);
    let check: unsafe extern "C" fn(CUcontext, *mut u32, *mut usize) -> CUresult =
        slot(get(CHECKS).unwrap(), 2);
    type Visit = unsafe extern "C" fn(&mut Vec<(usize, usize)>, CUfunction, CUmodule);
    let functions: unsafe extern "C" fn(
        CUcontext,
        CUmodule,
        Visit,
        &mut Vec<(usize, usize)>,
    ) -> CUresult = slot(get(TOOLS_MODULE).unwrap(), 7);
    unsafe extern "C" fn note(seen: &mut Vec<(usize, usize)>, f: CUfunction, m: CUmodule) {
        seen.push((f.0, m.0));
    }
    let (mut context, mut number, mut state, mut detail) = (CUcontext::NULL, 9, 9, 9);
    let mut seen = Vec::new();
    // SAFETY: valid out pointers, and a visitor of the expected prototype.
    unsafe {
        CURRENT.set(CUcontext::NULL);
        assert_eq!(id(CUcontext::NULL, &mut number), CUresult::SUCCESS);
        assert_eq!(number, 0, "a thread without a context");
        CURRENT.set(CUcontext(0x77));
        assert_eq!(current(&mut context), CUresult::SUCCESS);
        assert_eq!(context, CUcontext(0x77));
        assert_eq!(id(CUcontext::NULL, &mut number), CUresult::SUCCESS);
        assert_eq!(number, 0x78);
        assert_eq!(check(context, &mut state, &mut detail), CUresult::SUCCESS);
        assert_eq!((state, detail), (0, 0));
        assert_eq!(functions(context, CUmodule(0x10), note, &mut seen), CUresult(1));
    }
    assert_eq!(seen, [(0x11, 0x10), (0x12, 0x10)]);
}
