//! The built driver library as a program sees it: opened with dlopen, called through its exported
//! symbols.

#![allow(dead_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

/// A driver function of the library, by symbol.
#[macro_export]
macro_rules! cu {
    ($name:ident($($arg:expr => $ty:ty),* $(,)?)) => {{
        let symbol = concat!(stringify!($name), "\0");
        let function: unsafe extern "C" fn($($ty),*) -> u32 =
            // SAFETY: the symbol's prototype is the one spelled out at the call.
            unsafe { std::mem::transmute($crate::support::symbol(symbol)) };
        #[allow(clippy::macro_metavars_in_unsafe)]
        // SAFETY: the test passes valid pointers.
        unsafe {
            function($($arg),*)
        }
    }};
}

/// The address of an exported symbol.
pub(crate) fn symbol(name: &str) -> *mut c_void {
    let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("ends with NUL");
    // SAFETY: the handle is open for the process's life.
    let address = unsafe { libc::dlsym(library() as *mut c_void, name.as_ptr()) };
    assert!(!address.is_null(), "{name:?} is not exported");
    address
}

fn library() -> usize {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let path = CString::new(path().into_os_string().into_encoded_bytes()).expect("no NUL");
        // SAFETY: opens our own library.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "cannot open {path:?}");
        handle as usize
    })
}

/// Cargo builds the cdylib beside the tests' `deps` directory.
fn path() -> PathBuf {
    let test = std::env::current_exe().expect("own path");
    let deps = test.parent().expect("deps");
    let beside = deps.join("libsoftcuda.so");
    if beside.exists() { beside } else { deps.parent().expect("profile").join("libsoftcuda.so") }
}

/// Initialises the driver and makes a context of its own current; returns its handle.
pub(crate) fn context() -> usize {
    assert_eq!(cu!(cuInit(0 => u32)), 0);
    let mut context = 0usize;
    assert_eq!(cu!(cuCtxCreate_v2(&mut context => *mut usize, 0 => u32, 0 => i32)), 0);
    context
}

/// Loads PTX and returns the function of a name.
pub(crate) fn function(ptx: &str, name: &str) -> usize {
    let text = CString::new(ptx).expect("no NUL");
    let name = CString::new(name).expect("no NUL");
    let (mut module, mut function) = (0usize, 0usize);
    assert_eq!(cu!(cuModuleLoadData(&mut module => *mut usize, text.as_ptr() => *const c_char)), 0);
    assert_eq!(
        cu!(cuModuleGetFunction(&mut function => *mut usize, module => usize, name.as_ptr() => *const c_char)),
        0
    );
    function
}

/// Allocates device memory.
pub(crate) fn allocate(size_bytes: usize) -> u64 {
    let mut address = 0u64;
    assert_eq!(cu!(cuMemAlloc_v2(&mut address => *mut u64, size_bytes => usize)), 0);
    address
}

/// Launches with 64-bit arguments and returns the driver's code.
pub(crate) fn launch(
    function: usize,
    grid: u32,
    block: u32,
    stream: usize,
    arguments: &[u64],
) -> u32 {
    let mut pointers: Vec<*const u64> =
        arguments.iter().map(|argument| argument as *const u64).collect();
    cu!(cuLaunchKernel(
        function => usize,
        grid => u32, 1 => u32, 1 => u32,
        block => u32, 1 => u32, 1 => u32,
        0 => u32,
        stream => usize,
        pointers.as_mut_ptr() => *mut *const u64,
        std::ptr::null_mut() => *mut c_void,
    ))
}

/// Reads 32-bit words of device memory.
pub(crate) fn read(address: u64, count: usize) -> Vec<u32> {
    let mut words = vec![0u32; count];
    let code =
        cu!(cuMemcpyDtoH_v2(words.as_mut_ptr() => *mut u32, address => u64, count * 4 => usize));
    assert_eq!(code, 0);
    words
}

/// Creates a non-blocking stream.
pub(crate) fn stream() -> usize {
    let mut stream = 0usize;
    assert_eq!(cu!(cuStreamCreate(&mut stream => *mut usize, 1 => u32)), 0);
    stream
}

/// Kernels of these tests: `add` adds its second argument to each word, `spin` loops until the word
/// at its argument is not 0, `poke` writes to the address it is given, `trap` traps.
pub(crate) const PTX: &str = r#"
.version 7.0
.target sm_70
.address_size 64

.visible .entry add(.param .u64 p, .param .u64 v)
{
    .reg .u32 %r<6>;
    .reg .u64 %d<4>;
    ld.param.u64 %d1, [p];
    ld.param.u32 %r1, [v];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    mul.wide.u32 %d2, %r2, 4;
    add.u64 %d1, %d1, %d2;
    ld.global.u32 %r5, [%d1];
    add.u32 %r5, %r5, %r1;
    st.global.u32 [%d1], %r5;
    ret;
}

.visible .entry spin(.param .u64 p)
{
    .reg .u32 %r<2>;
    .reg .u64 %d<2>;
    .reg .pred %p<2>;
    ld.param.u64 %d1, [p];
loop:
    ld.volatile.global.u32 %r1, [%d1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra loop;
    ret;
}

.visible .entry poke(.param .u64 p)
{
    .reg .u32 %r<2>;
    .reg .u64 %d<2>;
    ld.param.u64 %d1, [p];
    mov.u32 %r1, 1;
    st.global.u32 [%d1], %r1;
    ret;
}

.visible .entry trap()
{
    trap;
    ret;
}
"#;
