//! Code that sessions of another executor have, loaded ahead by one that stands by: sessions find
//! it among the [spares](crate::code::spares) when they are made again here.
//!
//! A thread of its own loads one image after the other, functions included, and unloads what no
//! session has any more. It stops when the first session comes: what is not loaded by then its
//! session loads. Nobody uses the context before, so that nothing is held up. What no session has
//! found after a while is unloaded in quiet moments, so that an executor holds what lives, whatever
//! lived before.

use crate::Shared;
use crate::code::images;
use crate::code::link_texts::is_linked;
use crate::code::spares::{MAX_SPARE_BYTES, Origin};
use crate::session::charges::module_bytes;
use cuda_abi::image::Image;
use cuda_abi::types::*;
use executor_link::log::log_server;
use executor_link::messages::CodeOptions;
use rustix::fd::{AsFd, OwnedFd};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Functions of one image that are loaded ahead.
const MOST_FUNCTIONS: u32 = 256;
/// After the first session came: by then all have been made again that are to be.
const LINGERS: Duration = Duration::from_secs(5);
/// So long a quiet moment is waited for.
const MOST_WAIT: Duration = Duration::from_millis(20);
/// Between two unloads beside sessions.
const BREATH: Duration = Duration::from_millis(20);

/// What the thread is to do with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// A session has it.
    Load,
    /// One session less has it.
    Unload,
}

type Wish = (Order, CodeOptions, OwnedFd);

/// The thread's other end.
pub(crate) struct Warming {
    images: Option<Sender<Wish>>,
    ends: Arc<AtomicBool>,
}

impl Warming {
    /// A thread that waits for images.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self, String> {
        let (sender, images) = channel();
        let ends = Arc::<AtomicBool>::default();
        let (shared, told) = (Arc::clone(shared), Arc::clone(&ends));
        let thread = std::thread::Builder::new().name("warming".into());
        thread
            .spawn(move || run(&shared, &images, &told))
            .map_err(|error| format!("cannot start the warming thread: {error}"))?;
        Ok(Self { images: Some(sender), ends })
    }

    /// Has an image loaded, or unloaded.
    pub(crate) fn order(&self, order: Order, options: CodeOptions, file: Option<OwnedFd>) {
        if let Some((images, file)) = self.images.as_ref().zip(file) {
            let _ = images.send((order, options, file));
        }
    }

    /// The first session comes.
    pub(crate) fn end(&mut self) {
        // Relaxed: a wish; the image in hand is loaded all the same.
        self.ends.store(true, Ordering::Relaxed);
        self.images = None;
    }
}

fn run(shared: &Shared, images: &Receiver<Wish>, ends: &AtomicBool) {
    if let Err(code) = shared.context.make_current() {
        return log_server!("No code is loaded ahead: {code}");
    }
    while let Ok((order, options, file)) = images.recv() {
        if ends.load(Ordering::Relaxed) {
            break;
        }
        // What cannot be loaded is its session's to find out.
        let _ = match order {
            Order::Load => load(shared, options, &file),
            Order::Unload => unload(shared, options, &file),
        };
    }
    while shared.spares.has_ahead() {
        std::thread::sleep(LINGERS);
        unload_all(shared);
    }
}

/// Unloads what nobody has found, until a quiet moment takes too long to come: nobody is to be held
/// for this again and again.
fn unload_all(shared: &Shared) {
    loop {
        let began = Instant::now();
        let given_up = || began.elapsed() >= MOST_WAIT;
        let quiet =
            shared.context.gate.quiet(&shared.context, "Code that was loaded ahead", given_up);
        let Some(quiet) = quiet else { return };
        let Some(library) = shared.spares.take_back(None) else { return };
        // SAFETY: a live library that nobody has.
        let _ = unsafe { shared.context.driver().cuLibraryUnload(library) };
        drop(quiet);
        std::thread::sleep(BREATH);
    }
}

/// Unloads an image that was loaded ahead, once.
fn unload(shared: &Shared, options: CodeOptions, file: &OwnedFd) -> Result<(), CUresult> {
    let CodeOptions { optimization_level, max_registers } = options;
    let origin = Origin::new(images::read(file.as_fd())?, optimization_level, max_registers, 0);
    let Some(library) = shared.spares.take_back(Some(&origin)) else { return Ok(()) };
    // SAFETY: a live library that nobody has.
    shared.context.check(unsafe { shared.context.driver().cuLibraryUnload(library) })
}

/// Loads an image and all of its functions, as sessions do that ask for them.
fn load(shared: &Shared, options: CodeOptions, file: &OwnedFd) -> Result<(), CUresult> {
    let image = images::read(file.as_fd())?;
    if image.len() as u64 > MAX_SPARE_BYTES || is_linked(&image) || Image::parse(&image).is_err() {
        return Ok(());
    }
    let CodeOptions { optimization_level, max_registers } = options;
    let (driver, context) = (shared.context.driver(), &shared.context);
    let (mut names, mut values) = (Vec::new(), Vec::<*mut c_void>::new());
    let mut option = |name, value: u32| {
        names.push(name);
        values.push(ptr::without_provenance_mut(value as usize));
    };
    if optimization_level != u32::MAX {
        option(CUjit_option::OPTIMIZATION_LEVEL, optimization_level);
    }
    if max_registers != 0 {
        option(CUjit_option::MAX_REGISTERS, max_registers);
    }
    let loaded_bytes = module_bytes(&image);
    let mut origin = Origin::new(image.clone(), optimization_level, max_registers, loaded_bytes);
    // Room for a NUL after PTX text, and for readers that look a little further.
    let mut code = image;
    code.resize(code.len() + 64, 0);
    let mut library = CUlibrary::NULL;
    // SAFETY: the image is private, checked and padded; the options are two arrays of one length;
    // `library` is written.
    context.check(unsafe {
        driver.cuLibraryLoadData(
            &mut library,
            code.as_ptr().cast(),
            names.as_mut_ptr(),
            values.as_mut_ptr(),
            names.len() as u32,
            ptr::null_mut(),
            ptr::null_mut(),
            0,
        )
    })?;
    let mut module = CUmodule::NULL;
    // SAFETY: a live library; the result is written.
    match unsafe { driver.cuLibraryGetModule(&mut module, library) } {
        CUresult::SUCCESS | CUresult::ERROR_NOT_SUPPORTED => {}
        other => {
            // SAFETY: a live library that nothing names.
            let _ = unsafe { driver.cuLibraryUnload(library) };
            return context.check(other);
        }
    }
    load_functions(shared, library, &mut origin);
    shared.spares.keep_ahead(origin, library).into_iter().for_each(|oldest| {
        // SAFETY: a live library that nobody has.
        let _ = unsafe { driver.cuLibraryUnload(oldest) };
    });
    Ok(())
}

/// Remembers the functions of a library. Where a driver cannot name them, sessions ask for them.
fn load_functions(shared: &Shared, library: CUlibrary, origin: &mut Origin) {
    let driver = shared.context.driver();
    let mut count = 0;
    // SAFETY: a live library; the result is written.
    if !unsafe { driver.cuLibraryGetKernelCount(&mut count, library) }.is_success()
        || count > MOST_FUNCTIONS
    {
        return;
    }
    let mut kernels = vec![CUkernel::NULL; count as usize];
    // SAFETY: room for as many as are asked for.
    if !unsafe { driver.cuLibraryEnumerateKernels(kernels.as_mut_ptr(), count, library) }
        .is_success()
    {
        return;
    }
    for kernel in kernels {
        let (mut name, mut function) = (ptr::null::<c_char>(), CUfunction::NULL);
        // SAFETY: a kernel of a live library; both results are written.
        let known = unsafe {
            driver.cuKernelGetName(&mut name, kernel).is_success()
                && driver.cuKernelGetFunction(&mut function, kernel).is_success()
        };
        if known && !name.is_null() {
            // SAFETY: the driver's own text, which lives with the library.
            let name = unsafe { CStr::from_ptr(name) }.to_owned();
            origin.note(name, kernel, function);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed;
    use crate::testbed::{Bed, CODE};

    #[test]
    fn a_session_loads_nothing_that_was_loaded_ahead() {
        const DEFAULT: CodeOptions = CodeOptions { optimization_level: u32::MAX, max_registers: 0 };
        let bed = Bed::new();
        let file = images::write(CODE).unwrap();
        load(&bed.shared, DEFAULT, &file).unwrap();
        let ahead = testbed::loaded();
        let first = bed.open();
        assert_eq!(testbed::loaded(), ahead, "code and function were there");
        // The next one loads its own, and its function.
        let second = bed.open();
        assert_eq!(testbed::loaded(), ahead + 2);
        drop((first, second));
        // What its session has no more is not there for another one.
        load(&bed.shared, DEFAULT, &file).unwrap();
        let _ = unload(&bed.shared, DEFAULT, &file);
        let ahead = testbed::loaded();
        drop(bed.open());
        assert_eq!(testbed::loaded(), ahead + 2, "it was unloaded");
        let other = CodeOptions { max_registers: 32, ..DEFAULT };
        load(&bed.shared, other, &file).unwrap();
        let ahead = testbed::loaded();
        drop(bed.open());
        assert_eq!(testbed::loaded(), ahead + 2, "it was loaded otherwise");
    }

    #[test]
    fn what_is_no_code_is_not_loaded() {
        let bed = Bed::new();
        let before = testbed::loaded();
        let linked = [CODE, link::wire::command::LINKED_TEXTS.as_bytes(), CODE].concat();
        for image in [&b"\x7fELF"[..], &linked, &vec![b' '; MAX_SPARE_BYTES as usize + 1]] {
            let file = images::write(image).unwrap();
            let options = CodeOptions { optimization_level: 4, max_registers: 0 };
            let _ = load(&bed.shared, options, &file);
        }
        assert_eq!(testbed::loaded(), before);
    }
}
